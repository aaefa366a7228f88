"""Nexmark: ``python -m examples.nexmark q5``, or ``all``; ``--columns`` for columns, ``--check`` to ask DuckDB as well.

Each query runs in this process. The exit code is 0 only if all that was checked is equal.
"""

from __future__ import annotations

import argparse
import sys
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

import malstrom_py as mp
from examples.nexmark.check import by_duckdb, in_order
from examples.nexmark.events import Events
from examples.nexmark.queries import QUERIES, job_of
from malstrom_py import sinks

SHOWN = 5


class Counted:
    """A sink that forgets what it is given, rows or columns: for rates."""

    takes_columns = True

    def build(self, worker: sinks.WorkerInfo) -> Counted:
        return self

    def write(self, batch: Any) -> None:
        """Do nothing: the result of the run has the number of rows."""

    def close(self) -> None:
        """Nothing is open."""


def run(name: str, events: Events, workers: int, *, check: bool, table: Table) -> tuple[bool, list[Any]]:
    """Run a query and add a line to ``table``. Return whether it is right, and if that was checked its results."""
    out = sinks.Memory()
    began_s = process_time()
    result = mp.run(job_of(name, events, out if check else Counted()), workers, progress=False)
    cpu_s = process_time() - began_s
    right = not check or in_order(name, out.items) == in_order(name, by_duckdb(name, events))
    equal = "" if not check else "yes" if right else "NO"
    what = (QUERIES[name].__doc__ or "").partition(":")[0]
    table.add_row(name, what, f"{result.read:,}", f"{result.written:,}", f"{result.read / cpu_s:,.0f}", equal)
    return right, out.items


def main() -> None:
    """Read the arguments, run, print and exit."""
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("query", choices=[*QUERIES, "all"])
    parser.add_argument("--events", type=int, default=100_000, help="persons, auctions and bids together")
    parser.add_argument("--per-second", type=float, default=10_000, help="events per second of event time")
    parser.add_argument("--disorder-ms", type=int, default=0, help="how far out of order events are, at most 1,000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", type=int, default=2, help="parts of each source")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--columns", action="store_true", help="sources give columns instead of rows")
    parser.add_argument("--check", action="store_true", help="compare with DuckDB, and show some results")
    said = parser.parse_args()
    events = Events(said.events, said.seed, said.parts, said.per_second, said.disorder_ms, said.columns)
    table = Table("query", "what", "read", "written", "read per CPU second", "equal to DuckDB")
    names = list(QUERIES) if said.query == "all" else [said.query]
    found = [run(name, events, said.workers, check=said.check, table=table) for name in names]
    console = Console()
    console.print(table)
    for row in found[0][1][:SHOWN] if len(names) == 1 else []:
        console.print(row)
    sys.exit(0 if all(right for right, _ in found) else 1)


if __name__ == "__main__":
    main()
