"""Files under snapshots: wherever the machine dies, what belongs to a manifest comes, once, and nothing else does."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.output_record import read_output
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.spark.publishing import Died, dies_at, disk, fails_at
from tests.unit.sinks.writing import context, everything, visible

SNAPSHOTS = ("s1", "s2", "s3")
COMMITTED = [SnapshotId("s1"), SnapshotId("s2")]
KINDS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "csv": {"format": "csv", "file_bytes_max": 1},
    "parquet": {"format": "parquet", "partition_by": "part"},
}


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted in their order; how long they take is nothing to test."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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
        readers: dict[str, Any] = {"csv": pl.read_csv, "json": pl.read_ndjson, "parquet": pl.read_parquet}
        return sorted(n for name in visible(folder) for n in readers[self.kind](folder / name)["n"].to_list())

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dying", ["s1", "s2"])
def test_wherever_the_machine_dies_in_a_commit_the_next_start_finishes_it(
    kind: str, dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, step = Case(tmp_path, kind), 0
    for step in range(1, 100):
        folder = case.again()
        case.commit(folder, *(snapshot for snapshot in ("s1",) if snapshot < dying))
        with disk(monkeypatch) as watched, contextlib.suppress(Died):
            watched.fail = dies_at(step)
            case.commit(folder, dying)
        case.has_gone_on(folder)
        if not watched.failed:
            break
    assert step > 8


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_machine_dies_in_a_recovery_the_next_start_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, step = Case(tmp_path, kind), 0
    for step in range(1, 100):
        folder = case.again()
        with disk(monkeypatch) as watched, contextlib.suppress(Died):
            watched.fail = dies_at(step)
            case.recover(folder)
        case.has_gone_on(folder)
        if not watched.failed:
            break
    assert step > 4


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_step_of_a_commit_fails_all_of_it_or_nothing_is_visible_and_it_is_done_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, kind)
    refused = 0
    for step in range(1, 100):
        folder = case.again()
        with disk(monkeypatch) as watched:
            watched.fail = fails_at(step)
            try:
                case.commit(folder, "s1")
            except SinkError:
                refused += 1
                assert case.there(folder) == [], step
        case.has_gone_on(folder)
        if not watched.failed:
            break
    assert refused > 3


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
