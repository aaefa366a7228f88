"""A DataFrame is handed to a job on Ray: what is shipped is the pin, and neither the DataFrame nor its session."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import DeadlineError
from malstrom_py.workers.remote.packed_plan import pack_plan
from tests.integration.ray.leftovers import actors, until
from tests.integration.spark.test_streams_followed import restarts_with_its_query

pytestmark = pytest.mark.only_classic


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("ray_here")
def test_workers_on_ray_read_a_dataframe_without_spark(spark: Any, tmp_path: Path) -> None:
    def look(row: dict[str, Any]) -> tuple[int, bool]:
        import sys

        return row["id"], "pyspark" in sys.modules

    source = sources.Spark(spark.range(0, 2000, 1, 4), staging=tmp_path / "shared")
    job, out = mp.Job("dataframe-on-ray"), sinks.Memory()
    job.source("in", source).map("look", look).sink("out", out)
    assert b"pyspark.sql" not in pack_plan(job.plan())
    result = mp.RayRuntime(workers=2, num_cpus=0.5).run(job)
    assert result.read == 2000
    assert sorted(out.items) == [(number, False) for number in range(2000)]
    assert not list((tmp_path / "shared").glob("*/pin-*"))


@pytest.mark.usefixtures("ray_here")
def test_ctrl_c_while_rows_are_staged_leaves_nothing_and_the_job_starts_again(spark: Any, tmp_path: Path) -> None:
    def press() -> None:
        until(lambda: any(tmp_path.glob("shared/*/pin-*/rows")))
        os.kill(os.getpid(), signal.SIGINT)

    def job_over(frame: Any) -> mp.Job:
        job = mp.Job("pressed")
        job.source("in", sources.Spark(frame, staging=tmp_path / "shared")).sink("out", sinks.Memory())
        return job

    slow = spark.sql("SELECT id, reflect('java.lang.Thread', 'sleep', 800L) AS slept FROM range(0, 4, 1, 4)")
    runtime = mp.RayRuntime(workers=1, num_cpus=0.2)
    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runtime.start(job_over(slow))
    thread.join()
    assert actors() == []

    def again() -> bool:
        assert runtime.run(job_over(spark.range(3))).read == 3
        return not any(tmp_path.glob("shared/*/pin-*"))

    # Tasks of Spark that were stopped may write for a while longer: the next start removes their files.
    until(again)


def written_rows(folder: Path) -> list[int]:
    rows = mp.collect(mp.Job("read").source("in", sources.Files(folder / "*.json")))
    return sorted(row["id"] for row in rows)


def slowed(source: Any, folder: Path) -> mp.Job:
    """A job over ``source`` that takes its time as long as there is a file ``slow``."""
    slow = folder / "slow"

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        if slow.exists():
            time.sleep(0.002)
        return row

    job = mp.Job("slowed")
    job.source("in", source).map("wait", wait).sink("out", sinks.Files(folder / "out", format="json"))
    return job


def on_ray(folder: Path, **options: Any) -> mp.RayRuntime:
    kept = mp.Snapshots(folder / "kept", interval_s=None)
    return mp.RayRuntime(2, num_cpus=0.2, batch=mp.Batching(rows_max=20), snapshots=kept, **options)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("ray_here")
def test_a_finished_job_is_known_before_anything_is_pinned(spark: Any, tmp_path: Path) -> None:
    """What it had staged is gone with its end, and nothing is staged for it again."""
    staging = tmp_path / "shared"

    def job(query: str) -> mp.Job:
        return slowed(sources.Spark(sql=query, session=spark, staging=staging), tmp_path)

    query = "SELECT * FROM range(0, 100, 1, 4)"
    first = on_ray(tmp_path).run(job(query))
    assert (first.read, first.resumed_finished) == (100, False)
    assert not list(staging.glob("*/pin-*"))
    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)
    for runtime in (on_ray(tmp_path), mp.InProcess(2, snapshots=kept)):
        # Nothing of the source is looked at: its rows may have gone, too.
        again = runtime.run(job("SELECT * FROM not_there"))
        assert (again.read, again.resumed_finished, again.last_snapshot) == (100, True, first.last_snapshot)
    assert not list(staging.glob("*/pin-*"))
    assert written_rows(tmp_path / "out") == list(range(100))


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("ray_here")
def test_a_query_that_ends_restarts_with_a_job_on_ray(spark: Any, tmp_path: Path) -> None:
    kept = mp.Snapshots(tmp_path / "snapshots", interval_s=0.2)
    restarts_with_its_query(spark, tmp_path, mp.RayRuntime(1, num_cpus=0.2, snapshots=kept))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_here")
def test_a_later_run_reads_the_rows_that_are_new_and_first_what_a_drained_one_has_left(
    spark: Any, tmp_path: Path
) -> None:
    def appended(first: int, last: int) -> None:
        spark.range(first, last, 1, 4).write.mode("append").parquet(str(tmp_path / "rows"))

    def job() -> mp.Job:
        return slowed(sources.Spark(path=tmp_path / "rows", since="id", staging=tmp_path / "shared"), tmp_path)

    def staged() -> list[Path]:
        return list((tmp_path / "shared").glob("*/pin-*/rows"))

    appended(0, 700)
    assert on_ray(tmp_path).run(job()).read == 700
    assert staged() == []
    appended(700, 8_000)
    (tmp_path / "slow").touch()
    handle = on_ray(tmp_path).start(job())
    until(lambda: handle.status().counts.read > 100)
    handle.stop(drain=True)
    read = handle.wait().read
    assert 100 < read < 7_300
    assert len(staged()) == 1
    (tmp_path / "slow").unlink()
    with pytest.raises(DeadlineError, match="did not start within 0 s"):
        on_ray(tmp_path, start_timeout_s=0).start(job())
    assert len(staged()) == 1, "a start that fails takes nothing from those that follow"
    appended(8_000, 8_100)
    # The rest is read first, in a separate run; rows that arrived in that time are for the next.
    assert on_ray(tmp_path).run(job()).read == 7_300 - read
    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)
    assert mp.InProcess(2, snapshots=kept).run(job()).read == 100
    assert staged() == []
    assert written_rows(tmp_path / "out") == list(range(8_100))
