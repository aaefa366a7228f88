"""``python -m bench.macro.keyed_columns``: W1 on columns, a running sum per key, beside Polars on one thread.

The job is ``source -> key_by("key") -> sum(by="value") -> sink``; Polars computes ``cum_sum().over("key")`` of the
whole table, in memory and from Parquet. Then ``distinct(by="value")`` and ``top_n(3, by="value").final()``, over
columns and by the row path. Time is that of the processor, of all threads. With the variable
``MALSTROM_ACCELERATOR=off`` it runs in numpy.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import malstrom_py as mp
from bench.micro import machine
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import accelerator, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.operators.aggregate import Distinct
from malstrom_py.operators.column_figures import ColumnFigures
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS: Final = 65_536
BUDGETS: Final = {"memory": 3.0, "parquet": 1.4}
"""Of Polars, with the accelerator."""


class Table:
    """A source of record batches that are in memory."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def build(self, worker: WorkerInfo) -> _Batches:
        return _Batches(self._batches)


class _Batches:
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._left = list(reversed(batches))

    def poll(self, rows_max: int) -> pa.RecordBatch:
        return self._left.pop()

    def is_finished(self) -> bool:
        return not self._left

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


class Total:
    """A sink that adds all sums, in columns."""

    takes_columns = True

    def __init__(self) -> None:
        self.total = 0

    def build(self, worker: WorkerInfo) -> Total:
        return self

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, ColumnBatch)
        self.total += pc.call_function("sum", [batch.columns.column(0)]).as_py() or 0

    def close(self) -> None:
        """Nothing is open."""


def table(rows: int, keys: int) -> pa.Table:
    """``rows`` of a key of ``keys``, and a value from 1 to 100."""
    picked = np.random.default_rng(1).integers(0, keys, rows)
    names = pc.call_function("binary_join_element_wise", [pa.scalar("user-"), pa.array(picked).cast(pa.string()), ""])
    return pa.table({"key": names, "value": pa.array(1 + picked * 7919 % 100)})


def job(source: object) -> int:
    """The running sums of all rows, added."""
    plan, out = mp.Job("sums"), Total()
    plan.source("rows", source).key_by("by", "key").sum("sums", by="value").sink("out", out)  # type: ignore[arg-type]
    result = mp.run(plan, progress=False)
    assert not any(step.rows_made for step in result.steps.values())
    return out.total


def polars(lazy: pl.LazyFrame) -> int:
    """The same in Polars."""
    import polars as pl

    return int(lazy.select(pl.col("value").cum_sum().over("key")).collect()["value"].sum())


class Passed:
    """A sink that counts rows."""

    takes_columns = True

    def __init__(self) -> None:
        self.rows = 0

    def build(self, worker: WorkerInfo) -> Passed:
        return self

    def write(self, batch: Batch) -> None:
        self.rows += len(batch)

    def close(self) -> None:
        """Nothing is open."""


def distinct(source: object) -> int:
    """The number of rows with a value that is new to their key."""
    plan, out = mp.Job("distinct"), Passed()
    plan.source("rows", source).key_by("by", "key").distinct("new", by="value").sink("out", out)  # type: ignore[arg-type]
    mp.run(plan, progress=False)
    return out.rows


def distinct_in_rows(source: object) -> int:
    """The same, by the row path over lists of keys and values."""
    with patch.object(Distinct, "_first_of_columns", return_value=None):
        return distinct(source)


def largest(source: object) -> int:
    """The number of keys, each with the three records of its largest values."""
    plan, out = mp.Job("largest"), Passed()
    records = plan.source("rows", source).key_by("by", "key").select("numbers", "value")  # type: ignore[arg-type]
    records.top_n("best", 3, by="value").final().sink("out", out)
    mp.run(plan, progress=False)
    return out.rows


def largest_in_rows(source: object) -> int:
    """The same by the row path."""
    with patch.object(ColumnFigures, "scan", return_value=None):
        return largest(source)


def compare_with_rows(rows: int, keys: int, reps: int) -> None:
    """Print the lines of `distinct` and `top_n` of one number of keys, of which each has up to a hundred values."""
    batches = table(rows, keys).to_batches(max_chunksize=BATCH_ROWS)
    value = np.random.default_rng(2).integers(0, 100, rows)
    batches = [
        batch.set_column(1, "value", pa.array(value[start * BATCH_ROWS : start * BATCH_ROWS + len(batch)]))
        for start, batch in enumerate(batches)
    ]
    pairs = {
        "distinct": {"rows": lambda _: distinct_in_rows(Table(batches)), "columns": lambda _: distinct(Table(batches))},
        "top_n": {"rows": lambda _: largest_in_rows(Table(batches)), "columns": lambda _: largest(Table(batches))},
    }
    for name, pair in pairs.items():
        seconds = interleave(pair, None, reps=reps, clock=process_time)
        ns = spread([s / rows * 1e9 for s in seconds["columns"]])
        print(f"{keys:>10,} keys, {name:8} {ns.show(0):>16} ns per row", end="")
        print(f" {ratios(seconds['rows'], seconds['columns']).show():>18} of the row path", flush=True)


def compare(rows: int, keys: int, reps: int) -> None:
    """Print the two lines of one number of keys."""
    import polars as pl

    whole = table(rows, keys)
    batches = whole.to_batches(max_chunksize=BATCH_ROWS)
    frame = pl.DataFrame(whole)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(whole, path, row_group_size=500_000)
        pairs = {
            "memory": (lambda _: polars(frame.lazy()), lambda _: job(Table(batches))),
            "parquet": (lambda _: polars(pl.scan_parquet(path)), lambda _: job(sources.Files(path))),
        }
        for name, (base, ours) in pairs.items():
            seconds = interleave({"polars": base, "job": ours}, None, reps=reps, clock=process_time)
            ratio = ratios(seconds["polars"], seconds["job"])
            ns = spread([s / rows * 1e9 for s in seconds["job"]])
            budget = BUDGETS[name]
            verdict = "hit" if ratio.median >= budget else "MISS"
            print(f"{keys:>10,} keys, {name:8} {ns.show(0):>16} ns per row {ratio.show():>18} of Polars", end="")
            print(f", >= {budget}: {verdict}" if keys == 10_000 else "", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.keyed_columns", description=__doc__)
    parser.add_argument("--n", type=int, default=4_000_000, help="rows")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read when Polars is first imported
    print(machine.describe())
    form = "columns" if accelerator.library() else "rows"
    print(f"{given.n:,} rows; figures are made of {form}; medians (lowest-highest)")
    for keys in given.keys:
        compare(given.n, keys, given.reps)
        compare_with_rows(given.n, keys, given.reps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
