"""The clock of a runtime: the system's in production, a virtual one in tests. No other module reads the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, in seconds, that can wait."""

    def now_s(self) -> float:
        """Return the seconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return the seconds since a fixed moment; never decreases."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Wait for ``duration_s``."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.time()

    monotonic_s = staticmethod(time.monotonic)  # read several times per batch: a method would cost twice as much

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s)


class VirtualClock:
    """A `Clock` for tests that never waits: ``sleep_s`` and ``advance`` change the time immediately.

    ``start_s`` is its first wall time, in seconds since 1970; its monotonic time starts at 0. ``slept_s`` lists the
    durations of the sleeps, in order. A duration below 0 is a ValueError.

    A job that waits a minute for its source runs in no time:

    >>> import malstrom_py as mp
    >>> class Late:  # a source of one part, itself
    ...     def list_parts(self):
    ...         return ["only"]
    ...     def build_part(self, part, state):
    ...         return self
    ...     def poll(self, rows_max):
    ...         return ["at last"] if clock.monotonic_s() >= 60 else None
    ...     def is_finished(self):
    ...         return clock.monotonic_s() >= 60
    ...     def snapshot(self):
    ...         return None
    ...     def close(self):
    ...         print("closed")
    >>> clock = VirtualClock()
    >>> mp.collect(mp.Job("docs").source("late", Late()), clock=clock)
    closed
    ['at last']
    >>> clock.monotonic_s() >= 60
    True
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._start_s = start_s
        self._passed_s = 0.0
        self.slept_s: list[float] = []

    def __repr__(self) -> str:
        return f"VirtualClock(now_s={self.now_s()})"

    def now_s(self) -> float:
        """Return the seconds since 1970, UTC."""
        return self._start_s + self._passed_s

    def monotonic_s(self) -> float:
        """Return the virtual seconds since the clock was made."""
        return self._passed_s

    def sleep_s(self, duration_s: float) -> None:
        """Advance by ``duration_s`` and add it to ``slept_s``."""
        self.advance(duration_s)
        self.slept_s.append(duration_s)

    def advance(self, duration_s: float) -> None:
        """Advance by ``duration_s``."""
        if not duration_s >= 0:
            raise ValueError(f"time does not go back: {duration_s} s")
        self._passed_s += duration_s
