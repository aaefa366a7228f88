"""The runtime's clock, a seam: real in production, virtual in tests. Nothing else asks for the wall time."""

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
