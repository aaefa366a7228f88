"""The keys of steps by slot, for as long as a rescale goes on: so that each move costs by the keys that leave.

Rule: it has every key that may have state, and may have others. A key gets state by a record of its own or by a parcel
alone, so the keys that were found once and those of all records since are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any


class KeyIndex:
    """The keys ``found``, which are put in little by little, and those that are seen; ``slots_of`` says where they go.

    >>> index = KeyIndex(lambda keys: [key % 4 for key in keys], {1, 2, 5})
    >>> index.put(2)
    >>> index.saw([5, 9, 1])
    >>> index.put(2)
    >>> index.left, sorted(index.of(1)), index.of(3)
    (0, [1, 5, 9], [])
    """

    def __init__(self, slots_of: Callable[[Sequence[Any]], list[int]], found: set[Any]) -> None:
        self._slots_of = slots_of
        # It knows those that it has not put in yet as well: seen again, they are not new.
        self._known = found
        self._waiting = list(found)
        self._by_slot: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def left(self) -> int:
        """How many of those that were found have not been put in."""
        return len(self._waiting)

    def put(self, count: int) -> None:
        """Put in the next ``count`` of those that were found."""
        keys = self._waiting[-count:]
        del self._waiting[-count:]
        self._put(keys)

    def saw(self, keys: Collection[Any]) -> None:
        """Put in those of ``keys`` that are new."""
        # Mostly none is, and to find that out costs one look per record.
        fresh = list(set(keys).difference(self._known))
        if fresh:
            self._known.update(fresh)
            self._put(fresh)

    def of(self, slot: int) -> list[Any]:
        """The keys of ``slot``, in no order, as far as they have been put in."""
        return self._by_slot.get(slot, [])

    def _put(self, keys: Sequence[Any]) -> None:
        by_slot = self._by_slot
        for slot, key in zip(self._slots_of(keys), keys, strict=True):
            if slot in by_slot:
                by_slot[slot].append(key)
            else:
                by_slot[slot] = [key]
