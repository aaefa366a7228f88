"""``python -m bench.macro.time_joins``: joins by time over columns, beside the same jobs over dict rows, and Polars.

The input is two tables in memory, in order of time. Results are compared first. Then all take turns, round by round.
Time is processor time on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import Any, Final, NamedTuple

if __name__ == "__main__":
    os.environ["POLARS_MAX_THREADS"] = "1"  # read when Polars is imported

import polars as pl

import malstrom_py as mp
from bench.macro.in_memory import InMemory
from bench.macro.peer_queries import IN_ORDER, Tally
from bench.micro import machine
from bench.micro.__main__ import show
from bench.micro.timing import interleave, ratios, spread
from bench.micro.workloads import Check
from malstrom_py import sources, windows

Stream = Any
COLUMNS, ROWS, POLARS = "columns", "rows", "polars"


class Join(NamedTuple):
    """A join of both streams, with how many keys, and what Polars makes of both tables."""

    title: str
    keys: int
    build: Callable[[Stream, Stream], Stream]
    polars: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]


def near(span: int) -> Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]:
    """Pairs of which the right record is at most ``span`` before the left one."""

    def pairs(lefts: pl.DataFrame, rights: pl.DataFrame) -> pl.DataFrame:
        both = lefts.join(rights, on="key", suffix="_right")
        return both.filter((pl.col("time") - pl.col("time_right")).is_between(0, span))

    return pairs


def sessions(gap: int) -> Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]:
    """Pairs of one session: of rows of a key that are less than ``gap`` apart."""

    def pairs(lefts: pl.DataFrame, rights: pl.DataFrame) -> pl.DataFrame:
        both = pl.concat([lefts.with_columns(side=0), rights.with_columns(side=1)]).sort("key", "time")
        far = (pl.col("time").diff() >= gap) | (pl.col("key").diff() != 0)
        left, right = both.with_columns(session=far.fill_null(True).cum_sum()).partition_by("side", maintain_order=True)
        return left.join(right, on="session", suffix="_right")

    return pairs


JOINS: Final = (
    Join("interval", 1_000, lambda a, b: a.join_interval("j", b, lower=-2_000, upper=0), near(2_000)),
    Join("interval", 100_000, lambda a, b: a.join_interval("j", b, lower=-100_000, upper=0), near(100_000)),
    Join("session", 1_000, lambda a, b: a.join("j", b, window=windows.session(2_000)), sessions(2_000)),
    Join("session", 100_000, lambda a, b: a.join("j", b, window=windows.session(100_000)), sessions(100_000)),
    Join("as of", 1_000, lambda a, b: a.join_asof("j", b, how="inner"), lambda a, b: asof(a, b, "backward")),
    Join(
        *("nearest", 100_000, lambda a, b: a.join_asof("j", b, how="inner", direction="nearest")),
        lambda a, b: asof(a, b, "nearest"),
    ),
)


def asof(lefts: pl.DataFrame, rights: pl.DataFrame, direction: Any) -> pl.DataFrame:
    """The right record of each left one."""
    found = lefts.join_asof(rights, on="time", by="key", strategy=direction, check_sortedness=False)
    return found.drop_nulls("value_right")


def tables_of(n: int, keys: int) -> Mapping[str, pl.DataFrame]:
    """Two tables of ``n`` rows in all: a key, a value and an own time each, even on the left and odd on the right."""
    half = n // 2
    times = pl.int_range(half, eager=True)
    return {
        name: pl.DataFrame(
            {"key": (times * factor + place) % 1_000_003 % keys, "time": 2 * times + place, "value": times}
        )
        for place, (name, factor) in enumerate((("left", 7_919), ("right", 104_729)))
    }


def run(join: Join, made: Mapping[str, Any]) -> Check:
    """Run a join of two sources: its pairs, and the sum of their right values."""
    job = mp.Job("bench")
    tally = Tally(
        lambda pairs: pairs["right"].struct.field("value").sum(), lambda pairs: sum(pair[1]["value"] for pair in pairs)
    )
    keyed = []
    for name, source in made.items():
        timed = job.source(name, source).assign_timestamps(f"{name}-time", "time")
        keyed.append(timed.generate_epochs(f"{name}-epochs", IN_ORDER)[0].key_by(f"{name}-key", "key"))
    join.build(*keyed).sink("out", tally)
    mp.run(job, progress=False)
    return tally.check


def polars_check(join: Join, tables: Mapping[str, pl.DataFrame]) -> Check:
    """What Polars makes of the whole tables."""
    pairs = join.polars(*tables.values())
    return pairs.height, int(pairs["value_right"].sum())


def measure(join: Join, n: int, reps: int) -> list[str]:
    """The figures of one join: ns a row of each form, and the ratios to columns."""
    tables = tables_of(n, join.keys)
    columns = {name: frame.to_arrow().combine_chunks().to_batches()[0] for name, frame in tables.items()}
    rows = {name: frame.to_dicts() for name, frame in tables.items()}
    seconds = interleave(
        {
            COLUMNS: lambda _: run(join, {name: InMemory(table) for name, table in columns.items()}),
            ROWS: lambda _: run(join, {name: sources.Memory(table) for name, table in rows.items()}),
            POLARS: lambda _: polars_check(join, tables),
        },
        None,
        reps=reps,
        clock=process_time,
    )
    each = [f"{spread(seconds[name]).median / n * 1e9:.0f}" for name in seconds]
    times = ratios(seconds[ROWS], seconds[COLUMNS]).show(1)
    return [*each, times, ratios(seconds[POLARS], seconds[COLUMNS]).show(2)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.time_joins", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows of both tables")
    parser.add_argument("--reps", type=int, default=3, help="rounds")
    given = parser.parse_args(arguments)
    print(f"{machine.describe()}; {given.n:,} rows, ns a row, medians of {given.reps} rounds", flush=True)
    head = ["join", COLUMNS, ROWS, POLARS, "times rows", "of polars"]
    print(show(head, [[f"{one.title}, {one.keys:,} keys", *measure(one, given.n, given.reps)] for one in JOINS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
