"""A DataFrame is handed to a job on Ray: what is shipped is the pin, and neither the DataFrame nor its session."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.on_ray.shipment import pack_plan
from tests.integration.ray.leftovers import actors, until
from tests.integration.transport.ends import local_ray

pytestmark = pytest.mark.only_classic


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as environ,
    ):
        environ.setenv("RAY_TMPDIR", folder)
        with local_ray(num_cpus=4):
            yield


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

    # Tasks of Spark that were stopped may write on for a while: what they wrote, the start behind that removes.
    until(again)
