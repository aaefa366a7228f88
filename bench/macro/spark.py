"""``python -m bench.macro.spark``: tables of Spark into a job, and what a job writes back, each beside the plain way.

A table of Spark's is pinned once. Then: a job reads it in columns, beside pyarrow reading the same files; as dicts, one
by one, beside ``to_pylist`` over the same batches; and writes its columns through the sink, beside Spark, which reads
the same files and writes the same rows itself. Staging a DataFrame is timed beside Spark writing it. Memory is that of
the program that starts a job from a DataFrame into a path, over a tenth, all, and twice the rows, each in its process.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

import malstrom_py as mp
from bench.micro import machine, memory
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES: Final = 8
CORES: Final = 2
DICT_ROWS: Final = mp.Batching().rows_max
COLUMN_ROWS: Final = mp.Batching().columns_rows_max
FLAT: Final = 1.2
"""The driver's memory over all rows may be so many times that over a tenth of them."""

Check = tuple[int, int]


@dataclass(frozen=True)
class Table:
    """What is measured: Spark's files of it, pinned, and what Spark reads them by."""

    spark: SparkSession
    frame: DataFrame
    pinned: sources.Spark
    files: tuple[Path, ...]
    folder: Path

    @property
    def source(self) -> sources.Spark:
        """A copy of what is pinned, as workers get it: it reads without Spark."""
        return copy.deepcopy(self.pinned)

    def fresh(self) -> str:
        """A folder that is not there yet."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        return str(out)


@contextmanager
def spark_here(folder: Path) -> Iterator[SparkSession]:
    """A classic session of this process."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = {
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = SparkSession.builder.master(f"local[{CORES}]").config(map=settings).getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """``rows`` rows of string, long, double, timestamp; 100,000 different strings."""
    return spark.range(0, rows, 1, FILES).selectExpr(
        "concat('customer-', id * 7919 % 100000) AS customer",
        "id * 31 % 1000003 AS number",
        "id * 0.25D AS price",
        "timestamp_micros(1357000000000000 + id * 1000) AS at",
    )


def table_of(spark: SparkSession, rows: int, folder: Path) -> Table:
    """Write the table and pin it."""
    path = folder / f"table-{rows}"
    rows_of(spark, rows).write.parquet(str(path))
    source = sources.Spark(path=path, session=spark)
    source.pin("bench")
    return Table(spark, spark.read.parquet(str(path)), source, tuple(sorted(path.glob("*.parquet"))), folder)


class Tally:
    """A sink that counts rows and sums a column: in Polars, or in Arrow, which are two faces of the same batch."""

    takes_columns = True

    def __init__(self, *, in_arrow: bool) -> None:
        self.check: Check = (0, 0)
        self._in_arrow = in_arrow

    def build(self, worker: WorkerInfo) -> Tally:
        return self

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, ColumnBatch)
        if self._in_arrow:
            self.check = add(self.check, batch.columns)
        else:
            rows, total = self.check
            self.check = rows + len(batch), total + int(batch.frame["number"].sum())

    def close(self) -> None:
        """Nothing is open."""


def add(check: Check, columns: Any) -> Check:
    """``columns`` counted and summed on top of ``check``."""
    total = pc.call_function("sum", [columns.column("number")]).as_py()
    return check[0] + columns.num_rows, check[1] + total


def job_frames(table: Table) -> Check:
    """The pinned table, as frames of Polars, which a filter lets pass."""
    tally, job = Tally(in_arrow=False), mp.Job("frames")
    job.source("in", table.source).filter("all", pl.col("number") >= 0).sink("out", tally)
    mp.run(job, progress=False)
    return tally.check


def job_columns(table: Table) -> Check:
    """The pinned table, as record batches of Arrow."""
    tally, job = Tally(in_arrow=True), mp.Job("columns")
    job.source("in", table.source).sink("out", tally)
    mp.run(job, progress=False)
    return tally.check


def arrow_columns(table: Table) -> Check:
    """pyarrow, over the same files, in batches of the same size."""
    check = (0, 0)
    for path in table.files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=COLUMN_ROWS):
                check = add(check, batch)
    return check


def job_dicts(table: Table) -> Check:
    """Each row as a dict in a function of the user's, which touches a field of it."""
    count = total = 0

    def touch(row: dict[str, Any]) -> bool:
        nonlocal count, total
        count, total = count + 1, total + row["number"]
        return False

    job = mp.Job("dicts")
    job.source("in", table.source).filter("touch", touch).sink("out", Tally(in_arrow=False))
    mp.run(job, progress=False)
    return count, total


def arrow_dicts(table: Table) -> Check:
    """``to_pylist``, over batches of the size that the job has."""
    count = total = 0
    for path in table.files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=DICT_ROWS):
                for row in batch.to_pylist():
                    count, total = count + 1, total + row["number"]
    return count, total


def job_writes(table: Table) -> int:
    """The pinned table through the sink."""
    out, job = table.fresh(), mp.Job("write")
    job.source("in", table.source).sink("out", sinks.Spark(path=out))
    mp.run(job, progress=False)
    return rows_in(out)


def spark_writes(table: Table) -> int:
    """Spark reads and writes the same rows."""
    out = table.fresh()
    table.frame.write.mode("append").parquet(out)
    return rows_in(out)


def rows_in(folder: str | Path) -> int:
    """The rows of the Parquet files in and below ``folder``."""
    return sum(int(pq.read_metadata(file).num_rows) for file in Path(folder).rglob("*.parquet"))


def job_pins(table: Table) -> int:
    """A DataFrame staged for a job."""
    source = sources.Spark(table.frame, staging=table.fresh())
    source.pin("bench")
    rows = rows_in(table.folder / "out")
    source.unpin()
    return rows


PAIRS: Final[dict[str, tuple[Callable[[Table], object], Callable[[Table], object], float | None]]] = {
    "into frames": (arrow_columns, job_frames, 0.7),
    "into record batches": (arrow_columns, job_columns, 0.7),
    "into dicts": (arrow_dicts, job_dicts, 0.5),
    "columns into a path": (spark_writes, job_writes, 0.5),
    "staging a DataFrame": (spark_writes, job_pins, None),
}


def through(rows: int) -> None:
    """In a separate process: a DataFrame of ``rows`` rows into a path, and the largest resident size in MB."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name, spark_here(Path(name)) as spark:
        job = mp.Job("through")
        source = sources.Spark(rows_of(spark, rows), staging=f"{name}/staging")
        job.source("in", source).sink("out", sinks.Spark(path=f"{name}/out"))
        assert mp.run(job, progress=False).written == rows
        print(memory.peak_mb())


def peak_mb(rows: int) -> float:
    """The largest resident size of Python in a program that runs `through`."""
    command = [sys.executable, "-m", "bench.macro.spark", "--through", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stderr}")
    return float(done.stdout)


def measure(table: Table, rows: int, reps: int) -> None:
    """A line per pair."""
    for what, (base, ours, budget) in PAIRS.items():
        seconds = interleave({base.__name__: base, ours.__name__: ours}, table, reps=reps)
        ratio = ratios(seconds[base.__name__], seconds[ours.__name__])
        rate = spread([rows / s / 1e6 for s in seconds[ours.__name__]])
        judged = "" if budget is None else f", budget >= {budget}: {'hit' if ratio.median >= budget else 'MISS'}"
        print(f"{what:20} {rate.show(1):>16} M rows/s  {ratio.show():>18} of {base.__name__}{judged}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.spark", description=__doc__)
    parser.add_argument("--n", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    parser.add_argument("--through", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.through is not None:
        through(given.through)
        return 0
    print(machine.describe())
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name, spark_here(Path(name)) as spark:
        print(f"Spark {spark.version}, local[{CORES}]; {given.n:,} rows, {FILES} files; medians (lowest-highest)")
        measure(table_of(spark, given.n, Path(name)), given.n, given.reps)
    few, every, twice = (peak_mb(rows) for rows in (given.n // 10, given.n, 2 * given.n))
    judged = "hit" if every <= FLAT * few else "MISS"
    print(
        f"memory of the driver {every:.0f} MB, of a tenth of the rows {few:.0f}, budget <= {FLAT} times: {judged}",
        end="",
    )
    print(f"; of twice the rows {twice:.0f}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
