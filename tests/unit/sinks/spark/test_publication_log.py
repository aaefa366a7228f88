"""Parquet folders under snapshots: appended to at each, made at the last. Deaths: `tests/simulation/commits`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.spark.publication import PublicationLog
from malstrom_py.testing.contracts import check_sink
from tests.unit.sinks.spark.publishing import pre_committed, rows
from tests.unit.sinks.writing import context, everything, visible


def test_a_job_that_goes_back_behind_a_snapshot_that_is_damaged_shows_nothing_of_it(tmp_path: Path) -> None:
    sink = Spark(tmp_path / "out", mode="error")
    for snapshot in ("s1", "s2"):
        payload = pre_committed(sink, [{"n": snapshot}], snapshot=snapshot)
        sink.commit(context(snapshot, final=False), [payload])
    sink.recover(context("s5"), [SnapshotId("s1")])
    sink.commit(context("s6"), [])
    assert rows(tmp_path / "out") == [{"n": "s1"}]


def test_files_that_nobody_here_sees_are_told_at_the_first_snapshot(tmp_path: Path) -> None:
    sink = Spark(tmp_path / "out", mode="error")
    payload = pre_committed(sink, [{"n": 1}])
    shutil.rmtree(tmp_path / "_staging")
    with pytest.raises(SinkError, match="does not exist on this machine"):
        sink.commit(context("s1", final=False), [payload])


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


@pytest.mark.parametrize("options", [{}, {"partition_by": "value"}, {"mode": "error"}], ids=str)
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
