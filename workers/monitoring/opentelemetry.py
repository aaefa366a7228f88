"""The metrics of jobs in OpenTelemetry, and spans for snapshots, rescales and recoveries.

Rule: the API only: the program's own SDK decides what is exported, where and how often. Nothing is done per batch.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic_ns, time_ns
from typing import Any, Final

from malstrom_py.errors import MalstromError
from malstrom_py.events import (
    AnyEvent,
    Ended,
    NodeFailed,
    RescaleBegun,
    RescaleEnded,
    Restarting,
    SnapshotCompleted,
    WorkerJoined,
)
from malstrom_py.metrics import METRICS, JobMetrics, Metric
from malstrom_py.workers.monitoring.watched_job import metrics_of
from malstrom_py.workers.reports.commands import RunningJob

ANSWER_S: Final = 2.0
"""How long a job may take to answer an export."""

_KEPT_NS: Final = 500_000_000
"""All metrics of one export come from one answer of the job."""

_LOCK: Final = threading.Lock()
_JOBS: Final[list[RunningJob]] = []
_KNOWN: Final[dict[str, tuple[int, JobMetrics]]] = {}
_registered: Final[list[Any]] = []


def is_installed() -> bool:
    """Return whether the API of OpenTelemetry is installed."""
    find = importlib.util.find_spec
    # Other packages of OpenTelemetry share the name, but have no API.
    return find("opentelemetry") is not None and find("opentelemetry.metrics") is not None


class OpenTelemetry:
    """Registers the metrics of ``job`` until `end`, and makes spans of its events."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self.spans = Spans(job.name)
        with _LOCK:
            _JOBS.append(job)
            if not _registered:
                _registered.extend(_instruments())

    def end(self) -> None:
        """Stop: the job has ended."""
        self.spans.end()
        with _LOCK:
            _JOBS.remove(self._job)
            _KNOWN.pop(self._job.name, None)


class Spans:
    """The spans of job ``job``: ``malstrom.snapshot``, ``malstrom.rescale``, ``malstrom.recovery``."""

    def __init__(self, job: str) -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer("malstrom_py")
        self._job = job
        self._rescale: Any = None
        self._recovery: Any = None

    def see(self, event: AnyEvent) -> None:
        """Begin or end a span by ``event``."""
        match event:
            case SnapshotCompleted():
                now_ns = time_ns()
                figures = {"malstrom.snapshot": event.id, "malstrom.bytes": event.bytes}
                self._begin("snapshot", figures, now_ns - int(event.duration_s * 1e9)).end(now_ns)
            case RescaleBegun() if self._rescale is None:
                figures = {"malstrom.workers": event.workers, "malstrom.target": event.target}
                self._rescale = self._begin("rescale", figures)
            case RescaleEnded() if self._rescale is not None:
                self._rescale.set_attributes({"malstrom.keys": event.keys, "malstrom.bytes": event.bytes})
                self._ended(self._rescale, event.error)
                self._rescale = None
            case NodeFailed() | Restarting() if self._recovery is None:
                self._recovery = self._begin("recovery", {})
            case WorkerJoined() if self._recovery is not None:
                self._ended(self._recovery, "")
                self._recovery = None
            case Ended():
                self.end(event.error)

    def end(self, error: str = "") -> None:
        """End the spans that are open."""
        for span in (self._rescale, self._recovery):
            if span is not None:
                self._ended(span, error)
        self._rescale = self._recovery = None

    def _begin(self, what: str, figures: Mapping[str, Any], start_ns: int | None = None) -> Any:
        attributes = {"malstrom.job": self._job, **figures}
        return self._tracer.start_span(f"malstrom.{what}", start_time=start_ns, attributes=attributes)

    def _ended(self, span: Any, error: str) -> None:
        if error:
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR, error))
        span.end()


def _instruments() -> Iterable[Any]:
    from opentelemetry import metrics

    meter = metrics.get_meter("malstrom_py")
    for metric in METRICS:
        make: Callable[..., Any] = (
            meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        )
        yield make(metric.name, callbacks=[partial(_observed, metric)], description=metric.help)


def _observed(metric: Metric, options: object) -> list[Any]:
    from opentelemetry.metrics import Observation

    return [
        Observation(value, {"malstrom_job": job.job, **labels})
        for job in _answers()
        for labels, value in metric.values(job)
    ]


def _answers() -> list[JobMetrics]:
    with _LOCK:
        jobs = list(_JOBS)
    for job in jobs:
        known = _KNOWN.get(job.name)
        if known is None or monotonic_ns() - known[0] > _KEPT_NS:
            try:
                found = metrics_of(job, ANSWER_S)
                _KNOWN[job.name] = monotonic_ns(), found  # of a blocked job, after a while
            except MalstromError:
                _KNOWN.pop(job.name, None)
    return [_KNOWN[job.name][1] for job in jobs if job.name in _KNOWN]
