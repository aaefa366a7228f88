"""Commands on running jobs: status, query, events, rescale, rebalance, autoscale, snapshot, savepoint, reload, set,
stop.

Rule: a job is found by its name, through its control socket or on a Ray cluster. Its process may run in another
terminal. The job does the work; the command prints the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import typer

import malstrom_py as mp
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import (
    AddressOption,
    AnyNameArgument,
    JsonOption,
    NameArgument,
    TargetOption,
    TimeoutOption,
    autoscale_of,
)
from malstrom_py.cli.output import WrongCommand, print_json, print_out, reporting_errors, stopped_text, table
from malstrom_py.cli.watching import found_job
from malstrom_py.clock import SystemClock
from malstrom_py.events import AnyEvent
from malstrom_py.metrics import ENDED
from malstrom_py.snapshot.typed_columns import json_text
from malstrom_py.workers.control.client import running_jobs
from malstrom_py.workers.monitoring.sentences import sentence
from malstrom_py.workers.monitoring.watched_job import page_of
from malstrom_py.workers.ray.discovery import running_nearby
from malstrom_py.workers.reports.event_log import read_timed_events
from malstrom_py.workers.reports.job_status import WORKERS_MAX, ReloadReport
from malstrom_py.workers.reports.shadows import ShadowReport

_AGAIN_S: Final = 0.1
"""The interval at which a stop is retried while a savepoint is in progress, in seconds."""

_WATCH_S: Final = 2.0
_OFF: Final = "off"
_NEW_LINE: Final = "\n"
_INDENT: Final = " " * len("2026-05-01 12:00:00  ")

NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return once the rescale has started.")]


_EXAMPLES: Final = {
    "rescale": ("malstrom rescale shop 4", "malstrom rescale shop 2 --no-wait", "malstrom rescale shop 4 --json"),
    "rebalance": ("malstrom rebalance shop", "malstrom rebalance shop --json"),
    "autoscale": (
        "malstrom autoscale shop 1:8",
        "malstrom autoscale shop 2:6 --target 0.6",
        "malstrom autoscale shop off",
    ),
    "snapshot": ("malstrom snapshot shop", "malstrom snapshot shop --timeout 600 --json"),
    "savepoint": ("malstrom savepoint shop /data/before-upgrade", "malstrom savepoint shop s3://bucket/kept --json"),
    "status": ("malstrom status", "malstrom status shop --watch", "malstrom status shop --json"),
    "query": (
        "malstrom query climate 'select room, mean from means order by mean desc limit 10'",
        "malstrom query climate 'select count(*) from means' --fresh --json",
    ),
    "events": ("malstrom events shop", "malstrom events shop --follow --json"),
    "reload": (
        "malstrom reload shop totals",
        "malstrom reload shop totals --shadow",
        "malstrom reload shop totals --differences --json",
        "malstrom reload shop totals --promote --probation 10",
    ),
    "set": ("malstrom set shop threshold 12", "malstrom set shop greeting '\"hello\"' --json"),
    "stop": ("malstrom stop shop", "malstrom stop shop --drain --timeout 600", "malstrom stop shop --json"),
}


def rescale(
    job: NameArgument,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, max=WORKERS_MAX, help="New number of workers.")],
    timeout_s: TimeoutOption = 120.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Rescale a running job to N workers without stopping it.

    After the timeout the exit code is 1, and the rescale continues. If a later request supersedes this one, the command
    returns when the later rescale ends.
    """
    with reporting_errors(traceback=False):
        report = _attached(job, address).rescale(workers, wait=not no_wait, timeout_s=timeout_s)
        if as_json:
            print_json(
                {"job": job, "state": "rescaling", "workers": workers}
                if report is None
                else {"job": job, "state": "running", "workers": len(report.members), **asdict(report)}
            )
        else:
            print_out(f"job {job} has begun to rescale to {workers}" if report is None else _report_text(job, report))


def rebalance(
    job: NameArgument,
    timeout_s: TimeoutOption = 120.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Move key groups of a running job from loaded workers to others.

    The number of workers stays. Nothing moves unless the most loaded worker has more than 1.1 times the mean load.
    After the timeout the exit code is 1, and the moves continue.
    """
    with reporting_errors(traceback=False):
        report = _attached(job, address).rebalance(wait=not no_wait, timeout_s=timeout_s)
        if as_json:
            print_json(
                {"job": job, "state": "rescaling"}
                if report is None
                else {"job": job, "state": "running", **asdict(report)}
            )
        else:
            print_out(
                f"job {job} has begun to move key groups by load" if report is None else _rebalanced_text(job, report)
            )


def autoscale(
    job: NameArgument,
    limits: Annotated[
        str,
        typer.Argument(metavar="MIN:MAX", help="Change the number of workers by load, between these; off: no longer."),
    ],
    target: TargetOption = None,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Let the number of workers of a running job follow its load from now on.

    It replaces the limits that the job was started with. A later rescale still wins, and is left alone for a while.
    """
    with reporting_errors(traceback=False):
        options = None if limits == _OFF and target is None else autoscale_of(limits, target, "the argument")
        _attached(job, address).autoscale(options)
        if as_json:
            print_json({"job": job, "autoscale": None if options is None else asdict(options)})
        elif options is None:
            print_out(f"job {job} keeps its number of workers")
        else:
            print_out(
                f"job {job} has {options.min} to {options.max} workers, by load, busy for {options.target:.0%} of "
                f"their time"
            )


def snapshot(
    job: NameArgument, timeout_s: TimeoutOption = 120.0, as_json: JsonOption = False, address: AddressOption = None
) -> None:
    """Make a snapshot of a running job now, in addition to those by interval.

    The job needs --snapshots, and continues. After the timeout the exit code is 1, and the snapshot continues.
    """
    with reporting_errors(traceback=False):
        made = _attached(job, address).snapshot(timeout_s=timeout_s)
        print_json({"job": job, "snapshot": made}) if as_json else print_out(f"job {job} has made snapshot {made}")


def savepoint(
    job: NameArgument,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="The folder, or the place in an object store, to write it to.")
    ],
    timeout_s: TimeoutOption = 120.0,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Make a complete snapshot of a running job in another place, where it is never pruned.

    The job needs --snapshots, and continues. `malstrom run --snapshots URI` starts from the savepoint. After the
    timeout the exit code is 1, and the savepoint continues.
    """
    with reporting_errors(traceback=False):
        made = _attached(job, address).savepoint(uri, timeout_s=timeout_s)
        if as_json:
            print_json({"job": job, "snapshot": made, "uri": uri})
        else:
            print_out(f"job {job} has made savepoint {made} in {uri}")


def status(
    job: AnyNameArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the counts of each step.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print it every two seconds, until the job ends.")] = False,
    address: AddressOption = None,
) -> None:
    """Print the status of a running job."""
    with reporting_errors(traceback=False):
        if watch and job is None:
            raise WrongCommand("--watch is for one job: malstrom status JOB --watch; malstrom dashboard shows all")
        if job is None:
            names = sorted({*running_jobs(), *running_nearby(address)})
            print_json(names) if as_json else print_out("\n".join(names) or "no job is running here")
            return
        handle = _attached(job, address)
        for found in _statuses(handle) if watch else (handle.status(),):
            print_json(asdict(found)) if as_json else print_out(str(found))


def query(
    job: NameArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, in the SQL of DuckDB; a step is a table.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="Make a snapshot first, and ask that.")] = False,
    timeout_s: TimeoutOption = 120.0,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Print the result of a query for the state of steps of a running job.

    The state is that of the last snapshot of the job, which is one cut on all workers. Its place must be one that this
    program can read. Columns are the key and the fields of the state, or value.
    """
    from malstrom_py.workers.control.state_query import rows_in

    with reporting_errors(traceback=False):
        found = _attached(job, address).query(sql, fresh=fresh, timeout_s=timeout_s)
        snapshot = found.schema.metadata[b"snapshot"].decode()
        rows = rows_in(found)
        if as_json:
            print_out(json_text({"job": job, "snapshot": snapshot, "rows": rows}))
        else:
            print_out(table(found.schema.names, [list(map(_cell, row.values())) for row in rows]))


def _cell(value: object) -> object:
    return "" if value is None else value.isoformat() if isinstance(value, date) else value


def _statuses(handle: mp.JobHandle) -> Iterator[mp.JobStatus]:
    """Return the status of a job every two seconds, until it has ended."""
    clock = SystemClock()
    while True:
        try:
            found = handle.status()
        except mp.JobEnded:
            return
        yield found
        if found.state in ENDED:
            return
        clock.sleep_s(_WATCH_S)


def events(
    job: NameArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with all fields.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until the job ends.")] = False,
    address: AddressOption = None,
) -> None:
    """Print the events of a running job, a time and a sentence per line: workers, snapshots, rescales, failures.

    Without --follow those so far.
    """
    with reporting_errors(traceback=False):
        for at, event in read_timed_events(partial(page_of, found_job(job, address)), follow=follow):
            print_out(_event_json(at, event) if as_json else _event_line(at, event))


def _event_line(at: float, event: AnyEvent) -> str:
    """Return the line of an event, with the time of this machine's zone. Further lines of its text are indented."""
    when = datetime.fromtimestamp(at).astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S}  {sentence(event).replace(_NEW_LINE, _NEW_LINE + _INDENT)}"


def _event_json(at: float, event: AnyEvent) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return msgspec.json.encode({"time": datetime.fromtimestamp(at, UTC), **fields}).decode()


def reload(
    job: NameArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The name of a step of the job.", show_default=False)],
    probation_s: Annotated[
        float, typer.Option("--probation", min=0, help="How long the new code is on trial, in seconds.")
    ] = 2.0,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run the new code beside the old, and compare.")] = False,
    differences: Annotated[bool, typer.Option("--differences", help="Show what was compared so far.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Replace the code by that of the shadow.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="End the shadow.")] = False,
    timeout_s: TimeoutOption = 120.0,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Replace the code of a step in a running job.

    The job imports the module of the step again, makes a snapshot, and continues from it with the new code. If that
    cannot be imported, or fails on trial, the job continues from the snapshot with the code before; the exit code is
    then 1.

    With --shadow the new code is compared with the old: it gets the same input, and sends nothing. --differences shows
    in what its output differs, --promote makes it the code of the step, and --drop ends it.
    """
    with reporting_errors(traceback=False):
        if shadow + differences + promote + drop > 1:
            raise WrongCommand("--shadow, --differences, --promote and --drop exclude each other")
        handle = _attached(job, address)
        report: ReloadReport | ShadowReport
        if differences:
            report = handle.shadow(step)
        elif promote:
            report = handle.promote(step, probation_s=probation_s, timeout_s=timeout_s)
        elif drop:
            report = handle.drop(step, timeout_s=timeout_s)
        else:
            report = handle.reload(step, shadow=shadow, probation_s=probation_s, timeout_s=timeout_s)
        print_json({"job": job, **asdict(report)}) if as_json else print_out(f"job {job}: {report}")


def set_(
    job: NameArgument,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a parameter of the job.", show_default=False)
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value, as JSON.", show_default=False)],
    timeout_s: TimeoutOption = 120.0,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Give a parameter of a running job another value.

    The job makes a snapshot and continues from it: records before that cut are processed with the former value, later
    ones with the new value, on all workers. The job needs --snapshots. After the timeout the exit code is 1, and the
    change continues.
    """
    with reporting_errors(traceback=False):
        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            raise WrongCommand(f"{value!r} is not JSON: write for instance 12, true or '\"text\"'") from None
        made = _attached(job, address).set(name, given, timeout_s=timeout_s)
        if as_json:
            print_json({"job": job, "parameter": name, "value": given, "snapshot": made})
        else:
            print_out(f"job {job} has {name} = {json.dumps(given)} since snapshot {made}")


def stop(
    job: NameArgument,
    drain: Annotated[
        bool | None,
        typer.Option(
            "--drain/--no-drain",
            help="--drain finishes the job as if its sources had ended: its sinks commit. --no-drain stops "
            "immediately; a job with snapshots first writes a last one. Sinks discard uncommitted rows. "
            "Default: --no-drain for a job with snapshots, else --drain.",
            show_default=False,
        ),
    ] = None,
    timeout_s: TimeoutOption = 120.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return without waiting for the end.")] = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Stop a running job.

    A job with snapshots writes a last one, from which it can resume.

    A job without snapshots finishes: its sources stop, rows in flight are processed, and its sinks commit. The command
    waits for a savepoint in progress, except with --no-wait. After the timeout the exit code is 1, and the stop
    continues.
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
            text, state, last = f"job {job} has finished by itself", "finished", None
        else:
            text = f"job {job} is being stopped" if no_wait else _ended(job, last, drained, has_snapshots)
            state = "stopping" if no_wait else "finished" if drained else "stopped"
        print_json({"job": job, "state": state, "snapshot": last}) if as_json else print_out(text)


def _stopped(handle: mp.JobHandle, *, drain: bool, wait: bool, timeout_s: float) -> str | None:
    """Stop a job, after the savepoint in progress, if any. Raise `OperationInProgress` if that takes too long."""
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
    except mp.PlanError as error:  # not a legal name of a job
        raise WrongCommand(str(error)) from None


def _ended(job: str, last: str | None, drained: bool, has_snapshots: bool) -> str:
    if drained:
        return f"job {job} has finished" + (f"; its last snapshot is {last}" if last else "")
    if last:
        return stopped_text(job, last)
    if has_snapshots:
        raise mp.SnapshotError(
            f"job {job} has stopped, but its last snapshot could not be written: it resumes from the snapshot before, "
            f"if there is one, and processes later records again"
        )
    return f"job {job} has stopped; nothing was committed"


def _report_text(job: str, report: mp.RescaleReport) -> str:
    size = len(report.members)
    text = f"job {job} runs on {size} worker{'' if size == 1 else 's'}: {_moved_text(report)}"
    if report.superseded_by is None:
        return text
    return f"{text}; a later request for {report.superseded_by} workers superseded this one"


def _rebalanced_text(job: str, report: mp.RescaleReport) -> str:
    if report.imbalance_before is None or report.imbalance_after is None:
        why = "too few rows have arrived to weigh key groups"
    elif report.slots:
        why = f"the most loaded worker had {report.imbalance_before:.2f} times the mean load, and has "
        why += f"{report.imbalance_after:.2f} times"
    else:
        why = f"the most loaded worker has {report.imbalance_before:.2f} times the mean load"
    return f"job {job}: {_moved_text(report)}; {why}" if report.slots else f"job {job}: nothing moved; {why}"


def _moved_text(report: mp.RescaleReport) -> str:
    return (
        f"{report.slots:,} key groups and {report.parts:,} partitions moved, with {report.keys:,} keys and "
        f"{report.bytes / 1e6:,.1f} MB of state, in {report.moves:,} moves and {report.duration_s:.2f} s"
    )


app = typer.Typer(rich_markup_mode=None)
for _command in (rescale, rebalance, autoscale, snapshot, savepoint, status, query, events, reload, set_, stop):
    _name = _command.__name__.removesuffix("_")  # of a builtin
    app.command(_name, epilog=examples(*_EXAMPLES[_name]))(_command)
