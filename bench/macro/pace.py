"""``python -m bench.macro.pace``: how soon snapshots and rescales pass a sink that takes its time, beside a fast one.

Three workers in this process, a count per key over an endless source, and a sink whose function takes 0, 0.4 or 5 ms
for each row: together that is all, 2,500 or 200 rows a second. First a while in which nothing is asked for, of which
the last half is the rate; then snapshots, from the request until they are committed; rescales; a stop. The ratio is
how much of the time the sink has had work.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any, Final

import malstrom_py as mp
from bench.micro import machine
from bench.micro.timing import WrongResult, spread
from malstrom_py import sinks, sources

ROW_MS: Final = (0.0, 0.4, 5.0)
SIZES: Final = (2, 3, 4, 3)
SNAPSHOT_S: Final = 1.0
RESCALE_S: Final = 10.0
STOP_S: Final = 2.0
SHARE: Final = 0.9


class SlowSink:
    """Takes about ``row_s`` for each row, and counts them. ``worked_s``: how long it has taken in all."""

    def __init__(self, row_s: float) -> None:
        self.row_s = row_s
        self.rows = 0
        self.worked_s = 0.0

    def __call__(self, value: Any) -> None:
        self.rows += 1
        if self.row_s:
            began_s = monotonic()
            sleep(self.row_s)
            self.worked_s += monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.macro.pace", description=__doc__)
    parser.add_argument("--row-ms", type=float, nargs="+", default=list(ROW_MS), help="what a row takes in the sink")
    parser.add_argument("--warm-s", type=float, default=6.0, help="how long nothing is asked for")
    parser.add_argument("--snapshots", type=int, default=5, help="how many are asked for")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="sizes to rescale to")
    options = parser.parse_args()
    print(machine.describe())
    for row_ms in options.row_ms:
        print(passing(row_ms, warm_s=options.warm_s, snapshots=options.snapshots, sizes=options.sizes))


def passing(row_ms: float, *, warm_s: float, snapshots: int, sizes: list[int]) -> str:
    """The figures of a sink that takes ``row_ms`` for each row."""
    sink = SlowSink(row_ms / 1e3)
    with tempfile.TemporaryDirectory(prefix="malstrom-bench-") as folder:
        runtime = mp.InProcess(
            workers=3, batch=mp.Batching(rows_max=200), snapshots=mp.Snapshots(folder, interval_s=None), progress=False
        )
        handle = runtime.start(_job(sink), control=False)
        sleep(warm_s / 2)
        began_s, before, worked_s = monotonic(), sink.rows, sink.worked_s
        sleep(warm_s / 2)
        lasted_s = monotonic() - began_s
        rate, busy = (sink.rows - before) / lasted_s, (sink.worked_s - worked_s) / lasted_s
        if not rate:
            raise WrongResult(f"no row reached a sink that takes {row_ms} ms for each")
        took = [_took_s(handle.snapshot, timeout_s=300.0) for _ in range(snapshots)]
        moves = [_took_s(handle.rescale, size, timeout_s=300.0) for size in sizes]
        stop_s = _took_s(handle.stop, timeout_s=300.0)
    share = f", at work for {busy:.2f} of the time (budget {SHARE}: {_verdict(busy >= SHARE)})" if row_ms else ""
    return (
        f"{row_ms:g} ms a row: {rate:,.0f} rows/s{share}; a snapshot {spread(took).show()} s (budget {SNAPSHOT_S:g} s: "
        f"{_verdict(spread(took).median <= SNAPSHOT_S)}); a rescale {spread(moves).show()} s (budget {RESCALE_S:g} s: "
        f"{_verdict(max(moves) <= RESCALE_S)}); stop {stop_s:.2f} s (budget {STOP_S:g} s: {_verdict(stop_s <= STOP_S)})"
    )


def _job(sink: SlowSink) -> mp.Job:
    job = mp.Job("pace")
    numbers = job.source("numbers", sources.Generator(_numbers, parts=4))
    numbers.key_by("key", lambda n: n % 1000).count("n").sink("out", sinks.Callable(sink))
    return job


def _numbers(part: int, start: int) -> Iterator[int]:
    return itertools.count(start)


def _took_s(ask: Any, *arguments: Any, **options: Any) -> float:
    began_s = monotonic()
    ask(*arguments, **options)
    return monotonic() - began_s


def _verdict(holds: bool) -> str:
    return "hit" if holds else "MISS"


if __name__ == "__main__":
    main()
