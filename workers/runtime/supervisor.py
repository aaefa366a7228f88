"""The supervisor of a job: starts the next run from the last snapshot, as the restart policy allows (S6).

Rule: only a failure that a restart may cure is retried. An error marked ``lasting`` ends the job immediately: an
invalid plan, a key or state that cannot be stored, missing or incompatible snapshots, a newer start of the job, a
user's stop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.errors import FencedError, JobEnded, MalstromError, PlanError, ReloadError
from malstrom_py.errors.text import public_text
from malstrom_py.events import Error, ParameterChanged, Reload, Restarting
from malstrom_py.logs import log
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.validation import checked_seconds
from malstrom_py.workers.coordinator.changes import ChangeDue
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import ReloadCommand, SetCommand
from malstrom_py.workers.reports.job_events import stop_cause
from malstrom_py.workers.reports.job_status import ReloadReport
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.hot_reload import HotReload


@dataclass(frozen=True)
class Restart:
    """The restart policy of a job with snapshots: after a failure the job resumes from its last snapshot.

    ``when="always"``: also once it has finished, to read what is new in its sources since (`sources.Files` with
    ``new_files``, for instance); a stop ends it, and when no restart is left it is finished.

    At most ``max_restarts`` restarts within any ``window_s`` seconds; one more failure ends the job. The pause before a
    restart is ``backoff_s`` at first and doubles, up to ``backoff_max_s``.

    >>> Restart(max_restarts=1).max_restarts
    1

    Raises:
        PlanError: a number is out of range.
    """

    max_restarts: int = 5
    window_s: float = 600.0
    backoff_s: float = 0.2
    backoff_max_s: float = 30.0
    when: Literal["failure", "always"] = "failure"

    def __post_init__(self) -> None:
        if self.when not in {"failure", "always"}:
            raise PlanError(f'restart: when must be "failure" or "always", got {self.when!r}')
        if type(self.max_restarts) is not int or self.max_restarts < 0:
            raise PlanError(f"restart: max_restarts must be a whole number of at least 0, got {self.max_restarts!r}")
        for name in ("window_s", "backoff_s", "backoff_max_s"):
            checked_seconds(getattr(self, name), f"restart: {name}", finite=True)


NEVER = Restart(max_restarts=0)
"""The policy without restarts."""


class RestartBudget:
    """The remaining restarts of one job under ``restart``.

    >>> failures = RestartBudget(Restart(max_restarts=2, backoff_s=1.0))
    >>> failures.pause_s(0.0), failures.pause_s(1.0), failures.pause_s(2.0)
    (1.0, 2.0, None)
    """

    def __init__(self, restart: Restart) -> None:
        self._restart = restart
        self._at_s: deque[float] = deque()

    def pause_s(self, now_s: float) -> float | None:
        """Count a failure at ``now_s`` and return the pause before the restart; None: no restart is left."""
        restart, at_s = self._restart, self._at_s
        while at_s and now_s - at_s[0] > restart.window_s:
            at_s.popleft()
        if len(at_s) >= restart.max_restarts:
            return None
        at_s.append(now_s)
        return float(min(restart.backoff_s * 2.0 ** min(len(at_s) - 1, 64), restart.backoff_max_s))


_NAP_S: Final = 0.05
"""How often a pause checks for a stop."""

_LOG: Final = logging.getLogger("malstrom_py")


@dataclass(slots=True)
class Trial:
    """The reload of ``command`` with the code ``prepared``. ``snapshot``: the cut, on all workers, at ``cut_s``.

    ``until_s``: when the new code has proved itself; ``pause_s``: how long no worker had processed records by then.
    Times are of the run's clock, in seconds.
    """

    command: ReloadCommand
    prepared: Any = field(repr=False)
    snapshot: str
    cut_s: float
    until_s: float | None = None
    pause_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Begin the trial: the new code processes records."""
        self.pause_s = now_s - self.cut_s
        self.until_s = now_s + self.command.probation_s


class SupervisedRun(Protocol):
    """One run of a job."""

    @property
    def has_begun(self) -> bool:
        """Whether the run has claimed the job."""
        ...

    @property
    def workers(self) -> int:
        """The number of workers that the run had, or was rescaling to."""
        ...

    trial: Trial | None

    def try_out(self, trial: Trial | None, passed: Callable[[], None]) -> None:
        """Try the code of ``trial``, if any, and call ``passed`` when it has proved itself. Call this first."""
        ...

    def execute(self) -> RunResult: ...

    def result(self) -> RunResult: ...


R = TypeVar("R", bound=SupervisedRun)


class Supervisor(Generic[R]):
    """Executes the runs of one job, one after the other.

    ``make(again, workers)`` makes a run. ``again``: an earlier run claimed the job, so this one resumes from its last
    snapshot; ``workers``: the number of workers, None for the user's. ``failures``: earlier failures, which count.
    ``restarted`` is called before a restart, ``at_end`` when no run follows. ``reloads``: imports code again.
    """

    def __init__(
        self,
        make: Callable[[bool, int | None], R],
        commands: CommandQueue,
        restart: Restart,
        clock: Clock,
        failures: RestartBudget | None = None,
        restarted: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        reloads: HotReload | None = None,
    ) -> None:
        self._make = make
        self._commands = commands
        self._restart = restart
        self._failures = failures or RestartBudget(restart)
        self._clock = clock
        self._restarted = restarted
        self._at_end = at_end
        self._reloads = reloads
        if reloads is not None:
            commands.prepare = reloads.prepare
        self._again = False
        self.restarts = 0
        self.now = make(False, None)

    def execute(self) -> RunResult:
        """Execute runs until the job ends, and return the result of the last one."""
        try:
            while True:
                try:
                    result = self.now.execute()
                except ChangeDue as due:
                    self._change(due)
                    continue
                except Exception as error:
                    if self.now.trial is not None and not (stop_cause(error) or isinstance(error, FencedError)):
                        self._roll_back(self.now.trial, error)
                        continue
                    self._wait_or_raise(error)
                else:
                    if not self._starts_again(result):
                        return result
                self.restarts += 1
                self._restarted()
                self._drop_shadows()
                self.now = self._make(self._again, self.now.workers)
        finally:
            self._at_end()

    def result(self) -> RunResult:
        """Return the counts of the current run so far."""
        return self.now.result()

    def _drop_shadows(self) -> None:
        """Let the next run be without the shadows that have failed."""
        for step in self._commands.shadows.failed():
            if self._reloads is not None:
                self._reloads.drop_shadow(step)

    def _change(self, due: ChangeDue) -> None:
        """Make the next run, from the snapshot of the cut, with the new code; a new value is in the snapshot."""
        if isinstance(due.command, SetCommand):
            self._commands.events.emit(ParameterChanged(due.command.name, due.prepared))
            self._next_run(None)
            self._commands.tried(SnapshotId(due.snapshot))
            return
        assert self._reloads is not None
        step, shadows = due.command.step, self._commands.shadows
        if due.command.action == "promote" and step in shadows.failed():
            refused = (
                f"step {step!r} was not reloaded: its shadow has stopped by an error, and is dropped. Correct the new "
                f"code, and begin another shadow. The error: {shadows.report(step).failure}"
            )
            self._next_run(None)
            self._commands.tried(ReloadError(refused, step=step))
            return
        if due.command.action == "shadow":
            shadows.end(step)  # one that has failed would end the new one
        self._reloads.install(due.prepared)
        if due.command.action in {"reload", "promote"}:
            self._commands.events.emit(Reload(due.command.step, due.snapshot))
        self._next_run(Trial(due.command, due.prepared, due.snapshot, due.at_s))

    def _roll_back(self, trial: Trial, error: Exception) -> None:
        """Make the next run, from the snapshot of the cut, with the former code."""
        assert self._reloads is not None
        self._reloads.roll_back()
        failure = ReloadError(
            f"step {trial.command.step!r} was not reloaded, because its new code has failed. The job continues from "
            f"snapshot {trial.snapshot} with the code that it had. The failure: {public_text(error)}",
            step=trial.command.step,
        )
        failure.__cause__ = error
        step = trial.command.step
        if trial.command.action == "shadow":
            self._commands.shadows.end(step)
        log(_LOG, logging.WARNING, "job %s: %s", *(self._commands.name, failure), job=self._commands.name, step=step)
        self._commands.events.emit(Error(str(failure)))
        self._next_run(None)
        self._commands.tried(failure)

    def _next_run(self, trial: Trial | None) -> None:
        run = self.now
        self._drop_shadows()
        self._commands.recover(run.result(), run.workers, times=0)
        self._again = True
        self.now = self._make(True, run.workers)
        self.now.try_out(trial, self._passed(trial))

    def _passed(self, trial: Trial | None) -> Callable[[], None]:
        def passed() -> None:
            if trial is not None and self._reloads is not None:
                self._reloads.confirm()
                step, action = trial.command.step, trial.command.action
                if action in {"promote", "drop"}:
                    self._commands.shadows.end(step)
                modules = tuple(sorted(trial.prepared.imported))
                self._commands.tried(ReloadReport(step, modules, trial.snapshot, trial.pause_s, action))

        return passed

    def _starts_again(self, result: RunResult) -> bool:
        """Pause after a finished run, and return whether another follows."""
        if self._restart.when != "always" or self._commands.is_stopping:
            return False
        pause_s = self._failures.pause_s(self._clock.monotonic_s())
        if pause_s is None:
            return False
        self._again = True
        self._log_restart(logging.INFO, "job %s has finished and restarts in %g s: %s", pause_s, "to read what is new")
        self._commands.events.emit(Restarting("", pause_s))
        self._commands.recover(result, self.now.workers)
        try:
            wait_out(pause_s, self._commands, self._clock)
        except JobEnded:  # all is committed, so a stop without drain also leaves a finished job
            return False
        return not self._commands.is_stopping

    def _wait_or_raise(self, error: Exception) -> None:
        run = self.now
        self._again = self._again or run.has_begun
        if (isinstance(error, MalstromError) and error.lasting) or not self._again:
            raise error
        pause_s = self._failures.pause_s(self._clock.monotonic_s())
        if pause_s is None:
            if self.restarts:
                error.add_note(
                    f"the job was restarted {self.restarts} time{'s' if self.restarts > 1 else ''} and failed each "
                    f"time; restart=mp.Restart(max_restarts={self._restart.max_restarts}) allows no more restarts"
                )
            raise error
        why = public_text(error)
        try:
            self._commands.refuse_if_stopped()
        except JobEnded as ended:
            ended.add_note(f"the job failed while it was being stopped: {why}")
            raise ended from error
        self._log_restart(
            logging.WARNING, "job %s failed and restarts from its last snapshot in %g s: %s", pause_s, why
        )
        self._commands.events.emit(Restarting(why, pause_s))
        self._commands.recover(run.result(), run.workers)
        wait_out(pause_s, self._commands, self._clock)

    def _log_restart(self, level: int, message: str, pause_s: float, why: str) -> None:
        job, number = self._commands.name, self.restarts + 1
        ending = f"{message} (restart %d)"
        log(_LOG, level, ending, *(job, pause_s, why, number), job=job, why=why, pause_s=pause_s, restart=number)


def wait_out(pause_s: float, commands: CommandQueue, clock: Clock) -> None:
    """Pause before a restart. A stop with drain and a change end the pause; a stop without drain raises `JobEnded`."""
    until_s = clock.monotonic_s() + pause_s
    commands.refuse_if_stopped()
    while (left_s := until_s - clock.monotonic_s()) > 0 and not (commands.is_stopping or commands.wants_change):
        clock.sleep_s(min(left_s, _NAP_S))
        commands.refuse_if_stopped()
