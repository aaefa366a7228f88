"""Commands to a running job: any thread asks, the thread that runs the job answers.

What can be asked of the workers of a run, and what each of these commands is answered with.

Rule: the workers are commanded by the thread that runs the job, between two steps; whoever asked holds a future.

What any thread asks of a running job, and what the thread that runs the job answers.

Rule: the run is touched by its own thread alone, between two steps. Everyone else leaves a command, sets ``wake`` and
waits for a future. Whatever happens to the run, `end` answers everyone; and a run that nobody asks anything pays for
it by looking at one attribute per step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from malstrom_py.clock import SystemClock
from malstrom_py.errors import JobEnded, MalstromError, OperationInProgress, PlanError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.job_status import (
    JobOutcome,
    JobStatus,
    Moving,
    RescaleReport,
    SnapshotStatus,
    State,
    check_size,
)
from malstrom_py.workers.reports.result import RunResult

SnapshotDone = Callable[[SnapshotId | MalstromError], None]
"""Told once, by the thread of the run: the id of the snapshot once it is committed, or why there is none."""


class Commanded(Protocol):
    """The workers of a run, as they can be commanded by its own thread."""

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def phase(self) -> str: ...

    @property
    def moving(self) -> Moving | None: ...

    @property
    def suspended(self) -> bool: ...

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """How it stands with its snapshots; None if the job runs without."""
        ...

    def rescale(self, size: int, done: Done) -> None: ...

    def snapshot(self, done: SnapshotDone) -> None:
        """Make a snapshot whose barrier begins from now on; those that are asked for meanwhile may share one.

        `SnapshotError` if the job runs without.
        """
        ...

    def savepoint(self, uri: str, done: SnapshotDone) -> None:
        """The same, whole and into ``uri``, where no later snapshot needs or prunes it."""
        ...

    def drain(self) -> None: ...

    def suspend(self) -> None:
        """Have every worker stop behind what is on its way; with snapshots, once a last one is committed."""
        ...


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A rescale that was asked for: ``taken`` once the run has begun with it, ``done`` when it has ended."""

    size: int
    taken: Future[None]
    done: Future[RescaleReport]

    @property
    def what(self) -> str:
        """What the job is to be."""
        return f"rescaled to {self.size}"

    def refuse(self, error: MalstromError) -> None:
        """Answer with ``error``, as far as there is no answer yet."""
        refuse(error, self.taken, self.done)


@dataclass(frozen=True, slots=True)
class Saving:
    """A snapshot that was asked for: among those of the job, or as a savepoint to ``uri``; ``done`` has its id."""

    uri: str | None
    done: Future[SnapshotId]

    @property
    def what(self) -> str:
        """What the job is to be."""
        return "saved in a snapshot" if self.uri is None else f"saved to {self.uri}"

    def refuse(self, error: MalstromError) -> None:
        """Answer with ``error``, unless there is an answer."""
        refuse(error, self.done)


def future() -> Future[Any]:
    """One that nobody who waits for it can cancel."""
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()
    return made


def refuse(error: MalstromError, *futures: Future[Any]) -> None:
    """Answer those of ``futures`` with ``error`` that have no answer yet."""
    for one in futures:
        if not one.done():
            one.set_exception(error)


ASKED_MAX: Final = 1_000
"""How many commands may wait for the run to take them."""

SUSPEND_S: Final = 5.0
"""How long workers may take to stop behind what is on its way, a rescale among it. Where nothing is kept of a run that
stops without drain, nothing is lost if they have not."""

SAVE_S: Final = 300.0
"""The same where a last snapshot comes first. Past it the job can go on from the one before."""

_LOG: Final = logging.getLogger("malstrom_py")
_RECOVERING: Final = "recovering"


class Controls:
    """Between the threads that command job ``job`` and the one that runs it.

    ``wake`` is set with each command, for a run that has nothing else to do; the run may bring its own before it
    starts. ``pending`` tells that there is one; ``ended`` is answered when the run has ended. ``accepted`` is told of a
    stop, and whether with drain, before whoever asked for it is. ``kept``: whether the job has snapshots.

    >>> controls = Controls("docs")
    >>> controls.status().result().phase
    'opening'
    >>> controls.end(JobOutcome.of(RunResult("docs", {}, 0.0), None))
    >>> controls.status().result().state, controls.ended.result().how
    ('finished', 'finished')
    """

    def __init__(self, job: str, *, kept: bool = False, accepted: Callable[[bool], None] = lambda _: None) -> None:
        self.job = job
        self.kept = kept
        self._accepted = accepted
        self.wake = threading.Event()
        self.ended: Future[JobOutcome] = future()
        self.pending = False
        self._lock = threading.Lock()
        self._clock = SystemClock()
        self._asked: list[Rescaling | Saving] = []
        self._unanswered: list[Rescaling | Saving] = []
        self._status: Future[JobStatus] | None = None
        self._drain: bool | None = None
        self._drain_told = False
        self._suspending_s = 0.0
        self._abandoned = ""
        self._answering = False
        self._restarts = 0
        self._snapshots: SnapshotStatus | None = SnapshotStatus(None, None, 0) if kept else None
        self._publish("opening", RunResult(job, {}, 0.0), 0)

    # Any thread.

    def rescale(self, size: int) -> Rescaling:
        """Ask for ``size`` workers.

        Raises:
            PlanError: there cannot be that many.
            JobEnded: the job has.
        """
        check_size(size)
        asked = Rescaling(size, future(), future())
        with self._lock:
            self._ask(asked, "rescale")
        self.wake.set()
        return asked

    def save(self, uri: str | None = None) -> Saving:
        """Ask for a snapshot; with ``uri`` for a savepoint there.

        Raises:
            OperationInProgress: the job is being stopped, or another savepoint is being made.
            JobEnded: the job has ended.
        """
        asked = Saving(uri, future())
        operation = "snapshot" if uri is None else "savepoint"
        with self._lock:
            if self._drain is not None and not self.ended.done():
                raise self._in_the_way(operation, "stop")
            if uri is not None and self._savepoint() is not None:
                raise self._in_the_way(operation, "savepoint")
            self._ask(asked, operation)
        self.wake.set()
        return asked

    def stop(self, *, drain: bool | None) -> Future[JobOutcome]:
        """Ask the run to end; what is returned is answered when it has. To be asked again is nothing new. ``drain``
        None: with drain, unless the job has snapshots.

        Raises:
            OperationInProgress: it is being stopped in the other way, or a savepoint is being made.
        """
        drain = not self.kept if drain is None else drain
        with self._lock:
            if self.ended.done():
                return self.ended
            if self._drain is None and self._savepoint() is not None:
                raise self._in_the_way("stop", "savepoint")
            if self._drain is not None and self._drain != drain:
                raise OperationInProgress(
                    f"job {self.job!r} is being stopped {'with' if self._drain else 'without'} drain already: let that "
                    f"end, or end the program that runs the job",
                    job=self.job,
                    operation="stop",
                )
            is_new = self._drain is None
            self._drain = drain
            self.pending = True
        if is_new:
            self._accepted(drain)
        self.wake.set()
        return self.ended

    def abandon(self, why: str) -> None:
        """Have the run end at once, without drain and whatever else was asked for."""
        with self._lock:
            self._abandoned = why
            self.pending = True
        self.wake.set()

    def status(self) -> Future[JobStatus]:
        """Ask how the job stands. All who ask before the run has answered get the same answer."""
        with self._lock:
            if self.ended.done() or not self._answering:
                answer: Future[JobStatus] = future()
                answer.set_result(self._known())
                return answer
            if self._status is None:
                self._status = future()
            asked = self._status
            self.pending = True
        self.wake.set()
        return asked

    def known(self) -> JobStatus:
        """How the job stood when its thread last said so."""
        with self._lock:
            return self._known()

    # The thread of the run.

    def enter(self, phase: str, counts: RunResult, workers: int) -> None:
        """The run has come to ``phase``, in which it does not `obey`: figures stay as they are."""
        with self._lock:
            self._answering = False
            self._publish(phase, counts, workers)
            status, self._status = self._status, None
            known = self._known()
        if status is not None:
            status.set_result(known)

    def note_snapshots(self, snapshots: SnapshotStatus | None) -> None:
        """How it stands with the snapshots, as far as the run knows yet: it may not come by before it ends."""
        with self._lock:
            self._snapshots = snapshots or self._snapshots

    def loop(self) -> None:
        """From now on the run comes by to `obey`."""
        with self._lock:
            self._answering = True
            self._phase = "steady"
            self.pending = self.pending or bool(self._asked) or self._drain is not None

    def recover(self, counts: RunResult, workers: int, *, times: int = 1) -> None:
        """The run goes back to its last snapshot, with ``workers`` others: these are asked for all that is not done.
        ``times``: how often it has.
        """
        with self._lock:
            self._restarts += times
            self._asked, self._unanswered = self._unanswered + self._asked, []
            self._drain_told = False
        self.enter(_RECOVERING, counts, workers)

    def obey(self, crew: Commanded, count: Callable[[], RunResult]) -> None:
        """Do what was asked for, as far as it can be done between two steps. Call it while ``pending``.

        Raises:
            JobEnded: the run is to end now, without drain.
        """
        with self._lock:
            self.pending = False
            self._snapshots = crew.snapshots
            drain, drain_told, self._drain_told = self._drain, self._drain_told, self._drain is not None
            taken: list[Rescaling | Saving] = []
            # What is being stopped begins no move any more: requests without end would keep it from its end.
            if drain is None:
                taken, self._asked = self._asked, []
                self._unanswered += taken
        self.refuse_if_abandoned()
        if drain is not None and not drain_told:
            if drain:
                crew.drain()
            else:
                crew.suspend()
                self._suspending_s = self._clock.monotonic_s()
        for asked in taken:
            if isinstance(asked, Rescaling):
                self._rescale(crew, asked)
            else:
                self._save(crew, asked)
        counts = count()
        with self._lock:
            self._publish(crew.phase, counts, len(crew.members), crew.moving)
            status, self._status = self._status, None
            known = self._known(fresh=True)
        if status is not None:
            status.set_result(known)
        if drain is False:
            limit_s = SUSPEND_S if crew.snapshots is None else SAVE_S
            if crew.suspended or self._clock.monotonic_s() - self._suspending_s >= limit_s:
                raise self._stopped(last_stands=crew.suspended)
            self.pending = True  # come by after the next step, until everyone is

    @property
    def is_stopping(self) -> bool:
        """Whether it has been asked to stop."""
        return self._drain is not None

    def refuse_if_stopped(self) -> None:
        """Raise `JobEnded` if the job is stopped without drain: there is no run, or it must not commit."""
        self.refuse_if_abandoned()
        if self._drain is False:
            raise self._stopped(last_stands=False)

    def end(self, ending: JobOutcome) -> None:
        """The run has ended: answer everyone who waits. (Once; whatever is asked later is answered at once.)"""
        with self._lock:
            self._publish("ended", ending.counts, self._workers)
            unanswered = self._asked + self._unanswered
            self._asked, self._unanswered = [], []
            status, self._status = self._status, None
            # Set under the lock: nobody finds the job ended and yet unanswered.
            self.ended.set_result(ending)
            known = self._known()
        for asked in unanswered:
            asked.refuse(ending.refusal(asked.what))
        if status is not None:
            status.set_result(known)

    def _rescale(self, crew: Commanded, asked: Rescaling) -> None:
        restarts = self._restarts

        def done(ended: RescaleReport | MalstromError) -> None:
            if not self._is_answered(asked, restarts):
                return
            if isinstance(ended, MalstromError):
                asked.refuse(ended)
                return
            if not asked.taken.done():
                asked.taken.set_result(None)
            with self._lock:
                self._workers = len(ended.members)
            asked.done.set_result(ended)

        try:
            crew.rescale(asked.size, done)
        except PlanError as error:
            done(error)
            return
        if not asked.taken.done():
            asked.taken.set_result(None)

    def _save(self, crew: Commanded, asked: Saving) -> None:
        restarts = self._restarts

        def done(ended: SnapshotId | MalstromError) -> None:
            if not self._is_answered(asked, restarts):
                return
            if isinstance(ended, MalstromError):
                asked.refuse(ended)
            else:
                asked.done.set_result(ended)

        try:
            if asked.uri is None:
                crew.snapshot(done)
            else:
                crew.savepoint(asked.uri, done)
        except (PlanError, SnapshotError) as error:
            done(error)

    def _is_answered(self, asked: Rescaling | Saving, restarts: int) -> bool:
        """Note that ``asked`` is done with; False if the workers that say so are gone, and others were asked."""
        with self._lock:
            if self._restarts != restarts:
                return False
            self._unanswered.remove(asked)
            return True

    def _ask(self, asked: Rescaling | Saving, operation: str) -> None:
        self._refuse_if_ended(asked.what)
        if len(self._asked) >= ASKED_MAX:
            raise OperationInProgress(
                f"job {self.job!r} has not taken {ASKED_MAX:,} earlier commands yet: wait for those first",
                job=self.job,
                operation=operation,
            )
        self._asked.append(asked)
        self.pending = True

    def _savepoint(self) -> Saving | None:
        """The savepoint that is being made, or is to be."""
        savings = (asked for asked in self._asked + self._unanswered if isinstance(asked, Saving))
        return next((asked for asked in savings if asked.uri is not None), None)

    def _in_the_way(self, wanted: str, operation: str) -> OperationInProgress:
        told = {"stop": "is being stopped", "savepoint": "is making a savepoint"}
        return OperationInProgress(
            f"job {self.job!r} {told[operation]}, so there can be no {wanted} now: let that end first",
            job=self.job,
            operation=operation,
        )

    def _publish(self, phase: str, counts: RunResult, workers: int, moving: Moving | None = None) -> None:
        self._phase, self._counts, self._workers, self._moving = phase, counts, workers, moving
        self._known_at_s = self._clock.monotonic_s()

    def _known(self, *, fresh: bool = False) -> JobStatus:
        error = self.ended.result().public_error() if self.ended.done() else None
        fresh = fresh or not self._answering or self.ended.done()
        age_s = 0.0 if fresh else self._clock.monotonic_s() - self._known_at_s
        return JobStatus(
            self.job,
            self._state(),
            self._workers,
            self._phase,
            self._counts,
            None if error is None else str(error),
            age_s,
            self._moving,
            self._restarts,
            self._snapshots,
        )

    def _state(self) -> State:
        if self.ended.done():
            return self.ended.result().how
        if self._drain is not None:
            return "stopping"
        if self._phase == _RECOVERING:
            return "recovering"
        return "rescaling" if self._phase in {"joining", "moving", "leaving"} else "running"

    def _refuse_if_ended(self, what: str) -> None:
        if self.ended.done():
            raise self.ended.result().refusal(what)

    def refuse_if_abandoned(self) -> None:
        """Raise `JobEnded` if the job is to end at once."""
        if self._abandoned:
            said = f"job {self.job!r} was stopped: {self._abandoned}, and {self._left_behind()}"
            raise JobEnded(said, job=self.job, how="stopped")

    def _stopped(self, *, last_stands: bool) -> JobEnded:
        said = f"job {self.job!r} was stopped without drain: {self._left_behind()}"
        # A run that goes back to a snapshot has undone all that came after it, and ends with that one.
        last = self._snapshots.last if self._snapshots and (last_stands or self._phase == _RECOVERING) else None
        if self._snapshots is not None and last is None:
            said += ". No last snapshot was made: what is in no snapshot comes again when it is started again"
            _LOG.warning("%s", said)
        return JobEnded(said, job=self.job, how="stopped", snapshot=last or "")

    def _left_behind(self) -> str:
        last = None if self._snapshots is None else self._snapshots.last
        return "nothing was committed" if last is None else f"it can go on from snapshot {last}"


class WakefulClock(SystemClock):
    """The machine's clock, whose sleep ends early when a command comes through ``controls``."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def sleep_s(self, duration_s: float) -> None:
        wake = self._controls.wake
        if wake.wait(duration_s):
            wake.clear()
