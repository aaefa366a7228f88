"""When a run that has failed is begun again, and after which pause. Pure: told the time.

Rule: what fails again and again comes to an end, with the last error (S6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite

from malstrom_py.errors import PlanError


@dataclass(frozen=True)
class Restart:
    """How a job with snapshots is begun again, from the last of them, when a worker or a function of it has failed.

    ``max_restarts`` within any ``window_s`` seconds; one more failure ends the job. The pauses before them begin with
    ``backoff_s`` and double, up to ``backoff_max_s``.

    >>> Restart(max_restarts=1).max_restarts
    1

    Raises:
        PlanError: a number makes no sense.
    """

    max_restarts: int = 5
    window_s: float = 600.0
    backoff_s: float = 0.2
    backoff_max_s: float = 30.0

    def __post_init__(self) -> None:
        if type(self.max_restarts) is not int or self.max_restarts < 0:
            raise PlanError(f"restart: max_restarts is a whole number of at least 0, got {self.max_restarts!r}")
        for name in ("window_s", "backoff_s", "backoff_max_s"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not isfinite(seconds) or seconds < 0:
                raise PlanError(f"restart: {name} is a number of seconds of at least 0, got {seconds!r}")


NEVER = Restart(max_restarts=0)
"""What has failed once has failed."""


def restart_of(restart: object, *, kept: bool) -> Restart:
    """What a runtime was given as ``restart``, checked. ``kept``: whether the job has snapshots to go back to."""
    if restart is None:
        return Restart() if kept else NEVER
    if restart == "never":
        return NEVER
    if not isinstance(restart, Restart):
        raise PlanError(f'restart is "never" or mp.Restart(max_restarts=…), got {restart!r}')
    if not kept and restart.max_restarts:
        raise PlanError(
            "restart needs a snapshot to go back to: give the runtime snapshots=mp.Snapshots(uri), or leave out restart"
        )
    return restart


class RestartBudget:
    """The failures of one job, by ``restart``.

    >>> failures = RestartBudget(Restart(max_restarts=2, backoff_s=1.0))
    >>> failures.pause_s(0.0), failures.pause_s(1.0), failures.pause_s(2.0)
    (1.0, 2.0, None)
    """

    def __init__(self, restart: Restart) -> None:
        self._restart = restart
        self._at_s: deque[float] = deque()

    def pause_s(self, now_s: float) -> float | None:
        """It has failed now: how long to wait before it is begun again; None: it is not."""
        restart, at_s = self._restart, self._at_s
        while at_s and now_s - at_s[0] > restart.window_s:
            at_s.popleft()
        if len(at_s) >= restart.max_restarts:
            return None
        at_s.append(now_s)
        return float(min(restart.backoff_s * 2.0 ** min(len(at_s) - 1, 64), restart.backoff_max_s))
