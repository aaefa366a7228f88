"""``python -m bench.macro.files``: 3 columns of 20 beside all of them, and files in an S3 beside bare obstore.

The first table reads csv and Parquet with ``columns=`` of three, into columns and into rows. The second writes rows of
a job to an S3 (moto, in this process, so a slow one) and reads them back, beside obstore alone, and beside obstore and
pyarrow, which makes and reads the same Parquet. Time is that of the clock, because a store is waited for.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import malstrom_py as mp
from bench.macro.keyed_columns import BATCH_ROWS, Passed, Table
from bench.micro import machine
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import sinks, sources
from tests.integration.connectors.buckets import TestBucket, new_bucket
from tests.servers import s3_server

CHOSEN: Final = ["n0", "x5", "t15"]
BUDGET: Final = 3.0


def table(rows: int) -> pa.Table:
    """Five columns each of ints, floats, short texts and long ones."""
    draw = np.random.default_rng(1)
    columns: dict[str, Any] = {f"n{index}": draw.integers(0, 1_000_000, rows) for index in range(5)}
    columns |= {f"x{index}": draw.random(rows) for index in range(5, 10)}
    words = np.array([f"word-{index}" for index in range(1_000)])
    columns |= {f"s{index}": words[draw.integers(0, 1_000, rows)] for index in range(10, 15)}
    columns |= {f"t{index}": words[draw.integers(0, 1_000, rows)] for index in range(15, 20)}
    return pa.table(columns)


def into_columns(source: Any) -> int:
    """Read into a sink that takes columns."""
    job, out = mp.Job("columns"), Passed()
    job.source("in", source).sink("out", out)
    mp.run(job, progress=False)
    return out.rows


def into_rows(source: Any) -> int:
    """Read into a function that takes rows."""
    seen = [0]

    def count(values: Sequence[Any]) -> None:
        seen[0] += len(values)

    job = mp.Job("rows")
    job.source("in", source).sink("out", sinks.Callable(lambda batch: count(batch.values), batch=True))
    mp.run(job, progress=False)
    return seen[0]


def compare_columns(path: Path, name: str, run: Callable[[Any], int], reps: int) -> None:
    """Print one line."""
    pair: dict[str, Any] = {
        "all": lambda _: run(sources.Files(path)),
        "three": lambda _: run(sources.Files(path, columns=CHOSEN)),
    }
    seconds = interleave(pair, None, reps=reps)
    ratio = ratios(seconds["all"], seconds["three"])
    verdict = "hit" if ratio.median >= BUDGET else "MISS"
    print(f"{path.name:17} into {name:8} {ratio.show()} times as fast, >= {BUDGET}: {verdict}", flush=True)


def compare_store(bucket: TestBucket, whole: pa.Table, folder: Path, reps: int) -> None:
    """Print what a job reaches of obstore alone."""
    batches, file = whole.to_batches(max_chunksize=BATCH_ROWS), folder / "whole.parquet"
    pq.write_table(whole, file, compression="zstd")
    size = file.stat().st_size
    number = iter(range(1_000_000))

    def write(_: object) -> int:
        job = mp.Job("write")
        target = sinks.Files(f"{bucket.url}/out{next(number)}", store_options=bucket.options)
        job.source("in", Table(batches)).sink("out", target)
        return mp.run(job, progress=False).written

    def put(_: object) -> int:
        bucket.objects.upload(f"bare/{next(number)}.parquet", file)
        return len(whole)

    def encode(_: object) -> int:
        pq.write_table(whole, folder / "made.parquet", compression="zstd")
        bucket.objects.upload(f"made/{next(number)}.parquet", folder / "made.parquet")
        return len(whole)

    def read(_: object) -> int:
        return into_columns(sources.Files(f"{bucket.url}/in.parquet", store_options=bucket.options))

    def get(_: object) -> int:
        assert len(bucket.objects.get("in.parquet")) == size
        return len(whole)

    def decode(_: object) -> int:
        return len(pq.read_table(pa.BufferReader(bucket.objects.get("in.parquet"))))

    bucket.objects.upload("in.parquet", file)
    pairs: dict[str, dict[str, Any]] = {
        "write": {"bare": put, "pyarrow": encode, "job": write},
        "read": {"bare": get, "pyarrow": decode, "job": read},
    }
    for name, pair in pairs.items():
        seconds = interleave(pair, None, reps=reps)
        speed = spread([size / one / 1e6 for one in seconds["job"]])
        bare, made = (ratios(seconds[other], seconds["job"]).show() for other in ("bare", "pyarrow"))
        print(f"S3 {name:6} {speed.show(1)} MB/s, {made} of obstore and pyarrow, {bare} of obstore alone", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.files", description=__doc__)
    parser.add_argument("--n", type=int, default=200_000, help="rows")
    parser.add_argument("--reps", type=int, default=3, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the requests of the S3
    print(machine.describe())
    whole = table(given.n)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(whole, folder / "all.parquet", row_group_size=50_000)
        for style in ("none", "needed"):
            options = pyarrow.csv.WriteOptions(quoting_style=style)
            pyarrow.csv.write_csv(whole, str(folder / f"quotes-{style}.csv"), options)
        for file in ("all.parquet", "quotes-none.csv", "quotes-needed.csv"):
            compare_columns(folder / file, "columns", into_columns, given.reps)
            compare_columns(folder / file, "rows", into_rows, given.reps)
        with s3_server() as address:
            compare_store(new_bucket(address), whole, folder, given.reps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
