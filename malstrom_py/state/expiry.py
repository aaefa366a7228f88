"""When the states of keys expire: a time to live after the last record of a key.

Rules. A record that comes later than its key lives meets no state, so results do not depend on when the frontier
passes: the frontier only frees the memory. No timer per key: keys are gathered in buckets by the time until which they
live. Only the bucket that the limit has reached is put in order, so each key expires in time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

_BUCKETS: Final = 8
"""The buckets of one time to live: a key is in as many, at most, while it has records."""


class Expiry:
    """Until when each key lives: ``ttl`` after the time of its last record, in the unit of the times.

    >>> expiry = Expiry(10)
    >>> expiry.touch(["a", "b"], [1, 4])
    >>> expiry.touch(["a"], [2])
    >>> expiry.expired(11), expiry.expired(12), expiry.until
    ([], ['a'], {'b': 14})
    """

    __slots__ = ("_buckets", "_due", "_largest", "_next", "_width", "ttl", "undated", "until", "was_timer")

    def __init__(self, ttl: int, *, was_timer: bool = False) -> None:
        self.ttl = ttl
        self.was_timer = was_timer
        """Whether a timer in an old snapshot says until when its key lives: the step sets none."""
        self.until: dict[Any, int] = {}
        self.undated: set[Any] = set()
        """Keys with state that have had no record: their time begins with the next call of `expired`."""
        self._width = max(1, ttl // _BUCKETS)
        self._buckets: dict[int, set[Any]] = {}
        # The keys of the bucket that the limit has reached, the last one first.
        self._due: list[tuple[int, Any]] = []
        self._next: int | None = None
        self._largest: int | None = None

    def touch(self, keys: Sequence[Any], times: Sequence[int]) -> None:
        """Let each key live until its time + ttl at least. There is a time per key, and keys may repeat."""
        if not keys:
            return
        ttl, until = self.ttl, self.until
        first, last = min(times) + ttl, max(times) + ttl
        ends = list(map(ttl.__add__, times))
        if (self._largest is None or first >= self._largest) and (first == last or ends == sorted(ends)):
            until.update(zip(keys, ends, strict=True))
        else:
            for key, end in zip(keys, ends, strict=True):
                if end > until.get(key, end - 1):
                    until[key] = end
        if self.undated:
            self.undated.difference_update(keys)
        self._largest = last if self._largest is None else max(last, self._largest)
        self._gather(keys, first, last)

    def lives(
        self, keys: Sequence[Any], times: Sequence[int], *, apart: bool = False
    ) -> Iterator[tuple[int, int, list[Any]]]:
        """Cut records so that no key's life ends within a piece: (start, end, the keys whose life ended before it).

        A piece must be processed, and `touch` called for its records that did not fail, before the next is asked for.
        ``apart``: a piece has one record of a key whose life has ended, because the next depends on whether that fails.

        >>> expiry, keys, times = Expiry(10), ["a", "b", "a", "a"], [1, 5, 11, 22]
        >>> for start, end, ended in expiry.lives(keys, times):
        ...     expiry.touch(keys[start:end], times[start:end])
        ...     print(start, end, ended)
        0 3 []
        3 4 ['a']
        """
        until, ttl = self.until, self.ttl
        if max(times) <= min(min(times) + ttl, *map(until.get, keys, repeat(math.inf))):
            yield 0, len(keys), []
            return
        start, ended = 0, list[Any]()
        # Until when each key of the piece lives at least: any of its records may fail, or drop the state, and the next
        # one then begins its life.
        least = dict[Any, float]()
        for index, (key, time) in enumerate(zip(keys, times, strict=True)):
            if time > least.get(key, time):
                yield start, index, ended
                start, ended = index, []
                least.clear()
            end: float = math.inf if key in least else until.get(key, math.inf)
            if end < time:
                ended.append(key)
                end = -math.inf if apart else math.inf
            least[key] = min(end, time + ttl, least.get(key, math.inf))
        yield start, len(keys), ended

    def put(self, until: Mapping[Any, int]) -> None:
        """Set until when keys live, which have come from elsewhere."""
        if until:
            self.until.update(until)
            first, last = min(until.values()), max(until.values())
            self._largest = last if self._largest is None else max(last, self._largest)
            self._gather(until, first, last)

    def forget(self, keys: Collection[Any]) -> None:
        """Drop what is known of ``keys``, which have no state any more."""
        for key in keys:
            self.until.pop(key, None)
        self.undated.difference_update(keys)

    def put_away(self, keys: Collection[Any]) -> None:
        """Forget ``keys``, which differ and go to disk: also where a key is while it has records."""
        self.forget(keys)
        for there in self._buckets.values():
            there.difference_update(keys)
        if len(self._due) > 64 and len(self._due) > 4 * len(self.until):
            self._due = [(end, key) for end, key in self._due if self.until.get(key) == end]

    def expired(self, limit: int) -> list[Any]:
        """Remove and return the keys that live until ``limit`` at most."""
        if self.undated:
            undated, self.undated = self.undated, set()
            self.touch(list(undated), [limit + 1] * len(undated))
        if not self._due and (self._next is None or limit < self._next * self._width):
            return []
        until, width, reached = self.until, self._width, limit // self._width
        gone: list[Any] = []
        ordered = len(self._due)
        for place in [place for place in self._buckets if place <= reached]:
            # A key with a later record is in a later bucket, too.
            there = [key for key in self._buckets.pop(place) if key in until and until[key] // width == place]
            if place < reached:
                gone += there
            else:
                self._due += [(until[key], key) for key in there]
        if len(self._due) > ordered:
            self._due.sort(key=_end_of, reverse=True)
        self._next = min(self._buckets, default=None)
        due = self._due
        while due and due[-1][0] <= limit:
            end, key = due.pop()
            if until.get(key) == end:
                gone.append(key)
        for key in gone:
            until.pop(key, None)
        return gone

    def _gather(self, keys: Collection[Any], first: int, last: int) -> None:
        buckets, width, until = self._buckets, self._width, self.until
        place = first // width
        if place == last // width:
            buckets.setdefault(place, set()).update(keys)
        else:
            for key in set(keys):
                buckets.setdefault(until[key] // width, set()).add(key)
        self._next = min(buckets)


def _end_of(due: tuple[int, Any]) -> int:
    return due[0]
