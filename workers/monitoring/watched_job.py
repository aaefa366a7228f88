"""A job as those who watch it see it, wherever it runs."""

from __future__ import annotations

from malstrom_py.errors import InternalError
from malstrom_py.metrics import JobMetrics
from malstrom_py.workers.reports.commands import EventsCommand, MetricsCommand, RunningJob
from malstrom_py.workers.reports.event_log import EventPage


def metrics_of(job: RunningJob, timeout_s: float, since: float | None = None) -> JobMetrics:
    """Return the metrics of ``job``, the last known ones after ``timeout_s``; with the rates after ``since``."""
    found = job.ask(MetricsCommand(timeout_s, since))
    if not isinstance(found, JobMetrics):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for metrics")
    return found


def page_of(job: RunningJob, after: int, log: str, wait_s: float) -> EventPage:
    """Return the events of ``job`` after number ``after`` of log ``log``; wait for some at most ``wait_s``."""
    found = job.ask(EventsCommand(after, log, wait_s))
    if not isinstance(found, EventPage):
        raise InternalError(f"job {job.name!r} answered {type(found).__name__} to a request for events")
    return found
