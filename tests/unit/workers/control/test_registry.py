"""The files of control sockets: in a folder of this user's alone, and held by one job per name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from malstrom_py.errors import ControlError, JobRunning
from malstrom_py.workers.control.registry import (
    SOCKET_PATH_BYTES_MAX,
    NameClaim,
    check_directory,
    names_in,
    places,
    read_token,
    server_directory,
    socket_path,
    token_path,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "malstrom"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_folder_is_made_below_the_users_runtime_directory_for_nobody_else(runtime: Path) -> None:
    umask = os.umask(0)
    try:
        made = server_directory()
    finally:
        os.umask(umask)
    assert made == runtime / "malstrom"
    assert made.stat().st_mode & 0o777 == 0o700
    assert server_directory() == made


@pytest.mark.parametrize("value", ["", "relative/folder", "/no/such/folder"])
def test_without_a_runtime_directory_it_is_a_temporary_one_with_the_users_number(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    assert places() == [Path(tempfile.gettempdir()) / f"malstrom-{os.geteuid()}"]


def test_the_runtime_directory_of_another_user_is_not_used(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert places()[0] == runtime / "malstrom"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert places() == [Path(tempfile.gettempdir()) / "malstrom-4711"]


def test_a_folder_that_belongs_to_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_directory(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ControlError, match=r"belongs to user .*set XDG_RUNTIME_DIR"):
        check_directory(folder)


@pytest.mark.parametrize("rights", [0o777, 0o750, 0o701, 0o1777])
def test_a_folder_that_others_may_look_into_is_refused(rights: int, runtime: Path) -> None:
    (runtime / "malstrom").mkdir()
    (runtime / "malstrom").chmod(rights)
    with pytest.raises(ControlError, match="is open to others"):
        server_directory()


def test_a_link_or_a_file_instead_of_the_folder_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (runtime / "malstrom").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ControlError, match="is not a folder"):
        server_directory()
    (runtime / "malstrom").unlink()
    (runtime / "malstrom").touch()
    with pytest.raises(ControlError, match=r"cannot be made|is not a folder"):
        server_directory()


def test_a_socket_has_the_name_of_its_job_or_a_digest_where_the_path_would_be_too_long() -> None:
    short = Path("/run/user/1000/malstrom")
    assert socket_path(short, "a" * 64) == short / f"{'a' * 64}.sock"
    long = Path("/", "x" * 60)
    assert socket_path(long, "job") == long / "job.sock"
    paths = {socket_path(long, letter * 64) for letter in "ab"}
    assert len(paths) == 2
    assert all(len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX and path.name.startswith(".") for path in paths)
    with pytest.raises(ControlError, match="too long a path for a socket"):
        socket_path(Path("/", "x" * 100), "job")


def test_a_claim_holds_the_name_and_leaves_nothing(folder: Path) -> None:
    claim = NameClaim.of(folder, "job")
    assert read_token(folder, "job") is None, "no token before the socket listens"
    claim.publish()
    claim.socket_path.touch()
    assert read_token(folder, "job") == claim.token
    assert token_path(folder, "job").stat().st_mode & 0o777 == 0o600
    with pytest.raises(JobRunning, match=f"a job 'job' runs already in process {os.getpid()}: .*malstrom stop job"):
        NameClaim.of(folder, "job")
    claim.release()
    claim.release()
    assert list(folder.iterdir()) == []
    again = NameClaim.of(folder, "job")
    assert again.token != claim.token
    again.release()


def test_names_do_not_get_in_each_others_way(folder: Path) -> None:
    claims = [NameClaim.of(folder, name) for name in ("a", "b")]
    for claim in claims:
        claim.publish()
    assert names_in(folder) == ["a", "b"]
    claims[0].release()
    assert names_in(folder) == ["b"]
    assert read_token(folder, "b") == claims[1].token
    claims[1].release()


def test_what_a_dead_process_left_is_taken_over(folder: Path) -> None:
    token_path(folder, "job").write_text(f"{'x' * 43}\n4711\n")
    token_path(folder, "job").chmod(0o644)
    socket_path(folder, "job").touch()
    claim = NameClaim.of(folder, "job")
    assert read_token(folder, "job") is None
    assert not claim.socket_path.exists()
    claim.publish()
    assert token_path(folder, "job").stat().st_mode & 0o777 == 0o600
    assert read_token(folder, "job") == claim.token
    claim.release()


def test_a_claim_removes_nothing_that_is_not_its_own_any_more(folder: Path) -> None:
    old = NameClaim.of(folder, "job")
    token_path(folder, "job").unlink()
    new = NameClaim.of(folder, "job")
    new.publish()
    old.release()
    assert read_token(folder, "job") == new.token
    new.release()


def test_a_forked_process_lets_go_and_removes_nothing(folder: Path) -> None:
    claim = NameClaim.of(folder, "job")
    claim.publish()
    claim.forget()
    claim.release()
    assert names_in(folder) == ["job"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"short\n1\n", b"a" * 43, b"a" * 43 + b"\nx\n", b"a" * 10_000])
def test_a_token_that_is_none_is_not_read(content: bytes, folder: Path) -> None:
    token_path(folder, "job").write_bytes(content)
    assert read_token(folder, "job") is None


def test_no_link_is_followed_to_a_token(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{'x' * 43}\n1\n")
    token_path(folder, "job").symlink_to(tmp_path / "secret")
    assert read_token(folder, "job") is None
    with pytest.raises(ControlError, match="cannot be opened"):
        NameClaim.of(folder, "job")
    assert (tmp_path / "secret").read_text().startswith("x")


def test_a_pipe_instead_of_a_token_holds_nobody_up(folder: Path) -> None:
    os.mkfifo(token_path(folder, "job"))
    assert read_token(folder, "job") is None


def test_only_what_can_be_the_name_of_a_job_is_one(folder: Path) -> None:
    for name in ("good_1-A.token", ".hidden.token", "two words.token", "a.b.token", "job.sock", f"{'a' * 65}.token"):
        (folder / name).touch()
    assert names_in(folder) == ["good_1-A"]
    assert names_in(folder / "nowhere") == []
