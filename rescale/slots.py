"""From keys to slots: slot = stable hash modulo the number of slots (F3).

Rule: the row path, the integer path and the Arrow path give the same slot for equal keys (F4), and nothing is hashed
twice that a bounded cache still knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError
from malstrom_py.rescale.key_check import check_key, check_keys
from malstrom_py.rescale.key_hash import GOLDEN, MIX_1, MIX_2, hash_and_size, hash_key
from malstrom_py.rescale.slot_cache import SlotCache

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SLOTS_MAX: Final = 1 << 20

_VECTOR_MIN: Final = 16
"""Fewer integers than this are hashed one by one: the calls into numpy would cost more."""


def slot_of(key: object, slots: int, *, step: str = "") -> int:
    """The slot of ``key``, from 0 to ``slots - 1``; `CodecError` if it is no legal key.

    The same in every process, on every machine and in every Python version. ``docs/key-hash.md`` defines it and
    gives test vectors.

    >>> slot_of("user-0001", 1024), slot_of(1, 1024) == slot_of(1.0, 1024) == slot_of(True, 1024)
    (365, True)
    """
    check_slots(slots)
    check_key(key, step)
    return hash_key(key) % slots


def slots_of(keys: Sequence[Any], slots: int, *, step: str = "") -> list[int]:
    """The slots of many keys, as by `slot_of`.

    >>> slots_of(["user-0001", 1, 2], 8) == [slot_of("user-0001", 8), slot_of(1, 8), slot_of(2, 8)]
    True
    """
    return StableSlots(slots, step=step).slots_of(keys)


def slots_of_arrow(keys: pa.Array[Any] | pa.ChunkedArray[Any], slots: int, *, step: str = "") -> pa.Array[Any]:
    """The slots of a column of keys, as by `slot_of` of their Python values: uint32, without nulls.

    A null is the key None, and a timestamp without a zone a naive datetime.

    >>> import pyarrow as pa
    >>> slots_of_arrow(pa.array(["ant", None]), 1024).to_pylist() == slots_of(["ant", None], 1024)
    True
    """
    return StableSlots(slots, step=step).slots_of_arrow(keys)


def check_slots(slots: object) -> None:
    """`PlanError` unless ``slots`` is a legal number of slots."""
    if not isinstance(slots, int) or not 1 <= slots <= SLOTS_MAX:
        raise PlanError(f"slots is a whole number from 1 to {SLOTS_MAX}, got {slots!r}")


class StableSlots:
    """The default partitioner at work for one step: `slot_of` for a fixed number of slots, with a cache.

    Strings are hashed once per distinct value, as far as the cache holds them; integers are cheaper to hash in
    one vector, where numpy is installed.
    """

    def __init__(self, slots: int, *, step: str = "") -> None:
        check_slots(slots)
        self._slots = slots
        self._step = step
        self._cache = SlotCache(self._find)

    def slot_of(self, key: Any) -> int:
        """The slot of one key; `CodecError` if it is no legal key."""
        check_key(key, self._step)
        return self._cache.slot_of(key)

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        """The slots of ``keys``, one each, in order; `CodecError` if one is no legal key."""
        types = check_keys(keys, self._step)
        if len(keys) >= _VECTOR_MIN and types <= {int, bool}:
            vector = _vector_of(keys)
            if vector is not None:
                slots: list[int] = mod_hashes(vector, self._slots).tolist()
                return slots
        return self._cache.slots_of(keys)

    def _find(self, key: Any) -> tuple[int, int]:
        hashed, size = hash_and_size(key)
        return hashed % self._slots, size

    def slots_of_arrow(self, keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
        """The slots of a column of keys, as an array of uint32 without nulls; a null is the key None."""
        from malstrom_py.rescale.arrow_slots import slots_of_arrow as of_arrow

        vector = partial(mod_hashes, slots=self._slots)
        return of_arrow(keys, slots_of=self.slots_of, slots_of_vector=vector, step=self._step)


def mod_hashes(numbers: np.ndarray[Any, np.dtype[np.int64]], slots: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The slots of a vector of int64: `mix64` of each, modulo ``slots``."""
    import numpy as np

    z = numbers.view(np.uint64) + np.uint64(GOLDEN)
    z ^= z >> np.uint64(30)
    z *= np.uint64(MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(MIX_2)
    z ^= z >> np.uint64(31)
    return z % np.uint64(slots)


def _vector_of(keys: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Integers as a vector of int64; None if one does not fit, or if there is no numpy."""
    try:
        import numpy as np

        return np.array(keys, dtype=np.int64)
    except (OverflowError, ImportError):
        return None
