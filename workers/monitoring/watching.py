"""What the dashboard shows of one job: its metrics and events, as a view in plain types, renewed once a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

import msgspec

from malstrom_py.errors import JobEnded
from malstrom_py.events import AnyEvent, Ended, EventsMissed
from malstrom_py.metrics import ENDED, RATES_S, EdgeMetrics, JobMetrics, RateMetrics
from malstrom_py.workers.monitoring.history import EVENTS_MAX, Recording
from malstrom_py.workers.monitoring.sentences import brief, place_in, sentence, step_in
from malstrom_py.workers.monitoring.watched_job import metrics_of, page_of
from malstrom_py.workers.reports.commands import RunningJob

EVERY_S: Final = 1.0
"""The interval of views."""

_PAUSE_S: Final = 0.1
_PARTS_MAX: Final = 100
_HEAVY_MAX: Final = 10

_LOG: Final = logging.getLogger("malstrom_py")


class Watch:
    """Watches ``job`` in a thread, until it has ended. ``recording``: keeps the page of the job.

    ``view``: the latest one; ``events``: all so far; ``rates``: those of the last ten minutes, as rows of
    `RateMetrics`; ``version``: changes with any.
    """

    def __init__(self, job: RunningJob, recording: Recording | None = None) -> None:
        self.job = job
        self.version = 0
        self.view: dict[str, Any] = view_of(JobMetrics(job.name, "running", "opening"))
        self.events: list[dict[str, Any]] = []
        self.rates: list[list[Any]] = []
        self.is_over = False
        self.started_at = time()
        self.recorded_as = "" if recording is None else recording.name
        self._recording = recording
        self._after, self._log = 0, ""
        self._number = 0
        self._end: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"malstrom-watch-{job.name}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop watching, with the last figures of the job."""
        self._stop.set()
        self._thread.join()
        if not self.is_over:
            self._renew(0.0)
        self._over()

    def _work(self) -> None:
        while not (self._stop.is_set() or self.is_over):
            self._renew(EVERY_S)

    def _renew(self, wait_s: float) -> None:
        """Renew the view, then take events for ``wait_s``. A job that ends waits for who reads its events."""
        until_s = monotonic() + wait_s
        try:
            with suppress(JobEnded):  # its last event says how
                self._look()
                self._changed()
            while self._take_page(max(0.0, until_s - monotonic())):
                # A job that has waited for events has used up the time.
                self._stop.wait(min(_PAUSE_S, max(0.0, until_s - monotonic())))
        except JobEnded:
            self._over()
        except Exception as error:  # the job may answer later
            _LOG.debug("job %s did not answer the dashboard: %s", self.job.name, error)
            self.view = {**self.view, "age_s": time() - self.view["at"] if self.view["at"] else 0.0}
            self._changed()
            self._stop.wait(wait_s)

    def _look(self) -> None:
        """Take the metrics, and the rates since the last time."""
        since = self.rates[-1][0] if self.rates else 0.0
        metrics = metrics_of(self.job, EVERY_S, since)
        self.view = view_of(metrics)
        if metrics.rates:
            first = metrics.rates[-1].at - RATES_S
            rates = [*self.rates, *map(_row, metrics.rates)]
            self.rates = [row for row in rates if row[0] >= first]

    def _take_page(self, wait_s: float) -> bool:
        """Take the next events, which are waited for at most ``wait_s``. Return whether to ask for more."""
        page = page_of(self.job, self._after, self._log, wait_s)
        self._after, self._log = page.after, page.log
        if page.events or page.missed:
            self._take(page.events, page.times, page.missed)
            self._changed()
        if page.ended:
            with suppress(JobEnded):  # of another process
                self._look()
            self._over()
        return not page.ended and (bool(page.events) or (wait_s > 0.0 and not self._stop.is_set()))

    def _take(self, events: list[AnyEvent], times: list[float], missed: int) -> None:
        if missed:
            events, times = [EventsMissed(missed), *events], [times[0] if times else time(), *times]
        new = []
        for event, at in zip(events, times, strict=True):
            self._number += 1
            new.append(described(event, at, self._number))
            if isinstance(event, Ended):
                self._end = {"state": event.how, "phase": "ended", "error": event.error or None}
        self.events = [*self.events, *new][-EVENTS_MAX:]
        if new:
            self._record(lambda kept: kept.events(new))

    def _over(self) -> None:
        if not self.is_over:
            end = self._end or ({} if self.view["state"] in ENDED else {"state": "gone"})
            self.view = _explained({**self.view, **end, "can_command": False})
            self.is_over = True
            self._changed(last=True)

    def _changed(self, *, last: bool = False) -> None:
        self.version += 1
        self._record(lambda kept: kept.view(self.view, self.rates, last=last))

    def _record(self, write: Callable[[Recording], None]) -> None:
        if self._recording is not None:
            try:
                write(self._recording)
            except OSError as error:
                _LOG.warning("job %s: the history of its page ends: %s", self.job.name, error.strerror)
                self._recording = None


def view_of(metrics: JobMetrics) -> dict[str, Any]:
    """Return what the page shows of ``metrics``."""
    plain: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(metrics, name)) for name in ("job", "state", "phase", "error", "at", "age_s")
    }
    sinks = [step for step in metrics.steps.values() if step.kind == "sink"]
    sources = [step for step in metrics.steps.values() if step.kind == "source"]
    sums = {
        name: sum(getattr(step, name) for step in metrics.steps.values())
        for name in ("filtered", "late", "skipped", "dead_letters")
    }
    hot = {(key.step, key.key) for key in metrics.hot_keys}
    lags = [part.lag_s for part in metrics.parts if part.lag_s is not None]
    view = {
        **plain,
        "can_command": metrics.state not in ENDED,
        "duration_s": metrics.duration_s,
        "workers_wanted": len(metrics.workers),
        "restarts": metrics.restarts,
        "rescales": metrics.rescales,
        "totals": {
            "read": metrics.read,
            "written": metrics.written,
            **sums,
            "read_per_s": sum(step.in_per_s for step in sources),
            "written_per_s": sum(step.in_per_s for step in sinks),
        },
        "watermark": metrics.watermark,
        "event_lag_s": max(lags, default=None),
        "lag_rows": metrics.lag_rows,
        "steps": [{"step": name, **_fields(step)} for name, step in metrics.steps.items()],
        "edges": [_edge(edge, metrics) for edge in metrics.edges],
        "parts": [
            _fields(part) for part in sorted(metrics.parts, key=lambda part: -(part.lag_s or part.lag_rows or 0))
        ][:_PARTS_MAX],
        "workers": [
            {**_fields(worker), "idle": max(0.0, 1.0 - worker.busy - worker.waiting)} for worker in metrics.workers
        ],
        "imbalance": metrics.imbalance,
        "heavy_keys": [
            {**_fields(heavy), "hot": (heavy.step, heavy.key) in hot} for heavy in metrics.heavy_keys[:_HEAVY_MAX]
        ],
        "heavy_slots": [_fields(heavy) for heavy in metrics.heavy_slots[:_HEAVY_MAX]],
        "shadows": {step: _fields(shadow) for step, shadow in metrics.shadows.items()},
        "snapshots": None if metrics.snapshots is None else _fields(metrics.snapshots),
        "moving": None if metrics.moving is None else _fields(metrics.moving),
    }
    return _explained(view)


def _explained(view: dict[str, Any]) -> dict[str, Any]:
    """Return ``view`` with the step and the place of its error; the text of a planned stop is a note, not an error."""
    error = view["error"]
    if error is None:
        return view
    if view["state"] == "stopped":
        note = error.partition(": ")[2] or error  # the page says itself that the job was stopped
        return {**view, "error": None, "note": note[:1].upper() + note[1:]}
    places = {step["step"]: step["place"] for step in view["steps"]}
    step = step_in(error)
    place = place_in(error) or places.get(step, "")
    return {**view, "failure": {"step": step if step in places else None, "place": place}}


def _row(rates: RateMetrics) -> list[Any]:
    """Return all fields of ``rates`` in order, numbers rounded to what people read."""
    return [None if value is None else round(value, 3) for value in _fields(rates).values()]


def _edge(edge: EdgeMetrics, metrics: JobMetrics) -> dict[str, Any]:
    exchange = metrics.exchanges.get(edge.source) if edge.exchange else None
    return {
        **_fields(edge),
        "bytes_per_s": None if exchange is None else exchange.bytes_per_s,
        "backlog": None if exchange is None else exchange.backlog,
        "waiting": None if exchange is None else exchange.waiting,
    }


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return all fields of ``struct``, numbers rounded to what people read."""
    found = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def described(event: AnyEvent, at: float, number: int) -> dict[str, Any]:
    """Return ``event`` in plain types, with a sentence.

    >>> described(EventsMissed(3), 0.0, 1)["text"]
    '3 events were dropped'
    """
    fields = msgspec.to_builtins(event) | {name: getattr(event, name) for name in event.__struct_fields__}
    fields.pop("type", None)
    fields.pop("batch", None)
    plain: dict[str, Any] = msgspec.to_builtins(fields)
    step = step_in(getattr(event, "error", "") or getattr(event, "text", ""))
    return {
        **plain,
        **({"step": step} if step else {}),
        "number": number,
        "at": at,
        "kind": type(event).__name__,
        "text": sentence(event),
        "brief": brief(event),
    }
