"""Commands that watch running jobs: top, health, metrics, dashboard.

Rule: they ask the job about once a second, as the dashboard does, and end when it ends or by Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

import malstrom_py as mp
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import AddressOption, JsonOption, NameArgument
from malstrom_py.cli.output import FAILED, WrongCommand, print_json, print_out, reporting_errors, table
from malstrom_py.clock import SystemClock
from malstrom_py.metrics import ENDED, LOOPBACK, JobMetrics, url_of
from malstrom_py.workers.control.client import running_jobs
from malstrom_py.workers.monitoring.dashboard import DashboardServer, remark_on
from malstrom_py.workers.monitoring.health import health_of
from malstrom_py.workers.monitoring.prometheus import MetricsEndpoint, exposition
from malstrom_py.workers.monitoring.sentences import sentence
from malstrom_py.workers.monitoring.watched_job import metrics_of, page_of
from malstrom_py.workers.ray.discovery import running_nearby
from malstrom_py.workers.reports.commands import RunningJob
from malstrom_py.workers.reports.figures import format_size
from malstrom_py.workers.runtime.job_handle import find_job
from malstrom_py.workers.runtime.run_options import RunKeywords

if TYPE_CHECKING:
    from rich.console import RenderableType

MetricsPortOption = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65535, help="Serve metrics to Prometheus at this port of this machine."),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        help="Address for --metrics-port. Only this machine can connect by default.",
        show_default="127.0.0.1",
    ),
]
DashboardOption = Annotated[bool, typer.Option("--dashboard", help="Show the job in a browser; prints the address.")]
HistoryOption = Annotated[
    Path | None,
    typer.Option("--history", help="Folder to keep the pages of jobs in, for malstrom dashboard --history."),
]
ValuesOption = Annotated[
    bool,
    typer.Option("--values", help="Show data in the dashboard too: records, states, and in what new code differs."),
]
HostOption = Annotated[
    str, typer.Option("--host", help="Address to listen at. Only this machine can connect by default.")
]

ANSWER_S: Final = 5.0
"""How long a job may take to answer; then its last known numbers are shown."""

_OLD_S: Final = 2.0
_FIND_S: Final = 2.0
_EVENTS: Final = 5
_BAR: Final = 10


_EXAMPLES: Final = {
    "top": ("malstrom top shop", "malstrom top shop --interval 5", "malstrom top shop --once --json"),
    "health": ("malstrom health shop", "malstrom health shop --json"),
    "metrics": ("malstrom metrics shop", "malstrom metrics shop --json", "malstrom metrics shop --port 9464"),
    "dashboard": (
        *("malstrom dashboard", "malstrom dashboard shop --port 8080"),
        *("malstrom dashboard --history runs", "malstrom dashboard shop --values"),
    ),
}


def watched_options(
    metrics_port: int | None, metrics_host: str | None, *, dashboard: bool, history: Path | None, values: bool
) -> RunKeywords:
    """Return the options of ``run`` that let others watch the job, as arguments of a runtime."""
    given: RunKeywords = {}
    if metrics_port is not None:
        given["metrics"] = mp.Metrics(port=metrics_port, host=LOOPBACK if metrics_host is None else metrics_host)
    elif metrics_host is not None:
        raise WrongCommand("--metrics-host is where --metrics-port listens: give --metrics-port too")
    if dashboard or history is not None:
        given["dashboard"] = mp.Dashboard(history=history, values=values)
    elif values:
        raise WrongCommand("--values is what the dashboard shows: give --dashboard too")
    return given


def top(
    job: NameArgument,
    interval_s: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two drawings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, and return.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per interval.")] = False,
    address: AddressOption = None,
) -> None:
    """Watch a running job in the terminal: steps, workers, lag, back-pressure, snapshots, events.

    Where standard output is not a terminal the metrics are printed once.
    """
    with reporting_errors(traceback=False):
        watched = found_job(job, address)
        if once or (not as_json and not sys.stdout.isatty()):
            found = metrics_of(watched, ANSWER_S)
            print_out(_encoded(found) if as_json else plain_text(found))
        elif as_json:
            for found in _each(watched, interval_s):
                print_out(_encoded(found))
        else:
            _draw(watched, interval_s)


def health(job: NameArgument, as_json: JsonOption = False, address: AddressOption = None) -> None:
    """Print what is wrong with a running job; the exit code is 0 if nothing is, else 1.

    A line for each problem: the job has ended or restarts, is not heard, or its snapshots are late.
    """
    with reporting_errors(traceback=False):
        try:
            problems = health_of(metrics_of(found_job(job, address), ANSWER_S))
        except (mp.JobNotFound, mp.JobEnded) as error:
            problems = [str(error)]
        if as_json:
            print_json({"job": job, "healthy": not problems, "problems": problems})
        else:
            print_out("\n".join(problems) or f"job {job} is healthy")
        if problems:
            raise typer.Exit(FAILED)


def metrics(
    job: NameArgument,
    as_json: JsonOption = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, help="Serve the metrics to Prometheus at this port, until the job ends."),
    ] = None,
    host: HostOption = "127.0.0.1",
    address: AddressOption = None,
) -> None:
    """Print the metrics of a running job, or serve them to Prometheus.

    Without --json they are printed in the format of Prometheus.
    """
    with reporting_errors(traceback=False):
        watched = found_job(job, address)
        if port is not None:
            endpoint = MetricsEndpoint.join(watched, mp.Metrics(port=port, host=host, opentelemetry=False))
            typer.echo(f"metrics of job {job}: {url_of(host, endpoint.port)}/metrics", err=True)
            try:
                for _ in _each(watched, 1.0):
                    """The endpoint asks for itself."""
            finally:
                endpoint.leave(watched)
        elif as_json:
            print_out(_encoded(metrics_of(watched, ANSWER_S)))
        else:
            print_out(exposition([metrics_of(watched, ANSWER_S)]).rstrip("\n"))


def dashboard(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job to show; without it, all that run here.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, help="Port to listen at.", show_default="9465, or a free one")
    ] = None,
    host: HostOption = "127.0.0.1",
    token: Annotated[
        str, typer.Option("--token", envvar="MALSTROM_DASHBOARD_TOKEN", help="Token of the page.", show_default="new")
    ] = "",
    history: Annotated[
        Path | None,
        typer.Option("--history", help="Folder to keep the pages of jobs in, and to show those of ended jobs from."),
    ] = None,
    values: ValuesOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Show running jobs in a browser, until Ctrl-C or SIGTERM.

    The page shows the graph of a job with its rates and back-pressure, its workers, snapshots and rescales, and can
    rescale and stop it. Who has the token in its address can do the same. With --history the pages of ended jobs stay
    readable.
    """
    with reporting_errors(traceback=False):
        watched = None if job is None else found_job(job, address)
        server = DashboardServer(mp.Dashboard(port=port, host=host, token=token, history=history, values=values))
        try:
            if watched is not None:
                server.add(watched)
            place = server.address(job or "")
            print_json({"address": place}) if as_json else print_out(f"dashboard: {place}{remark_on(host)}")
            sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            _show_jobs(server, None if job is None else [job], address)
        except KeyboardInterrupt:
            """That is how the command ends."""
        finally:
            server.close()


def _show_jobs(server: DashboardServer, names: list[str] | None, address: str | None) -> None:
    """Add jobs to ``server`` as they begin, for ever."""
    clock = SystemClock()
    while True:
        for name in sorted({*running_jobs(), *running_nearby(address)}) if names is None else names:
            if not server.shows(name):
                try:
                    server.add(find_job(name, address))
                except (mp.JobNotFound, mp.ControlError):
                    """It has ended, or begins only now."""
        clock.sleep_s(_FIND_S)


def _encoded(found: JobMetrics) -> str:
    return msgspec.json.encode(found).decode()


def found_job(name: str, address: str | None) -> RunningJob:
    """Return the running job ``name``. `WrongCommand` if that is not a legal name of a job."""
    try:
        return find_job(name, address)
    except mp.PlanError as error:  # not a legal name of a job
        raise WrongCommand(str(error)) from None


def _each(job: RunningJob, interval_s: float) -> Iterator[JobMetrics]:
    """Return the metrics of a job at intervals, until it has ended."""
    clock = SystemClock()
    while True:
        try:
            found = metrics_of(job, ANSWER_S)
        except mp.JobEnded:
            return
        yield found
        if found.state in ENDED:
            return
        clock.sleep_s(interval_s)


def _draw(job: RunningJob, interval_s: float) -> None:
    from rich.live import Live

    events: deque[str] = deque(maxlen=_EVENTS)
    after, log = 0, ""
    found: JobMetrics | None = None
    with Live(auto_refresh=False, screen=True) as live:
        try:
            for found in _each(job, interval_s):
                page = page_of(job, after, log, 0.0)
                events.extend(map(sentence, page.events))
                after, log = page.after, page.log
                live.update(screen(found, list(events)), refresh=True)
        except mp.JobEnded:
            """The last drawing stays until the screen is left."""
    if found is not None:
        print_out(plain_text(found))


def plain_text(found: JobMetrics) -> str:
    """Return the metrics as text, for files and pipes."""
    steps = table(_STEP_HEADINGS, list(_step_rows(found)), drawn=False)
    workers = table(_WORKER_HEADINGS, list(_worker_rows(found)), drawn=False)
    return "\n".join((_headline(found), "", steps, "", workers, *_remarks(found)))


def screen(found: JobMetrics, events: list[str]) -> RenderableType:
    """Return the metrics and the last ``events`` as a drawing."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def drawn(headings: tuple[str, ...], rows: Iterator[list[str]]) -> Table:
        made = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for heading in headings:
            made.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
        for row in rows:
            made.add_row(*map(Text, row))
        return made

    state = "bold red" if _is_bad(found) else "bold"
    remarks = [Text(line) for line in (*_remarks(found), *(f"· {event}" for event in events))]
    return Group(
        Text(_headline(found), style=state),
        Text(),
        drawn(_STEP_HEADINGS, _step_rows(found)),
        drawn(_WORKER_HEADINGS, _worker_rows(found)),
        *remarks,
    )


_LEFT: Final = frozenset({"step", "kind", "worker", "use", "host"})
_STEP_HEADINGS: Final = ("step", "kind", "in/s", "out/s", "rows", "busy", "late", "failed", "keys", "state", "lag")
_WORKER_HEADINGS: Final = ("worker", "use", "busy", "waiting", "CPU", "memory", "keys", "key groups", "rows/s", "host")


def _headline(found: JobMetrics) -> str:
    workers = f"{len(found.workers)} worker{'' if len(found.workers) == 1 else 's'}"
    moving = "" if found.moving is None else f" ({found.moving.slots:,} of {found.moving.of_slots:,} key groups moved)"
    sums = f"{found.read:,} read, {found.written:,} written"
    return f"job {found.job}: {found.state}{moving}, {workers}, {sums}, {found.duration_s:,.0f} s"


def _step_rows(found: JobMetrics) -> Iterator[list[str]]:
    for name, step in found.steps.items():
        failed = step.skipped + step.dead_letters
        yield [
            name,
            step.kind,
            f"{step.in_per_s:,.0f}",
            f"{step.out_per_s:,.0f}",
            f"{step.rows_in:,}",
            f"{step.busy:.0%}",
            f"{step.late:,}" if step.late else "",
            f"{failed:,}" if failed else "",
            "" if step.keys is None else f"{step.keys:,}",
            "" if step.state_bytes is None else format_size(step.state_bytes),
            "" if step.lag_s is None else _duration(step.lag_s),
        ]


def _duration(seconds: float) -> str:
    """Return a duration in a unit of its size: the event times of old data are years before now.

    >>> _duration(0.25), _duration(300), _duration(86_400 * 4_500)
    ('0.2 s', '5 min', '4,500 days')
    """
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:,.1f} s"


def _worker_rows(found: JobMetrics) -> Iterator[list[str]]:
    for worker in found.workers:
        busy, waiting = round(worker.busy * _BAR), round(worker.waiting * _BAR)
        yield [
            str(worker.worker),
            ("█" * busy + "▒" * waiting).ljust(_BAR, "·")[:_BAR],
            f"{worker.busy:.0%}",
            f"{worker.waiting:.0%}",
            f"{worker.cpu:.0%}",
            format_size(worker.rss_bytes),
            f"{worker.keys:,}",
            f"{worker.slots:,}",
            f"{worker.in_per_s:,.0f}",
            worker.host,
        ]


def _is_bad(found: JobMetrics) -> bool:
    """Whether the text of ``found`` is an error: that of a planned stop says what the job resumes from."""
    return bool(found.error) and found.state != "stopped"


def _remarks(found: JobMetrics) -> Iterator[str]:
    for name, exchange in found.exchanges.items():
        if exchange.backlog or exchange.waiting >= 0.01:
            yield f"exchange {name}: {exchange.backlog:,} rows wait for credit, {exchange.waiting:.0%} of the time"
    lagging = [part for part in found.parts if part.lag_rows or part.lag_bytes]
    for part in sorted(lagging, key=lambda part: -(part.lag_rows or part.lag_bytes or 0))[:3]:
        left = f"{part.lag_rows:,} rows" if part.lag_rows is not None else format_size(part.lag_bytes or 0)
        yield f"source {part.source}, partition {part.part}: {left} to read"
    if found.heavy_keys:
        heaviest = found.heavy_keys[0]
        where = f"{heaviest.share:.0%} of the rows, on worker {heaviest.worker}"
        yield f"heaviest key of {heaviest.step}: {heaviest.key}, {where}"
    made = found.snapshots
    if made is not None and made.last is not None and made.at is not None:
        yield f"snapshot {made.last}, {max(0.0, found.at - made.at):,.0f} s ago, {format_size(made.bytes)}"
    if found.restarts:
        yield f"{found.restarts:,} restart{'' if found.restarts == 1 else 's'} from a snapshot"
    if found.error:
        yield f"error: {found.error}" if _is_bad(found) else found.error
    if found.age_s > _OLD_S:
        yield f"these numbers are {found.age_s:,.1f} s old"


app = typer.Typer(rich_markup_mode=None)
for _command in (top, health, metrics, dashboard):
    app.command(epilog=examples(*_EXAMPLES[_command.__name__]))(_command)
