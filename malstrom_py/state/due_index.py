"""The keys of a disk by the time at which they are due.

Rule: what is known in memory is where the first entry is at the earliest. So a time at which nothing is due costs a
comparison, and a search passes no entries that were removed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from struct import pack, unpack
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from malstrom_py.state.disk import Disk


AT: Final = 8
"""So many bytes has a time, and they are in its order."""

_ZERO: Final = 1 << 63


def stored_times(times: Sequence[int]) -> list[bytes]:
    """Return the bytes of each time: of one beyond 64 bits those of the last before.

    >>> stored_times([-1, 0, 1 << 70]) == sorted(stored_times([1 << 70, -1, 0])), times_of(stored_times([-1, 0, 7]))
    (True, [-1, 0, 7])
    """
    if not times:
        return []
    if not -_ZERO <= min(times) <= max(times) < _ZERO:
        times = [min(max(time, -_ZERO), _ZERO - 1) for time in times]
    packed = pack(f">{len(times)}Q", *map(_ZERO.__add__, times))
    return [packed[start : start + AT] for start in range(0, len(packed), AT)]


def times_of(stored: Sequence[bytes]) -> list[int]:
    """Return the times of which these are the bytes."""
    return list(map((-_ZERO).__add__, unpack(f">{len(stored)}Q", b"".join(stored))))


class DueIndex:
    """An index in ``disk``, whose entries begin with ``prefix``, then have the time and the key.

    >>> from malstrom_py.testing.disk import MemoryDisk
    >>> disk = MemoryDisk()
    >>> index = DueIndex(lambda: disk, b"i")
    >>> disk.write([(entry, b"") for entry in index.added(stored_times([7, 5, 9]), [b"b", b"a", b"c"])])
    >>> index.is_due(4), index.is_due(8), index.bound(8), index.first(8, 10)[0], index.bound(10)
    (False, True, 5, [b'a', b'b'], 9)
    """

    __slots__ = ("_disk", "_first", "_prefix", "count")

    def __init__(self, disk: Callable[[], Disk], prefix: bytes) -> None:
        self._disk = disk
        self._prefix = prefix
        self._first: bytes | None = None
        self.count = 0
        """How many entries there are."""

    def added(self, times: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, one at least, which the caller stores, without values."""
        entries = list(map(_entry, repeat(self._prefix), times, keys))
        first = min(entries)
        self.count += len(entries)
        if self._first is None or first < self._first:
            self._first = first
        return entries

    def removed(self, times: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, which the caller drops."""
        self.count -= len(keys)
        if not self.count:
            self._first = None
        return list(map(_entry, repeat(self._prefix), times, keys))

    def is_due(self, reached: int) -> bool:
        """Return whether an entry may be due at ``reached``."""
        return self._first is not None and self._first < self._after(reached)

    def bound(self, reached: int) -> int:
        """Return a time up to ``reached`` before which nothing is due."""
        if self._first is None:
            return reached
        at = len(self._prefix)
        return min(reached, times_of([self._first[at : at + AT]])[0])

    def first(self, reached: int, count: int, since: bytes | None = None) -> tuple[list[bytes], bytes | None]:
        """Return the first ``count`` keys that are due at ``reached``, by time, and where others begin; None: nowhere.

        ``since``: where to begin. What comes before others is removed by the caller, before the next call.
        """
        start = self._first if since is None else since
        end, found, rest = self._after(reached), list[bytes](), None
        if start is None or start >= end:
            return found, start
        for entry, _ in self._disk().scan(self._prefix, first=start):
            if entry >= end or len(found) == count:
                rest = entry
                break
            found.append(entry[len(self._prefix) + AT :])
        if self._first is not None and self._first >= start:
            self._first = rest
        return found, rest

    def _after(self, reached: int) -> bytes:
        """Return what comes after the entries that are due at ``reached``."""
        return self._prefix + stored_times([reached])[0] + b"\xff" * 8


def _entry(prefix: bytes, time: bytes, key: bytes) -> bytes:
    return prefix + time + key
