"""Parquet folders: exactly once, for a death at any moment and a failure of any step of the file system."""

from __future__ import annotations

import contextlib
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import Spark, targets
from tests.unit.sinks.spark.publishing import Died, Disk, dies_at, each_step, fails_at, pre_committed, rows, run
from tests.unit.sinks.writing import context, everything, visible

BEFORE: list[Any] = [{"n": 0, "t": "old"}]
FIRST: list[list[Any]] = [[{"n": 1, "t": "a"}, {"n": 2, "t": "b"}], [{"n": 3, "t": "a"}]]
AGAIN: list[list[Any]] = [[{"n": 7, "t": "c"}]]
ALL = [row for worker in FIRST for row in worker]
KINDS: dict[str, dict[str, Any]] = {
    "append": {"mode": "append", "partition_by": "t"},
    "error": {"mode": "error"},
}


def prepared(folder: Path, kind: str) -> Spark:
    """A sink, on a target that holds `BEFORE` if it may hold something."""
    sink = Spark(folder / "out", **KINDS[kind])
    if kind != "error":
        run(Spark(folder / "out", partition_by=KINDS[kind].get("partition_by")), BEFORE, snapshot="s0")
    return sink


def expected(kind: str, *runs: list[Any]) -> list[Any]:
    """What is there after ``runs`` were published, one after the other."""
    return sorted([*([] if kind == "error" else BEFORE), *(row for one in runs for row in one)], key=repr)


def stray(folder: Path) -> list[str]:
    return [name for name in everything(folder) if "_staging" in name]


class Case:
    """A run of two workers that is about to commit, to be had again and again."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self._folder = folder
        self._made = 0
        sink = prepared(folder / "0", kind)
        self.payloads = [pre_committed(sink, one, worker=number) for number, one in enumerate(FIRST)]

    def again(self) -> Path:
        self._made += 1
        shutil.copytree(self._folder / "0", self._folder / str(self._made))
        return self._folder / str(self._made)

    def sink(self, folder: Path) -> Spark:
        return Spark(folder / "out", **KINDS[self.kind])

    def recovered(self, folder: Path, snapshot: str = "s2") -> None:
        """Start the job again. Where an "error" has been finished by that, there is something now."""
        done = rows(folder / "out") == sorted(ALL, key=repr) or bool(intended(folder))
        refuses = self.kind == "error" and done
        with pytest.raises(SinkError, match="is not empty, and mode") if refuses else nullcontext():
            self.sink(folder).recover(context(snapshot), [])


def intended(folder: Path) -> list[Path]:
    return list(folder.rglob("commit.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_machine_dies_in_a_commit_the_next_start_finishes_it_or_nothing_is_visible(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, kind)
    finished = set()
    for step, disk in each_step(monkeypatch, dies_at):
        folder = case.again()
        with disk, contextlib.suppress(Died):
            case.sink(folder).commit(context(), case.payloads)
        case.recovered(folder)
        there = rows(folder / "out")
        assert there in (expected(kind), expected(kind, ALL)), step
        assert stray(folder) == [], step
        finished.add(there == expected(kind, ALL))
        if kind != "error":
            run(case.sink(folder), *AGAIN, snapshot="s2")
            assert rows(folder / "out") == expected(kind, *([ALL] if there == expected(kind, ALL) else []), AGAIN[0])
    assert finished == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_machine_dies_in_a_recovery_another_one_finishes_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, kind)
    for died in (9, 14, 19):
        for step, disk in each_step(monkeypatch, dies_at):
            folder = case.again()
            with pytest.raises(Died), Disk(monkeypatch, dies_at(died)):
                case.sink(folder).commit(context(), case.payloads)
            before, was_intended = rows(folder / "out"), bool(intended(folder))
            with disk, contextlib.suppress(Died, SinkError):
                case.sink(folder).recover(context("s2"), [])
            case.recovered(folder, "s3")
            assert rows(folder / "out") == (expected(kind, ALL) if was_intended else before), (died, step)
            assert stray(folder) == [], (died, step)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_step_of_a_commit_fails_nothing_is_visible_or_the_next_start_finishes_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, kind)
    refused = 0
    for step, disk in each_step(monkeypatch, fails_at):
        folder = case.again()
        with disk:
            sink = case.sink(folder)
            try:
                sink.commit(context(), case.payloads)
            except SinkError:
                sink.abort(context(), case.payloads)
                wanted = [ALL] if intended(folder) else []
                refused += 1
            else:
                wanted = [ALL]
        if not wanted:
            assert rows(folder / "out") == expected(kind), step
            assert stray(folder) == [], step
        case.recovered(folder)
        assert rows(folder / "out") == expected(kind, *wanted), step
    assert refused > 10


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_machine_dies_in_an_abort_the_next_start_ends_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    case, aborted = Case(tmp_path, kind), set()
    for step, disk in each_step(monkeypatch, dies_at):
        folder = case.again()
        with monkeypatch.context() as patched:
            patched.setattr(targets, "record_output", refused)
            with pytest.raises(SinkError, match="No space left"):
                case.sink(folder).commit(context(), case.payloads)
        assert rows(folder / "out") == expected(kind, ALL)
        with disk, contextlib.suppress(Died):
            case.sink(folder).abort(context(), case.payloads)
        with contextlib.suppress(SinkError):  # a folder that must be empty has been filled
            case.sink(folder).recover(context("s2"), [])
        found = rows(folder / "out")
        assert found in (expected(kind), expected(kind, ALL)), step
        assert stray(folder) == [], step
        aborted.add(found == expected(kind))
    assert aborted == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_of_the_output_names_what_is_visible(kind: str, tmp_path: Path) -> None:
    run(prepared(tmp_path, kind), *FIRST)
    output = read_output(tmp_path / "out", "job").outputs["out"]
    there = [str(name) for name in visible(tmp_path / "out") if "-s1-" in name.name]
    assert sorted(output.files) == sorted(there)
    assert len(there) == (3 if "partition_by" in KINDS[kind] else 2)
    assert output.schema is not None
    assert pa.ipc.read_schema(pa.py_buffer(output.schema)).names == (
        ["n"] if "partition_by" in KINDS[kind] else ["n", "t"]
    )
    assert all(name.rpartition("/")[2].startswith("job-out-s1-") for name in output.files)


@pytest.mark.parametrize("mode", ["append", "error"])
def test_a_job_without_rows_leaves_an_empty_folder(mode: Any, tmp_path: Path) -> None:
    if mode != "error":
        run(Spark(tmp_path / "out"), BEFORE, snapshot="s0")
    run(Spark(tmp_path / "out", mode=mode), [], [])
    assert rows(tmp_path / "out") == (BEFORE if mode == "append" else [])
    assert read_output(tmp_path / "out", "job").snapshot == "s1"
    assert stray(tmp_path) == []


def test_without_rows_a_schema_makes_a_file_that_holds_it(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())])
    run(Spark(tmp_path / "out", mode="error", schema=schema))
    (name,) = visible(tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / name).equals(schema)


def test_an_error_mode_refuses_a_folder_that_holds_something_at_the_start_and_at_the_commit(tmp_path: Path) -> None:
    sink = Spark(tmp_path / "out", mode="error")
    (tmp_path / "out").mkdir()
    sink.recover(context(), [])
    payload = pre_committed(sink, BEFORE)
    (tmp_path / "out" / "theirs").touch()
    with pytest.raises(SinkError, match="is not empty, and mode"):
        sink.commit(context(), [payload])
    sink.abort(context(), [payload])
    assert everything(tmp_path) == ["out", "out/theirs"]
    with pytest.raises(SinkError, match="is not empty, and mode"):
        sink.recover(context(), [])


def test_a_link_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with pytest.raises(SinkError, match="symbolic link"):
        run(Spark(tmp_path / "out", mode="overwrite"), BEFORE)


def test_a_publication_that_another_target_was_meant_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(tmp_path / "out", mode="error")
    payload = pre_committed(sink, BEFORE)
    with pytest.raises(Died), Disk(monkeypatch, dies_at(11)):
        sink.commit(context(), [payload])
    (intended,) = tmp_path.rglob("commit.json")
    with pytest.raises(SinkError, match="an earlier run was interrupted while publishing to") as raised:
        Spark(tmp_path / "other", mode="error").recover(context("s2"), [])
    assert str(intended) in str(raised.value)
    intended.unlink()
    Spark(tmp_path / "other", mode="error").recover(context("s2"), [])
    assert everything(tmp_path) == ["out"]


def test_a_publication_that_cannot_be_finished_is_told_until_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Spark(tmp_path / "out")
    payload = pre_committed(sink, BEFORE)
    with pytest.raises(Died), Disk(monkeypatch, dies_at(11)):
        sink.commit(context(), [payload])
    (intended,) = tmp_path.rglob("commit.json")
    for staged in tmp_path.rglob("*.parquet"):
        staged.unlink()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"cannot be finished: .* was removed before its commit") as raised:
            Spark(tmp_path / "out").recover(context("s2"), [])
        assert str(intended) in str(raised.value)
    intended.write_text("?")
    with pytest.raises(SinkError, match="is damaged"):
        Spark(tmp_path / "out").recover(context("s2"), [])
    intended.unlink()
    Spark(tmp_path / "out").recover(context("s2"), [])
    assert stray(tmp_path) == []


def test_a_mount_point_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "out")
    with pytest.raises(SinkError, match="is a mount point"):
        Spark(tmp_path / "out", mode="overwrite").recover(context(), [])
