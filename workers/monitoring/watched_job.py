"""A job as those who watch it see it, wherever it runs."""

from __future__ import annotations

from typing import Any, Protocol

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.metrics import JobMetrics
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import Command, EventsCommand, MetricsCommand, Result, result_of
from malstrom_py.workers.reports.event_log import EventPage
from malstrom_py.workers.reports.job_status import JobOutcome


class WatchedJob(Protocol):
    """A running job: its name, and the commands that it answers."""

    @property
    def name(self) -> str: ...

    def ask(self, command: Command) -> Any:
        """Return the result of ``command`` within its ``timeout_s``, or raise its error."""
        ...


class QueuedJob:
    """The job of this process whose commands are in ``commands``."""

    def __init__(self, commands: CommandQueue) -> None:
        self.name = commands.job
        self._commands = commands

    def ask(self, command: Command) -> Any:
        """See `WatchedJob.ask`."""
        value = answer_of(self._commands, command, command.timeout_s)
        return result_of(command, value, kept=self._commands.kept)


def answer_of(commands: CommandQueue, command: Command, timeout_s: float | None) -> JobOutcome | Result:
    """Submit ``command``, and return what answers it within ``timeout_s``, or raise its error."""
    done = commands.submit(command)
    try:
        answer: JobOutcome | Result = done.result(timeout_s)
    except TimeoutError:
        # It may be done since, also with a `TimeoutError` of the job.
        late = done.result() if done.done() else commands.unanswered(command, done)
        if isinstance(late, MalstromError):
            raise late from None
        return late
    return answer


def metrics_of(job: WatchedJob, timeout_s: float, since: float | None = None) -> JobMetrics:
    """Return the metrics of ``job``, the last known ones after ``timeout_s``; with the rates after ``since``."""
    found = job.ask(MetricsCommand(timeout_s, since))
    if not isinstance(found, JobMetrics):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for metrics")
    return found


def page_of(job: WatchedJob, after: int, log: str, wait_s: float) -> EventPage:
    """Return the events of ``job`` after number ``after`` of log ``log``; wait for some at most ``wait_s``."""
    found = job.ask(EventsCommand(after, log, wait_s))
    if not isinstance(found, EventPage):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for events")
    return found
