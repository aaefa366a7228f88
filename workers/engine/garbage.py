"""The collections of garbage while jobs run.

Python's collector visits the young objects after every few hundred new ones. A batch makes more than that, and keeps
them as state: half of the time of a join over rows went there. Where records replace the states of keys, all states are
young after a while: no object more than before is there, so nothing was collected. The next collection visits them all.
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
        self.shared = 0
        """The number of objects that `freeze_shared` has frozen, until they are no longer."""
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


def freeze_shared() -> None:
    """Keep all objects from the collector of this process and of its forks: a collection in a fork would copy them."""
    gc.freeze()
    _COLLECTOR.shared = gc.get_freeze_count()


def make_old() -> None:
    """Move all objects into the last generation of the garbage collector, without looking at them.

    It would look at the states of 50,000 keys for 20 ms, as soon as some thousand keys have arrived, and twice in a row
    at a new set of as many keys. What a user has frozen stays so.
    """
    if gc.get_freeze_count() <= _COLLECTOR.shared:
        gc.freeze()
        gc.unfreeze()
        _COLLECTOR.shared = 0
