"""What several commands have in common: options, names of jobs with their completion, logs, and examples in the help.

Rule: each command has ``--json``, and its help ends with examples; a test parses them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import malstrom_py as mp
from malstrom_py import logs
from malstrom_py.cli.output import WrongCommand
from malstrom_py.workers.control.client import running_jobs
from malstrom_py.workers.coordinator.autoscaler import check_autoscale


class Runtime(StrEnum):
    """Where the workers of a job run."""

    IN_PROCESS = "in-process"
    PROCESSES = "processes"
    RAY = "ray"


class LogFormat(StrEnum):
    """How lines of the log are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level of lines of the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def complete_job(incomplete: str) -> list[str]:
    """Return the names of the running jobs of this machine that begin with ``incomplete``, for a shell."""
    try:
        return [name for name in running_jobs() if name.startswith(incomplete)]
    except mp.MalstromError:  # a completion prints nothing
        return []


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the full traceback of an error.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The name of the job, as in mp.Job(name).",
        show_default=False,
        autocompletion=complete_job,
    ),
]
AnyNameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="The name of the job; without it, list the jobs that run here.",
        autocompletion=complete_job,
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="How long to wait, in seconds.")]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="Address of the Ray cluster that the job runs on; by default this machine is searched."
    ),
]

# Those of `malstrom run`.

RunJsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON on standard output. The job may write there too: the JSON is the last line.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
WorkersOption = Annotated[
    int, typer.Option("--workers", "-w", min=1, help="Number of workers. In this process they take turns.")
]
AutoscaleOption = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN:MAX",
        help="Change the number of workers by load, between these.",
        show_default=False,
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        "--target",
        min=0.1,
        max=0.95,
        help="The share of their time for which workers are to be busy, with --autoscale.",
        show_default=str(mp.Autoscale().target),
    ),
]
BatchRowsOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum rows per batch.", show_default=str(mp.Batching().rows_max))
]
NoControlOption = Annotated[
    bool, typer.Option("--no-control", help="Open no control socket; other commands cannot find the job then.")
]
RuntimeOption = Annotated[
    Runtime | None,
    typer.Option(
        "--runtime",
        help="Where the workers run: in this process, in one process each (the default of several workers if "
        "this machine has a processor for each), or as actors on Ray.",
    ),
]
ClusterOption = Annotated[
    str | None, typer.Option("--address", help="Address of the Ray cluster, or auto.", show_default=False)
]
CpusOption = Annotated[
    float | None, typer.Option("--num-cpus", min=0, help="CPUs that each worker on Ray needs.", show_default="1.0")
]
ResourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--resources",
        metavar="NAME=N|JSON",
        help="Custom Ray resources that each worker needs; may be repeated.",
        show_default=False,
    ),
]
RuntimeEnvOption = Annotated[
    str | None,
    typer.Option(
        "--runtime-env",
        metavar="JSON|FILE",
        help='Runtime environment of the workers on Ray, such as {"working_dir": "."}: JSON, or a JSON or YAML file.',
        show_default=False,
    ),
]
DetachedOption = Annotated[
    bool,
    typer.Option("--detached", help="Return once the job runs on Ray; the job continues until it ends or is stopped."),
]
StopTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--stop-timeout",
        min=0,
        metavar="SECONDS",
        help="How long a stop by SIGTERM may take before the job is ended without it.",
        show_default="120",
    ),
]
RedactErrorsOption = Annotated[
    bool,
    typer.Option("--redact-errors", help="Hide the texts of exceptions, which may hold values of records."),
]
StateMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--state-memory",
        metavar="SIZE[:FOLDER]",
        help="Keep so much keyed state of a worker in memory, as 4GB, and the rest on disk.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format", help="Write the log on standard error as text or as lines of JSON.", show_default=False
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        help="The least level of lines of the log; info, if --log-format is given.",
        show_default="warning",
    ),
]


def configure_logs(format: LogFormat | None, level: LogLevel | None) -> None:
    """Configure the logs of this program, if an option asks for it."""
    if format is not None or level is not None:
        logs.configure((format or LogFormat.TEXT).value, (level or LogLevel.INFO).value)


def autoscale_of(given: str | None, target: float | None, what: str = "--autoscale") -> mp.Autoscale | None:
    """Return the autoscaler that the options ask for; ``what`` names ``given``.

    >>> autoscale_of("2:6", None).max
    6
    """
    if given is None:
        if target is not None:
            raise WrongCommand("--target is for --autoscale MIN:MAX: add that, or leave it out")
        return None
    least, colon, most = given.partition(":")
    if not (colon and least.isdecimal() and most.isdecimal()):
        raise WrongCommand(f"{what} is MIN:MAX, such as 1:8, got {given!r}")
    try:
        made = mp.Autoscale(min=int(least), max=int(most), target=mp.Autoscale().target if target is None else target)
        return check_autoscale(made)
    except mp.PlanError as error:
        raise WrongCommand(f"{what} {given}: {error}") from None


def stop_timeout(given: float | None, *, detached: bool) -> float:
    """Return the limit of a stop by SIGTERM."""
    if detached and given is not None:
        raise WrongCommand("--stop-timeout is for a job that this program waits for: leave it out with --detached")
    return 120.0 if given is None else given


def state_of(text: str | None) -> mp.State | None:
    """Return how much state is kept in memory, and where the rest is.

    >>> state_of("4GB:/data/state")
    State(memory='4GB', folder='/data/state')
    """
    if text is None:
        return None
    memory, _, folder = text.partition(":")
    return mp.State(memory, folder or None)
