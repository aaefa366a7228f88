"""The command queue of a running job: any thread sends commands, the thread that runs the job executes them.

Rule: only the thread of the run touches the run, between two steps. Other threads append a command, set ``wake`` and
wait for a future. `end` answers every command, even when the run fails. Without commands, a step of the run costs one
attribute access.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from malstrom_py.clock import SystemClock
from malstrom_py.errors import (
    DeadlineError,
    JobEnded,
    MalstromError,
    OperationInProgress,
    PlanError,
    ReloadError,
    SnapshotError,
)
from malstrom_py.events import Ended, Error
from malstrom_py.logs import log
from malstrom_py.metrics import JobMetrics
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator.autoscaler import Autoscaler
from malstrom_py.workers.coordinator.changes import ChangeCommand, ChangeDue
from malstrom_py.workers.coordinator.commanded_workers import CommandedWorkers
from malstrom_py.workers.coordinator.metering import RateHistory
from malstrom_py.workers.coordinator.shadow_counts import ShadowCounts
from malstrom_py.workers.coordinator.taps import Taps
from malstrom_py.workers.reports.commands import (
    AutoscaleCommand,
    Command,
    EventsCommand,
    MetricsCommand,
    ReloadCommand,
    RescaleCommand,
    Result,
    SetCommand,
    ShadowCommand,
    SnapshotCommand,
    StateCommand,
    StatusCommand,
    StopCommand,
    TapCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_state import StateAnswers
from malstrom_py.workers.reports.job_status import (
    JobOutcome,
    JobStatus,
    Moving,
    ReloadAction,
    ReloadReport,
    RescaleReport,
    SnapshotStatus,
    State,
    check_size,
    in_progress,
)
from malstrom_py.workers.reports.result import RunResult


@dataclass(frozen=True, slots=True)
class _Pending:
    """A command that the thread of the run executes. ``done`` gets its result, or an error. ``report``: that of a
    promoted shadow, whose state waits for a snapshot: until then a new start would resume with the state before.
    """

    command: RescaleCommand | SnapshotCommand | ChangeCommand
    done: Future[Any]
    report: ReloadReport | None = None

    def answer(self, result: RescaleReport | ReloadReport | SnapshotId | MalstromError | None) -> None:
        """Set the result, unless there is one."""
        if self.done.done():
            return
        if isinstance(result, MalstromError):
            self.done.set_exception(result)
        else:
            self.done.set_result(self.report or result)


@dataclass(slots=True)
class _Change:
    """A change in progress: until the cut, for which workers stop since ``began_s``, and then on trial."""

    asked: _Pending
    prepared: Any
    began_s: float
    on_trial: bool = False


@dataclass(slots=True)
class _Stop:
    """The stop that was requested, if ``drain`` is not None; workers know since ``sent_s``. ``abandoned``: why."""

    drain: bool | None = None
    sent_s: float | None = None
    abandoned: str = ""


def _future(*result: Any) -> Future[Any]:
    """Return a future that waiting threads cannot cancel, with its ``result`` if there is one."""
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()
    for given in result:
        made.set_result(given)
    return made


ASKED_MAX: Final = 1_000
"""The largest number of waiting commands."""

SUSPEND_S: Final = 5.0
"""How long workers may take to stop after the data in flight, including a rescale. Without snapshots, a stop without
drain keeps nothing, so a timeout loses nothing."""

SAVE_S: Final = 300.0
"""How long workers may take to stop with a last snapshot. After a timeout the job can resume from the one before."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")
_RECOVERING: Final = "recovering"
_MOVES: Final = ("joining", "copying", "moving", "leaving")
_STATES: Final[Mapping[str, State]] = {_RECOVERING: "recovering", **dict.fromkeys(_MOVES, "rescaling")}


class CommandQueue:
    """The commands to job ``job`` from any thread, for the thread that runs it.

    ``wake``: an event that each command sets, the one for which the run waits. ``pending``: whether a command waits.
    ``ended``: the future of the end of the run; ``events``: the events of the job. ``accepted`` is called with the
    drain flag of a stop before the caller gets an answer. ``kept``: whether the job has snapshots. ``watched``: whether
    anyone may ask for the metrics of a run that has ended.

    >>> commands = CommandQueue("docs")
    >>> commands.known().phase
    'opening'
    >>> commands.end(JobOutcome.of(RunResult("docs", {}, 0.0), None))
    >>> commands.known().state, commands.ended.result().how
    ('finished', 'finished')
    """

    def __init__(
        self, job: str, *, kept: bool = False, accepted: Callable[[bool], None] = lambda _: None, watched: bool = True
    ) -> None:
        self.name = job
        self.kept = kept
        self.is_watched = watched
        self._accepted = accepted
        self.wake = threading.Event()
        self.prepare: Callable[[str, Mapping[str, str], ReloadAction], Any] | None = None
        """Imports the module of a step again from its texts, and returns what the next run is to use."""
        self.ended: Future[JobOutcome] = _future()
        self.state = StateAnswers(self.ended)
        self.events = EventLog()
        self.autoscaler = Autoscaler(job, self.events)
        self.rates = RateHistory()
        self.taps = Taps(job)
        self.shadows = ShadowCounts(job)
        self.pending = False
        self._lock = threading.RLock()
        self._clock = SystemClock()
        self._asked: list[_Pending] = []
        self._unanswered: list[_Pending] = []
        self._looks: dict[type[JobStatus | JobMetrics], Future[Any]] = {}
        self._metrics = JobMetrics(job, "running", "opening"), self._clock.monotonic_s()  # and when it was published
        self._stop = _Stop()
        self._answering = False
        self._restarts = 0
        self._change: _Change | None = None
        self._snapshots: SnapshotStatus | None = SnapshotStatus(None, None, 0) if kept else None
        self._published = JobStatus(job, "running", 0, "opening", RunResult(job, {}, 0.0), None)
        self._published_s = self._clock.monotonic_s()

    # Any thread.

    def ask(self, command: Command) -> Result:
        """Return the result of ``command`` within its ``timeout_s``, or raise its error, as other processes get it."""
        return self.result_of(command, self.answer_of(command, command.timeout_s), public=True)

    def answer_of(self, command: Command, timeout_s: float | None) -> JobOutcome | Result:
        """Submit ``command``, and return what answers it within ``timeout_s``, or raise its error."""
        done = self.submit(command)
        try:
            answer: JobOutcome | Result = done.result(timeout_s)
        except TimeoutError:
            # It may be done since, also with a `TimeoutError` of the job.
            answer = done.result() if done.done() else self.unanswered(command, done)
        return answer

    def result_of(self, command: Command, answer: JobOutcome | Result, *, public: bool) -> Result:
        """Return the result of ``command`` by its ``answer``, or raise the error of the job; ``public``: for others."""
        if not isinstance(answer, JobOutcome):
            return answer
        outcome = answer.public() if public else answer
        if isinstance(command, StopCommand):
            return outcome.stopped(drain=command.drain, kept=self.kept)
        return outcome.result()

    def submit(self, command: Command) -> Future[Any]:
        """Return the future of what `result_of` turns into the result of ``command``.

        Raises:
            PlanError: the number of workers is not allowed.
            OperationInProgress: the job is being stopped, or is making a savepoint.
            JobEnded: the job has ended.
        """
        match command:
            case StatusCommand():
                return self._look(JobStatus, self.known)
            case StateCommand():
                return self.state.asked()
            case RescaleCommand() | SnapshotCommand() | ReloadCommand() | SetCommand():
                return self._queue(command)
            case StopCommand():
                ended = self.stop(drain=command.drain)
                return ended if command.wait or ended.done() else _future(None)
            case WaitCommand():
                return self.ended
            case EventsCommand():
                return self.events.next_page(command.after, command.log)
            case MetricsCommand():
                return self.rates.put_into_answer(self._look(JobMetrics, self.known_metrics), command.since)
            case AutoscaleCommand():
                return self._autoscale(command)
            case TapCommand() | ShadowCommand():
                return self._seen(command)

    def unanswered(self, command: Command, done: Future[Any]) -> Result:
        """Return what a client gets whose ``command`` is not ``done`` in time, or raise `OperationInProgress`."""
        match command:
            case EventsCommand():
                self.events.forget(done)
                return self.events.page(command.after, command.log)
            case StatusCommand():
                return self.known()
            case MetricsCommand():
                return self.rates.put_into(self.known_metrics(), command.since)
            case TapCommand():
                return self.taps.forget(command, done)
        raise in_progress(self.name, command.operation, command.timeout_s or 0.0) from None

    def stop(self, *, drain: bool | None) -> Future[JobOutcome]:
        """Request the end of the run, and return its future. A repeated request changes nothing. ``drain`` None: with
        drain, unless the job has snapshots.

        Raises:
            OperationInProgress: the job is being stopped in the other way, or is making a savepoint.
        """
        drain = not self.kept if drain is None else drain
        with self._lock:
            if self.ended.done():
                return self.ended
            stop, is_new = self._stop, self._stop.drain is None
            if is_new and self._has("savepoint"):
                raise self._conflict("stop", "savepoint")
            if not is_new and stop.drain != drain:
                already = f"is being stopped {'with' if stop.drain else 'without'} drain already"
                raise self._busy("stop", f"{already}: wait for its end, or end the program that runs the job")
            stop.drain = drain
            self.pending = True
        if is_new:
            self._accepted(drain)
        self.wake.set()
        return self.ended

    def abandon(self, why: str) -> None:
        """End the run immediately, without drain and before all other commands."""
        with self._lock:
            self._stop.abandoned = why
            self.pending = True
        self.wake.set()

    def known(self, *, fresh: bool = False) -> JobStatus:
        """Return the last status that the thread of the run has published; ``fresh``: which it has done just now."""
        with self._lock:
            error = self.ended.result().public_error() if self.ended.done() else None
            is_now = fresh or not self._answering or self.ended.done()
            return replace(
                self._published,
                state=self._state(),
                error=None if error is None else str(error),
                age_s=0.0 if is_now else self._clock.monotonic_s() - self._published_s,
                restarts=self._restarts,
                snapshots=self._snapshots,
            )

    # The thread of the run.

    def answer_metrics(self, measure: Callable[[JobStatus], JobMetrics]) -> None:
        """Publish what ``measure`` returns of the present status, if a caller asks for metrics."""
        if JobMetrics in self._looks:
            self.publish_metrics(measure(self.known(fresh=True)))
            self._answer_looks(JobMetrics)

    def publish_metrics(self, metrics: JobMetrics) -> None:
        """Publish ``metrics`` for those who ask while the run does not answer."""
        with self._lock:
            self._metrics = metrics, self._clock.monotonic_s()

    def known_metrics(self) -> JobMetrics:
        """Return the last known metrics, with the state of the job now."""
        with self._lock:
            status, (metrics, at_s) = self.known(), self._metrics
            age_s = 0.0 if self.ended.done() else self._clock.monotonic_s() - at_s
        now = {name: getattr(status, name) for name in ("state", "phase", "error", "restarts")}
        return structs.replace(metrics, **now, shadows=self.shadows.metrics(), age_s=age_s)

    def enter(self, phase: str, counts: RunResult, workers: int) -> None:
        """Publish that the run enters ``phase``, in which it does not `obey`: the counts do not change."""
        with self._lock:
            self._answering = False
            self._publish(phase, counts, workers)
        self._answer_looks(JobStatus, JobMetrics)

    def note_snapshots(self, snapshots: SnapshotStatus | None) -> None:
        """Publish the status of the snapshots early: the run may end before it calls `obey`."""
        with self._lock:
            self._snapshots = snapshots or self._snapshots

    def loop(self) -> None:
        """Publish that the run calls `obey` from now on."""
        with self._lock:
            self._answering = True
            self._published = replace(self._published, phase="steady")
            self.pending = self.pending or bool(self._asked) or self._stop.drain is not None

    def recover(self, counts: RunResult, workers: int, *, times: int = 1) -> None:
        """Publish that the run restarts from its last snapshot with ``workers`` new workers, which get all open
        commands. ``times``: the number of restarts.
        """
        with self._lock:
            self._restarts += times
            self._asked, self._unanswered = self._unanswered + self._asked, []
            self._stop.sent_s = None
            self._change = None if self._cutting else self._change
        self.enter(_RECOVERING, counts, workers)

    def obey(self, coordinator: CommandedWorkers, count: Callable[[], RunResult]) -> None:
        """Execute the waiting commands between two steps. Call this while ``pending``.

        Raises:
            JobEnded: the run must end now, without drain.
        """
        with self._lock:
            self.pending = False
            self._snapshots = coordinator.snapshots
            # A drain waits for the cut of a reload: the next run is drained.
            stop, drain = self._stop, None if self._stop.drain and self._cutting else self._stop.drain
            taken: list[_Pending] = []
            # A job that is being stopped starts no rescale: endless requests would prevent its end.
            if drain is None and not self._cutting:
                taken, self._asked = self._asked, []
                self._unanswered += taken
        self.refuse_if_abandoned()
        if drain is not None and stop.sent_s is None:
            stop.sent_s = self._clock.monotonic_s()
            (coordinator.drain if drain else coordinator.suspend)()
        for asked in taken:
            self._execute(coordinator, asked)
        for order in self.taps.due(self._clock.monotonic_s()):
            coordinator.tap(order)
        counts = count()
        with self._lock:
            self._publish(coordinator.phase, counts, len(coordinator.members), coordinator.moving)
        self._answer_looks(JobStatus, fresh=True)
        if (cutting := self._cutting) and (drain is None or isinstance(cutting.asked.command, SetCommand)):
            self._check_change(coordinator, cutting)  # the value is in the last snapshot, also if the job is stopped
        if drain is False and stop.sent_s is not None:
            late_s = stop.sent_s + (SUSPEND_S if coordinator.snapshots is None else SAVE_S)
            if coordinator.suspended or self._clock.monotonic_s() >= late_s:
                raise self._stopped(has_last=coordinator.suspended)
            self.pending = True  # check again after the next step

    @property
    def _cutting(self) -> _Change | None:
        """The change for whose cut the workers stop."""
        return None if self._change is None or self._change.on_trial else self._change

    def _begin_change(self, coordinator: CommandedWorkers, asked: _Pending, command: ChangeCommand) -> None:
        """Prepare the change: import the module again, or check the value. Then stop all workers at a snapshot."""
        if self._change is not None:  # one after the other
            with self._lock:
                self._unanswered.remove(asked)
                self._asked.append(asked)
            return
        prepared: Any = None
        if isinstance(command, SetCommand) and coordinator.snapshotting is not None:
            prepared = coordinator.snapshotting.set_parameter(command.name, command.value)
        elif isinstance(command, ReloadCommand) and self.prepare is not None:
            prepared = self.prepare(command.step, command.texts, command.action)
        if prepared is None or coordinator.snapshots is None:
            raise SnapshotError(
                f"job {self.name!r} runs without snapshots, and a change of code or of a parameter continues from one: "
                f"start it with snapshots=mp.Snapshots(uri)"
            )
        coordinator.suspend()
        self._change = _Change(asked, prepared, self._clock.monotonic_s())

    def _check_change(self, coordinator: CommandedWorkers, change: _Change) -> None:
        """Raise `ChangeDue` once all workers have stopped at the cut."""
        self.autoscaler.pause(now_s := self._clock.monotonic_s())
        command = change.asked.command
        if coordinator.suspended and coordinator.snapshots is not None and isinstance(command, ChangeCommand):
            with self._lock:
                self._unanswered.remove(change.asked)
                change.on_trial = True
            raise ChangeDue(command, change.prepared, coordinator.snapshots.last or "", now_s)
        if now_s - change.began_s >= SAVE_S:
            raise DeadlineError(
                f"job {self.name!r}: the workers have not stopped for a {command.operation} within {SAVE_S:g} s. The "
                f"job continues from its last snapshot",
                wait=f"the snapshot of a {command.operation}",
                deadline_s=SAVE_S,
            )
        self.pending = True  # check again after the next step

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.drain is not None

    @property
    def wants_change(self) -> bool:
        """Whether a reload, or another value of a parameter, waits for the next run."""
        return any(isinstance(asked.command, ChangeCommand) and asked.report is None for asked in self._asked)

    def refuse_if_stopped(self) -> None:
        """Raise `JobEnded` if the job is stopped without drain: a run must not start or commit."""
        self.refuse_if_abandoned()
        if self._stop.drain is False:
            raise self._stopped(has_last=False)

    def announce(self, ending: JobOutcome) -> None:
        """Publish the last event of the job, before `end`, which waits for who reads it and may ask for metrics."""
        error = ending.public_error()
        with self._lock:
            self._answering = False
        self._answer_looks(JobMetrics)
        self.events.emit(Ended(ending.how, "" if error is None else str(error)))

    def end(self, ending: JobOutcome) -> None:
        """Answer all open commands, because the run has ended. Later commands are answered immediately. Call once."""
        self.announce(ending)
        with self._lock:
            self._publish("ended", ending.counts, self._published.workers)
            unanswered = self._asked + self._unanswered
            if self._change is not None and self._change.on_trial:
                unanswered.append(self._change.asked)
            self._asked, self._unanswered, self._change = [], [], None
            # Set under the lock, so that no thread finds an ended job without its ending.
            self.ended.set_result(ending)
        self.taps.end()
        for asked in unanswered:
            is_saved = ending.how == "finished" and asked.report is not None
            asked.answer(None if is_saved else ending.refusal(asked.command.what))
        self._answer_looks(JobStatus, JobMetrics)

    def _look(self, kind: type[JobStatus | JobMetrics], known: Callable[[], Any]) -> Future[Any]:
        """Request the status or the metrics of the job. All requests before the next answer share it."""
        with self._lock:
            if self.ended.done() or not self._answering:
                return _future(known())
            asked = self._looks.setdefault(kind, _future())
            self.pending = True
        self.wake.set()
        return asked

    def _answer_looks(self, *kinds: type[JobStatus | JobMetrics], fresh: bool = False) -> None:
        """Answer requests of these kinds by what is known."""
        with self._lock:
            looks = [(kind, self._looks.pop(kind)) for kind in kinds if kind in self._looks]
        for kind, asked in looks:
            asked.set_result(self.known(fresh=fresh) if kind is JobStatus else self.known_metrics())

    def _autoscale(self, command: AutoscaleCommand) -> Future[None]:
        if self.ended.done():
            raise self.ended.result().refusal(command.what)
        self.autoscaler.set(command.options)
        return _future(None)

    def _seen(self, command: TapCommand | ShadowCommand) -> Future[Any]:
        """Report on a shadow, or begin or renew a tap. Once the job has ended none begins, and those there are end."""
        if isinstance(command, ShadowCommand):
            return self.state.asked(lambda: self.shadows.report(command.step))
        if self.ended.done() and not command.log:
            raise self.ended.result().refusal(command.what)
        page = self.taps.next_page(command, self._clock.monotonic_s())
        self.pending = True
        self.wake.set()
        return page

    def _queue(self, command: RescaleCommand | SnapshotCommand | ChangeCommand) -> Future[Any]:
        operation, saves = command.operation, not isinstance(command, RescaleCommand)
        if isinstance(command, RescaleCommand) and command.size is not None:
            check_size(command.size)
        with self._lock:
            if saves and self._stop.drain is not None and not self.ended.done():
                raise self._conflict(operation, "stop")
            if operation in {"savepoint", "reload"} and self._has(operation):
                raise self._conflict(operation, operation)
            if self.ended.done():
                raise self.ended.result().refusal(command.what)
            if len(self._asked) >= ASKED_MAX:
                raise self._busy(operation, f"has not taken {ASKED_MAX:,} earlier commands yet: wait for them first")
            asked = _Pending(command, _future())
            self._asked.append(asked)
            self.pending = True
        self.wake.set()
        return asked.done

    def _execute(self, coordinator: CommandedWorkers, asked: _Pending) -> None:
        restarts, command = self._restarts, asked.command

        def done(result: RescaleReport | SnapshotId | MalstromError) -> None:
            with self._lock:
                if self._restarts != restarts:
                    return  # an answer of a run that was restarted since
                self._unanswered.remove(asked)
                if isinstance(result, RescaleReport):
                    self._published = replace(self._published, workers=len(result.members))
            asked.answer(result)

        try:
            if isinstance(command, RescaleCommand):
                coordinator.rescale(command.size, done)
                self.autoscaler.overruled(command.size)
                if not command.wait:
                    asked.answer(None)
            elif isinstance(command, ChangeCommand) and asked.report is None:
                self._begin_change(coordinator, asked, command)
            else:
                coordinator.snapshot(done, copy_to=command.uri if isinstance(command, SnapshotCommand) else None)
        except (PlanError, ReloadError, SnapshotError) as error:
            if isinstance(error, ReloadError):
                self.events.emit(Error(str(error)))
            done(error)

    def tried(self, result: ReloadReport | SnapshotId | MalstromError) -> None:
        """Answer the change that has been made, or the reload whose trial has ended; a promotion once it is saved."""
        change, self._change = self._change, None
        if change is not None and isinstance(result, ReloadReport) and result.action == "promote":
            self._asked.append(replace(change.asked, report=result))
        elif change is not None:
            change.asked.answer(result)
        self.pending = self.pending or bool(self._asked)  # a change waits for the end of the one before

    def _has(self, operation: str) -> bool:
        """Return whether a command of this kind waits or is being executed."""
        known = [*self._asked, *self._unanswered, *([] if self._change is None else [self._change.asked])]
        return any(asked.command.operation == operation for asked in known)

    def _conflict(self, wanted: str, operation: str) -> OperationInProgress:
        state = {"stop": "is being stopped", "savepoint": "is making a savepoint", "reload": "is reloading a step"}
        return self._busy(operation, f"{state[operation]}, so there can be no {wanted} now: wait for its end")

    def _busy(self, operation: str, why: str) -> OperationInProgress:
        return OperationInProgress(f"job {self.name!r} {why}", job=self.name, operation=operation)

    def _publish(self, phase: str, counts: RunResult, workers: int, moving: Moving | None = None) -> None:
        self._published = JobStatus(self.name, "running", workers, phase, counts, None, moving=moving)
        self._published_s = self._clock.monotonic_s()

    def _state(self) -> State:
        if self.ended.done():
            return self.ended.result().how
        if self._stop.drain is not None:
            return "stopping"
        return _STATES.get(self._published.phase, "running")

    def refuse_if_abandoned(self) -> None:
        """Raise `JobEnded` if the run was abandoned."""
        if why := self._stop.abandoned:
            message = f"job {self.name!r} was stopped: {why}, and {self._describe_result()}"
            raise JobEnded(message, job=self.name, how="stopped")

    def _stopped(self, *, has_last: bool) -> JobEnded:
        message = f"job {self.name!r} was stopped without drain: {self._describe_result()}"
        # A run that restarts from a snapshot has undone everything after it, so that snapshot is the last one.
        last = self._snapshots.last if self._snapshots and (has_last or self._published.phase == _RECOVERING) else None
        if self._snapshots is not None and last is None:
            message += ". No last snapshot was made: records that are in no snapshot are processed again after a start"
            log(_LOG, logging.WARNING, "%s", message, job=self.name)
        return JobEnded(message, job=self.name, how="stopped", snapshot=last or "")

    def _describe_result(self) -> str:
        last = None if self._snapshots is None else self._snapshots.last
        return "nothing was committed" if last is None else f"it can resume from snapshot {last}"
