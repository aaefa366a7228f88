"""``python -m bench.macro.columns``: a chain of column steps over a Parquet file, beside Polars; and its rows as dicts.

The chain is ``Files(parquet) -> filter(expr) -> with_columns -> select -> key_by("column") -> sink``; Polars runs the
same expressions lazily over the same file in its streaming engine. Dicts are compared with pyarrow's ``to_pylist``
over the batches it reads itself. Memory is that of a separate process, over a file and over one four times as long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from time import process_time
from typing import Any, Final

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import malstrom_py as mp
from bench.micro import machine, memory
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.worker_context import WorkerInfo

BUDGET: Final = 0.5
GROUP_ROWS: Final = 500_000
SCHEMA: Final = pa.schema(
    [("carrier", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us")), ("n", pa.int64())]
)
Check = tuple[int, int]


def write_file(path: Path, rows: int) -> Path:
    """``rows`` bids: a carrier of a hundred, a price, a time, a number."""
    number = pl.col("i")
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, rows, GROUP_ROWS):
            frame = pl.select(i=pl.int_range(start, min(rows, start + GROUP_ROWS))).select(
                carrier=pl.format("carrier-{}", number * 7919 % 100),
                price=(number * 31 % 1000).cast(pl.Float64),
                at=(number * 1000).cast(pl.Datetime("us")),
                n=number % 977,
            )
            writer.write_table(frame.to_arrow().cast(SCHEMA), row_group_size=GROUP_ROWS)
    return path


DEAR: Final = pl.col("price") > 250
EUROS: Final = pl.col("price") * 0.92
HOUR: Final = pl.col("at").dt.hour()
NAMES: Final = ("carrier", "euros", "hour", "n")


class Tally:
    """A sink that counts rows and sums a column, in columns."""

    takes_columns = True

    def __init__(self) -> None:
        self.check: Check = (0, 0)

    def build(self, worker: WorkerInfo) -> Tally:
        return self

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, ColumnBatch)
        rows, total = self.check
        self.check = rows + len(batch), total + _sum(batch.frame)

    def close(self) -> None:
        """Nothing is open."""


def _sum(frame: pl.DataFrame) -> int:
    return int(frame["n"].sum()) + int(frame["hour"].cast(pl.Int64).sum())


def chain(path: Path, sink: Tally | sinks.Files) -> mp.RunResult:
    """The job."""
    job = mp.Job("columns")
    bids = job.source("bids", sources.Files(path)).filter("dear", DEAR)
    bids = bids.with_columns("priced", euros=EUROS, hour=HOUR).select("named", *NAMES)
    bids.key_by("by-carrier", "carrier").sink("out", sink)
    result = mp.run(job, progress=False)
    assert not any(step.rows_made for step in result.steps.values())
    return result


def job_tally(path: Path) -> Check:
    """The job into a sink that only counts."""
    tally = Tally()
    chain(path, tally)
    return tally.check


def lazy(path: Path) -> pl.LazyFrame:
    """The same in Polars."""
    return pl.scan_parquet(path).filter(DEAR).with_columns(euros=EUROS, hour=HOUR).select(*NAMES)


def polars_tally(path: Path) -> Check:
    """Polars, counted batch by batch."""
    rows = total = 0
    for frame in lazy(path).collect_batches(maintain_order=True):
        rows, total = rows + frame.height, total + _sum(frame)
    return rows, total


def job_files(path: Path) -> int:
    """The job into Parquet files."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        chain(path, sinks.Files(folder))
        return sum(pq.read_metadata(file).num_rows for file in Path(folder).glob("*.parquet"))


def polars_files(path: Path) -> int:
    """Polars into a Parquet file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        lazy(path).sink_parquet(Path(folder) / "out.parquet", compression="zstd")
        return int(pq.read_metadata(Path(folder) / "out.parquet").num_rows)


def job_dicts(path: Path) -> int:
    """Each row as a dict in a function of the user's: the length of a field, to have touched it."""
    job, count = mp.Job("dicts"), [0]

    def touch(row: dict[str, object]) -> bool:
        count[0] += 1
        return row["n"] is None

    job.source("bids", sources.Files(path)).filter("touch", touch).sink("out", Tally())
    mp.run(job, progress=False)
    return count[0]


def arrow_dicts(path: Path) -> int:
    """The same by ``to_pylist``, over batches of the same size."""
    count = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                count += 1
                if row["n"] is None:
                    raise AssertionError("there is none such")
    return count


class Bid(msgspec.Struct, frozen=True, gc=False):
    """What `running_sum` reads of a bid."""

    carrier: str
    n: int


def running_sum(source: sources.Files[Any], key: Any, number: Callable[[Any], int]) -> int:
    """Parquet -> rows -> ``stateful_map``: a running sum per carrier. Returns the sum of all results."""
    job, out = mp.Job("rows"), [0]

    def add(key: str, row: Any, total: int | None) -> tuple[int, int]:
        total = (total or 0) + number(row)
        return total, total

    def take(batch: Batch) -> None:
        out[0] += sum(batch.values)

    summed = job.source("bids", source).key_by("by-carrier", key).stateful_map("sum", add)
    summed.sink("out", sinks.Callable(take, batch=True))
    mp.run(job, progress=False)
    return out[0]


ROWS: Final[dict[str, Callable[[Path], int]]] = {
    "dict, functions": lambda path: running_sum(sources.Files(path), lambda row: row["carrier"], itemgetter("n")),
    "dict, names": lambda path: running_sum(sources.Files(path), "carrier", itemgetter("n")),
    "tuple": lambda path: running_sum(
        sources.Files(path, rows=tuple, columns=["carrier", "n"]), lambda row: row[0], itemgetter(1)
    ),
    "Struct": lambda path: running_sum(sources.Files(path, rows=Bid), "carrier", attrgetter("n")),
}
"""Row types before ``stateful_map``; the ratios are to the first."""


PAIRS: Final[dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]]] = {
    "chain, counted": (polars_tally, job_tally),
    "chain, into parquet": (polars_files, job_files),
    "rows as dicts": (arrow_dicts, job_dicts),
}


def peak_mb(path: Path) -> float:
    """The largest resident size of a process that runs the chain over ``path``."""
    program = (
        "import sys; from pathlib import Path; from bench.macro import columns; columns.tell_peak(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def tell_peak(path: str) -> None:
    """Run the chain here and print the largest resident size in MB."""
    job_tally(Path(path))
    print(memory.peak_mb())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.columns", description=__doc__)
    parser.add_argument("--n", type=int, default=5_000_000, help="rows of the file")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    print(machine.describe())
    print(f"polars {pl.__version__}; {given.n:,} rows of {', '.join(map(str, SCHEMA.types))}; medians (lowest-highest)")
    with tempfile.TemporaryDirectory() as folder:
        path = write_file(Path(folder) / "bids.parquet", given.n)
        for name, (base, ours) in PAIRS.items():
            seconds = interleave({"base": base, "job": ours}, path, reps=given.reps)
            ratio = ratios(seconds["base"], seconds["job"])
            rate = spread([given.n / s / 1e6 for s in seconds["job"]])
            verdict = "hit" if ratio.median >= BUDGET else "MISS"
            print(
                f"{name:20} {rate.show(1):>20} M rows/s  {ratio.show():>18} of {base.__name__}, >= {BUDGET}: {verdict}"
            )
        seconds = interleave(ROWS, path, reps=given.reps, clock=process_time)
        for name, of_rows in seconds.items():
            ratio = ratios(seconds["dict, functions"], of_rows)
            print(f"stateful_map, {name:20} {ratio.show():>18} of dicts by functions, CPU time")
        long = write_file(Path(folder) / "long.parquet", 4 * given.n)
        print(f"memory of the chain   {peak_mb(path):.0f} MB; over four times the rows {peak_mb(long):.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
