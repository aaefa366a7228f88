"""What any thread asks of a running job, and what the thread that runs the job answers.

Rule: the run is touched by its own thread alone, between two steps. Everyone else leaves a command, sets ``wake`` and
waits for a future. Whatever happens to the run, `end` answers everyone; and a run that nobody asks anything pays for
it by looking at one attribute per step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from malstrom_py.clock import SystemClock
from malstrom_py.errors import JobEnded, MalstromError, OperationInProgress, PlanError
from malstrom_py.workers.job_size import check_size
from malstrom_py.workers.job_status import Ending, JobStatus, State
from malstrom_py.workers.rescale_report import Moving, RescaleReport
from malstrom_py.workers.rescales import Done
from malstrom_py.workers.result import RunResult

ASKED_MAX: Final = 1_000
"""How many commands may wait for the run to take them."""

SUSPEND_S: Final = 5.0
"""How long workers may take to stop behind what is on its way, a rescale among it. As long as nothing is kept of a run
that stops without drain, nothing is lost where they have not."""

_STEADY: Final = "steady"


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

    def rescale(self, size: int, done: Done) -> None: ...

    def drain(self) -> None: ...

    def suspend(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A rescale that was asked for: ``taken`` once the run has begun with it, ``done`` when it has ended."""

    size: int
    taken: Future[None]
    done: Future[RescaleReport]


class Controls:
    """Between the threads that command job ``job`` and the one that runs it.

    ``wake`` is set with each command, for a run that has nothing else to do; the run may bring its own before it
    starts. ``pending`` tells that there is one; ``ended`` is answered when the run has ended.

    >>> controls = Controls("docs")
    >>> controls.status().result().phase
    'opening'
    >>> controls.end(Ending.of(RunResult("docs", {}, 0.0), None))
    >>> controls.status().result().state, controls.ended.result().how
    ('finished', 'finished')
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.wake = threading.Event()
        self.ended: Future[Ending] = _future()
        self.pending = False
        self._lock = threading.Lock()
        self._clock = SystemClock()
        self._rescales: list[Rescaling] = []
        self._unanswered: list[Rescaling] = []
        self._status: Future[JobStatus] | None = None
        self._drain: bool | None = None
        self._drain_told = False
        self._suspending_s = 0.0
        self._abandoned = ""
        self._answering = False
        self._publish("opening", RunResult(job, {}, 0.0), 0)

    # Any thread.

    def rescale(self, size: int) -> Rescaling:
        """Ask for ``size`` workers.

        Raises:
            PlanError: there cannot be that many.
            JobEnded: the job has.
        """
        check_size(size)
        asked = Rescaling(size, _future(), _future())
        with self._lock:
            self._refuse_if_ended(f"rescaled to {size}")
            if len(self._rescales) >= ASKED_MAX:
                raise OperationInProgress(
                    f"job {self.job!r} has not taken {ASKED_MAX:,} earlier commands yet: wait for those first",
                    job=self.job,
                    operation="rescale",
                )
            self._rescales.append(asked)
            self.pending = True
        self.wake.set()
        return asked

    def stop(self, *, drain: bool) -> Future[Ending]:
        """Ask the run to end; what is returned is answered when it has. To be asked again is nothing new.

        Raises:
            OperationInProgress: it is being stopped in the other way.
        """
        with self._lock:
            if self.ended.done():
                return self.ended
            if self._drain is not None and self._drain != drain:
                raise OperationInProgress(
                    f"job {self.job!r} is being stopped {'with' if self._drain else 'without'} drain already: let that "
                    f"end, or end the program that runs the job",
                    job=self.job,
                    operation="stop",
                )
            self._drain = drain
            self.pending = True
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
                answer: Future[JobStatus] = _future()
                answer.set_result(self._known())
                return answer
            if self._status is None:
                self._status = _future()
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

    def loop(self) -> None:
        """From now on the run comes by to `obey`."""
        with self._lock:
            self._answering = True
            self._phase = _STEADY

    def obey(self, crew: Commanded, count: Callable[[], RunResult]) -> None:
        """Do what was asked for, as far as it can be done between two steps. Call it while ``pending``.

        Raises:
            JobEnded: the run is to end now, without drain.
        """
        with self._lock:
            self.pending = False
            drain, drain_told, self._drain_told = self._drain, self._drain_told, self._drain is not None
            rescales: list[Rescaling] = []
            # What is being stopped begins no move any more: requests without end would keep it from its end.
            if drain is None:
                rescales, self._rescales = self._rescales, []
                self._unanswered += rescales
        self._refuse_if_abandoned()
        if drain is not None and not drain_told:
            if drain:
                crew.drain()
            else:
                crew.suspend()
                self._suspending_s = self._clock.monotonic_s()
        for asked in rescales:
            self._rescale(crew, asked)
        counts = count()
        with self._lock:
            self._publish(crew.phase, counts, len(crew.members), crew.moving)
            status, self._status = self._status, None
            known = self._known(fresh=True)
        if status is not None:
            status.set_result(known)
        if drain is False:
            if crew.suspended or self._clock.monotonic_s() - self._suspending_s >= SUSPEND_S:
                raise self._stopped()
            self.pending = True  # come by after the next step, until everyone is

    def refuse_if_stopped(self) -> None:
        """The run has nothing left to do: raise `JobEnded` if it must not commit all the same."""
        self._refuse_if_abandoned()
        with self._lock:
            drain = self._drain
        if drain is False:
            raise self._stopped()

    def end(self, ending: Ending) -> None:
        """The run has ended: answer everyone who waits. (Once; whatever is asked later is answered at once.)"""
        with self._lock:
            self._publish("ended", ending.counts, self._workers)
            unanswered = self._rescales + self._unanswered
            self._rescales, self._unanswered = [], []
            status, self._status = self._status, None
            # Set under the lock: nobody finds the job ended and yet unanswered.
            self.ended.set_result(ending)
            known = self._known()
        for asked in unanswered:
            refusal = ending.refusal(f"rescaled to {asked.size}")
            for future in (asked.taken, asked.done):
                if not future.done():
                    future.set_exception(refusal)
        if status is not None:
            status.set_result(known)

    def _rescale(self, crew: Commanded, asked: Rescaling) -> None:
        def done(ended: RescaleReport | MalstromError) -> None:
            if isinstance(ended, MalstromError):
                self._called_off(asked, ended)
                return
            if not asked.taken.done():
                asked.taken.set_result(None)
            self._unanswered.remove(asked)
            with self._lock:
                self._workers = len(ended.members)
            asked.done.set_result(ended)

        try:
            crew.rescale(asked.size, done)
        except PlanError as error:
            self._called_off(asked, error)
            return
        if not asked.taken.done():
            asked.taken.set_result(None)

    def _called_off(self, asked: Rescaling, error: MalstromError) -> None:
        self._unanswered.remove(asked)
        for future in (asked.taken, asked.done):
            if not future.done():
                future.set_exception(error)

    def _publish(self, phase: str, counts: RunResult, workers: int, moving: Moving | None = None) -> None:
        self._phase, self._counts, self._workers, self._moving = phase, counts, workers, moving
        self._known_at_s = self._clock.monotonic_s()

    def _known(self, *, fresh: bool = False) -> JobStatus:
        error = self.ended.result().told() if self.ended.done() else None
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
        )

    def _state(self) -> State:
        if self.ended.done():
            return self.ended.result().how
        if self._drain is not None:
            return "stopping"
        return "rescaling" if self._phase in {"joining", "moving", "leaving"} else "running"

    def _refuse_if_ended(self, what: str) -> None:
        if self.ended.done():
            raise self.ended.result().refusal(what)

    def _refuse_if_abandoned(self) -> None:
        if self._abandoned:
            raise JobEnded(f"job {self.job!r} was stopped: {self._abandoned}", job=self.job, how="stopped")

    def _stopped(self) -> JobEnded:
        return JobEnded(
            f"job {self.job!r} was stopped without drain: nothing was committed", job=self.job, how="stopped"
        )


class WakefulClock(SystemClock):
    """The machine's clock, whose sleep ends early when a command comes through ``controls``."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def sleep_s(self, duration_s: float) -> None:
        wake = self._controls.wake
        if wake.wait(duration_s):
            wake.clear()


def in_progress(job: str, operation: str, timeout_s: float) -> OperationInProgress:
    """That a wait for ``operation`` ("run", "rescale" or "stop") has run out, and the operation goes on.

    >>> print(in_progress("flights", "rescale", 5))
    job 'flights' has not been rescaled within 5 s; the rescale goes on: see status(), or allow more with timeout_s=
    """
    told = {
        "run": "has not ended within {} s; it goes on: see",
        "rescale": "has not been rescaled within {} s; the rescale goes on: see",
        "stop": "has not stopped within {} s; it is still being stopped: see",
    }
    text = told[operation].format(f"{timeout_s:g}")
    return OperationInProgress(
        f"job {job!r} {text} status(), or allow more with timeout_s=", job=job, operation=operation
    )


def goes_on(job: str) -> str:
    """What is noted on a Ctrl-C that has stopped the waiting, and not what was waited for."""
    return f"job {job!r} goes on, and does what it was asked to: only the waiting was interrupted"


def _future() -> Future[Any]:
    """One that nobody who waits for it can cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
