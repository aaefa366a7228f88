"""The restart policy: whether and when a failed run is restarted. Pure: the caller passes the time.

Rule: a job that fails too often ends with its last error (S6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite

from malstrom_py.errors import PlanError


@dataclass(frozen=True)
class Restart:
    """The restart policy of a job with snapshots: after a failure the job resumes from its last snapshot.

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

    def __post_init__(self) -> None:
        if type(self.max_restarts) is not int or self.max_restarts < 0:
            raise PlanError(f"restart: max_restarts must be a whole number of at least 0, got {self.max_restarts!r}")
        for name in ("window_s", "backoff_s", "backoff_max_s"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not isfinite(seconds) or seconds < 0:
                raise PlanError(f"restart: {name} must be a number of seconds of at least 0, got {seconds!r}")


NEVER = Restart(max_restarts=0)
"""The policy without restarts."""


def restart_of(restart: object, *, kept: bool) -> Restart:
    """Return the checked ``restart`` argument of a runtime. ``kept``: whether the job has snapshots."""
    if restart is None:
        return Restart() if kept else NEVER
    if restart == "never":
        return NEVER
    if not isinstance(restart, Restart):
        raise PlanError(f'restart must be "never" or mp.Restart(max_restarts=…), got {restart!r}')
    if not kept and restart.max_restarts:
        raise PlanError(
            "restart needs a snapshot to resume from: give the runtime snapshots=mp.Snapshots(uri), or omit restart"
        )
    return restart


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
