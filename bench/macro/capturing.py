"""``python -m bench.macro.capturing``: what capturing costs W1, a running sum per key, over rows and columns.

The keyed stream is captured into a folder, before the sum. ``replay``: the captured stream is replayed into the sum,
beside the job that reads csv files of the same rows. Time is that of the processor.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import malstrom_py as mp
from bench.macro.keyed_columns import BATCH_ROWS, Table, Total, table
from bench.micro import machine
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import sinks, sources
from malstrom_py.capture import Batch, InMemory

BUDGETS = {"columns": 0.90, "rows": 0.85}


def add(key: str, value: tuple[str, int], total: int) -> tuple[int, int]:
    """The running sum of a key."""
    total += value[1]
    return total, total


class Sum:
    """A function of a sink that adds what it is given."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, batch: Batch) -> None:
        self.total += sum(batch.values)


def of_columns(source: Any, folder: Path | None) -> int:
    """The sums of all rows, added."""
    job, out = mp.Job("sums"), Total()
    keyed = job.source("rows", source).key_by("by", "key")
    if folder is not None:
        keyed.capture_into("seen", folder, replace=True)
    keyed.sum("sums", by="value").sink("out", out)
    mp.run(job, progress=False)
    return out.total


def summed(keyed: Any, folder: Path | None) -> int:
    """The same of a keyed stream of rows."""
    out = Sum()
    if folder is not None:
        keyed.capture_into("seen", folder, replace=True)
    keyed.stateful_map("sums", add, default=int).sink("out", sinks.Callable(out, batch=True))
    mp.run(keyed.job, progress=False)
    return out.total


def of_rows(source: Any, folder: Path | None) -> int:
    """The same of a source of rows."""
    return summed(mp.Job("sums").source("rows", source).key_by("by", lambda row: row[0]), folder)


def of_csv(path: Path) -> int:
    """The job that was captured: it reads files."""
    rows = mp.Job("sums").source("rows", sources.Files(path)).map("row", lambda row: (row["key"], row["value"]))
    return summed(rows.key_by("by", lambda row: row[0]), None)


def compare(name: str, run: Any, source: Any, rows: int, reps: int, folder: Path) -> None:
    """Print the line of one form."""
    pair = {"plain": lambda _: run(source(), None), "captured": lambda _: run(source(), folder)}
    seconds = interleave(pair, None, reps=reps, clock=process_time)
    ratio, budget = ratios(seconds["plain"], seconds["captured"]), BUDGETS[name]
    ns = spread([s / rows * 1e9 for s in seconds["captured"]])
    verdict = "hit" if ratio.median >= budget else "MISS"
    print(
        f"{name:8} {ns.show(0):>16} ns per row, {ratio.show()} of the speed without, >= {budget}: {verdict}", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.capturing", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    print(machine.describe())
    whole = table(given.n, 10_000)
    batches = whole.to_batches(max_chunksize=BATCH_ROWS)
    items = list(zip(whole["key"].to_pylist(), whole["value"].to_pylist(), strict=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare("columns", of_columns, lambda: Table(batches), given.n, given.reps, folder / "columns")
        compare("rows", of_rows, lambda: sources.Memory(items), given.n, given.reps, folder / "rows")
        with (folder / "rows.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("key", "value"), *items])
        kept = InMemory()
        of_rows(sources.Memory(items), kept)  # type: ignore[arg-type]  # any place
        pair = {
            "original": lambda _: of_csv(folder / "rows.csv"),
            "replay": lambda _: summed(mp.Job("again").replay_from("back", kept), None),
        }
        seconds = interleave(pair, None, reps=given.reps, clock=process_time)
        ratio = ratios(seconds["original"], seconds["replay"])
        print(f"replay of rows: {ratio.show()} of the job from csv, >= 3: {'hit' if ratio.median >= 3 else 'MISS'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
