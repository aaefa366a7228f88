"""Taps of jobs on worker processes, by a handle of the control socket, through a rescale and the death of a worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.processes.worker_pids import worker_pids
from tests.integration.ray.leftovers import until


def test_a_tap_continues_after_a_rescale_and_the_death_of_a_worker(tidy: None, tmp_path: Path) -> None:
    job = mp.Job("tapped-processes")
    source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=3)
    counts = job.source("in", source).key_by("key", lambda n: n % 70).count("n")
    counts.sink("out", sinks.Callable(lambda rows: None, batch=True))
    handle = mp.Processes(2, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5)).start(job)
    tap = mp.JobHandle.attach(job.name).tap("n")
    assert {record.worker for _, record in zip(range(500), tap, strict=False)} <= {0, 1}
    handle.rescale(3)
    while next(tap).worker != 2:
        """The new worker begins."""
    passed = tap.passed
    os.kill(max(worker_pids()), signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    while {record.worker for _, record in zip(range(500), tap, strict=False)} != {0, 1, 2}:
        """All workers of the next run begin."""
    assert tap.passed > passed > tap.shown / 2
    handle.stop(drain=False)
    assert all(record.key in range(70) for record in tap)
