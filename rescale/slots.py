"""From keys to slots: slot = stable hash modulo the number of slots (F3), of rows and of Arrow columns.

Rule: rows and columns of every type return the same slot for equal keys (F4). Keys of the usual types are hashed each
time, by the accelerator: that takes less time than to look them up, and no memory. Of columns of other types only the
distinct values become Python values. Those, and keys of rows that the accelerator does not take, are hashed once
(`SlotCache`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py import accelerator
from malstrom_py.data.batch import picker
from malstrom_py.data.equality import settled_of_column
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import CodecError, PlanError
from malstrom_py.rescale.keys.key_hash import GOLDEN, MIX_1, MIX_2, hash_and_size, hash_key
from malstrom_py.rescale.keys.key_types import check_key, check_keys
from malstrom_py.state.group_index import NotColumnar, plain_keys

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

KEYS_MAX: Final = 1 << 20
BYTES_MAX: Final = 128 << 20
KEY_BYTES_MAX: Final = 4096
"""Larger keys are not cached, so that a few large keys do not evict all others."""
_TAGS: Final = {ColumnKind.STR: 0x05, ColumnKind.BYTES: 0x06}
"""The tag of each kind in the canonical form of a key."""


SlotsOf = Callable[[Sequence[Any]], list[int]]


class SlotCache:
    """A cache of ``find(key) -> (slot, size of the key in bytes)``.

    The key itself is the dictionary key, because equal keys of different types share a slot (F4); so the keys must have
    been checked. At its bound the cache is cleared, which costs less than to track the last use of each key.

    >>> slots = SlotCache(lambda key: (len(key), 50))
    >>> slots.slots_of(["a", "bc", "a"])
    [1, 2, 1]
    """

    def __init__(
        self,
        find: Callable[[Any], tuple[int, int]],
        *,
        keys_max: int = KEYS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._find = find
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._known: dict[Any, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def slot_of(self, key: Any) -> int:
        """Return the slot of one key."""
        slot = self._known.get(key)
        return self._learn(key) if slot is None else slot

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        """Return the slots of ``keys``, one each, in order."""
        try:
            return list(picker(keys)(self._known))
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


def text_slots(keys: pa.Array[Any], slots: int) -> Any:
    """Return the slot of each of ``keys``, text or bytes, as a vector of uint32.

    Return None for text that is not UTF-8, for other types, and without the accelerator.
    """
    import numpy as np
    import pyarrow as pa

    native: Any = accelerator.library()
    kind = kind_of(keys.type)
    if native is None or kind not in _TAGS:
        return None
    try:
        keys, _ = plain_keys(keys, None)
    except NotColumnar:
        return None
    found = np.empty(len(keys), np.uint32)
    if len(keys):
        valid, offsets, data = (None if buffer is None else buffer.address for buffer in keys.buffers())
        where = (data, offsets, keys.type in (pa.large_string(), pa.large_binary()), valid, keys.offset, len(keys))
        if native.ms_text_slots(_TAGS[kind], *where, slots, hash_key(None) % slots, found.ctypes.data):
            return None
    return found


SlotsOfVector = Callable[[Any], Any]
"""A function from a numpy vector of int64 to its slots, as a vector of integers."""


def column_slots(
    keys: pa.Array[Any] | pa.ChunkedArray[Any],
    *,
    slots_of: SlotsOf,
    slots_of_vector: SlotsOfVector | None,
    slots_of_text: Callable[[pa.Array[Any]], Any] | None = None,
    step: str = "",
) -> pa.Array[Any]:
    """Return the slots of ``keys`` as an array of uint32 without nulls; a null is the key None.

    ``slots_of`` maps Python values; ``slots_of_vector``, if given, integers, and ``slots_of_text`` columns of text and
    bytes to a vector, or to None if it cannot.
    """
    import pyarrow as pa

    if isinstance(keys, pa.ChunkedArray):
        of_chunk = partial(
            column_slots, slots_of=slots_of, slots_of_vector=slots_of_vector, slots_of_text=slots_of_text
        )
        chunks = [of_chunk(chunk, step=step) for chunk in keys.chunks]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.uint32())
    if slots_of_vector is not None and pa.types.is_integer(keys.type):
        vector = _int64_of(keys)
        if vector is not None:
            slots = pa.array(slots_of_vector(vector).astype("uint32"))
            return slots if not keys.null_count else _with_nulls(slots, keys, slots_of)
    if slots_of_text is not None and (found := slots_of_text(keys)) is not None:
        return pa.array(found)
    encoded = _distinct_of(keys)
    if encoded is None:
        return _array(slots_of(_python_values(keys, step)))
    distinct, positions = encoded
    values = _python_values(distinct, step)
    if positions.null_count:
        positions = positions.fill_null(len(values))
        values.append(None)
    return _array(slots_of(values)).take(positions)


def _int64_of(keys: pa.Array[Any]) -> Any:
    """Return a column of integers as a vector of int64, nulls as 0; None if one does not fit."""
    import pyarrow as pa

    try:
        return (keys.fill_null(0) if keys.null_count else keys).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None


def _with_nulls(slots: pa.Array[Any], keys: pa.Array[Any], slots_of: SlotsOf) -> pa.Array[Any]:
    """Return ``slots`` with the slot of None wherever ``keys`` has a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    null_slot = pa.scalar(slots_of([None])[0], pa.uint32())
    return pc.call_function("if_else", [keys.is_valid(), slots, null_slot])


def _distinct_of(keys: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]] | None:
    """Return the distinct values of a column and each row's index into them (null for a null).

    Return None for a type whose distinct values Arrow cannot find.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(keys, pa.DictionaryArray):
        # Only the used entries: the other entries of a dictionary may be many, or not legal keys.
        used = keys.indices.drop_null().unique()
        among = pc.SetLookupOptions(value_set=used)
        return keys.dictionary.take(used), pc.call_function("index_in", [keys.indices], among)
    try:
        encoded = _takeable(keys).dictionary_encode()
    except (pa.ArrowNotImplementedError, AttributeError):
        return None
    return encoded.dictionary, encoded.indices.cast(pa.int64())


def _takeable(keys: pa.Array[Any]) -> pa.Array[Any]:
    """Return ``keys``, views as plain text or bytes: Arrow does not take from views."""
    import pyarrow as pa

    if keys.type in (pa.string_view(), pa.binary_view()):
        return keys.cast(pa.large_string() if keys.type == pa.string_view() else pa.large_binary())
    return keys


def _python_values(keys: pa.Array[Any], step: str) -> list[Any]:
    """Return the values of a column as Python's own types.

    Nanoseconds are cast to microseconds, because with pandas installed they would be pandas types.
    """
    import pyarrow as pa

    try:
        if pa.types.is_timestamp(keys.type) and keys.type.unit == "ns":
            keys = keys.cast(pa.timestamp("us", keys.type.tz))
        elif pa.types.is_duration(keys.type) and keys.type.unit == "ns":
            keys = keys.cast(pa.duration("us"))
        elif pa.types.is_time64(keys.type) and keys.type.unit == "ns":
            keys = keys.cast(pa.time64("us"))
        values: list[Any] = keys.to_pylist()
    except (ValueError, OverflowError, LookupError):
        # Without the cause: Arrow's message quotes the value.
        where = f"step {step!r}: " if step else ""
        raise CodecError(
            f"{where}a key of Arrow type {keys.type} has no Python value (finer than a microsecond, outside the years "
            f"1 to 9999, in an unknown zone, or not UTF-8): cast the column before it is used as key.",
            step=step,
            type_name=str(keys.type),
        ) from None
    return settled_of_column(values, str(keys.type))


def _array(slots: Sequence[int]) -> pa.Array[Any]:
    import pyarrow as pa

    return pa.array(slots, pa.uint32())


SLOTS_MAX: Final = 1 << 20


def slot_of(key: object, slots: int, *, step: str = "") -> int:
    """Return the slot of ``key``, from 0 to ``slots - 1``; `CodecError` if the key is not legal.

    The slot is the same in every process, on every machine and in every Python version. ``docs/key-hash.md`` defines
    it and has test vectors.

    >>> slot_of("user-0001", 1024), slot_of(1, 1024) == slot_of(1.0, 1024) == slot_of(True, 1024)
    (365, True)
    """
    check_slots(slots)
    check_key(key, step)
    return hash_key(key) % slots


def slots_of(keys: Sequence[Any], slots: int, *, step: str = "") -> list[int]:
    """Return the slots of many keys, as by `slot_of`.

    >>> slots_of(["user-0001", 1, 2], 8) == [slot_of("user-0001", 8), slot_of(1, 8), slot_of(2, 8)]
    True
    """
    return StableSlots(slots, step=step).slots_of(keys)


def slots_of_arrow(keys: pa.Array[Any] | pa.ChunkedArray[Any], slots: int, *, step: str = "") -> pa.Array[Any]:
    """Return the slots of a column of keys, as by `slot_of` of their Python values: uint32, without nulls.

    A null is the key None, and a timestamp without a zone is a naive datetime.

    >>> import pyarrow as pa
    >>> slots_of_arrow(pa.array(["ant", None]), 1024).to_pylist() == slots_of(["ant", None], 1024)
    True
    """
    return StableSlots(slots, step=step).slots_of_arrow(keys)


def check_slots(slots: object) -> None:
    """Raise `PlanError` unless ``slots`` is a legal number of slots."""
    if not isinstance(slots, int) or not 1 <= slots <= SLOTS_MAX:
        raise PlanError(f"slots must be a whole number from 1 to {SLOTS_MAX}, got {slots!r}")


class CheckedKeys:
    """The base of partitioners that are bound to a step and to a number of slots: checks that keys are legal (F4)."""

    def __init__(self, slots: int, *, step: str = "") -> None:
        check_slots(slots)
        self._slots = slots
        self._step = step
        self._trusts_keys = False

    def trust_keys(self) -> None:
        """Check no keys from now on: they were checked where they were made."""
        self._trusts_keys = True

    def _check(self, keys: Sequence[Any]) -> None:
        if not self._trusts_keys:
            check_keys(keys, self._step)


class StableSlots(CheckedKeys):
    """The default partitioner of one step: `slot_of` for a fixed number of slots."""

    def __init__(self, slots: int, *, step: str = "") -> None:
        super().__init__(slots, step=step)
        self._cache = SlotCache(partial(_slot_and_size, slots=slots))  # a bound method would keep the cache in a cycle

    def slot_of(self, key: Any) -> int:
        """Return the slot of one key; `CodecError` if it is not legal."""
        check_key(key, self._step)
        return self._cache.slot_of(key)

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        """Return the slots of ``keys``, one each, in order; `CodecError` if one is not legal."""
        vector = self.slot_vector(keys)
        return self._cache.slots_of(keys) if vector is None else vector.tolist()

    def slot_vector(self, keys: Sequence[Any]) -> memoryview | None:
        """Return the slots of ``keys`` as uint32; None without the accelerator. `CodecError` if one is not legal."""
        self._check(keys)
        native = accelerator.rows()
        if native is None:
            return None
        listed = keys if isinstance(keys, list) else list(keys)
        return memoryview(native.slots(listed, self._slots, self._cache.slot_of)).cast("I")

    def slots_of_arrow(self, keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
        """Return the slots of a column of keys, as an array of uint32 without nulls; a null is the key None."""
        return column_slots(
            keys,
            slots_of=self.slots_of,
            slots_of_vector=partial(mod_hashes, slots=self._slots),
            slots_of_text=partial(text_slots, slots=self._slots),
            step=self._step,
        )


def _slot_and_size(key: Any, *, slots: int) -> tuple[int, int]:
    hashed, size = hash_and_size(key)
    return hashed % slots, size


def mod_hashes(numbers: np.ndarray[Any, np.dtype[np.int64]], slots: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the slots of a vector of int64: `mix64` of each, modulo ``slots``."""
    import numpy as np

    z = numbers.view(np.uint64) + np.uint64(GOLDEN)
    z ^= z >> np.uint64(30)
    z *= np.uint64(MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(MIX_2)
    z ^= z >> np.uint64(31)
    return z % np.uint64(slots) if slots & (slots - 1) else z & np.uint64(slots - 1)
