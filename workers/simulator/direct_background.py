"""Background tasks that are done when they are submitted, so that a simulated run is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DirectBackground:
    """Runs each task immediately, and handles its result. What fails, fails there."""

    pending = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Run ``work``."""
        try:
            result: T | BaseException = work()
        except Exception as error:
            result = error
        done(result)

    def turn(self) -> bool:
        """Nothing waits."""
        return False

    def close(self) -> None:
        """Nothing waits."""
