"""Commits of files: idempotent, undone as a whole, by snapshots."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.staged.payloads import unpack
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import READERS, context, everything, visible

ROWS = [{"a": a, "b": b, "n": n} for n, (a, b) in enumerate([(1, "x"), (1, "y"), (2, "x"), (None, "a/b")])]


def sink(folder: Path) -> Files:
    return Files(folder, format="json", partition_by=["a", "b"])


def pre_committed(folder: Path, snapshot: str = "s1", *, worker: int = 0) -> bytes:
    writer = sink(folder).open(WorkerInfo("job", "out", WorkerId(worker)))
    writer.write(Batch(ROWS))
    payload = writer.pre_commit(context(snapshot))
    writer.close()
    return payload


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): (folder / path).read_bytes() for path in visible(folder)}


@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_file_where_a_folder_is_needed_stops_the_commit(is_aborted: bool, tmp_path: Path) -> None:
    payload = pre_committed(tmp_path)
    (tmp_path / "a=2").touch()
    with pytest.raises(SinkError, match="a file is in the place of a folder"):
        sink(tmp_path).commit(context(), [payload])
    if is_aborted:
        sink(tmp_path).abort(context(), [payload])
        assert everything(tmp_path) == ["a=2"]
        return
    (tmp_path / "a=2").unlink()
    sink(tmp_path).commit(context(), [payload])
    assert len(visible(tmp_path)) == 4


@pytest.mark.parametrize("linked", ["a=2", "a=1/b=y"])
def test_no_commit_goes_through_a_link(linked: str, tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    payload = pre_committed(out)
    (out / linked).parent.mkdir(exist_ok=True)
    (out / linked).symlink_to(elsewhere)
    with pytest.raises(SinkError, match="symbolic link") as raised:
        sink(out).commit(context(), [payload])
    sink(out).abort(context(), [payload])
    assert visible(out) == []
    assert (out / linked).is_symlink()
    assert everything(elsewhere) == []
    assert "b=y" not in str(raised.value)  # a folder's name is a value


def test_a_file_that_is_gone_or_in_the_way_stops_the_commit_before_anything_moves(tmp_path: Path) -> None:
    payload = pre_committed(tmp_path)
    in_the_way = tmp_path / "a=2" / "b=x" / "out-s1-00002.json"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with pytest.raises(SinkError, match=r"out-s1-00002\.json already exists"):
        sink(tmp_path).commit(context(), [payload])
    assert visible(tmp_path) == [in_the_way.relative_to(tmp_path)]
    in_the_way.unlink()
    (tmp_path / unpack(context(), [payload])[3].name).unlink()
    with pytest.raises(SinkError, match="was removed before its commit"):
        sink(tmp_path).commit(context(), [payload])
    assert visible(tmp_path) == []


def test_a_folder_that_another_commit_took_back_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pre_committed(tmp_path)
    replace = Path.replace
    taken: list[Path] = []

    def replace_after_removal(self: Path, target: Path) -> Path:
        if len(taken) < 3:
            taken.append(target)
            shutil.rmtree(target.parent)
        return replace(self, target)

    # Another process that removes the folder right between its making and the rename cannot be had on purpose.
    monkeypatch.setattr(Path, "replace", replace_after_removal)
    sink(tmp_path).commit(context(), [payload])
    assert len(taken) == 3
    assert len(visible(tmp_path)) == 4


def test_names_that_the_file_system_takes_for_one_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pre_committed(tmp_path)
    (tmp_path / "A=2").mkdir()
    mkdir = os.mkdir

    def mkdir_of_any_case(path: Any, mode: int = 0o777) -> None:
        if Path(path).name == "a=2":
            raise FileExistsError(path)
        mkdir(path, mode)

    # Folders on Linux distinguish case; this one does not.
    monkeypatch.setattr(os, "mkdir", mkdir_of_any_case)
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    with pytest.raises(SinkError, match="treats two partitions as one"):
        sink(tmp_path).commit(context(), [payload])
    monkeypatch.undo()
    sink(tmp_path).abort(context(), [payload])
    assert everything(tmp_path) == ["A=2"]


def test_an_abort_leaves_a_file_of_that_name_which_it_has_not_moved(tmp_path: Path) -> None:
    payload = pre_committed(tmp_path)
    of_another = tmp_path / "a=2" / "b=x" / "out-s1-00002.json"
    of_another.parent.mkdir(parents=True)
    of_another.touch()
    sink(tmp_path).abort(context(), [payload])
    assert visible(tmp_path) == [of_another.relative_to(tmp_path)]


STAGED = "_staging/job/out/0123456789abcdef/s1-0.json"


@pytest.mark.parametrize(
    "folder", ["..", ".", "/", "/a=1", "a=1/", "a=1//b=2", "a=1/../b=2", "a", "a=1/b", "a=\0", 5, None, ["a=1"]]
)
def test_a_payload_that_names_a_folder_elsewhere_is_refused(folder: Any, tmp_path: Path) -> None:
    for named in ({"files": [STAGED], "folders": [folder]}, {"files": [STAGED], "folders": []}, {"files": [STAGED]}):
        with pytest.raises(SinkError, match="payload of step 'out'"):
            sink(tmp_path).commit(context(), [json.dumps(named).encode()])


SNAPSHOTS = ("s1", "s2", "s3")
COMMITTED = [SnapshotId("s1"), SnapshotId("s2")]
KINDS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "csv": {"format": "csv", "file_bytes_max": 1},
    "parquet": {"format": "parquet", "partition_by": "part"},
}


def rows_of(snapshot: str, worker: int) -> list[dict[str, Any]]:
    return [{"n": f"{snapshot}-{worker}-{row}", "part": row} for row in range(2)]


def written(*snapshots: str) -> list[str]:
    return [row["n"] for snapshot in snapshots for worker in range(2) for row in rows_of(snapshot, worker)]


class Case:
    """Two workers have pre-committed three snapshots, of which two have manifests; then all died."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self._folder = folder
        self._made = 0
        self.payloads: dict[str, list[bytes]] = {snapshot: [] for snapshot in SNAPSHOTS}
        for number in range(2):
            writer = self.sink(folder / "0").open(WorkerInfo("job", "out", WorkerId(number)))
            for snapshot in SNAPSHOTS:
                writer.write(Batch(rows_of(snapshot, number)))
                self.payloads[snapshot].append(writer.pre_commit(context(snapshot, final=False)))
            writer.close()

    def again(self) -> Path:
        self._made += 1
        shutil.copytree(self._folder / "0", self._folder / str(self._made))
        return self._folder / str(self._made)

    def sink(self, folder: Path) -> Files:
        return Files(folder, **KINDS[self.kind])

    def commit(self, folder: Path, *snapshots: str) -> None:
        for snapshot in snapshots:
            self.sink(folder).commit(context(snapshot, final=False), self.payloads[snapshot])

    def recover(self, folder: Path) -> None:
        self.sink(folder).recover(context("s4"), COMMITTED)

    def there(self, folder: Path) -> list[str]:
        return sorted(n for name in visible(folder) for n in READERS[self.kind](folder / name)["n"].to_list())

    def has_gone_on(self, folder: Path) -> None:
        """As a start after the death does: recover, commit what has a manifest, continue."""
        self.recover(folder)
        self.commit(folder, "s1", "s2")
        assert self.there(folder) == sorted(written("s1", "s2"))
        assert [name for name in everything(folder) if "_staging" in name] == []
        recorded = read_output(folder, "job")
        assert sorted(recorded.outputs["out"].files) == sorted(map(str, visible(folder)))
        assert (recorded.snapshot, recorded.final) == ("s2", False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_belongs_to_manifests_waits_for_its_commit_and_the_rest_goes(kind: str, tmp_path: Path) -> None:
    case = Case(tmp_path, kind)
    folder = case.again()
    case.recover(folder)
    left = [name for name in everything(folder) if Path(name).suffix]
    assert {Path(name).name.partition("-")[0] for name in left} == {"s1", "s2"}
    case.has_gone_on(folder)
    case.has_gone_on(folder)


def test_a_recovery_that_was_delayed_keeps_what_a_later_start_has_written(tmp_path: Path) -> None:
    payload, later = pre_committed(tmp_path, "s3"), sink(tmp_path)
    left = everything(tmp_path)
    later.recover(context("s2"), [SnapshotId("s1")])
    later.recover(context("s2"), [])
    assert everything(tmp_path) == left
    later.recover(context("s4"), [SnapshotId("s3")])
    later.commit(context("s3", final=False), [payload])
    record = read_output(tmp_path, "job")
    later.recover(context("s2"), [])
    assert read_output(tmp_path, "job") == record
    assert len(visible(tmp_path)) == 4


def test_what_is_taken_away_once_it_was_visible_is_not_missed(tmp_path: Path) -> None:
    case = Case(tmp_path, "parquet")
    folder = case.again()
    case.commit(folder, "s1")
    for name in visible(folder):
        (folder / name).unlink()
    case.recover(folder)
    case.commit(folder, "s1", "s2")
    assert case.there(folder) == sorted(written("s2"))


def test_the_record_has_all_snapshots_of_a_run_and_begins_anew_with_the_job(tmp_path: Path) -> None:
    case = Case(tmp_path, "json")
    folder = case.again()
    case.commit(folder, "s1")
    case.sink(folder).recover(context("s2"), [SnapshotId("s1"), SnapshotId("s2"), SnapshotId("s3")])
    case.commit(folder, "s2")
    case.sink(folder).commit(context("s3"), case.payloads["s3"])
    whole = read_output(folder, "job")
    assert (whole.snapshot, whole.final) == ("s3", True)
    assert sorted(whole.outputs["out"].files) == sorted(map(str, visible(folder)))
    case.commit(folder, "s1", "s2")
    assert read_output(folder, "job") == whole
    case.sink(folder).recover(context("s4"), [])
    writer = case.sink(folder).open(WorkerInfo("job", "out", WorkerId(0)))
    writer.write(Batch(rows_of("s4", 0)))
    case.sink(folder).commit(context("s4", final=False), [writer.pre_commit(context("s4"))])
    writer.close()
    assert read_output(folder, "job").outputs["out"].files == ("out-s4-00000.json",)


def test_a_run_that_was_given_up_is_no_part_of_the_next_ones_record(tmp_path: Path) -> None:
    case = Case(tmp_path, "json")
    folder = case.again()
    case.commit(folder, "s1")
    case.sink(folder).recover(context("s4"), [])
    writer = case.sink(folder).open(WorkerInfo("job", "out", WorkerId(0)))
    case.sink(folder).commit(context("s4", final=False), [writer.pre_commit(context("s4"))])
    writer.close()
    assert read_output(folder, "job").outputs["out"].files == ()
    assert case.there(folder) == sorted(written("s1"))
