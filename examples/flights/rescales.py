"""Runs a job to its end, rescales it on the way, and shows its progress."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import sleep
from typing import TYPE_CHECKING

from rich.live import Live

import malstrom_py as mp
from examples.flights.view import Rescale, View

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rich.console import Console

WORKERS = 2
"""The number of workers at the start."""
PLAN = ((0.02, 4), (0.2, 2))
"""The rescales: a share of the input, and the number of workers once that share has been read."""
POLL_S = 0.1
ENDED = {"finished", "failed", "stopped"}


def run_and_rescale(handle: mp.JobHandle, view: View, console: Console, rows: int) -> mp.RunResult:
    """Wait for a job that reads ``rows``, and rescale it as `PLAN` says."""
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext()
    rescale: Future[mp.RescaleReport] | None = None
    with live as screen, ThreadPoolExecutor(1) as thread:
        while (status := handle.status()).state not in ENDED:
            view.observe(status)
            if rescale is not None and rescale.done():
                rescale = None
            if rescale is None and len(view.rescales) < len(PLAN):
                share, workers = PLAN[len(view.rescales)]
                if status.counts.read >= share * rows:
                    rescale = thread.submit(handle.rescale, workers)
                    view.rescales.append(Rescale(status.counts.duration_s, status.workers, workers, rescale))
            if screen is not None:
                screen.update(view.draw(status), refresh=True)
            sleep(POLL_S)
    view.observe(status)  # the last size may have come between two looks
    return handle.wait()


def went_as_planned(console: Console, view: View) -> bool:
    """Return whether each rescale of `PLAN` was done and rows were read before, between and after; print it if not."""
    planned = [workers for _, workers in PLAN]
    done = [len(rescale.report.members) for rescale in view.rescales if rescale.report is not None]
    if done == planned and view.sizes == [WORKERS, *planned]:
        return True
    console.print("[red]NOT RESCALED[/] as planned: the job read its last row too early")
    return False
