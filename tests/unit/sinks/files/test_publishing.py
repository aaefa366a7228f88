"""The commit of partitioned output: interrupted at every point, repeated, taken back, and never through a link."""

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
from malstrom_py.sinks.files.publishing import StagedFile, publish, staged_files
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import WORKER, context, everything, visible

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


def test_nothing_is_visible_before_the_commit_no_folder_either(tmp_path: Path) -> None:
    payload = pre_committed(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["_staging"]
    assert json.loads(payload)["folders"] == ["a=1/b=x", "a=1/b=y", "a=2/b=x", "a=__HIVE_DEFAULT_PARTITION__/b=a%2Fb"]


def test_a_commit_that_was_interrupted_after_any_rename_is_finished_by_the_next(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    sink(whole).commit(context(), [pre_committed(whole), pre_committed(whole, worker=1)])
    expected = contents(whole)
    assert len(expected) == 8
    for done in range(9):
        folder = tmp_path / str(done)
        payloads = [pre_committed(folder), pre_committed(folder, worker=1)]
        staged = staged_files(folder, context(), payloads)
        for number, file in enumerate(staged[:done]):
            (folder / file.folder).mkdir(parents=True, exist_ok=True)
            file.path.rename(folder / file.folder / f"out-s1-{number:05d}.json")
        if done < 8:
            (folder / staged[done].folder).mkdir(parents=True, exist_ok=True)  # made, and then the process died
        for _ in range(2):
            sink(folder).commit(context(), payloads)
            assert contents(folder) == expected
        assert not (folder / "_staging").exists()


def test_a_commit_is_the_same_in_any_order_of_payloads(tmp_path: Path) -> None:
    payloads = [pre_committed(tmp_path, worker=number) for number in range(3)]
    sink(tmp_path).commit(context(), payloads)
    expected = everything(tmp_path)
    for order in (payloads, payloads[::-1], [*payloads, payloads[0]]):
        sink(tmp_path).commit(context(), order)
        assert everything(tmp_path) == expected


def test_more_than_ten_files_of_a_writer_are_numbered_as_they_were_written(tmp_path: Path) -> None:
    writer = Files(tmp_path, format="json", file_bytes_max=1).open(WORKER)
    for n in range(25):
        writer.write(Batch([{"n": n}]))
    Files(tmp_path).commit(context(), [writer.pre_commit(context())])
    writer.close()
    assert [json.loads((tmp_path / path).read_text())["n"] for path in visible(tmp_path)] == list(range(25))


@pytest.mark.parametrize("failing", range(5))
def test_a_rename_that_fails_takes_back_all_and_the_folders_that_were_made(failing: int, tmp_path: Path) -> None:
    there = tmp_path / "a=1"
    there.mkdir()
    (there / "of-another").touch()
    payload = pre_committed(tmp_path)
    before = everything(tmp_path)
    staged = staged_files(tmp_path, context(), [payload])
    # No folder can be moved into itself: that rename fails.
    staged.insert(failing, StagedFile(tmp_path, "a=9/b=z"))
    with pytest.raises(SinkError, match="cannot commit to"):
        publish(tmp_path, context(), staged)
    assert everything(tmp_path) == before
    sink(tmp_path).commit(context(), [payload])
    assert len(visible(tmp_path)) == 5


def test_a_file_where_a_folder_is_needed_takes_back_the_commit(tmp_path: Path) -> None:
    payload = pre_committed(tmp_path)
    (tmp_path / "a=2").touch()
    before = everything(tmp_path)
    with pytest.raises(SinkError, match="a file is in the place of a folder"):
        sink(tmp_path).commit(context(), [payload])
    assert everything(tmp_path) == before
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
    before = everything(out)
    with pytest.raises(SinkError, match="symbolic link") as raised:
        sink(out).commit(context(), [payload])
    assert everything(out) == before
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
    staged_files(tmp_path, context(), [payload])[3].path.unlink()
    with pytest.raises(SinkError, match="was removed before its commit"):
        sink(tmp_path).commit(context(), [payload])
    assert visible(tmp_path) == []


def test_an_abort_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    payloads = [pre_committed(tmp_path, worker=number) for number in range(2)]
    for _ in range(2):
        sink(tmp_path).abort(context(), payloads)
        assert everything(tmp_path) == []


def test_recovery_clears_what_was_not_committed(tmp_path: Path) -> None:
    kept, _ = pre_committed(tmp_path, "kept"), pre_committed(tmp_path, "dropped")
    sink(tmp_path).recover(context("s9"), [SnapshotId("kept")])
    names = [name for name in everything(tmp_path) if name.endswith(".json")]
    assert [Path(name).name for name in names] == [f"kept-{number}.json" for number in range(4)]
    sink(tmp_path).commit(context("kept"), [kept])
    assert len(visible(tmp_path)) == 4
    assert not (tmp_path / "_staging").exists()


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
    before = everything(tmp_path)
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
    assert everything(tmp_path) == before


STAGED = "_staging/job/out/0123456789abcdef/s1-0.json"


@pytest.mark.parametrize(
    "folder", ["..", ".", "/", "/a=1", "a=1/", "a=1//b=2", "a=1/../b=2", "a", "a=1/b", "a=\0", 5, None, ["a=1"]]
)
def test_a_payload_that_names_a_folder_elsewhere_is_refused(folder: Any, tmp_path: Path) -> None:
    for named in ({"files": [STAGED], "folders": [folder]}, {"files": [STAGED], "folders": []}, {"files": [STAGED]}):
        with pytest.raises(SinkError, match="payload of step 'out'"):
            sink(tmp_path).commit(context(), [json.dumps(named).encode()])
