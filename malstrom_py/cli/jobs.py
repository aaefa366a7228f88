"""Commands about jobs that run already: how they stand, on how many workers, and their end.

Rule: a job is found by its name, through its control socket or on a Ray cluster. Its process may be anyone's child, in
any terminal; what is asked of it here it does itself, and tells here.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Final

import typer

import malstrom_py as mp
from malstrom_py.cli.output import WrongCommand, print_out, reporting_errors, stopped_text
from malstrom_py.clock import SystemClock
from malstrom_py.workers.control.client import running_jobs
from malstrom_py.workers.ray.discovery import running_at_hand
from malstrom_py.workers.reports.job_status import WORKERS_MAX

NameArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The name of the job, as in mp.Job(name).", show_default=False)
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="How long to wait for it, in seconds.")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Of the Ray cluster it runs on; without, it is found on this machine."),
]
_AGAIN_S: Final = 0.1
"""How often a stop is asked for that a savepoint is in the way of."""

NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return once the job has begun with it.")]


def add_commands(app: typer.Typer) -> None:
    """Give ``app`` the commands of this module."""
    for command in (rescale, status, stop):
        app.command()(command)


def rescale(
    job: NameArgument,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, max=WORKERS_MAX, help="How many workers.")],
    timeout_s: TimeoutOption = 120.0,
    no_wait: NoWaitOption = False,
    address: AddressOption = None,
) -> None:
    """Have a running job run on N workers, while it goes on.

    Past the timeout the exit code is 1, and the rescale goes on. If a later request overtakes this one, it returns with
    that one.
    """
    with reporting_errors(traceback=False):
        report = _attached(job, address).rescale(workers, wait=not no_wait, timeout_s=timeout_s)
        print_out(f"job {job} has begun to rescale to {workers}" if report is None else _shown(job, report))


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The name of the job; without one, the names of all that run here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the counts of each step.")] = False,
    address: AddressOption = None,
) -> None:
    """Print how a running job stands."""
    with reporting_errors(traceback=False):
        if job is None:
            names = sorted({*running_jobs(), *running_at_hand(address)})
            print_out(json.dumps(names) if as_json else "\n".join(names) or "no job is running here")
            return
        found = _attached(job, address).status()
        print_out(json.dumps(asdict(found)) if as_json else str(found))


def stop(
    job: NameArgument,
    drain: Annotated[
        bool | None,
        typer.Option(
            "--drain/--no-drain",
            help="End it for good, as if its sources had ended, and have its sinks commit; or stop it where it is, "
            "with snapshots after a last one: its sinks discard what is not committed. Without either: --no-drain for "
            "a job with snapshots, else --drain.",
            show_default=False,
        ),
    ] = None,
    timeout_s: TimeoutOption = 120.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    address: AddressOption = None,
) -> None:
    """Stop a running job: with snapshots so that it can go on from a last one.

    A job without snapshots ends for good: its sources stop, what is in flight is finished, and its sinks commit. A
    savepoint that is being made is waited for, but not with --no-wait. Past the timeout the exit code is 1, and the job
    is still being stopped.
    """
    with reporting_errors(traceback=False):
        handle = _attached(job, address)
        has_snapshots = handle.status().snapshots is not None
        drained = not has_snapshots if drain is None else drain
        try:
            last = _stopped(handle, drain=drained, wait=not no_wait, timeout_s=timeout_s)
        except mp.JobEnded as error:
            if drain is not None or error.how != "finished":
                raise
            print_out(f"job {job} has finished by itself")
            return
        print_out(f"job {job} is being stopped" if no_wait else _ended(job, last, drained, has_snapshots))


def _stopped(handle: mp.JobHandle, *, drain: bool, wait: bool, timeout_s: float) -> str | None:
    """Stop a job, once the savepoint is made that it may be making. `OperationInProgress`: that takes too long."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    while True:
        left_s = max(0.0, until_s - clock.monotonic_s())
        try:
            return handle.stop(drain=drain, wait=wait, timeout_s=left_s)
        except mp.OperationInProgress as error:
            if error.operation != "savepoint" or not wait or left_s == 0.0:
                raise
        clock.sleep_s(min(_AGAIN_S, left_s))


def _attached(job: str, address: str | None) -> mp.JobHandle:
    try:
        return mp.JobHandle.attach(job, address=address)
    except mp.PlanError as error:  # no job could have that name
        raise WrongCommand(str(error)) from None


def _ended(job: str, last: str | None, drained: bool, has_snapshots: bool) -> str:
    if drained:
        return f"job {job} has finished" + (f"; its last snapshot is {last}" if last else "")
    if last:
        return stopped_text(job, last)
    if has_snapshots:
        raise mp.SnapshotError(
            f"job {job} has stopped, and its last snapshot could not be made: it goes on from the one before, if there "
            f"is one, and what came after that comes again"
        )
    return f"job {job} has stopped; nothing was committed"


def _shown(job: str, report: mp.RescaleReport) -> str:
    size = len(report.members)
    text = (
        f"job {job} runs on {size} worker{'' if size == 1 else 's'}: {report.slots:,} slots and {report.parts:,} parts "
        f"moved, with {report.keys:,} keys and {report.bytes / 1e6:,.1f} MB of state, in {report.moves:,} moves and "
        f"{report.duration_s:.2f} s"
    )
    if report.superseded_by is None:
        return text
    return f"{text}; a later request for {report.superseded_by} workers has overtaken this one"
