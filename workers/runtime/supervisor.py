"""Runs a job until it has ended: run after run, each from the last snapshot, when the one before it has failed (S6).

Rule: only what could go otherwise next time is begun again. An error that is ``lasting`` ends the job at once: one of
the plan, a key or state that cannot be stored, snapshots that are gone or do not fit, another start of the job that has
taken over, a user who stops it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.errors import JobEnded, MalstromError
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.restart_policy import Restart, RestartBudget
from malstrom_py.workers.reports.result import RunResult

_NAP_S: Final = 0.05
"""How often one looks around while a pause lasts."""

_LOG: Final = logging.getLogger("malstrom_py")


class SupervisedRun(Protocol):
    """One run of a job."""

    @property
    def has_begun(self) -> bool:
        """Whether it has taken over the job."""
        ...

    @property
    def workers(self) -> int:
        """How many workers it was to have in the end."""
        ...

    def execute(self) -> RunResult: ...

    def result(self) -> RunResult: ...


R = TypeVar("R", bound=SupervisedRun)


class Supervisor(Generic[R]):
    """The runs of one job. ``make(again, workers)`` makes one: ``again``: it follows one that has taken over the job,
    and goes on from its last snapshot; ``workers``: with how many, None: as the user said. ``failures``: those that
    there were before.
    """

    def __init__(
        self,
        make: Callable[[bool, int | None], R],
        controls: CommandQueue,
        restart: Restart,
        clock: Clock,
        failures: RestartBudget | None = None,
    ) -> None:
        self._make = make
        self._controls = controls
        self._restart = restart
        self._failures = failures or RestartBudget(restart)
        self._clock = clock
        self._again = False
        self.restarts = 0
        self.now = make(False, None)

    def execute(self) -> RunResult:
        """To the end of the job."""
        while True:
            try:
                return self.now.execute()
            except Exception as error:
                self._wait_or_raise(error)
            self.restarts += 1
            self.now = self._make(self._again, self.now.workers)

    def result(self) -> RunResult:
        """What the run of now has done so far."""
        return self.now.result()

    def _wait_or_raise(self, error: Exception) -> None:
        run = self.now
        self._again = self._again or run.has_begun
        if (isinstance(error, MalstromError) and error.lasting) or not self._again:
            raise error
        pause_s = self._failures.pause_s(self._clock.monotonic_s())
        if pause_s is None:
            if self.restarts:
                error.add_note(
                    f"the job was begun again {self.restarts} time{'s' if self.restarts > 1 else ''}, and failed each "
                    f"time: that is as often as it may (restart=mp.Restart(max_restarts={self._restart.max_restarts}))"
                )
            raise error
        # The text of a foreign error may hold values of records.
        why = error if isinstance(error, MalstromError) else type(error).__name__
        try:
            self._controls.refuse_if_stopped()
        except JobEnded as ended:
            ended.add_note(f"it failed while it was being stopped: {why}")
            raise ended from error
        _LOG.warning("job %s goes back to its last snapshot in %g s: %s", self._controls.job, pause_s, why)
        self._controls.recover(run.result(), run.workers)
        wait_out(pause_s, self._controls, self._clock)


def wait_out(pause_s: float, controls: CommandQueue, clock: Clock) -> None:
    """The pause before a job begins again. A job that is stopped with drain has none, and one that is stopped without
    ends here: `JobEnded`.
    """
    until_s = clock.monotonic_s() + pause_s
    controls.refuse_if_stopped()
    while (left_s := until_s - clock.monotonic_s()) > 0 and not controls.is_stopping:
        clock.sleep_s(min(left_s, _NAP_S))
        controls.refuse_if_stopped()
