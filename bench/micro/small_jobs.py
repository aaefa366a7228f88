"""What a job costs that has next to nothing to do, and a batch of one row: processor time, in a process that has run
jobs before.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Final

import malstrom_py as mp
from bench.micro.timing import WrongResult, spread
from malstrom_py import sinks, sources

JOB_BUDGET_MS: Final = 1.5
BATCH_BUDGET_US: Final = 8.0
_JOBS: Final = 100
_BATCHES: Final = 20_000


def three_rows(times: int) -> None:
    """Run a job of three rows with an exchange and state, so many ``times``."""
    for _ in range(times):
        _three_rows()


def _three_rows() -> None:
    job, out = mp.Job("nothing"), sinks.Memory()
    job.source("rows", sources.Memory([1, 2, 3])).key_by("key", lambda row: row).sum("sum").sink("out", out)
    mp.run(job, progress=False)
    if out.items != [1, 2, 3]:
        raise WrongResult(f"a job of three rows gave {out.items}")


def filtered(rows: list[int], rows_max: int) -> None:
    """Run a job of ``rows`` from a source through a filter to a sink."""
    job, out = mp.Job("filtered"), sinks.Memory()
    job.source("rows", sources.Memory(rows)).filter("all", lambda row: row >= 0).sink("out", out)
    mp.run(job, batch=mp.Batching(rows_max=rows_max), progress=False)
    if len(out.items) != len(rows):
        raise WrongResult(f"{len(out.items)} of {len(rows)} rows passed the filter")


def took_s(call: Callable[[], object]) -> float:
    """The processor time of ``call``."""
    began_s = process_time()
    call()
    return process_time() - began_s


def measure_small_jobs(n: int, reps: int) -> list[str]:
    """What it prints of both."""
    rows = list(range(_BATCHES))
    three_rows(1)
    jobs = spread([took_s(lambda: three_rows(_JOBS)) / _JOBS * 1e3 for _ in range(reps)])
    # Without what the rows themselves cost, and the job.
    alone = [took_s(lambda: filtered(rows, 1)) - took_s(lambda: filtered(rows, 1024)) for _ in range(reps)]
    batches = spread([each / _BATCHES * 1e6 for each in alone])
    return [
        f"a job of three rows: {jobs.show()} ms of processor time, budget <= {JOB_BUDGET_MS:g} ms",
        f"a batch of one row through source, filter, sink: {batches.show()} µs, budget <= {BATCH_BUDGET_US:g} µs",
    ]
