"""A job as those who watch it see it, wherever it runs."""

from __future__ import annotations

from typing import Any, Protocol

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.metrics import JobMetrics
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import Command, EventsCommand, MetricsCommand, result_of
from malstrom_py.workers.reports.event_log import EventPage


class WatchedJob(Protocol):
    """A running job: its name, and the commands that it answers."""

    @property
    def name(self) -> str: ...

    def ask(self, command: Command) -> Any:
        """Return the result of ``command`` within its ``timeout_s``, or raise its error."""
        ...


class QueuedJob:
    """The job of this process whose commands are in ``controls``."""

    def __init__(self, controls: CommandQueue) -> None:
        self.name = controls.job
        self._controls = controls

    def ask(self, command: Command) -> Any:
        """See `WatchedJob.ask`."""
        done = self._controls.submit(command)
        try:
            value = done.result(command.timeout_s)
        except TimeoutError:
            value = self._controls.unanswered(command, done)
            if isinstance(value, MalstromError):
                raise value from None
        return result_of(command, value, kept=self._controls.kept)


def metrics_of(job: WatchedJob, timeout_s: float) -> JobMetrics:
    """Return the metrics of ``job``, the last known ones after ``timeout_s``."""
    found = job.ask(MetricsCommand(timeout_s))
    if not isinstance(found, JobMetrics):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for metrics")
    return found


def page_of(job: WatchedJob, after: int, log: str, wait_s: float) -> EventPage:
    """Return the events of ``job`` after number ``after`` of log ``log``; wait for some at most ``wait_s``."""
    found = job.ask(EventsCommand(after, log, wait_s))
    if not isinstance(found, EventPage):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for events")
    return found
