"""The cache of ``enrich``: the answers that a worker keeps. It is bounded, and evicts the least recently used one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from malstrom_py.errors import PlanError

ABSENT: Final[Any] = object()
"""Returned where the cache has no answer."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The configuration of ``enrich(cache=)``: at most ``size`` answers per worker, each for ``ttl`` of the runtime's
    clock (None: until it is evicted).

    >>> from datetime import timedelta
    >>> Cache(ttl=timedelta(minutes=10), size=500)
    Cache(ttl=datetime.timedelta(seconds=600), size=500)

    Raises:
        PlanError: ``ttl`` is not a timedelta above 0, or ``size`` is not a whole number of at least 1.
    """

    ttl: timedelta | None = None
    size: int = 10_000

    def __post_init__(self) -> None:
        if self.ttl is not None and (not isinstance(self.ttl, timedelta) or self.ttl <= timedelta(0)):
            raise PlanError(f"mp.Cache: ttl must be a timedelta above 0, or None for no limit, got {self.ttl!r}")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise PlanError(f"mp.Cache: size must be a whole number of at least 1, got {self.size!r}")


class Answers:
    """The answers that one worker keeps, by the thing asked about.

    >>> answers = Answers(Cache(ttl=timedelta(seconds=5), size=2))
    >>> for thing in "ab":
    ...     answers.put(thing, thing.upper(), now_s=0)
    >>> answers.get("a", now_s=4.9)
    'A'
    >>> answers.put("c", "C", now_s=5)
    >>> [answers.get(thing, now_s=5) is ABSENT for thing in "abc"]  # a is too old, b was used least recently
    [True, True, False]
    """

    def __init__(self, cache: Cache) -> None:
        self._size = cache.size
        self._ttl_s = None if cache.ttl is None else cache.ttl.total_seconds()
        self._entries: OrderedDict[Any, tuple[Any, float]] = OrderedDict()

    def get(self, thing: Any, *, now_s: float) -> Any:
        """Return the answer about ``thing``, or `ABSENT`. TypeError if ``thing`` cannot be hashed."""
        entry = self._entries.get(thing)
        if entry is None:
            return ABSENT
        if self._ttl_s is not None and now_s - entry[1] >= self._ttl_s:
            del self._entries[thing]
            return ABSENT
        self._entries.move_to_end(thing)
        return entry[0]

    def put(self, thing: Any, answer: Any, *, now_s: float) -> None:
        """Store ``answer``, received at ``now_s``."""
        self._entries[thing] = (answer, now_s)
        self._entries.move_to_end(thing)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
