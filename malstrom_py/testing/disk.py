"""A disk for state in tests: a dict, so that a run is the same each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from malstrom_py.state.disk import Written


class MemoryDisk:
    """A `Disk` in memory.

    >>> disk = MemoryDisk()
    >>> disk.write([(b"b1", b"one"), (b"b2", b"two"), (b"c1", b"three")], [b"a"])
    >>> disk.get([b"b1", b"d"]), list(disk.scan(b"b"))
    ([b'one', None], [(b'b1', b'one'), (b'b2', b'two')])
    """

    def __init__(self) -> None:
        self._stored: dict[bytes, bytes] = {}

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self._stored.get, keys))

    def write(self, put: Written, dropped: Sequence[bytes] = ()) -> None:
        self._stored.update(put)
        for key in dropped:
            self._stored.pop(key, None)

    def scan(self, *prefixes: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        there = sorted(entry for entry in self._stored.items() if entry[0] >= first)
        return chain.from_iterable([entry for entry in there if entry[0].startswith(prefix)] for prefix in prefixes)

    def close(self) -> None:
        self._stored.clear()
