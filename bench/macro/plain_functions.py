"""``python -m bench.macro.plain_functions``: jobs of plain functions of dict rows, beside the same job with
``compile=False``, a plain loop over the rows, and Polars.

The input is one table in memory; each job's results are compared first. Then all take turns, round by round. Time is
processor time on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if __name__ == "__main__":
    os.environ["POLARS_MAX_THREADS"] = "1"  # read when Polars is imported

import polars as pl

import malstrom_py as mp
from bench.macro.in_memory import InMemory
from bench.macro.peer_queries import BIDS, QUERIES, Tally
from bench.micro import machine
from bench.micro.__main__ import show
from bench.micro.timing import interleave, ratios, spread
from bench.micro.workloads import Check
from malstrom_py import agg

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Stream = Any
COMPILED, CALLED, LOOP, POLARS = "compiled", "compile=False", "loop", "polars"


class Job(NamedTuple):
    """A job in all forms. ``field``: the column of the results that is added up."""

    title: str
    build: Callable[[Stream], Stream]
    loop: Callable[[list[Row]], Check]
    polars: Callable[[pl.DataFrame], pl.DataFrame]
    field: str


def q1(bids: Stream) -> Stream:
    return bids.map("in-euros", in_euros)


def in_euros(row: Row) -> Row:
    return {"auction": row["auction"], "bidder": row["bidder"], "price": row["price"] * 908 // 1000}


def q1_loop(rows: list[Row]) -> Check:
    prices = [in_euros(row)["price"] for row in rows]
    return len(prices), sum(prices)


def q2(bids: Stream) -> Stream:
    return bids.filter("of-interest", of_interest)


def of_interest(row: Row) -> bool:
    return bool(row["auction"] % 123 == 0)


def q2_loop(rows: list[Row]) -> Check:
    prices = [row["price"] for row in rows if of_interest(row)]
    return len(prices), sum(prices)


def first(bids: Stream) -> Stream:
    """The first job of many users: filter, map, key, aggregate."""
    large = bids.filter("large", lambda row: row["price"] > 100).map("in-euros", in_euros)
    return large.key_by("key", lambda row: row["auction"] % 1000).aggregate("sums", total=agg.sum("price"))


def first_loop(rows: list[Row]) -> Check:
    sums: dict[int, int] = {}
    count = total = 0
    for row in rows:
        if row["price"] > 100:
            made = in_euros(row)
            key = made["auction"] % 1000
            sums[key] = sums.get(key, 0) + made["price"]
            count, total = count + 1, total + sums[key]
    return count, total


def pairs(bids: Stream) -> Stream:
    """A key of two fields."""
    return bids.key_by("key", lambda row: (row["auction"] % 100, row["bidder"] % 10)).aggregate(
        "sums", total=agg.sum("price")
    )


def pairs_loop(rows: list[Row]) -> Check:
    sums: dict[tuple[int, int], int] = {}
    total = 0
    for row in rows:
        key = (row["auction"] % 100, row["bidder"] % 10)
        sums[key] = sums.get(key, 0) + row["price"]
        total += sums[key]
    return len(rows), total


def folded(bids: Stream) -> Stream:
    """A state that adds."""
    keyed = bids.key_by("key", lambda row: row["auction"] % 1000)
    return keyed.fold("sums", lambda state, row: {"total": state["total"] + row["price"]}, default=lambda: {"total": 0})


def folded_loop(rows: list[Row]) -> Check:
    sums: dict[int, int] = {}
    total = 0
    for row in rows:
        key = row["auction"] % 1000
        sums[key] = sums.get(key, 0) + row["price"]
        total += sums[key]
    return len(rows), total


def rises(bids: Stream) -> Stream:
    """A state that keeps the largest, and an output that is computed of the state before."""
    keyed = bids.key_by("key", lambda row: row["auction"] % 1000)
    return keyed.stateful_map(
        "rises", lambda key, row, most: ({"by": row["price"] - most}, max(row["price"], most)), default=int
    )


def rises_loop(rows: list[Row]) -> Check:
    most: dict[int, int] = {}
    total = 0
    for row in rows:
        key = row["auction"] % 1000
        total += row["price"] - most.get(key, 0)
        most[key] = max(row["price"], most.get(key, 0))
    return len(rows), total


KEY: Final = pl.col("auction") % 1000
EUROS: Final = (pl.col("price") * 908 // 1000).alias("price")
JOBS: Final[Mapping[str, Job]] = {
    "q1": Job("map", q1, q1_loop, lambda bids: bids.select("auction", "bidder", EUROS), "price"),
    "q2": Job("filter", q2, q2_loop, lambda bids: bids.filter(pl.col("auction") % 123 == 0), "price"),
    "first": Job(
        "filter, map, key_by, aggregate",
        first,
        first_loop,
        lambda bids: (
            bids.filter(pl.col("price") > 100)
            .select("auction", EUROS)
            .select(total=pl.col("price").cum_sum().over(pl.col("auction") % 1000))
        ),
        "total",
    ),
    "pairs": Job(
        "key_by two fields, aggregate",
        pairs,
        pairs_loop,
        lambda bids: bids.select(total=pl.col("price").cum_sum().over(pl.col("auction") % 100, pl.col("bidder") % 10)),
        "total",
    ),
    "fold": Job(
        "key_by, fold",
        folded,
        folded_loop,
        lambda bids: bids.select(total=pl.col("price").cum_sum().over(KEY)),
        "total",
    ),
    "rises": Job(
        "key_by, stateful_map",
        rises,
        rises_loop,
        lambda bids: bids.select(by=pl.col("price") - pl.col("price").cum_max().shift(1).over(KEY).fill_null(0)),
        "by",
    ),
}


def run(job: Job, table: pa.RecordBatch, *, compiled: bool) -> Check:
    """Run ``job`` over ``table``: its results, and the sum of their field."""
    made = mp.Job("bench", compile=compiled)
    tally = Tally(
        lambda frame: frame[job.field].sum(), lambda rows: sum(row[job.field] for row in rows), names=[job.field]
    )
    job.build(made.source("bids", InMemory(table))).sink("out", tally)
    mp.run(made, progress=False)
    return tally.check


def polars_check(job: Job, frame: pl.DataFrame) -> Check:
    """What Polars makes of the whole table."""
    found = job.polars(frame)
    return found.height, int(found[job.field].sum())


def measure(job: Job, table: pa.RecordBatch, reps: int) -> list[str]:
    """The figures of one job: ns a row of each form, and the ratios to the job that is compiled."""
    frame, rows = pl.DataFrame(table), table.to_pylist()
    seconds = interleave(
        {
            COMPILED: lambda _: run(job, table, compiled=True),
            CALLED: lambda _: run(job, table, compiled=False),
            LOOP: lambda _: job.loop(rows),
            POLARS: lambda _: polars_check(job, frame),
        },
        None,
        reps=reps,
        clock=process_time,
    )
    each = [f"{spread(seconds[name]).median / len(rows) * 1e9:.1f}" for name in seconds]
    times = ratios(seconds[CALLED], seconds[COMPILED]).show(1)
    return [*each, times, ratios(seconds[POLARS], seconds[COMPILED]).show(2)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.plain_functions", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows")
    parser.add_argument("--reps", type=int, default=3, help="rounds")
    given = parser.parse_args(arguments)
    print(f"{machine.describe()}; {given.n:,} rows, ns a row, medians of {given.reps} rounds", flush=True)
    table = next(query for query in QUERIES if query.tables == BIDS).data(given.n).arrow["bids"]
    head = ["job", COMPILED, CALLED, LOOP, POLARS, "times compile=False", "of polars"]
    found = [[f"{name}: {job.title}", *measure(job, table, given.reps)] for name, job in JOBS.items()]
    print(show(head, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
