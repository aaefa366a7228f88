"""``python -m bench.macro.lake``: the sinks of Delta and Iceberg beside pyarrow, which writes the same Parquet file.

The job reads columns and writes them in one process: ``Files(parquet) -> sink``. pyarrow reads the same file in batches
and writes them with the same compression, without a table. The ratio is of the time of the processor, in turn, round by
round: other programs on the machine change that least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable

import malstrom_py as mp
from bench.macro.columns import write_file
from bench.micro import machine
from bench.micro.timing import ratios, spread
from malstrom_py import sinks, sources

BUDGET: Final = 0.9
GROUP_ROWS: Final = 1 << 17


def by_pyarrow(path: Path, folder: Path) -> int:
    """Pyarrow alone."""
    target = folder / "out.parquet"
    with pq.ParquetFile(path) as file, pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(batch_size=GROUP_ROWS):
            writer.write_batch(batch, row_group_size=GROUP_ROWS)
    return int(pq.read_metadata(folder / "out.parquet").num_rows)


def by_job(path: Path, sink: Any) -> None:
    """The job."""
    job = mp.Job("lake")
    job.source("bids", sources.Files(path)).sink("out", sink)
    mp.run(job, progress=False)


def by_delta(path: Path, folder: Path) -> int:
    """The job into a Delta table."""
    by_job(path, sinks.Delta(folder / "table"))
    return DeltaTable(folder / "table").count()


def by_iceberg(path: Path, folder: Path) -> int:
    """The job into an Iceberg table."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    by_job(path, sinks.Iceberg("bench.bids", catalog=catalog))
    files = (folder / "warehouse/bench/bids/data").glob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


WAYS: Final = {"pyarrow": by_pyarrow, "sinks.Delta": by_delta, "sinks.Iceberg": by_iceberg}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratios; 1 if rows are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000_000)
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args(arguments)
    print(machine.describe())
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path = write_file(Path(folder) / "bids.parquet", options.n)
        for round_ in range(options.reps + 1):
            for name, way in WAYS.items():
                with tempfile.TemporaryDirectory(dir=folder) as target:
                    start = process_time()
                    rows = way(path, Path(target))
                    taken = process_time() - start
                if rows != options.n:
                    print(f"WRONG RESULT: {name} wrote {rows} of {options.n} rows", file=sys.stderr)
                    return 1
                if round_:  # the first round imports
                    seconds[name].append(taken)
    for name in list(WAYS)[1:]:
        ratio = ratios(seconds["pyarrow"], seconds[name])
        hit = "hit" if ratio.median >= BUDGET else "MISS"
        speed = options.n / spread(seconds[name]).median / 1e6
        print(f"{name}: {speed:.2f} M rows per CPU second, {ratio.show()} of pyarrow, budget >= {BUDGET}: {hit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
