"""The events of one run: what its coordinator learns is published, and its workers' logics are notified.

Rule: each worker that has joined has exactly one last event: `WorkerLeft` in a rescale, `NodeFailed` if it is the cause
of a failed run, `Stop` at the end of the run. An input is closed once it has ended on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import JobEnded
from malstrom_py.errors.text import public_text
from malstrom_py.events import (
    AnyEvent,
    BackPressureBegun,
    BackPressureEnded,
    Error,
    InputClosed,
    InputRecovered,
    InputSilent,
    NodeFailed,
    RescaleBegun,
    RescaleEnded,
    SnapshotCompleted,
    Stop,
    StopCause,
    WorkerJoined,
    WorkerLeft,
)
from malstrom_py.operators.logic import KeyedLogic
from malstrom_py.sources.base import Part
from malstrom_py.workers.reports.error_transfer import failed_worker, trace_of
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.reports.result import StepCounts


class PlannedEnd(Exception):
    """Raised to end a run as planned. ``cause``: why."""

    cause = StopCause.MANUAL


def stop_cause(error: BaseException) -> StopCause | None:
    """Return the cause if a run that ended by ``error`` was stopped as planned or by its user; None for a failure."""
    if isinstance(error, PlannedEnd):
        return error.cause
    is_stop = isinstance(error, JobEnded) and error.how == "stopped"
    return StopCause.MANUAL if is_stop or isinstance(error, KeyboardInterrupt) else None


def listens(plan: Plan) -> bool:
    """Whether a logic of ``plan`` has a method ``on_event``."""
    given = [step.factory.keywords.get("logic") for step in plan.steps if isinstance(step.factory, partial)]
    return any(getattr(type(logic), "on_event", KeyedLogic.on_event) is not KeyedLogic.on_event for logic in given)


class JobEvents:
    """The events of one run of ``plan``, in ``log``. ``notify`` sends an event to the logics on all workers."""

    def __init__(self, plan: Plan, log: EventLog, notify: Callable[[AnyEvent], None]) -> None:
        self._log = log
        self._notify = notify if listens(plan) else None
        self._fed = [step.name for step in plan.steps if step.kind == "key_by"]
        self._open: dict[str, set[Part]] = {}
        self._read_by: dict[int, set[str]] = {}
        self._here: list[int] = []
        self._held: dict[tuple[str, int], None] = {}
        self._silent_after = {step.name: after for step in plan.steps if (after := step.silent_after_s) is not None}
        self._silent: dict[str, tuple[int, float]] = {}
        self._read_s = 0.0
        self._rescales = False
        self._lists_again: frozenset[str] = frozenset()
        self._made = 0

    def opened(self, dealt: Mapping[int, Mapping[str, Sequence[Part]]], lists_again: Collection[str] = ()) -> None:
        """Publish that the first workers are there, each with these parts, by source. ``lists_again``: the sources that
        get more parts, and are closed at the end of the job only.
        """
        self._lists_again = frozenset(lists_again)
        for worker, sources in dealt.items():
            for source, parts in sources.items():
                self._open.setdefault(source, set()).update(parts)
                if parts:
                    self._read_by.setdefault(worker, set()).add(source)
        for event in self._log.news():
            self._notify_logics(event)
        for worker in dealt:
            self.joined(worker)

    def found(self, source: str, parts: Collection[Part]) -> None:
        """Note new parts of ``source``."""
        self._open.setdefault(source, set()).update(parts)

    def joined(self, worker: int) -> None:
        """Publish that ``worker`` is connected."""
        self._here.append(worker)
        self.publish(WorkerJoined(worker))

    def left(self, workers: Collection[int]) -> None:
        """Publish that ``workers`` have left in a rescale."""
        for worker in workers:
            self._release(worker)
            self._here.remove(worker)
            self.publish(WorkerLeft(worker))

    def parts_ended(self, source: str, parts: Collection[Part]) -> None:
        """Publish the end of ``source`` once all its parts have ended."""
        still_open = self._open.get(source, set())
        still_open.difference_update(parts)
        if not still_open and source not in self._lists_again:
            self._log.emit(InputClosed(source))

    def read(self, counts: Mapping[str, StepCounts], now_s: float, *, is_reading: bool) -> None:
        """Publish which sources have fallen silent and which have records again, by the ``counts`` of this run.

        ``is_reading``: nothing has kept the workers from reading since the last call.
        """
        passed_s, self._read_s = now_s - self._read_s, now_s
        for source, after_s in self._silent_after.items():
            if not self._open.get(source) and source not in self._lists_again:
                continue
            known, silent_s = self._silent.get(source, (0, -passed_s))  # time counts from the first call
            if (now := counts[source].rows_in if source in counts else 0) != known:
                silent_s = 0.0
                if source in self._log.silent:
                    self._log.emit(InputRecovered(source))
            elif is_reading and not any(held == source for held, _ in self._held):
                silent_s += passed_s
                if silent_s >= after_s and source not in self._log.silent:
                    self._log.emit(InputSilent(source, silent_s))
            self._silent[source] = now, silent_s

    def noticed(self, event: AnyEvent) -> None:
        """Publish what a worker has noticed."""
        if isinstance(event, BackPressureBegun):
            self._held[event.id, event.worker] = None
        elif isinstance(event, BackPressureEnded):
            self._held.pop((event.id, event.worker), None)
        self._log.emit(event)

    def snapshots(self, status: SnapshotStatus) -> None:
        """Publish a completed snapshot, if there is a new one."""
        if status.made != self._made and status.last is not None:
            self._made = status.made
            self.publish(SnapshotCompleted(status.last, status.bytes, status.duration_s, status.pause_s))

    def stopping(self) -> None:
        """Notify the logics of a planned stop."""
        for worker in self._here:
            self._notify_logics(Stop(StopCause.MANUAL, worker))

    def finished(self, *, manual: bool) -> None:
        """Publish the end of a run that has read and written everything."""
        for source in self._open:
            self._log.emit(InputClosed(source))
        self._end(StopCause.MANUAL if manual else StopCause.ALL_INPUTS_CLOSED)

    def failed(self, error: BaseException) -> None:
        """Publish the end of a run by ``error``: a failure or a stop without drain."""
        if (cause := stop_cause(error)) is not None:
            self._end(cause)
            return
        text, worker = public_text(error), failed_worker(error)
        if worker in self._here:
            self._here.remove(worker)
            self._release(worker)
            inputs = (*sorted(self._read_by.get(worker, ())), *self._fed)
            self._log.emit(NodeFailed(f"worker {worker}", text, inputs, trace_of(error)))
        else:
            self._log.emit(Error(text))
        self._end(StopCause.FAILED)

    def emit(self, event: AnyEvent) -> None:
        """Append ``event`` to the log only."""
        self._log.emit(event)

    def publish(self, event: AnyEvent) -> None:
        """Append ``event`` to the log, and notify the logics of it."""
        if isinstance(event, RescaleBegun | RescaleEnded):
            self._rescales = isinstance(event, RescaleBegun)
        if self._log.emit(event):
            self._notify_logics(event)

    def _notify_logics(self, event: AnyEvent) -> None:
        if self._notify is not None:
            self._notify(event)

    def _release(self, worker: int) -> None:
        """End the back-pressure on a worker that ends."""
        for source, held in [place for place in self._held if place[1] == worker]:
            del self._held[source, held]
            self._log.emit(BackPressureEnded(source, held))

    def _end(self, cause: StopCause) -> None:
        if self._rescales:
            self._rescales = False
            self._log.emit(RescaleEnded(len(self._here), "the run ended before"))
        for worker in self._here:
            self._release(worker)
            self._log.emit(Stop(cause, worker))
        self._here.clear()
