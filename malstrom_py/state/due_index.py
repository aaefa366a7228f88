"""The keys of a disk by the time at which they are due.

Rule: what is known in memory is where the first entry is at the earliest. So a time at which nothing is due costs a
comparison, and a search passes no entries that were removed before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from malstrom_py.state.disk import Disk

AT: Final = 8
"""So many bytes has a time, and they are in its order."""

_ZERO: Final = 1 << 63
_MOST: Final = (1 << 64) - 1


def stored_time(time: int) -> bytes:
    """Return the bytes of a time: of one beyond 64 bits those of the last before.

    >>> stored_time(-1) < stored_time(0) < stored_time(1 << 62) < stored_time(1 << 70) == stored_time((1 << 63) - 1)
    True
    """
    return min(max(time + _ZERO, 0), _MOST).to_bytes(AT, "big")


def time_of(stored: bytes) -> int:
    """Return the time of which these are the bytes."""
    return int.from_bytes(stored, "big") - _ZERO


class DueIndex:
    """An index in ``disk``, whose entries begin with ``prefix``, then have the time and the key.

    >>> from malstrom_py.testing.disk import MemoryDisk
    >>> disk = MemoryDisk()
    >>> index = DueIndex(lambda: disk, b"i")
    >>> disk.write([(index.added(stored_time(time), key), b"") for time, key in [(7, b"b"), (5, b"a"), (9, b"c")]])
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

    def added(self, time: bytes, key: bytes) -> bytes:
        """Return the entry of a key, which the caller stores, without a value."""
        entry = self._prefix + time + key
        self.count += 1
        if self._first is None or entry < self._first:
            self._first = entry
        return entry

    def removed(self, time: bytes, key: bytes) -> bytes:
        """Return the entry of a key, which the caller drops."""
        self.count -= 1
        if not self.count:
            self._first = None
        return self._prefix + time + key

    def is_due(self, reached: int) -> bool:
        """Return whether an entry may be due at ``reached``."""
        return self._first is not None and self._first < self._after(reached)

    def bound(self, reached: int) -> int:
        """Return a time up to ``reached`` before which nothing is due."""
        if self._first is None:
            return reached
        at = len(self._prefix)
        return min(reached, time_of(self._first[at : at + AT]))

    def first(self, reached: int, count: int, since: bytes | None = None) -> tuple[list[bytes], bytes | None]:
        """Return the first ``count`` keys that are due at ``reached``, by time, and where others begin; None: nowhere.

        ``since``: where to begin. What comes before others is removed by the caller, before the next call.
        """
        start = self._first if since is None else since
        end, found, rest = self._after(reached), list[bytes](), None
        if start is None or start >= end:
            return found, start
        for entry, _ in self._disk().scan(self._prefix, start):
            if entry >= end or len(found) == count:
                rest = entry
                break
            found.append(entry[len(self._prefix) + AT :])
        if self._first is not None and self._first >= start:
            self._first = rest
        return found, rest

    def _after(self, reached: int) -> bytes:
        """Return what comes after the entries that are due at ``reached``."""
        return self._prefix + stored_time(reached) + b"\xff" * 8
