"""Snapshots in a folder and in an object store: permissions, links, full disks, and messages that name the place."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore, SystemDisk
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.store import place_of
from malstrom_py.testing import VirtualClock
from tests.unit.snapshot.forgetful_disk import EVERYTHING, NOTHING, ForgetfulDisk
from tests.unit.snapshot.oracle import NEW, OLD, on, with_two
from tests.unit.snapshot.taken import JOB, Start, manifest, restored


def rights(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_folders_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    LocalStore(tmp_path / "made" / "store").put("orders/log/1.json", b"one")
    assert rights(tmp_path / "made") == rights(tmp_path / "made/store") == "700"
    assert rights(tmp_path / "made/store/orders/log") == "700"
    assert rights(tmp_path / "made/store/orders/log/1.json") == "600"


def test_pieces_are_one_file_and_a_subclass_writes_them_its_own_way(tmp_path: Path) -> None:
    class Reversed(LocalStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data[::-1])

    for kind, contents in ((LocalStore, b"onetwo"), (Reversed, b"owteno")):
        store = kind(tmp_path)
        store.put_pieces("orders/1", [b"one", b"", b"two"])
        assert store.get("orders/1") == contents


@pytest.mark.parametrize("linked", ["orders", "orders/log"])
def test_no_link_to_a_folder_is_followed(tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "log").mkdir(parents=True)
    (elsewhere / "1.json").write_bytes(b"secret")
    (elsewhere / "log/1.json").write_bytes(b"secret")
    link = tmp_path / "store" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    store = LocalStore(tmp_path / "store")
    for tried in (
        lambda: store.put("orders/log/2.json", b"x"),
        lambda: store.create("orders/log/2.json", b"x"),
        lambda: store.delete("orders/log/1.json"),
    ):
        with pytest.raises(SnapshotError, match=r"cannot be (written|removed)"):
            tried()
    with pytest.raises((SnapshotError, FileNotFoundError)):
        store.get("orders/log/1.json")
    assert store.list("") == []
    assert sorted(path.name for path in elsewhere.rglob("*")) == ["1.json", "1.json", "log"]


def test_no_link_to_a_file_is_read_and_one_is_replaced_itself(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = LocalStore(tmp_path / "store")
    store.put("orders/other", b"one")
    (tmp_path / "store/orders/_latest").symlink_to(secret)
    with pytest.raises(SnapshotError, match="cannot be read"):
        store.get("orders/_latest")
    assert not store.create("orders/_latest", b"two")
    store.put("orders/_latest", b"two")
    assert (secret.read_bytes(), store.get("orders/_latest")) == (b"secret", b"two")


def test_a_root_that_is_a_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        SnapshotError, match=r"/proc/nope/orders/_latest cannot be written: its folder cannot be made\. Give"
    ):
        LocalStore("/proc/nope").put("orders/_latest", b"one")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(SnapshotError, match=r"_latest cannot be written: there is a file where a folder is needed"):
            LocalStore(root).put("orders/_latest", b"one")
        with pytest.raises(SnapshotError, match=r"_latest cannot be read: there is a file where a folder is needed"):
            LocalStore(root).get("orders/_latest")


def test_a_folder_that_another_process_removed_is_made_again(tmp_path: Path) -> None:
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    store.put("orders/commits/a", b"")
    other.delete("orders/commits/a")
    store.put("orders/commits/b", b"")
    assert store.list("") == ["orders/commits/b"]


def attempted(start: Start) -> tuple[Manifest | None, SnapshotError | None]:
    """Try to commit a snapshot; return the manifest, if it exists, and the error."""
    made = None
    try:
        id = start.new_id()
        made = manifest(id, start.claim, start.sequence + 1, start.save(id, [b"new 0", b"new 1"]))
        start.checkpointer.save_manifest(made)
    except SnapshotError as error:
        return made, error
    return made, None


@pytest.mark.parametrize("permanently", [False, True], ids=["once", "permanently"])
@pytest.mark.parametrize("fails", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_s3_a_disk_that_fails_at_any_operation_is_an_error_and_the_old_snapshot_stays(
    fails: int, permanently: bool
) -> None:
    operations = 0
    while True:
        disk = ForgetfulDisk()
        start = with_two(on(disk))
        old = start.last
        disk.fails, disk.permanently, operations = fails, permanently, operations + 1
        disk.fails_at = len(disk.journal) + operations
        new, error = attempted(start)
        if len(disk.journal) < disk.fails_at:
            break
        disk.fails_at = 0
        assert error is None or "cannot be written" in str(error)
        for again in (on(disk), on(disk.go_down(NOTHING)), on(disk.go_down(EVERYTHING))):
            found, _ = latest_manifest(again, job=JOB)
            # If the disk fails permanently, the entry to be removed may still exist.
            assert found == new if error is None else (found == old or permanently)
            assert found is not None
            assert restored(again, found) == (OLD if found == old else NEW)
        if error is not None:
            if new is not None:
                start.commit(new)
            start.take(b"once there is room")
            assert latest_manifest(start.checkpointer, job=JOB) == (start.last, [])
            assert latest_manifest(on(disk.go_down(NOTHING)), job=JOB) == (start.last, [])
    assert operations > 15


def test_what_was_left_half_written_is_not_read_and_goes_when_it_is_old() -> None:
    disk = ForgetfulDisk()
    start = with_two(on(disk))
    id = start.new_id()
    disk.fails_at, disk.permanently = len(disk.journal) + 4, True
    with pytest.raises(SnapshotError):
        start.save(id, [b"half"])
    disk.fails_at = 0
    left = [path for path in start.checkpointer.files() if path.endswith(".part")]
    assert len(left) == 1
    newest = start.take(b"whole")
    assert latest_manifest(start.checkpointer, job=JOB) == (newest, [])
    start.checkpointer.prune(3, 3600.0, start.now_s + 1.0)
    assert set(left) <= set(start.checkpointer.files())
    start.checkpointer.prune(3, 3600.0, start.now_s + 7200.0)
    assert not set(left) & set(start.checkpointer.files())


def test_a_start_on_the_disk_of_this_machine(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path / "store"))
    checkpointer = StoreCheckpointer(LocalStore(tmp_path / "store", disk=disk), JOB)
    start = with_two(checkpointer)
    start.take(b"third")
    checkpointer.prune(1, 0.0, start.now_s + 1e6)
    again = Start(StoreCheckpointer(LocalStore(tmp_path / "store"), JOB))
    assert latest_manifest(again.checkpointer, job=JOB) == (start.last, [])
    kept = sorted(path.name for path in (tmp_path / "store" / JOB / "artefacts").iterdir())
    assert kept == start.ids[-1:]


def test_a_store_that_fails_names_the_path_and_what_it_said(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri())
    store.put("orders/log/1.json", b"one")
    with pytest.raises(SnapshotError, match=r"orders/log cannot be written: .*Is a directory.*credentials") as raised:
        store.put("orders/log", b"a file where a folder is")
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("url", ["nothing://bucket", "no url"])
def test_what_is_no_store_is_told_when_it_is_used(url: str) -> None:
    with pytest.raises(PlanError, match=f"snapshots at {url}: the store cannot be opened"):
        ObjectStore(url).put("orders/_latest", b"")


def test_options_that_there_are_not_are_told() -> None:
    with pytest.raises(PlanError, match="s3://bucket: the store cannot be opened") as raised:
        ObjectStore("s3://bucket", options={"colour": "hush"}).get("orders/_latest")
    assert "hush" not in str(raised.value)


def test_without_obstore_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(PlanError, match=r"pip install 'obstore>=0\.6'"):
        ObjectStore("s3://bucket").get("orders/_latest")


def run(folder: Path, *, resume: str = "latest") -> None:
    job = mp.Job("orders")
    job.source("in", sources.Memory([1, 2])).key_by("k", str).count("n").sink("out", sinks.Memory())
    mp.run(job, clock=VirtualClock(), snapshots=mp.Snapshots(folder), resume=resume)


def damage(folder: Path, below: str, *, remove: bool) -> None:
    for path in [path for path in (folder / "orders" / below).rglob("*") if path.is_file()]:
        if remove:
            path.unlink()
        else:
            path.write_bytes(b"?" + path.read_bytes()[1:])


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("below", ["log", "artefacts"])
def test_what_cannot_be_gone_on_from_is_told_once_and_by_its_folder(below: str, remove: bool, tmp_path: Path) -> None:
    run(tmp_path)
    damage(tmp_path, below, remove=remove)
    with pytest.raises(mp.SnapshotError) as raised:
        run(tmp_path)
    message = str(raised.value)
    assert f" in {tmp_path}" in message
    assert not re.search(r"Store|Posix|[A-Z]\w+\(", message)
    ids = re.findall(r"\d{8}T\d{12}Z-[0-9a-f]{8}", message)
    assert len(ids) == len(set(ids)) <= 1


def test_a_path_that_was_given_as_a_path_is_shown_as_one(tmp_path: Path) -> None:
    with pytest.raises(mp.PlanError, match=f"options are for object stores, and '{tmp_path}' is a folder"):
        mp.Snapshots(tmp_path, options={"region": "x"}).store()


def test_a_place_says_no_more_than_where_it_is() -> None:
    class Own:
        pass

    assert place_of(ObjectStore("s3://bucket/x", options={"aws_secret_access_key": "hush"})) == "s3://bucket/x"
    assert place_of(Own()) == "Own"


def test_pieces_that_fail_leave_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise SnapshotError("no more")

    store = LocalStore(tmp_path)
    with pytest.raises(SnapshotError, match="no more"):
        store.put_pieces("orders/1", pieces())
    assert store.list("") == []
