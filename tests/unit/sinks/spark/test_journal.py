"""Parquet folders under snapshots: appended to at each, made at the last. Deaths: `tests/simulation/commits`."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.output_record import StepOutput
from malstrom_py.sinks.spark import Spark, through_spark
from malstrom_py.sinks.spark.journal import Journal
from malstrom_py.sinks.spark.through_spark import ThroughSparkCommitter
from malstrom_py.sinks.staged.folder import FolderPlace
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
    journal = Journal(tmp_path, context("s1"))
    journal.wait([b"{}"])
    assert journal.waiting() == {"s1": [b"{}"]}
    (path,) = tmp_path.rglob("s1.json")
    path.write_text("{")
    with pytest.raises(SinkError, match=r"s1\.json, .*is damaged"):
        journal.waiting()


def test_what_is_noted_is_kept_as_long_as_its_manifest_stands(tmp_path: Path) -> None:
    first, later = Journal(tmp_path, context("s1")), Journal(tmp_path, context("s4"))
    for journal in (first, Journal(tmp_path, context("s2"))):
        journal.mark_published()
    first.recover([])
    assert first.published() == ["s1", "s2"]
    later.recover(["s2", "s3"])
    assert later.published() == ["s2"]
    later.recover([])
    assert (later.published(), everything(tmp_path)) == ([], [])


def test_a_folder_that_is_made_at_the_end_keeps_the_contract_of_sinks(tmp_path: Path) -> None:
    made = iter(range(100))

    def values(sink: Spark) -> list[Any]:
        folder = sink._target.path
        assert folder is not None
        files = [pq.ParquetFile(folder / name) for name in visible(folder)] if folder.exists() else []
        return [row["value"] for file in files for row in file.read().to_pylist()]

    check_sink(lambda: Spark(tmp_path / str(next(made)) / "out", mode="error"), values, at_end=True)


def test_steps_that_append_to_one_folder_through_spark_each_publish_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(committer: ThroughSparkCommitter, session: Any, files: Any) -> Any:
        (path,) = FolderPlace(tmp_path / "out").paths(files)
        name = f"{committer.context.step}-{committer.context.snapshot}.parquet"
        shutil.copy(path, tmp_path / "out" / name)
        return StepOutput("spark:orc", [name])

    monkeypatch.setattr(through_spark, "spark_session", nullcontext)
    monkeypatch.setattr(through_spark, "existing_session", lambda: None)
    monkeypatch.setattr(ThroughSparkCommitter, "_publish", publish)
    sink, steps = Spark(tmp_path / "out", format="orc"), ("a", "b")
    for number, snapshot in enumerate(("s1", "s2", "s3")):
        staged = {step: pre_committed(sink, [{"n": f"{step}{number}"}], snapshot=snapshot, step=step) for step in steps}
        for step in (*steps, *steps):  # each commit may be repeated
            sink.commit(context(snapshot, step=step, final=snapshot == "s3"), [staged[step]])
    assert rows(tmp_path / "out") == [{"n": f"{step}{number}"} for step in steps for number in range(3)]
