"""``python -m bench.macro.scaling``: what a record costs as the number of keys grows, and that of open windows.

Keys: a running sum over rows and over columns, beside a loop with a dict; every key comes equally often, in random
order, and has come once before the clock starts. Windows: rows are out of order by ever more, so that ever more windows
of a fixed length are open, beside a loop with a dict per window. Processor time, in turn; the results are compared.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import process_time
from typing import Any, Final, NamedTuple

import malstrom_py as mp
from bench.macro.in_memory import InMemory
from bench.macro.peer_queries import Tally, table
from bench.micro import inputs, machine
from bench.micro.timing import interleave, ratios, spread
from bench.micro.workloads import Check
from malstrom_py import sources, windows

WINDOW_MS: Final = 1_000
WINDOWS: Final = 1_000
Row = tuple[int, int, int]
"""A key, a time in ms, and a number."""


class Input(NamedTuple):
    """Rows, and the same as columns."""

    rows: list[Row]
    columns: Any


def of_keys(keys: int, n: int) -> Input:
    """Each of ``keys`` once, and then ``n`` rows."""
    rng = random.Random(inputs.SEED)
    numbers = chain(range(keys), rng.choices(range(keys), k=n))
    rows = [(key, 0, place % 100) for place, key in enumerate(numbers)]
    return Input(rows, table(rows, "key", "", "value"))


def of_windows(opened: int, n: int) -> Input:
    """``n`` rows of a hundred keys over a thousand windows, out of order by ``opened`` windows."""
    rng = random.Random(inputs.SEED)
    times = (place * WINDOWS * WINDOW_MS // n for place in range(n))
    late = (time - int(rng.random() * min(time, opened * WINDOW_MS)) for time in times)
    rows = [(place % 100, inputs.START_MS + time, place % 100) for place, time in enumerate(late)]
    return Input(rows, table(rows, "key", "time", "value"))


def sums_loop(data: Input) -> Check:
    """The running sum of each key."""
    states: dict[int, int] = {}
    get = states.get
    total = 0
    for key, _, value in data.rows:
        states[key] = seen = get(key, 0) + value
        total += seen
    return len(data.rows), total


def key_of(row: Row) -> int:
    return row[0]


def time_of(row: Row) -> int:
    return row[1]


def value_of(row: Row) -> int:
    return row[2]


def run(source: Any, build: Callable[[Any], Any], total: Callable[[list[Any]], int]) -> Check:
    """Run a job into a `Tally`."""
    job = mp.Job("scaling")
    tally = Tally(lambda frame: frame.to_series(frame.width // 2).sum(), total)
    build(job.source("in", source)).sink("out", tally)
    mp.run(job, progress=False)
    return tally.check


def sums_rows(data: Input) -> Check:
    return run(sources.Memory(data.rows), lambda s: s.key_by("key", key_of).sum("sum", by=value_of), sum)


def sums_columns(data: Input) -> Check:
    return run(InMemory(data.columns), lambda s: s.key_by("key", "key").sum("sum", by="value"), sum)


def windows_loop(opened: int) -> Callable[[Input], Check]:
    """The sum of each key and window. The loop closes windows as the job does."""
    bound = opened * WINDOW_MS

    def loop(data: Input) -> Check:
        found: dict[int, dict[int, int]] = {}
        results: list[int] = []
        largest, first = -(2**63), 2**63
        for key, time, value in data.rows:
            if time > largest:
                largest = time
                while found and first + WINDOW_MS <= largest - bound:
                    results += found.pop(first).values()
                    first = min(found, default=2**63)
            start = time - time % WINDOW_MS
            of_keys = found.get(start)
            if of_keys is None:
                of_keys = found[start] = {}
                first = min(first, start)
            of_keys[key] = of_keys.get(key, 0) + value
        results += chain.from_iterable(of_keys.values() for of_keys in found.values())
        return len(results), sum(results)

    return loop


def windows_job(opened: int, *, names: bool) -> Callable[[Input], Check]:
    """The same in windows, over rows or by names over columns."""
    key, time, value = ("key", "time", "value") if names else (key_of, time_of, value_of)
    bound = mp.limit_out_of_orderness(opened * WINDOW_MS)

    def build(stream: Any) -> Any:
        timed = stream.assign_timestamps("time", time).generate_epochs("epochs", bound)[0]
        return timed.key_by("key", key).window("windows", windows.tumbling(WINDOW_MS)).sum(value)

    def job(data: Input) -> Check:
        source: Any = InMemory(data.columns) if names else sources.Memory(data.rows)
        return run(source, build, lambda results: sum([result[2] for result in results]))

    return job


def line(what: str, data: Input, variants: Mapping[str, Callable[[Any], object]], reps: int) -> None:
    """Measure and print: ns per row of each, and of the loop."""
    seconds = interleave(variants, data, reps=reps, clock=process_time)
    rows = len(data.rows)
    costs = {name: spread([one / rows * 1e9 for one in of]).median for name, of in seconds.items()}
    shown = [f"{name} {cost:.0f} ns" for name, cost in costs.items()]
    shown += [f"{name} {ratios(seconds['loop'], seconds[name]).show()} of the loop" for name in ("rows", "columns")]
    print(f"{what}: {', '.join(shown)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per number of keys, and per number of open windows."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.scaling", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows, beside one of each key")
    parser.add_argument("--reps", type=int, default=3, help="rounds")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 10, 100, 1_000])
    given = parser.parse_args(arguments)
    print(machine.describe())
    for keys in given.keys:
        variants = {"loop": sums_loop, "rows": sums_rows, "columns": sums_columns}
        line(f"{keys:,} keys", of_keys(keys, given.n), variants, given.reps)
    for opened in given.windows:
        over = {"rows": windows_job(opened, names=False), "columns": windows_job(opened, names=True)}
        line(
            f"{opened:,} open windows", of_windows(opened, given.n), {"loop": windows_loop(opened), **over}, given.reps
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
