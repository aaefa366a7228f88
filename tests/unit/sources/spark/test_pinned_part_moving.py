"""Row groups move between workers during a rescale: every row is read once, and in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources.spark import Spark
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from tests.unit.sources.spark.copies import copy_with, parquet, pin_over

SCHEMA = pa.schema([("n", pa.int64()), ("group", pa.int64())])
ROWS = 1200


def giant(folder: Path) -> Spark:
    """Write one large file of many row groups, as Spark writes a single partition."""
    columns = {"n": range(ROWS), "group": [n // 100 for n in range(ROWS)]}
    return copy_with(pin_over([parquet(folder / "a.parquet", columns, row_group_size=100)], SCHEMA))


def job_over(source: Spark) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("moving"), sinks.Memory()
    rows = job.source("in", source).key_by("group", lambda row: row["group"])
    rows.stateful_map("seen", lambda key, row, state: (row["n"], state), default=None).sink("out", out)
    return job, out


def check(out: sinks.Memory) -> None:
    assert out.by_key == {group: list(range(100 * group, 100 * group + 100)) for group in range(ROWS // 100)}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_schedule(tmp_path: Path, seed: int) -> None:
    job, out = job_over(giant(tmp_path))
    mp.Simulation(workers=2, seed=seed, rescales=3).run(job)
    check(out)


def rescaling(*sizes: int, every: int) -> Callable[[Coordinator[LocalWorkers]], bool]:
    """Request the next of ``sizes`` after each given number of steps."""
    left, steps = list(sizes), [0]

    def until(crew: Coordinator[LocalWorkers]) -> bool:
        steps[0] += 1
        if left and steps[0] % every == 0:
            assert not crew.finished
            crew.rescale(left.pop(0), lambda ended: None)
        return False

    return until


def test_from_one_worker_to_three_and_to_two(tmp_path: Path) -> None:
    job, out = job_over(giant(tmp_path))
    runtime = mp.InProcess(1, batch=mp.Batching(rows_max=16))
    runtime.run_plan(job.plan(), until=rescaling(3, 2, every=10))
    check(out)
