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
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.live import Live

import malstrom_py as mp
from examples.flights.__main__ import KEYS
from examples.flights.check import account, by_polars, differences, last_rows
from examples.flights.data import FLIGHTS, airline_names, monthly_files
from examples.flights.jobs import delays_job
from examples.flights.report import make_console, print_accounts, print_comparison, print_statistics
from examples.flights.view import Rescale, View
from malstrom_py.errors import pip_install

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rich.console import Console

MONTHS = 12
WORKERS = 2
PLAN = ((0.1, 4), (0.5, 2))
"""Once so much of the input has been read, go to so many workers."""
CPUS = 0.25
"""What a worker asks of Ray: there is room for all of them on one core. It may use more."""
STARTS = 6
"""Reading takes at least so many times as long as Ray took to start: where processes start slowly, rescales do too."""
LOOK_S = 0.25
ENDED = {"finished", "failed", "stopped"}


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
            f"{FLIGHTS:,} flights of {MONTHS} files, read at the pace of {FLIGHTS / seconds:,.0f} a second so that "
            f"there is something to see ({seconds:.0f} s).\n"
        )
        view = View()
        result = rescaled(mp.RayRuntime(WORKERS, num_cpus=CPUS).start(job), view, console, FLIGHTS)
    finally:
        ray.shutdown()
    console.print(f"{result}\n")
    console.print(view.moves(), "")
    return checked(console, job, result, view, files, results)


def start_ray() -> tuple[Any, float]:
    """A Ray of this program's own, and how many seconds it took; what its processes log stays in its files, for the
    screen is taken.
    """
    try:
        import ray
    except ImportError:
        raise SystemExit(f"The demo on Ray needs Ray: {pip_install('demo', 'ray')}") from None
    # Else its workers give way to all else on this machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    began_s = monotonic()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray, monotonic() - began_s


def rescaled(handle: mp.JobHandle, view: View, console: Console, rows: int) -> mp.RunResult:
    """See a job that reads ``rows`` to its end, with a rescale wherever `PLAN` has one."""
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext()
    asked: Future[mp.RescaleReport] | None = None
    with live as screen, ThreadPoolExecutor(1) as asking:
        while (status := handle.status()).state not in ENDED:
            view.saw(status)
            if asked is not None and asked.done():
                asked = None
            if asked is None and len(view.rescales) < len(PLAN):
                share, size = PLAN[len(view.rescales)]
                if status.counts.read >= share * rows:
                    asked = asking.submit(handle.rescale, size)
                    view.rescales.append(Rescale(status.counts.duration_s, status.workers, size, asked))
            if screen is not None:
                screen.update(view.drawn(status), refresh=True)
            sleep(LOOK_S)
    return handle.wait()


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


def went_as_planned(console: Console, view: View) -> bool:
    """Whether the rescales of `PLAN` were done, and rows were read before, between and after them. Print it if not."""
    planned = [size for _, size in PLAN]
    done = [len(rescale.report.members) for rescale in view.rescales if rescale.report is not None]
    if done == planned and view.sizes == [WORKERS, *planned]:
        return True
    console.print("[red]NOT RESCALED[/] as planned, for the input was at its end before: give it more --seconds")
    return False


def main() -> None:
    """Read the arguments, run, and exit."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.on_ray", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for input and results")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long reading the input takes at least")
    arguments = parser.parse_args()
    sys.exit(0 if demo(arguments.out.resolve(), arguments.seconds) else 1)


if __name__ == "__main__":
    main()
