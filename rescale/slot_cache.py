"""key -> slot for the keys met lately, within bounds of number and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

KEYS_MAX: Final = 1 << 20
BYTES_MAX: Final = 128 << 20
KEY_BYTES_MAX: Final = 4096
"""Larger keys are not kept: their slot is found anew each time, so that a few of them do not drive out all others."""


class SlotCache:
    """Remembers what ``find(key) -> (slot, size of the key in bytes)`` said.

    Keyed by the key itself, for keys that are equal share a slot whatever their types (F4); so the keys must have
    been checked. At a bound it starts anew, which costs less than to keep track of what was used last.

    >>> slots = SlotCache(lambda key: (len(key), 50))
    >>> slots.slots_of(["a", "bc", "a"])
    [1, 2, 1]
    """

    def __init__(
        self, find: Callable[[Any], tuple[int, int]], *, keys_max: int = KEYS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._find = find
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._known: dict[Any, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def slot_of(self, key: Any) -> int:
        """The slot of one key."""
        slot = self._known.get(key)
        return self._learn(key) if slot is None else slot

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        """The slots of ``keys``, one each, in order."""
        try:
            return list(map(self._known.__getitem__, keys))
        except KeyError:
            known, learn = self._known, self._learn
            return [known[key] if key in known else learn(key) for key in keys]

    def _learn(self, key: Any) -> int:
        slot, size = self._find(key)
        if size <= KEY_BYTES_MAX:
            if len(self._known) >= self._keys_max or self._bytes + size > self._bytes_max:
                self._known.clear()
                self._bytes = 0
            self._known[key] = slot
            self._bytes += size
        return slot
