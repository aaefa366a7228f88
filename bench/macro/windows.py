"""``python -m bench.macro.windows``: windows over columns beside DuckDB and Polars with one thread, in CPU time.

W2: a tumbling window of ten seconds, count and sum per key. q1, q2, q5 and q7 of Nexmark, over bids. The columns are in
memory before the clock starts; each engine reads the same ones. Every result is compared first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import process_time
from typing import Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is imported

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import malstrom_py as mp
from bench.micro import machine
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import agg, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.worker_context import WorkerInfo

START: Final = 1_704_067_200_000
SEED: Final = 20_240_101
TEN_SECONDS: Final = timedelta(seconds=10)
TWO_SECONDS: Final = timedelta(seconds=2)


def readings(rows: int) -> pa.RecordBatch:
    """Return W2: a key of 1,000, a time that is up to 2 s out of order, a value."""
    rng = np.random.default_rng(SEED)
    keys = pa.array([f"user-{number:04d}" for number in range(1000)])
    times = np.maximum(np.arange(rows) - rng.integers(0, 2000, rows), 0) + START
    return pa.RecordBatch.from_pydict(
        {"key": keys.take(pa.array(rng.integers(0, 1000, rows))), "ts": times, "value": rng.integers(1, 101, rows)}
    )


def bids(rows: int) -> pa.RecordBatch:
    """Return bids as Nexmark makes them: 9,200 per second, half of them for the hottest auctions."""
    rng = np.random.default_rng(SEED)
    event = np.arange(rows) * 50 // 46
    last = event // 50 * 3 + 2
    cold = np.maximum(last - rng.integers(0, 100, rows), 0)
    auction = np.where(rng.integers(0, 2, rows) > 0, last // 100 * 100, cold) + 1000
    price = np.round(10 ** (rng.random(rows) * 6) * 100).astype(np.int64)
    bidder = rng.integers(1000, 2000, rows)
    times = START + event // 10
    return pa.RecordBatch.from_pydict({"auction": auction, "bidder": bidder, "price": price, "ts": times})


class Columns:
    """A source of one part: pieces of a record batch."""

    def __init__(self, columns: pa.RecordBatch) -> None:
        self._columns, self._at = columns, 0

    def build(self, worker: WorkerInfo) -> Any:
        return self

    def poll(self, rows_max: int) -> pa.RecordBatch:
        piece = self._columns.slice(self._at, rows_max)
        self._at += piece.num_rows
        return piece

    def is_finished(self) -> bool:
        return self._at >= int(self._columns.num_rows)

    def snapshot(self) -> int:
        return self._at

    def close(self) -> None:
        """Nothing is open."""


class Checksum:
    """A sink that sums what ``of`` makes of its columns."""

    takes_columns = True

    def __init__(self, of: Callable[[ColumnBatch], tuple[int, int]]) -> None:
        self._of, self.rows, self.total = of, 0, 0

    def build(self, worker: WorkerInfo) -> Checksum:
        return self

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, ColumnBatch), "a step made rows"
        rows, total = self._of(batch)
        self.rows, self.total = self.rows + rows, self.total + total

    def close(self) -> None:
        """Nothing is open."""


Stream = mp.StreamBuilder[Any, Any]


def in_time(stream: Stream) -> Stream:
    """Return ``stream`` on event time."""
    timed = stream.assign_timestamps("time", "ts")
    return timed.generate_epochs("epochs", mp.limit_out_of_orderness(timedelta(seconds=2)))[0]


def run(columns: pa.RecordBatch, rows_max: int, build: Callable[[Stream], Stream], of: Any) -> tuple[int, int]:
    """Run a job over ``columns``, and return its checksum."""
    sink = Checksum(of)
    job = mp.Job("windows")
    build(job.source("rows", Columns(columns))).sink("out", sink)
    result = mp.run(job, progress=False, batch=mp.Batching(columns_rows_max=rows_max))
    assert not any(step.rows_made for step in result.steps.values()), "a step made rows"
    return sink.rows, sink.total


def w2(stream: Stream) -> Stream:
    keyed = in_time(stream).key_by("key", "key")
    return keyed.window("window", windows.tumbling(TEN_SECONDS)).aggregate(n=agg.count(), total=agg.sum("value"))


def w2_check(batch: ColumnBatch) -> tuple[int, int]:
    count, total = batch.columns.column("value").flatten()
    window = (batch.columns.column("start").to_numpy() - START) // 10_000
    return len(batch), int(((count.to_numpy() * 3 + total.to_numpy()) * (window + 1)).sum())


def q1(stream: Stream) -> Stream:
    return stream.with_columns("euros", price=pl.col("price") * 908 // 1000)


def total_of(frame: pl.DataFrame, *names: str) -> int:
    """Return the sum of columns of integers."""
    return sum(int(frame[name].sum()) for name in names)


def q1_check(batch: ColumnBatch) -> tuple[int, int]:
    return len(batch), total_of(batch.frame, "price")


def q2(stream: Stream) -> Stream:
    return stream.filter("some", pl.col("auction") % 123 == 0).select("price", "auction", "price")


def q2_check(batch: ColumnBatch) -> tuple[int, int]:
    return len(batch), total_of(batch.frame, "auction", "price")


def q7(stream: Stream) -> Stream:
    everything = in_time(stream).with_columns("all", all=pl.lit(0)).key_by("key", "all")
    return everything.window("window", windows.tumbling(TEN_SECONDS)).max("price")


def q7_check(batch: ColumnBatch) -> tuple[int, int]:
    window = (batch.columns.column("start").to_numpy() - START) // 10_000
    return len(batch), int((batch.columns.column("value").to_numpy() * (window + 1)).sum())


def q5(stream: Stream) -> Stream:
    keyed = in_time(stream).key_by("auction", "auction")
    return keyed.window("counts", windows.sliding(TEN_SECONDS, TWO_SECONDS)).count()


def q5_check(batch: ColumnBatch) -> tuple[int, int]:
    """Keep the hottest auctions of a window; all results of a window are in one batch here."""
    assert batch.key_column is not None
    counts, auctions = batch.columns.column("value").to_numpy(), batch.key_column.to_numpy()
    window = (batch.columns.column("start").to_numpy() - START) // 2000
    hot = counts == counts.max()
    return int(hot.sum()), int(((auctions + counts) * (window + 6))[hot].sum())


SQL: Final = {
    "W2": f"with g as (select key, (ts-{START})//10000 w, count(*) c, sum(value) s from t group by all) "
    "select count(*), sum((c*3+s)*(w+1)) from g",
    "q1": "select count(*), sum(price*908//1000) from t",
    "q2": "select count(*), sum(auction+price) from t where auction % 123 = 0",
    "q5": f"with b as (select auction, (ts-{START})//2000 p, count(*) n from t group by all), "
    "h as (select auction, p-o w, n from b, (select unnest([0,1,2,3,4]) o)), "
    "c as (select w, auction, sum(n)::bigint n from h group by all), m as (select w, max(n) mx from c group by w) "
    "select count(*), sum((auction+n)*(c.w+6)) from c join m on c.w=m.w and n=mx",
    "q7": f"with g as (select (ts-{START})//10000 w, max(price) p from t group by 1) "
    "select count(*), sum(p*(w+1)) from g",
}


def polars_of(name: str, columns: pa.RecordBatch) -> tuple[int, int]:
    """Return the checksum of q1 or q2 by Polars."""
    frame = pl.DataFrame(columns).lazy()
    if name == "q1":
        made = frame.with_columns(price=pl.col("price") * 908 // 1000).collect()
        return len(made), total_of(made, "price")
    made = frame.filter(pl.col("auction") % 123 == 0).select("auction", "price").collect()
    return len(made), total_of(made, "auction", "price")


@dataclass(frozen=True, slots=True)
class Workload:
    """A job, its checksum, its data, and the ratio it owes to the best of the engines."""

    build: Callable[[Stream], Stream]
    check: Callable[[ColumnBatch], tuple[int, int]]
    data: Callable[[int], pa.RecordBatch]
    budget: float
    by_polars: bool = False


WORKLOADS: Final[Mapping[str, Workload]] = {
    "W2": Workload(w2, w2_check, readings, 0.45),
    "q5": Workload(q5, q5_check, bids, 1.0),
    "q7": Workload(q7, q7_check, bids, 0.5),
    "q1": Workload(q1, q1_check, bids, 0.35, by_polars=True),
    "q2": Workload(q2, q2_check, bids, 0.35, by_polars=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.windows", description=__doc__)
    parser.add_argument("--n", type=int, default=2_000_000, help="rows")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    parser.add_argument("--rows-max", type=int, default=65_536, help="rows per batch")
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    given = parser.parse_args(arguments)
    print(machine.describe())
    print(f"duckdb {duckdb.__version__}, polars {pl.__version__}, one thread each; {given.n:,} rows, CPU time, medians")
    for name in given.only:
        load = WORKLOADS[name]
        columns = load.data(given.n)
        con = duckdb.connect()
        con.execute("set threads=1")
        con.register("t", pa.Table.from_batches([columns]))

        def by_duckdb(columns: pa.RecordBatch, con: Any = con, name: str = name) -> tuple[int, int]:
            rows, total = con.execute(SQL[name]).fetchone()
            return int(rows), int(total)

        def by_job(columns: pa.RecordBatch, load: Workload = load) -> tuple[int, int]:
            return run(columns, given.rows_max, load.build, load.check)

        engines: dict[str, Callable[[pa.RecordBatch], object]] = {"duckdb": by_duckdb, "job": by_job}
        if load.by_polars:
            engines["polars"] = partial(polars_of, name)
        seconds = interleave(engines, columns, reps=given.reps, clock=process_time)
        for engine in engines.keys() - {"job"}:
            ratio = ratios(seconds[engine], seconds["job"])
            each = spread([s / given.n * 1e9 for s in seconds["job"]])
            verdict = "hit" if ratio.median >= load.budget else "MISS"
            print(
                f"{name:3} {each.show(1):>20} ns per row  {ratio.show():>18} of {engine}, >= {load.budget}: {verdict}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
