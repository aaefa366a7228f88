"""The figures of real jobs, against what they did."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock


def _slowly(number: int) -> int:
    SystemClock().sleep_s(0.002)
    return number


def test_a_part_that_has_been_read_has_no_lag_left() -> None:
    """The figures of parts are a second old, and a job may have ended since."""
    job = mp.Job("docs-parts")
    job.source("in", sources.Memory(range(1000))).map("wait", _slowly).sink("out", sinks.Memory())
    handle = mp.InProcess(batch=mp.Batching(rows_max=50)).start(job, control=False)
    handle.wait()
    assert (handle.metrics().read, handle.metrics().lag_rows) == (1000, None)
