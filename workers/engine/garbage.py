"""The collections of garbage while jobs run.

Python's collector visits the young objects after every few hundred new ones. A batch makes more than that, and keeps
them as state: half of the time of a join over rows went there.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ALLOCATIONS: Final = 10_000
"""New objects between two collections while a job runs."""

_DEFAULTS: Final = frozenset({700, 2000})
"""What Python's versions begin with. Another number is the program's own choice, and stays."""


class _Collector:
    """The threshold of this process, and the number of contexts that have raised it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before: tuple[int, int, int] | None = None

    def enter(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1 and gc.get_threshold()[0] in _DEFAULTS:
                self._before = gc.get_threshold()
                gc.set_threshold(ALLOCATIONS, *self._before[1:])

    def leave(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running or self._before is None:
                return
            if gc.get_threshold()[0] == ALLOCATIONS:  # else the program has set it in the meantime
                gc.set_threshold(*self._before)
            self._before = None


_COLLECTOR: Final = _Collector()


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage after `ALLOCATIONS` new objects, in this process, until the last such context has ended.

    >>> with fewer_collections():
    ...     gc.get_threshold()[0]
    10000
    """
    _COLLECTOR.enter()
    try:
        yield
    finally:
        _COLLECTOR.leave()
