"""A job on Ray, whose workers come and go, publishes through the Spark of the program that started it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import Spark
from malstrom_py.workers.ray.ray_job import check_detached
from tests.integration.ray.traffic import PATIENCE_S, Attendance, Seen, Sent, Tour, check_counts, check_rows, traffic

pytestmark = pytest.mark.only_classic


def flat(seen: Seen) -> dict[str, Any]:
    return {**seen.sent._asdict(), **{name: value for name, value in seen._asdict().items() if name != "sent"}}


def seen(row: Any) -> Seen:
    return Seen(Sent(*(row[name] for name in Sent._fields)), *(row[name] for name in Seen._fields if name != "sent"))


def test_what_leavers_and_stayers_wrote_is_published_once_by_the_program_that_started_the_job(
    ray_here: None, spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "attendance").mkdir()
    attendance = Attendance(tmp_path / "attendance")
    sink = Spark(tmp_path / "out", format="orc", session=spark)
    handle = mp.RayRuntime(2, num_cpus=0.2).start(traffic("through-spark", sink, attendance, show=flat))
    Tour(handle, attendance).go(3, 1)
    # A second run of this name, elsewhere, clears what earlier runs have left; those who have left here are none.
    again = Spark(tmp_path / "out", format="orc", session=spark)
    again.recover(CommitContext("through-spark", "out", SnapshotId("another"), incarnation=1), [])
    handle.stop()
    result = handle.wait()
    check_rows([seen(row) for row in spark.read.orc(str(tmp_path / "out")).collect()], result)
    check_counts(result)
    assert list((tmp_path / "out").glob("_staging")) == []
    output = read_output(tmp_path / "out", "through-spark")
    assert (output.result or {})["steps"]["out"]["rows_in"] == result.written


@pytest.mark.long
def test_s6_with_snapshots_rows_show_once_though_a_worker_dies_in_between(
    ray_here: None, spark: Any, tmp_path: Path
) -> None:
    died = tmp_path / "died"

    def numbers(part: int, start: int) -> Iterator[int]:
        for n in range(start, 4_000):
            time.sleep(0.001)
            yield n

    def dies_once(n: int) -> dict[str, int]:
        if n == 2_500 and not died.exists():
            died.touch()
            os._exit(9)
        return {"n": n}

    sink = Spark(tmp_path / "out", format="orc", session=spark)
    job = mp.Job("kept-through-spark")
    job.source("in", sources.Generator(numbers)).map("dies", dies_once).sink("out", sink)
    kept = mp.Snapshots(tmp_path / "kept", interval_s=0.5)
    handle = mp.RayRuntime(1, num_cpus=0.2, snapshots=kept).start(job)
    result = handle.wait(timeout_s=PATIENCE_S)
    status = handle.status()
    assert status.restarts == 1
    assert status.snapshots is not None
    assert result.snapshots > 2
    assert sorted(row.n for row in spark.read.orc(str(tmp_path / "out")).collect()) == list(range(4_000))
    left = [path.name for path in (tmp_path / "out" / "_staging").rglob("*") if path.is_file()]
    assert left == ["out~committed"], "which snapshots have been published, and nothing else"


def test_what_spark_refuses_fails_the_job_and_leaves_nothing(ray_here: None, spark: Any, tmp_path: Path) -> None:
    job = mp.Job("refused-by-spark")
    job.source("in", sources.Memory([{"l": [1]}])).sink("out", Spark(tmp_path / "out", format="csv", session=spark))
    with pytest.raises(SinkError, match="UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE"):
        mp.RayRuntime(1, num_cpus=0.2).run(job)
    assert list((tmp_path / "out").rglob("*")) == []


def test_a_detached_job_cannot_have_a_sink_that_needs_the_program_that_starts_it(tmp_path: Path) -> None:
    job = mp.Job("detached")
    rows = job.source("in", sources.Memory([1]))
    rows.sink("parquet", Spark(tmp_path / "out"))
    check_detached(job.plan())
    rows.sink("table", Spark(table="t"))
    with pytest.raises(PlanError, match=r"sink 'table' is committed by the program .* leave out detached"):
        mp.RayRuntime(detached=True).start(job)
