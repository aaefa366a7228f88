"""The demo on Ray: ``make demo-ray``, or ``python -m examples.flights.on_ray``.

The job of the demo on a new Ray on this machine, each worker a process: the running job goes from two workers to four,
and back to two. The exit code is 0 only if every check holds.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import polars as pl

import malstrom_py as mp
from examples.flights.__main__ import KEYS
from examples.flights.check import account, by_polars, differences, last_rows
from examples.flights.data import FLIGHTS, airline_names, monthly_files
from examples.flights.jobs import delays_job
from examples.flights.report import make_console, print_accounts, print_comparison, print_statistics
from examples.flights.rescales import WORKERS, run_and_rescale, went_as_planned
from examples.flights.view import View
from malstrom_py.errors import pip_install

if TYPE_CHECKING:
    from rich.console import Console

MONTHS = 12
CPUS = 0.25
"""The CPUs that a worker reserves on Ray, so that all of them fit on one core. It may use more."""
STARTS = 6
"""Reading takes at least this many times as long as starting Ray: if processes start slowly, rescales are slow too."""


def demo(out: Path, seconds: float) -> bool:
    """Run and rescale the job, print the findings, and return whether every check holds."""
    console = make_console()
    files = monthly_files(out / "input")
    results = out / "results-on-ray"
    shutil.rmtree(results, ignore_errors=True)
    console.print("Starting Ray on this machine ...")
    ray, started_s = start_ray()
    try:
        seconds = max(seconds, STARTS * started_s)
        job = delays_job(files, results, rows_per_s=FLIGHTS / MONTHS / seconds)
        console.print(
            f"{FLIGHTS:,} flights of {MONTHS} files, {FLIGHTS / seconds:,.0f} a second, so that the rescales can be "
            f"watched ({seconds:.0f} s).\n"
        )
        view = View()
        result = run_and_rescale(mp.RayRuntime(WORKERS, num_cpus=CPUS).start(job), view, console, FLIGHTS)
    finally:
        ray.shutdown()
    console.print(f"{result}\n")
    console.print(view.moves(), "")
    return checked(console, job, result, view, files, results)


def start_ray() -> tuple[Any, float]:
    """Start a new Ray and return it with the seconds that took. Its processes log to files only, not to the screen."""
    try:
        import ray
    except ImportError:
        raise SystemExit(f"The demo on Ray needs Ray: {pip_install('demo', 'ray')}") from None
    # By default, Ray's workers have a lower priority than other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    began_s = monotonic()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray, monotonic() - began_s


def checked(console: Console, job: mp.Job, result: mp.RunResult, view: View, files: str, results: Path) -> bool:
    """Print what the job found and whether it is right."""
    running = {branch: pl.read_parquet(results / branch / "*.parquet") for branch in KEYS}
    final = {branch: last_rows(frame) for branch, frame in running.items()}
    print_statistics(console, "Carriers", final["carriers"], airline_names())
    accounts = [account(job, result, sink) for sink in KEYS]
    print_accounts(console, accounts)
    found = {branch: differences(final[branch], by_polars(files, key)) for branch, key in KEYS.items()}
    for branch, differing in found.items():
        print_comparison(console, branch, final[branch].height, differing)
    is_right = result.read == FLIGHTS and all(one.holds for one in accounts) and not any(found.values())
    return went_as_planned(console, view) and is_right


def main() -> None:
    """Read the arguments, run, and exit."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.on_ray", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for input and results")
    parser.add_argument("--seconds", type=float, default=25.0, help="least time for reading the input")
    arguments = parser.parse_args()
    sys.exit(0 if demo(arguments.out.resolve(), arguments.seconds) else 1)


if __name__ == "__main__":
    main()
