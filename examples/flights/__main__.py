"""The demo: ``make demo``, or ``python -m examples.flights``.

A job goes from two workers to four and back while it reads the flights. The exit code is 0 only if every check holds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Any

import polars as pl

import malstrom_py as mp
from examples.flights.check import account, by_polars, differences, last_rows
from examples.flights.data import FLIGHTS, airline_names, monthly_files
from examples.flights.jobs import delays_job, late_job, lateness_job
from examples.flights.plot import draw
from examples.flights.report import (
    make_console,
    print_accounts,
    print_comparison,
    print_functions,
    print_lateness,
    print_statistics,
)
from examples.flights.rescales import WORKERS, run_and_rescale, went_as_planned
from examples.flights.view import View

KEYS = {"carriers": "carrier", "planes": "tailnum"}
TIGHT = timedelta(hours=2)


def demo(out: Path) -> bool:
    """Run both jobs, print their results, and return whether every check holds."""
    console = make_console()
    files = monthly_files(out / "input")
    results = out / "results"
    shutil.rmtree(results, ignore_errors=True)

    job = delays_job(files, results)
    view = View()
    delays = run_and_rescale(mp.InProcess(WORKERS).start(job, control=False), view, console, FLIGHTS)
    console.print(f"{delays}\n")
    tight = mp.run(lateness_job(files, results / "late", bound=TIGHT))
    console.print(f"{tight}\n")
    console.print(view.moves(), "")

    names = airline_names()
    running = {branch: pl.read_parquet(results / branch / "*.parquet") for branch in KEYS}
    final = {branch: last_rows(frame) for branch, frame in running.items()}
    print_statistics(console, "Carriers", final["carriers"], names)
    print_statistics(console, "Planes", final["planes"], {})
    print_lateness(console, {timedelta(hours=24): delays.late, TIGHT: tight.late}, delays.read)

    plot = out / "flights.svg"
    draw(running["carriers"], final["planes"], names, plot)
    console.print(f"Plot: {plot}\n")

    accounts = [account(job, delays, sink) for sink in KEYS]
    print_accounts(console, accounts)
    found = {branch: differences(final[branch], by_polars(files, key)) for branch, key in KEYS.items()}
    for branch, differing in found.items():
        print_comparison(console, branch, final[branch].height, differing)
    are_equal = print_functions(console, *(rate_of(files, compile=compile) for compile in (False, True)))
    is_planned = went_as_planned(console, view)
    return (
        is_planned
        and delays.read == FLIGHTS
        and all(one.holds for one in accounts)
        and not any(found.values())
        and are_equal
    )


def rate_of(files: str, *, compile: bool) -> tuple[float, dict[Any, Any]]:
    """Return the rows per second of processor time of a job of plain functions, and what it found."""
    job, found = late_job(files, compile=compile)
    began_s = process_time()
    result = mp.run(job, progress=False)
    return result.read / (process_time() - began_s), found.by_key


def main() -> None:
    """Read the arguments, run, and exit."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for input, results and plot")
    sys.exit(0 if demo(parser.parse_args().out) else 1)


if __name__ == "__main__":
    main()
