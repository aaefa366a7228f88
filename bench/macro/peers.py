"""``python -m bench.macro.peers``: our rows and columns beside a plain loop, bytewax, Polars and DuckDB.

Every result is compared first. Then all take turns, round by round; ratios are taken within a round, and medians are
shown. Time is processor time, so that other programs on the machine matter little. Everything has one thread; rows and
tables are in memory before the clock starts. The loop calls the functions that the job over rows calls. The batch
engines, which have the whole table, are the limit of what columns can reach.

``--out`` gets `peers.json`, the table `peers.md` and the chart `peers.svg`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

if __name__ == "__main__":
    os.environ["POLARS_MAX_THREADS"] = "1"  # read when Polars is imported

from bench.macro import peer_chart
from bench.macro.peer_queries import QUERIES, Data, Query
from bench.micro import machine
from bench.micro.__main__ import show
from bench.micro.timing import WrongResult, interleave, ratios
from tests.tree import ROOT

BYTEWAX: Final = "bytewax==0.21.1"
LOOP, ROWS, COLUMNS, BYTEWAX_ROWS, POLARS, DUCKDB = "loop", "rows", "columns", "bytewax", "polars", "duckdb"
Seconds = dict[str, list[float]]
"""System -> processor time of each round."""


class Bytewax:
    """A process that runs one query in bytewax, once per call."""

    def __init__(self, python: str, query: str, n: int) -> None:
        command = [python, "-m", "bench.macro.peer_bytewax", query, str(n)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self) -> tuple[tuple[int, int], float]:
        """What it finds, and the seconds of processor time from its first batch to its last."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        if not answer:
            raise SystemExit(f"bytewax ended: {self._process.wait()}")
        return (answer["rows"], answer["total"]), answer["seconds"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def variants_of(query: Query) -> dict[str, Callable[[Data], object]]:
    """System -> what runs it."""
    return {
        LOOP: lambda data: query.loop(data.rows),
        ROWS: lambda data: query.job(data.rows),
        POLARS: lambda data: query.polars(data.frames),
        DUCKDB: query.duckdb,
        COLUMNS: lambda data: query.columns(data.arrow),
    }


def measure(query: Query, n: int, reps: int, python: str | None, *, bytewax_reps: int) -> Seconds:
    """Run ``query`` ``reps`` times in every system. `WrongResult` unless all find the same."""
    data = query.data(n)
    for table in data.frames:
        data.duckdb.execute(f"select count(*) from {table}")
    few = min(n, query.bytewax_rows)
    expected = query.loop(data.rows if few == n else query.make(few))
    bytewax = None if python is None else Bytewax(python, query.name, few)
    seconds: list[float] = []

    def run_bytewax() -> None:
        if bytewax is not None and len(seconds) < bytewax_reps:
            found, took_s = bytewax.run()
            if found != expected:
                raise WrongResult(f"bytewax found {found}, but the loop {expected}")
            seconds.append(took_s * n / few)

    try:
        of_all = interleave(
            variants_of(query), data, reps=reps, fresh=Data.renewed, each_round=run_bytewax, clock=process_time
        )
    finally:
        if bytewax is not None:
            bytewax.close()
    return of_all | ({BYTEWAX_ROWS: seconds} if seconds else {})


def best_batch(seconds: Seconds) -> str:
    """The faster one of the batch engines."""
    return min((POLARS, DUCKDB), key=lambda engine: median(seconds[engine]))


HEADER: Final = (
    *("query", "loop, k rows/s", "rows", "of the loop", "budget", "times bytewax", "budget"),
    *("columns, k rows/s", "of the best batch engine", "", "budget"),
)


def row_of(query: Query, n: int, seconds: Seconds) -> list[str]:
    """One line of the table."""

    def rate(system: str) -> str:
        return f"{n / median(seconds[system]) / 1000:,.0f}" if system in seconds else ""

    def of(base: str, system: str, budget: float | None) -> list[str]:
        if base not in seconds or system not in seconds:
            return ["", ""]
        rounds = min(len(seconds[base]), len(seconds[system]))
        ratio = ratios(seconds[base][:rounds], seconds[system][:rounds])
        judged = "" if budget is None else f">= {budget:g}: {'hit' if ratio.median >= budget else 'MISS'}"
        return [ratio.show(), judged]

    best, budgets = best_batch(seconds), query.budgets
    batch, of_batch = of(best, COLUMNS, budgets.columns)
    return [
        *(f"{query.name}: {query.title}", rate(LOOP), rate(ROWS)),
        *of(LOOP, ROWS, budgets.rows),
        *of(BYTEWAX_ROWS, ROWS, budgets.bytewax),
        *(rate(COLUMNS), batch, best, of_batch),
    ]


def described(n: int, reps: int, python: str | None) -> str:
    """Machine, versions and size of the run."""
    versions = [f"{name} {metadata.version(name)}" for name in ("numpy", "polars", "duckdb")]
    if python is not None:
        program = "from importlib.metadata import version; print(version('bytewax'))"
        found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        versions.append(f"bytewax {found.stdout.strip()}")
    return f"{machine.describe()}, {', '.join(versions)}; {n:,} rows, medians of {reps} rounds"


@contextmanager
def bytewax_python(given: str | None, *, install: bool) -> Iterator[str | None]:
    """The interpreter of an environment with bytewax; ``install``: of one made for this run, from PyPI."""
    if not install:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", BYTEWAX], check=True)
        yield python


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [query.name for query in QUERIES]
    parser = argparse.ArgumentParser(prog="python -m bench.macro.peers", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows of each query")
    parser.add_argument("--reps", type=int, default=3, help="rounds")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--bytewax-reps", type=int, default=3, help="rounds with bytewax, the first ones")
    parser.add_argument("--bytewax", metavar="PYTHON", help="interpreter of an environment with bytewax")
    parser.add_argument(
        "--install-bytewax", action="store_true", help=f"make an environment with {BYTEWAX} for this run"
    )
    parser.add_argument("--out", type=Path, help="the folder to write to; bench/results is the one that is committed")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    given = options(arguments)
    found: dict[str, Seconds] = {}
    with bytewax_python(given.bytewax, install=given.install_bytewax) as python:
        words = described(given.n, given.reps, python)
        print(words, flush=True)
        for query in QUERIES:
            if query.name in given.only:
                found[query.name] = seconds = measure(
                    query, given.n, given.reps, python, bytewax_reps=given.bytewax_reps
                )
                print("; ".join(filter(None, row_of(query, given.n, seconds))), flush=True)
    chosen = [query for query in QUERIES if query.name in found]
    table = show(HEADER, [row_of(query, given.n, found[query.name]) for query in chosen])
    print(table)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        report = {"described": words, "rows": given.n, "seconds": found}
        (given.out / "peers.json").write_text(json.dumps(report, indent=1) + "\n")
        (given.out / "peers.md").write_text(f"{words}\n\n{table}\n")
        (given.out / "peers.svg").write_text(peer_chart.draw(report, {query.name: query.title for query in chosen}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
