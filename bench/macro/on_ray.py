"""Ray for the benchmarks: started here, with processes that wait for work, or none; and one job run for a while.

With ``BENCH_RUNTIME=processes`` jobs run on worker processes of this machine instead, and no Ray is started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any, Final

import malstrom_py as mp
from bench.macro.arrivals import Seen, pids
from bench.macro.processes import cpu_s
from malstrom_py.errors import JobEnded
from malstrom_py.workers.processes.worker_process import FORKS

CPUS: Final = 4
"""The resources that Ray is given; a worker asks for half of one. It keeps as many idle processes as it has."""

RUN_S: Final = 60.0

ON_RAY: Final = os.environ.get("BENCH_RUNTIME", "ray") != "processes"
WHERE: Final = "Ray" if ON_RAY else "processes"


@contextlib.contextmanager
def ray_here() -> Iterator[str]:
    """Ray on this machine, for as long as the context: its version."""
    if not ON_RAY:
        yield "none, worker processes"
        return
    # Ray gives its workers niceness 15: beside other programs they would get next to nothing, this process its share.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    # Its own Ray: another one that runs here has other resources, and other work.
    ray.init("local", num_cpus=CPUS, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield ray.__version__
    finally:
        ray.shutdown()


def warm(processes: int) -> None:
    """Have Ray keep so many idle worker processes, which have imported what a worker needs of Ray."""
    if not ON_RAY:
        FORKS.warm_up()
        return
    import ray

    @ray.remote(num_cpus=0.5)
    def hold() -> None:
        time.sleep(0.5)

    ray.get([hold.remote() for _ in range(processes)])


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that has run: what its sink has seen, from when to when its rate is taken, and what processor time all
    processes with a worker took then.
    """

    seen: Seen
    since_ns: int
    until_ns: int
    cpu_s: float
    read: int
    """The rows that its sources have given in that time."""

    @property
    def cpu_us(self) -> float:
        """Processor time per row, in µs."""
        return self.cpu_s / max(1, self.seen.within(self.since_ns, self.until_ns).rows) * 1e6

    @property
    def rate(self) -> float:
        return self.seen.rate(self.since_ns, self.until_ns)

    @property
    def read_rate(self) -> float:
        """The rows read per second, where the sink gets fewer."""
        return self.read / (self.until_ns - self.since_ns) * 1e9

    def age_ms(self, quantile: float) -> float:
        return self.seen.age_ms(quantile, self.since_ns, self.until_ns)


def runtime(workers: int, **options: Any) -> mp.RayRuntime | mp.Processes:
    """The runtime that all jobs here run on."""
    return mp.RayRuntime(workers, num_cpus=0.5, **options) if ON_RAY else mp.Processes(workers, **options)


def run_for(
    start: Callable[[str], mp.JobHandle], *, warm_s: float, seconds: float, ready: Callable[[mp.JobStatus], bool]
) -> Ran:
    """Start a job whose sink writes into a folder, given to ``start``; once it is ``ready``, let it run for ``warm_s``
    and for the ``seconds`` in which it is looked at; stop it.
    """
    with tempfile.TemporaryDirectory() as folder:
        handle = start(folder)
        wait_for(handle, ready)
        sleep(warm_s)
        processes = pids(Path(folder), handle.name)
        since_ns, since_cpu_s, since_read = monotonic_ns(), cpu_s(processes), handle.status().counts.read
        sleep(seconds)
        until_ns, until_cpu_s, until_read = monotonic_ns(), cpu_s(processes), handle.status().counts.read
        stop(handle)
        return Ran(Seen(Path(folder)), since_ns, until_ns, until_cpu_s - since_cpu_s, until_read - since_read)


def wait_for(handle: mp.JobHandle, ready: Callable[[mp.JobStatus], bool]) -> None:
    """Until the job is ``ready``; its own error if it has ended, `TimeoutError` after a minute."""
    until_s = time.monotonic() + RUN_S
    while not ready(status := handle.status()):
        if status.state in {"failed", "finished", "stopped"}:
            handle.wait()
        if time.monotonic() > until_s:
            raise TimeoutError(f"the job has not come far enough within {RUN_S:g} s: {status}")
        sleep(0.05)


def stop(handle: mp.JobHandle) -> None:
    """Stop the job where it is, and wait until it has ended."""
    handle.stop(drain=False)
    with contextlib.suppress(JobEnded):
        handle.wait()


def reads(status: mp.JobStatus) -> bool:
    """Whether the job is at work."""
    return status.counts.read > 0


def verdict(figure: float, budget: float, *, at_least: bool) -> str:
    """What is printed after a figure that has a budget."""
    hit = figure >= budget if at_least else figure <= budget
    return f"budget {'>=' if at_least else '<='} {budget:g}, {'hit' if hit else 'MISS'}"
