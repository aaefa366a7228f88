"""One run of a job, from opening to closing: has its workers go on, does what is commanded, commits.

Rule: nothing is committed before all has been read and written; whatever fails on the way discards it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Generic, Protocol, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.plan import Plan
from malstrom_py.workers.commit import FinalCommit
from malstrom_py.workers.controls import Commanded, Controls
from malstrom_py.workers.interrupts import Interrupts
from malstrom_py.workers.pinning import Pins
from malstrom_py.workers.progress import Progress
from malstrom_py.workers.result import RunResult, StepCounts


class Staff(Commanded, Protocol):
    """The workers of a run, in this process or elsewhere."""

    @property
    def wake(self) -> threading.Event: ...

    @property
    def commit(self) -> FinalCommit: ...

    @property
    def finished(self) -> bool: ...

    def open(self) -> None: ...

    def step(self, *, until_s: float | None) -> None: ...

    def counts(self) -> Mapping[str, StepCounts]: ...

    def pre_commit(self) -> None: ...

    def close_before_commit(self) -> None: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=Staff)


class JobRun(Generic[S]):
    """One run of ``plan`` by ``crew``."""

    def __init__(
        self,
        plan: Plan,
        crew: S,
        clock: Clock,
        *,
        controls: Controls | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._controls = controls or Controls(plan.job)
        self._progress = progress
        self._started_s = clock.monotonic_s()
        self._crew = crew
        self._controls.wake = self._crew.wake
        self._interrupts = Interrupts()
        self._commit = self._crew.commit
        self._pins = Pins(plan, clock)
        self._enter("opening")

    def execute(self, until: Callable[[S], bool] | None = None, until_s: float | None = None) -> RunResult:
        """To its end, or until ``until(crew)`` is true after a step, or the clock's monotonic time is ``until_s``."""
        with self._interrupts, self._pins:
            try:
                self._commit.recover()
                self._pins.pin()
                with self._progress or nullcontext():
                    self._crew.open()
                    self._loop(until, until_s)
                self._controls.refuse_if_stopped()
                self._enter("committing")
                self._crew.pre_commit()
                self._crew.close_before_commit()
                with self._interrupts.held():
                    self._commit.commit(self.result())
                self._crew.close()
            except BaseException as error:
                self._undo(error)
                raise
        return self.result()

    def result(self) -> RunResult:
        """What it has done so far."""
        return RunResult(self._plan.job, self._crew.counts(), self._clock.monotonic_s() - self._started_s)

    def _enter(self, phase: str) -> None:
        self._controls.enter(phase, self.result(), len(self._crew.members))

    def _loop(self, until: Callable[[S], bool] | None, until_s: float | None) -> None:
        crew, clock, controls, progress = self._crew, self._clock, self._controls, self._progress
        controls.loop()
        while not crew.finished:
            if controls.pending:
                controls.obey(crew, self.result)
            crew.step(until_s=until_s)
            self._interrupts.check()
            if progress is not None and progress.due(clock.monotonic_s()):
                progress.show(self.result())
            if (until is not None and until(crew)) or (until_s is not None and clock.monotonic_s() >= until_s):
                return
        if progress is not None:
            progress.show(self.result())

    def _undo(self, error: BaseException) -> None:
        """Close and discard. What goes wrong here is noted on ``error``, which is the one to be told."""
        for failure in self._commit.abort():
            error.add_note(str(failure))
        try:
            self._crew.close()
        except Exception as failure:
            error.add_note(str(failure))
        if isinstance(error, KeyboardInterrupt):
            visible = ", ".join(self._commit.committed)
            done = f"committed: {visible}" if visible else "nothing was committed"
            error.add_note(f"stopped by the user; {done}; so far {self.result()}")
