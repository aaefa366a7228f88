"""Parquet folders under snapshots: appended to at each, replaced at the last, wherever the machine dies."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.spark.publication import PublicationLog
from malstrom_py.testing.contracts import check_sink
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.spark.publishing import Died, dies_at, disk, fails_at, pre_committed, rows, run
from tests.unit.sinks.writing import context, everything, visible

BEFORE: list[Any] = [{"n": "old", "t": "x"}]
SNAPSHOTS = ("s1", "s2", "s3", "s4")
KINDS: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "partitioned": {"mode": "append", "partition_by": "t"},
    "overwrite": {"mode": "overwrite", "partition_by": "t"},
    "error": {"mode": "error"},
}


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted in their order; how long they take is nothing to test."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def of(snapshot: str) -> CommitContext:
    """The third is the last of the job; the fourth has no manifest."""
    return context(snapshot, final=snapshot == "s3")


class Case:
    """Two workers have pre-committed four snapshots; then all died."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self._folder = folder
        self._made = 0
        self._columns = KINDS[kind].get("partition_by")
        if kind != "error":
            run(Spark(folder / "0" / "out", partition_by=self._columns), BEFORE, snapshot="s0")
        self.payloads: dict[str, list[bytes]] = {snapshot: [] for snapshot in SNAPSHOTS}
        for number in range(2):
            writer = self.sink(folder / "0").open(WorkerInfo("job", "out", WorkerId(number)))
            for snapshot in SNAPSHOTS:
                writer.write(Batch(self.rows_of(snapshot, number)))
                self.payloads[snapshot].append(writer.pre_commit(of(snapshot)))
            writer.close()

    @staticmethod
    def rows_of(snapshot: str, worker: int) -> list[Any]:
        return [{"n": f"{snapshot}-{worker}-{row}", "t": "ab"[row]} for row in range(2)]

    def again(self) -> Path:
        self._made += 1
        shutil.copytree(self._folder / "0", self._folder / str(self._made))
        return self._folder / str(self._made)

    def sink(self, folder: Path) -> Spark:
        return Spark(folder / "out", **KINDS[self.kind])

    def commit(self, folder: Path, *snapshots: str) -> None:
        for snapshot in snapshots:
            self.sink(folder).commit(of(snapshot), self.payloads[snapshot])

    def recover(self, folder: Path, *committed: str) -> None:
        self.sink(folder).recover(context("s5"), [SnapshotId(snapshot) for snapshot in committed])

    def expected(self, *snapshots: str) -> list[Any]:
        """What is there once ``snapshots`` are committed."""
        found = [row for snapshot in snapshots for worker in range(2) for row in self.rows_of(snapshot, worker)]
        if self.kind in ("append", "partitioned"):
            return sorted([*BEFORE, *found], key=repr)
        before = [] if self.kind == "error" else BEFORE
        return sorted(found if "s3" in snapshots else before, key=repr)

    def goes_on(self, folder: Path, dead: str, *, forgotten: bool = False) -> None:
        """As a start after the death does, to the end. ``forgotten``: the manifests of earlier snapshots are gone."""
        done = SNAPSHOTS[: SNAPSHOTS.index(dead) + 1]
        self.recover(folder, *(done[-1:] if forgotten else done))
        for _ in range(2):
            self.commit(folder, dead)
            assert rows(folder / "out") == self.expected(*done)
        if dead != "s3":
            lost = [row for snapshot in SNAPSHOTS[len(done) : 3] for n in range(2) for row in self.rows_of(snapshot, n)]
            sink = self.sink(folder)
            sink.commit(context("s5"), [pre_committed(sink, lost, snapshot="s5")])
            assert rows(folder / "out") == self.expected("s1", "s2", "s3")
        output = read_output(folder / "out", "job")
        ours = [str(name) for name in visible(folder / "out") if "-s0-" not in name.name]
        assert sorted(output.outputs["out"].files) == sorted(ours)
        assert output.final


@pytest.mark.long(but=("s2-overwrite",))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dying", ["s1", "s2", "s3"])
def test_wherever_the_machine_dies_in_a_commit_the_next_start_finishes_it(
    kind: str, dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, step = Case(tmp_path, kind), 0
    for step in range(1, 200):
        folder = case.again()
        case.commit(folder, *(snapshot for snapshot in SNAPSHOTS if snapshot < dying))
        with disk(monkeypatch) as watched, contextlib.suppress(Died):
            watched.fail = dies_at(step)
            case.commit(folder, dying)
        case.goes_on(folder, dying)
        if not watched.failed:
            break
    assert step > 4


@pytest.mark.long("error", "partitioned")
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_machine_dies_in_a_recovery_the_next_start_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, step = Case(tmp_path, kind), 0
    for step in range(1, 200):
        folder = case.again()
        case.commit(folder, "s1")
        with disk(monkeypatch) as watched, contextlib.suppress(Died):
            watched.fail = dies_at(9)
            case.commit(folder, "s2")
        with disk(monkeypatch) as watched, contextlib.suppress(Died):
            watched.fail = dies_at(step)
            case.recover(folder, "s1", "s2")
        case.goes_on(folder, "s2")
        if not watched.failed:
            break
    assert step > 2


@pytest.mark.long("error", "partitioned")
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_step_of_the_last_commit_fails_it_is_done_again_by_the_next_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, refused = Case(tmp_path, kind), 0
    for step in range(1, 200):
        folder = case.again()
        case.commit(folder, "s1", "s2")
        with disk(monkeypatch) as watched:
            watched.fail = fails_at(step)
            try:
                case.commit(folder, "s3")
            except SinkError:
                refused += 1
        case.goes_on(folder, "s3")
        if not watched.failed:
            break
    assert refused > 4


@pytest.mark.long(but=("s2-overwrite",))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", ["s2", "s3"])
def test_what_was_committed_stays_when_its_manifest_is_gone(kind: str, last: str, tmp_path: Path) -> None:
    case = Case(tmp_path, kind)
    folder = case.again()
    case.commit(folder, *(snapshot for snapshot in SNAPSHOTS if snapshot <= last))
    case.goes_on(folder, last, forgotten=True)


def test_a_job_that_goes_back_behind_a_snapshot_that_is_damaged_shows_nothing_of_it(tmp_path: Path) -> None:
    case = Case(tmp_path, "overwrite")
    folder = case.again()
    case.commit(folder, "s1", "s2")
    case.recover(folder, "s1")
    sink = case.sink(folder)
    sink.commit(context("s3"), [])
    assert rows(folder / "out") == sorted((row for worker in range(2) for row in case.rows_of("s1", worker)), key=repr)


def test_files_that_nobody_here_sees_are_told_at_the_first_snapshot(tmp_path: Path) -> None:
    case = Case(tmp_path, "overwrite")
    shutil.rmtree(tmp_path / "0" / "_staging")
    with pytest.raises(SinkError, match="does not exist on this machine"):
        case.commit(tmp_path / "0", "s1")


def test_a_damaged_memory_is_told(tmp_path: Path) -> None:
    log = PublicationLog(tmp_path, context())
    log.defer("s1", [b"{}"])
    assert log.deferred() == {"s1": [b"{}"]}
    (path,) = tmp_path.rglob("s1.json")
    path.write_text("{")
    with pytest.raises(SinkError, match=r"s1\.json, .*is damaged"):
        log.deferred()


def test_what_is_noted_is_kept_as_long_as_its_manifest_stands(tmp_path: Path) -> None:
    log = PublicationLog(tmp_path, context())
    for snapshot in ("s1", "s2"):
        log.mark_published(snapshot)
    log.recover("s1", [])
    assert log.published() == ["s1", "s2"]
    log.recover("s4", ["s2", "s3"])
    assert log.published() == ["s2"]
    log.recover("s4", [])
    assert (log.published(), everything(tmp_path)) == ([], [])


@pytest.mark.parametrize("options", [{}, {"partition_by": "value"}, {"mode": "overwrite"}, {"mode": "error"}], ids=str)
def test_it_keeps_the_contract_of_sinks(options: Any, tmp_path: Path) -> None:
    made = iter(range(100))

    def values(sink: Spark) -> list[Any]:
        folder = sink._target.path
        assert folder is not None
        if not folder.exists():
            return []
        named = [(name, pq.ParquetFile(folder / name).read().to_pylist()) for name in visible(folder)]
        if "partition_by" in options:
            return sorted(int(name.parts[0].partition("=")[2]) for name, found in named for _ in found)
        return [row["value"] for _, found in named for row in found]

    check_sink(lambda: Spark(tmp_path / str(next(made)) / "out", **options), values, at_end="mode" in options)
