"""The timers of the keys of one step on one worker."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any


class Timers:
    """The timers of keys. A key has at most one timer per time.

    >>> timers = Timers()
    >>> for time, key in [(5, "b"), (3, "a"), (5, "b"), (9, "a")]:
    ...     timers.set(key, time)
    >>> list(timers.due(5)), timers.times("a")
    ([('a', 3), ('b', 5)], [9])
    """

    __slots__ = ("_by_key", "_count", "_order", "_queue", "noted", "stirred")

    def __init__(self) -> None:
        self.noted: set[Any] | None = None
        """The set to which keys with changed timers are added, or None."""
        self.stirred: set[Any] | None = None
        """The same, while state goes ahead of a move (R12)."""
        # key -> time -> the number of the valid timer: queue entries with other numbers are stale.
        self._by_key: dict[Any, dict[int, int]] = {}
        self._queue: list[tuple[int, int, Any]] = []
        self._order = 0
        self._count = 0

    def set(self, key: Any, time: int) -> None:
        """Set a timer of ``key``, due once the step's frontier has reached ``time``."""
        if time not in self._by_key.get(key, ()):
            self.put_back(key, (time,))
            self._note(key)

    def put_back(self, key: Any, times: Sequence[int]) -> None:
        """Set timers of ``key`` that were put away, without a note: nothing has changed."""
        numbers = self._by_key.setdefault(key, {}) if times else {}
        for time in times:
            if time not in numbers:
                self._order += 1
                self._count += 1
                numbers[time] = self._order
                heappush(self._queue, (time, self._order, key))

    def due(self, frontier: int) -> Iterator[tuple[Any, int]]:
        """Remove and yield the timers (key, time) up to ``frontier``, by time, then in the order they were set."""
        while self._queue and self._queue[0][0] <= frontier:
            entry = heappop(self._queue)
            if self._is_valid(entry):
                time, _, key = entry
                self._forget(key, time)
                yield key, time

    def times(self, key: Any) -> list[int]:
        """Return the times of the timers of ``key``, ascending."""
        return sorted(self._by_key.get(key, ()))

    def take(self, key: Any) -> list[int]:
        """Remove the timers of ``key``, and return their times."""
        times = self.put_away(key)
        if times:
            self._note(key)
        return times

    def put_away(self, key: Any) -> list[int]:
        """Do as `take`, for timers that go to disk, without a note."""
        times = sorted(self._by_key.pop(key, ()))
        self._count -= len(times)
        if len(self._queue) > 64 and len(self._queue) > 4 * self._count:
            # Remove stale entries; at a quarter of the queue the cost per removed timer stays constant.
            self._queue = list(filter(self._is_valid, self._queue))
            heapify(self._queue)
        return times

    def keys(self) -> Collection[Any]:
        """Return the keys that have timers."""
        return self._by_key.keys()

    def __len__(self) -> int:
        return self._count

    def _note(self, key: Any) -> None:
        if self.noted is not None:
            self.noted.add(key)
        if self.stirred is not None:
            self.stirred.add(key)

    def _is_valid(self, entry: tuple[int, int, Any]) -> bool:
        time, order, key = entry
        return self._by_key.get(key, {}).get(time) == order

    def _forget(self, key: Any, time: int) -> None:
        self._note(key)
        times = self._by_key[key]
        del times[time]
        self._count -= 1
        if not times:
            del self._by_key[key]
