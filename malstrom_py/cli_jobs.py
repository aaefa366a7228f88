"""Commands about jobs that run already: how they stand, on how many workers, and their end.

Rule: a job is found by its name, through its control socket or on a Ray cluster. Its process may be anyone's child, in
any terminal; what is asked of it here it does itself, and tells here.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import malstrom_py as mp
from malstrom_py.cli_telling import WrongCommand, print_out, telling
from malstrom_py.workers.control_client import running_jobs
from malstrom_py.workers.job_size import WORKERS_MAX
from malstrom_py.workers.on_ray.attaching import running_at_hand

NameArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The name of the job, as in mp.Job(name).", show_default=False)
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="How long to wait for it, in seconds.")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Of the Ray cluster it runs on; without, it is found on this machine."),
]
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
    with telling(traceback=False):
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
    with telling(traceback=False):
        if job is None:
            names = sorted({*running_jobs(), *running_at_hand(address)})
            print_out(json.dumps(names) if as_json else "\n".join(names) or "no job is running here")
            return
        found = _attached(job, address).status()
        print_out(json.dumps(asdict(found)) if as_json else str(found))


def stop(
    job: NameArgument,
    no_drain: Annotated[
        bool,
        typer.Option(
            "--no-drain",
            help="Stop where it is, with snapshots after a last one: its sinks discard what is not committed.",
        ),
    ] = False,
    timeout_s: TimeoutOption = 120.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    address: AddressOption = None,
) -> None:
    """Have a running job end, and its sinks commit.

    Its sources stop, and what is in flight is finished. Past the timeout the exit code is 1, and the job is still being
    stopped.
    """
    with telling(traceback=False):
        handle = _attached(job, address)
        has_snapshots = no_drain and handle.status().snapshots is not None
        handle.stop(drain=not no_drain, wait=not no_wait, timeout_s=timeout_s)
        left = "it can go on from its last snapshot" if has_snapshots else "nothing was committed"
        ended = "is being stopped" if no_wait else f"has stopped; {left}" if no_drain else "has finished"
        print_out(f"job {job} {ended}")


def _attached(job: str, address: str | None) -> mp.JobHandle:
    try:
        return mp.JobHandle.attach(job, address=address)
    except mp.PlanError as error:  # no job could have that name
        raise WrongCommand(str(error)) from None


def _shown(job: str, report: mp.RescaleReport) -> str:
    text = (
        f"job {job} runs on {len(report.members)} workers: {report.slots:,} slots and {report.parts:,} parts moved, "
        f"with {report.keys:,} keys and {report.bytes / 1e6:,.1f} MB of state, in {report.moves:,} moves and "
        f"{report.duration_s:.2f} s"
    )
    if report.superseded_by is None:
        return text
    return f"{text}; a later request for {report.superseded_by} workers has overtaken this one"
