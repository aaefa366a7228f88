"""Who watches the jobs of a runtime: the user's function, Prometheus, OpenTelemetry, the dashboard."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from malstrom_py.logs import log
from malstrom_py.metrics import Metrics, url_of
from malstrom_py.worker_context import close_all
from malstrom_py.workers.monitoring import opentelemetry
from malstrom_py.workers.monitoring.dashboard import Dashboard, DashboardServer, check_installed, remark_on
from malstrom_py.workers.monitoring.prometheus import MetricsEndpoint, imported_client
from malstrom_py.workers.monitoring.watched_job import page_of
from malstrom_py.workers.reports.commands import RunningJob
from malstrom_py.workers.reports.event_log import EventCalls, OnEvent

_LOG: Final = logging.getLogger("malstrom_py")


@dataclass(frozen=True, slots=True)
class Observers:
    """The observers of each job of a runtime."""

    on_event: OnEvent | None = None
    metrics: Metrics | None = None
    dashboard: Dashboard | None = None

    def __post_init__(self) -> None:
        """Raise `PlanError` if a package that one of them needs is missing."""
        if self.metrics is not None:
            imported_client()
        if self.dashboard is not None:
            check_installed()

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return self != Observers()

    def begin(self, job: RunningJob) -> Observing:
        """Begin to watch ``job``. Nothing is open after an error."""
        observing = Observing(job.name)
        try:
            self._begin(job, observing)
        except BaseException:
            observing.end()
            raise
        return observing

    def _begin(self, job: RunningJob, observing: Observing) -> None:
        ask = partial(page_of, job)
        if self.metrics is not None:
            endpoint = MetricsEndpoint.join(job, self.metrics)
            observing.at_end.append(lambda: endpoint.leave(job, observing.failure))
            _say(f"metrics of job {job.name}: {url_of(self.metrics.host, endpoint.port)}/metrics")
            if self.metrics.opentelemetry and opentelemetry.is_installed():
                telemetry = opentelemetry.OpenTelemetry(job)
                observing.at_end.append(telemetry.end)
                observing.at_end.append(EventCalls(telemetry.spans.see, ask, job.name).join)
        if self.dashboard is not None:
            server = DashboardServer.join(job, self.dashboard)
            observing.at_end.append(lambda: server.leave(job, observing.failure))
            _say(f"dashboard of job {job.name}: {server.address(job.name)}{remark_on(self.dashboard.host)}")
        if self.on_event is not None:
            observing.at_end.append(EventCalls(self.on_event, ask, job.name).join)


class Observing:
    """What watches one job, until `end`."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.at_end: list[Callable[[], None]] = []
        self.failure: str | None = None
        """Why the job has failed; None if it has not."""

    def end(self, failure: str | None = None) -> None:
        """Let the observers see the last event, which can be read by now, and close them.

        ``failure``: why the job has failed; None if it has not. What they raise is logged: the outcome of the job
        matters more.
        """
        self.failure = failure
        try:
            close_all(reversed(self.at_end))
        except Exception as error:
            log(_LOG, logging.ERROR, "what watches job %s has failed at its end", self._job, error=error, job=self._job)
        self.at_end.clear()


def _say(what: str) -> None:
    if sys.stderr is not None:
        print(what, file=sys.stderr, flush=True)
