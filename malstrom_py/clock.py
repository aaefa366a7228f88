"""The clock of a runtime: the system's in production, a virtual one in tests. No other module asks for the time.

The runtime's clock, a seam: real in production, virtual in tests. Nothing else asks for the wall time.

A clock for tests: time passes when it is told to, and at once.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells and passes time, in seconds."""

    def now_s(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s)


class VirtualClock:
    """Implements `malstrom_py.clock.Clock` without waiting: ``sleep_s`` and ``advance`` move it at once.

    ``start_s`` is the wall time it begins at, in seconds since 1970; its monotonic time begins at 0.
    ``slept_s`` lists the sleeps it was asked for, in order. ValueError for a duration below 0.

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
        """Seconds since 1970, UTC."""
        return self._start_s + self._passed_s

    def monotonic_s(self) -> float:
        """Seconds that have passed here since the clock was made."""
        return self._passed_s

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` pass, at once, and note it in ``slept_s``."""
        self.advance(duration_s)
        self.slept_s.append(duration_s)

    def advance(self, duration_s: float) -> None:
        """Let ``duration_s`` pass, at once."""
        if not duration_s >= 0:
            raise ValueError(f"time does not go back: {duration_s} s")
        self._passed_s += duration_s
