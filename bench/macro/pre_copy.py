"""``python -m bench.macro.pre_copy``: how late rows come while state moves, with state ahead of each move and without.

A job goes 1 -> 2 -> 3 -> 2 while rows come, each with the time at which it was due; all keys change in turn. It has 1
kB of state for each key, then 10 kB, then 50 kB (``--bytes``; ``--keys`` bounds the memory). State goes ahead only of a
job with snapshots, because only there changes are tracked; here none is made. So the job beside it is the same without
snapshots. ``--ray``: on Ray, else in one process, whose workers take turns on one thread; there slots are placed by
number, so that each run moves the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any, Final
from unittest.mock import patch

import malstrom_py as mp
from bench.macro.arrivals import Seen
from bench.macro.feeding import Paced
from bench.macro.keeping import has_all, keep, keeping
from bench.macro.on_ray import ray_here, runtime, wait_for, warm
from bench.macro.phases import Phases
from bench.micro import machine
from bench.micro.timing import WrongResult
from malstrom_py.workers.coordinator.metering import Metering

SIZES: Final = (1, 2, 3, 2)
AFTER_S: Final = 1.0


def started(job: mp.Job, folder: str, *, ahead: bool, on_ray: bool) -> mp.JobHandle:
    """The job, on one worker."""
    snapshots = mp.Snapshots(f"{folder}/snapshots", interval_s=None) if ahead else None
    if on_ray:
        warm(3)
        return runtime(SIZES[0], snapshots=snapshots).start(job, control=False)
    return mp.InProcess(SIZES[0], snapshots=snapshots).start(job, control=False)


def measured(keys: int, rate: int, size: int, *, ahead: bool, on_ray: bool, steady_s: float) -> None:
    """Print a line for each rescale."""
    with tempfile.TemporaryDirectory() as top:
        job: Any = keeping("kept", top, Paced(keys, rate, "due"), partial(keep, size))
        handle = started(job, top, ahead=ahead, on_ray=on_ray)
        wait_for(handle, partial(has_all, keys))
        windows = []
        for _, after in pairwise(SIZES):
            sleep(steady_s)
            with Phases(handle) as phases:
                asked_ns = monotonic_ns()
                report = handle.rescale(after)
            windows.append((asked_ns, monotonic_ns() + int(AFTER_S * 1e9), report, phases))
            sleep(AFTER_S)
        handle.stop(drain=True)
        counts, seen = handle.wait(), Seen(Path(top))
    if not counts.read == counts.written == seen.rows:
        raise WrongResult(f"{counts.read:,} rows were read, {counts.written:,} written, {seen.rows:,} seen")
    for (before, after), (since_ns, until_ns, report, phases) in zip(pairwise(SIZES), windows, strict=True):
        steady_ns = since_ns - int(steady_s * 1e9 * 0.8)
        how = "ahead" if ahead else "at the cut"
        print(
            f"{size:,} B, {how}, {before} -> {after}: largest latency {seen.age_ms(1.0, since_ns, until_ns):.0f} ms, "
            f"p99 {seen.age_ms(0.99, since_ns, until_ns):.0f} ms (steady p99 "
            f"{seen.age_ms(0.99, steady_ns, since_ns):.0f} ms); {report.duration_s:.1f} s, of which copying "
            f"{phases.seconds('copying'):.1f} s; {report.moves} moves, {report.keys:,} keys, "
            f"{report.bytes / 1e6:.0f} MB, of which ahead {report.bytes_ahead / 1e6:.0f} MB",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.pre_copy", description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, nargs="*", default=[1_000, 10_000, 50_000], help="of state for each key")
    parser.add_argument("--rate", type=int, default=5_000, help="rows a second")
    parser.add_argument("--steady", type=float, default=2.0, help="seconds before each rescale")
    parser.add_argument("--ray", action="store_true", help="on Ray")
    given = parser.parse_args(arguments)
    print(machine.describe())
    with ray_here() if given.ray else patch.object(Metering, "weights", None):
        for size in given.bytes:
            for ahead in (False, True):
                measured(given.keys, given.rate, size, ahead=ahead, on_ray=given.ray, steady_s=given.steady)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
