"""Staged files, rolling files and the buffer before them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.staged.writing import BUFFER_BYTES_MAX, GROUP_ROWS, EncodedRows, WriteBuffer
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import WORKER, context, everything, write


def pre_committed(folder: Path, snapshot: str = "s1", *, worker: int = 0, number: int = 1) -> bytes:
    """The payload of a worker that wrote one row, pre-committed it and was closed."""
    writer = Files(folder, format="json").open(WorkerInfo("job", "out", WorkerId(worker)))
    writer.write(Batch([{"n": number}]))
    payload = writer.pre_commit(context(snapshot))
    writer.close()
    return payload


def test_a_run_that_is_aborted_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    sink = Files(tmp_path / "new" / "out", format="json")
    writer = sink.open(WORKER)
    writer.write(Batch([{"n": 1}]))
    sink.abort(context(), [writer.pre_commit(context())])
    writer.close()
    assert everything(tmp_path) == []


def test_recovery_clears_what_this_step_left_and_nothing_else(tmp_path: Path) -> None:
    kept = pre_committed(tmp_path, "kept")
    pre_committed(tmp_path, "dropped")
    killed = tmp_path / "_staging" / "job" / "out" / "0123456789abcdef"
    killed.mkdir()
    (killed / "open-0.json").touch()
    other_step = Files(tmp_path, format="json", file_bytes_max=1).open(WorkerInfo("job", "other", WorkerId(0)))
    other_step.write(Batch([{"n": 2}]))
    sink = Files(tmp_path, format="json")
    sink.recover(context("s9"), [SnapshotId("kept")])
    left = sorted(Path(name).name for name in everything(tmp_path) if name.endswith(".json"))
    assert left == ["kept-0.json", "open-0.json"]
    sink.commit(context("kept"), [kept])
    other_step.close()
    assert everything(tmp_path) == ["out-kept-00000.json"]


def test_recovery_leaves_a_run_under_way_alone(tmp_path: Path) -> None:
    sink, other = Files(tmp_path, format="json", file_bytes_max=1), Files(tmp_path, format="json")
    writer = sink.open(WORKER)
    for snapshot in ("s1", "s2"):  # The second time its folder was removed and made again.
        writer.write(Batch([{"n": 1}]))
        other.recover(context("s8"), [])
        payload = writer.pre_commit(context(snapshot))
        other.recover(context("s9"), [])
        sink.commit(context(snapshot), [payload])
    writer.close()
    assert everything(tmp_path) == ["out-s1-00000.json", "out-s2-00000.json"]


def test_two_runs_of_a_step_write_into_one_folder(tmp_path: Path) -> None:
    first = Files(tmp_path, format="json").open(WORKER)
    first.write(Batch([{"n": 1}]))
    write(tmp_path, [{"n": 2}], format="json")
    Files(tmp_path, format="json").commit(context("s2"), [first.pre_commit(context("s2"))])
    first.close()
    assert everything(tmp_path) == ["out-s1-00000.json", "out-s2-00000.json"]


def test_staging_that_something_else_removed_is_told(tmp_path: Path) -> None:
    writer = Files(tmp_path, format="json", file_bytes_max=1).open(WORKER)
    writer.write(Batch([{"n": 1}]))
    shutil.rmtree(tmp_path / "_staging")
    with pytest.raises(SinkError, match="another program removed a file"):
        writer.pre_commit(context())
    writer.close()
    assert everything(tmp_path) == []


def test_a_writer_goes_on_though_a_commit_removed_its_empty_folder(tmp_path: Path) -> None:
    sink = Files(tmp_path, format="json")
    writer = sink.open(WORKER)
    for snapshot in ("s1", "s2"):
        writer.write(Batch([{"n": 1}]))
        sink.commit(context(snapshot), [writer.pre_commit(context(snapshot))])
        assert not (tmp_path / "_staging").exists()
    writer.close()
    assert everything(tmp_path) == ["out-s1-00000.json", "out-s2-00000.json"]


@pytest.mark.parametrize("linked", ["_staging", "_staging/job", "_staging/job/out"])
def test_staging_through_a_link_is_refused(linked: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "job" / "out").mkdir(parents=True)
    (elsewhere / "keep").touch()
    root = tmp_path / "out"
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(elsewhere)
    sink = Files(root)
    with pytest.raises(SinkError, match="symbolic link"):
        sink.open(WORKER)
    with pytest.raises(SinkError, match="symbolic link"):
        sink.recover(context(), [])
    assert (elsewhere / "keep").exists()


def test_recovery_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").touch()
    run = tmp_path / "out" / "_staging" / "job" / "out" / "run"
    run.mkdir(parents=True)
    (run / "open-0.json").symlink_to(elsewhere)
    (run.parent / "link").symlink_to(elsewhere)
    Files(tmp_path / "out").recover(context(), [])
    assert everything(tmp_path) == ["elsewhere", "elsewhere/keep", "out"]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"files": 5}',
        b'{"files": ["../../etc/passwd"]}',
        b'{"files": ["_staging/job/out/../../../x.json"]}',
        b'{"files": ["_staging/other/out/0123456789abcdef/s1-0.json"]}',
        b'{"files": ["/etc/passwd"]}',
        b'{"files": [5]}',
    ],
)
def test_a_damaged_payload_is_refused(payload: bytes, tmp_path: Path) -> None:
    sink = Files(tmp_path, format="json")
    for use in (sink.commit, sink.abort):
        with pytest.raises(SinkError, match="payload of step 'out'"):
            use(context(), [payload])


@pytest.mark.parametrize("name", ["..", "a/b", "", "a b", "x" * 65])
def test_names_that_are_no_file_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="file name"):
        Files(tmp_path).open(WorkerInfo(name, "out", WorkerId(0)))


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for uri in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SinkError, match="a file is in the place of a folder"):
            Files(uri).open(WORKER)


def test_staged_files_are_for_this_user_alone(tmp_path: Path) -> None:
    pre_committed(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def piece(folder: str, content: str, *, rows: int = 1, bytes: int = 10) -> EncodedRows[str]:
    return EncodedRows(folder, content, rows, bytes)


def merged(folder: str, contents: Sequence[str]) -> EncodedRows[str]:
    return EncodedRows(folder, "".join(contents), len(contents), len("".join(contents)))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=300), st.integers(1, 2000))
def test_what_is_taken_is_what_was_held_in_order(pieces: list[tuple[str, int]], group_bytes: int) -> None:
    held, written = WriteBuffer(merged), dict.fromkeys("ab", "")
    for folder, number in pieces:
        due = held.add(piece(folder, str(number)), group_bytes=group_bytes)
        if due is not None:
            written[due] += "".join(held.take(due))
    for folder in held:
        written[folder] += "".join(held.take(folder))
    assert written == {folder: "".join(str(n) for name, n in pieces if name == folder) for folder in "ab"}
    assert list(held) == []


def test_a_folder_is_due_by_its_bytes_or_its_rows() -> None:
    held = WriteBuffer(merged)
    assert held.add(piece("a", "x", bytes=99), group_bytes=100) is None
    assert held.add(piece("b", "x", bytes=99), group_bytes=100) is None
    assert held.add(piece("a", "x", bytes=1), group_bytes=100) == "a"
    assert held.take("a") == ["x", "x"]
    assert held.add(piece("b", "x", rows=GROUP_ROWS, bytes=0), group_bytes=100) == "b"


def test_beyond_the_bound_of_all_the_largest_is_due() -> None:
    held = WriteBuffer(merged)
    half = BUFFER_BYTES_MAX // 2
    assert held.add(piece("a", "x", bytes=half), group_bytes=BUFFER_BYTES_MAX) is None
    assert held.add(piece("b", "x", bytes=half - 1), group_bytes=BUFFER_BYTES_MAX) is None
    assert held.add(piece("c", "x", bytes=2), group_bytes=BUFFER_BYTES_MAX) == "a"
    held.take("a")
    assert held.add(piece("c", "x", bytes=2), group_bytes=BUFFER_BYTES_MAX) is None
    held.clear()
    assert held.add(piece("c", "x", bytes=BUFFER_BYTES_MAX - 1), group_bytes=BUFFER_BYTES_MAX) is None


def test_many_small_pieces_become_few() -> None:
    held = WriteBuffer(merged)
    for _ in range(10_000):
        held.add(piece("a", "x"), group_bytes=BUFFER_BYTES_MAX)
    assert len(held.take("a")) < 128
