"""Serves the metrics of jobs to Prometheus, over HTTP, with its own client library.

Rule: nothing is kept: each scrape asks the jobs for their metrics. Jobs of one process may share an address.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from malstrom_py.errors import MalstromError, PlanError, pip_install
from malstrom_py.metrics import METRICS, JobMetrics, Metrics
from malstrom_py.workers.monitoring.health import PROBES, asked, probe
from malstrom_py.workers.monitoring.watched_job import metrics_of
from malstrom_py.workers.reports.commands import RunningJob

SCRAPE_S: Final = 5.0
"""How long all jobs may take to answer a scrape; then their last known metrics are served."""

FAILED_MAX: Final = 100
"""The number of failed jobs whose last metrics are kept."""

_LOCK: Final = threading.Lock()
_OPEN: Final[dict[tuple[str, int], MetricsEndpoint]] = {}


class MetricsEndpoint:
    """The metrics of ``jobs`` at one address. Made by `join`.

    ``port``: where it listens.
    """

    def __init__(self, options: Metrics) -> None:
        prometheus = imported_client()
        registry = prometheus.CollectorRegistry()
        registry.register(self)
        self._address = options.host, options.port
        self._jobs: list[RunningJob] = []
        self._failed: dict[str, JobMetrics] = {}
        try:
            self._server, self._thread = prometheus.start_http_server(options.port, options.host, registry)
        except OSError as error:
            raise PlanError(
                f"the metrics cannot be served at {options.host}:{options.port} ({error.strerror}): give another "
                f"address, mp.Metrics(port=, host=), or port 0 for any free one"
            ) from error
        self._server.set_app(self._with_probes(self._server.get_app()))
        self.port = int(self._server.server_port)

    @classmethod
    def join(cls, job: RunningJob, options: Metrics) -> MetricsEndpoint:
        """Serve the metrics of ``job`` at the address of ``options``, with those of other jobs that do so already.

        Raises: PlanError: prometheus-client is missing, or the address cannot be used.
        """
        with _LOCK:
            address = options.host, options.port
            endpoint = _OPEN.get(address)
            if endpoint is None:
                endpoint = cls(options)
                if options.port:
                    _OPEN[address] = endpoint
            endpoint._jobs.append(job)
            endpoint._failed.pop(job.name, None)
            return endpoint

    def leave(self, job: RunningJob, failure: str | None = None) -> None:
        """Stop serving the metrics of ``job``; the last one closes the address.

        ``failure``: why it has failed: its last metrics are served as long as there are other jobs, or until a job of
        that name begins.
        """
        with _LOCK:
            self._jobs.remove(job)
            if failure is not None and self._jobs and len(self._failed) < FAILED_MAX:
                self._failed[job.name] = replace(metrics_of(job, 0.0), state="failed", error=failure)
            if self._jobs:
                return
            _OPEN.pop(self._address, None)
            # With the lock, so that the next job that wants the address finds it free.
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def _with_probes(self, metrics: Any) -> Any:
        """Return an application that answers probes itself, and all else by that of the client library."""

        def answer(environ: dict[str, Any], start: Any) -> Any:
            if (path := environ["PATH_INFO"]) not in PROBES:
                return metrics(environ, start)
            status, text = probe(path, asked(list(self._jobs)))
            start(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{text}\n".encode()]

        return answer

    def collect(self) -> Iterator[Any]:
        """Return the metrics of all jobs now: called by the client library for each scrape."""
        known: list[JobMetrics] = []
        until_s = monotonic() + SCRAPE_S
        for job in list(self._jobs):
            try:
                known.append(metrics_of(job, max(0.0, until_s - monotonic())))
            except MalstromError:
                """The job has ended, or does not answer."""
        return families([*known, *self._failed.values()])


def families(jobs: list[JobMetrics]) -> Iterator[Any]:
    """Return the metrics of ``jobs`` in the types of the client library."""
    core = imported_client().core
    for metric in METRICS:
        kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=("malstrom_job", *metric.labels))
        for job in jobs:
            for labels, value in metric.values(job):
                family.add_metric([job.job, *(labels[label] for label in metric.labels)], value)
        yield family


def exposition(jobs: list[JobMetrics]) -> str:
    """Return the metrics of ``jobs`` as the text that Prometheus reads."""
    prometheus = imported_client()
    registry = prometheus.CollectorRegistry()

    class _Known:
        def collect(self) -> Iterator[Any]:
            return families(jobs)

    registry.register(_Known())
    text: bytes = prometheus.generate_latest(registry)
    return text.decode()


def imported_client() -> Any:
    """Return the client library of Prometheus. `PlanError` if it is missing."""
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise PlanError(f"metrics are served by prometheus-client: {pip_install('metrics')}") from error
    return prometheus_client
