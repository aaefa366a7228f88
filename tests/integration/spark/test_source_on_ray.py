"""A DataFrame is handed to a job on Ray: what is shipped is the pin, and neither the DataFrame nor its session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.on_ray.shipment import pack_plan
from tests.integration.transport.ends import local_ray

pytestmark = pytest.mark.only_classic


@pytest.fixture
def ray_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
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
