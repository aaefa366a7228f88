"""Slots of a column of keys in Arrow: the same as of its Python values (F4).

Rule: integers are hashed as a vector; of anything else only the distinct values become Python values, and take the
row path. So there is one hash, and a column costs as many hashes as it has distinct values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import CodecError

if TYPE_CHECKING:
    import pyarrow as pa

SlotsOf = Callable[[Sequence[Any]], list[int]]
SlotsOfVector = Callable[[Any], Any]
"""A numpy vector of int64 -> its slots, as a vector of any integers."""


def slots_of_arrow(
    keys: pa.Array[Any] | pa.ChunkedArray[Any],
    *,
    slots_of: SlotsOf,
    slots_of_vector: SlotsOfVector | None,
    step: str = "",
) -> pa.Array[Any]:
    """The slots of ``keys`` as an array of uint32 without nulls; a null is the key None.

    ``slots_of`` answers for Python values and ``slots_of_vector`` for integers, where it is given.
    """
    import pyarrow as pa

    if isinstance(keys, pa.ChunkedArray):
        chunks = [
            slots_of_arrow(chunk, slots_of=slots_of, slots_of_vector=slots_of_vector, step=step)
            for chunk in keys.chunks
        ]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.uint32())
    if slots_of_vector is not None and pa.types.is_integer(keys.type):
        vector = _int64_of(keys)
        if vector is not None:
            slots = pa.array(slots_of_vector(vector).astype("uint32"))
            return slots if not keys.null_count else _with_nulls(slots, keys, slots_of)
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
    """A column of integers as a vector of int64, nulls as 0; None if one does not fit, or without numpy."""
    import pyarrow as pa

    try:
        return keys.fill_null(0).cast(pa.int64()).to_numpy()
    except (pa.ArrowInvalid, ImportError):
        return None


def _with_nulls(slots: pa.Array[Any], keys: pa.Array[Any], slots_of: SlotsOf) -> pa.Array[Any]:
    """``slots`` with that of None wherever ``keys`` has a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    null_slot = pa.scalar(slots_of([None])[0], pa.uint32())
    return pc.call_function("if_else", [keys.is_valid(), slots, null_slot])


def _distinct_of(keys: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]] | None:
    """The distinct values of a column, and where among them each row's value stands (null: nowhere).

    None for a type of which Arrow does not know what is distinct.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(keys, pa.DictionaryArray):
        # Only what a row uses: the rest of a dictionary may be large, or no legal key.
        used = keys.indices.drop_null().unique()
        among = pc.SetLookupOptions(value_set=used)
        return keys.dictionary.take(used), pc.call_function("index_in", [keys.indices], among)
    if keys.type in (pa.string_view(), pa.binary_view()):  # Arrow does not take from views
        keys = keys.cast(pa.large_string() if keys.type == pa.string_view() else pa.large_binary())
    try:
        encoded = keys.dictionary_encode()
    except (pa.ArrowNotImplementedError, AttributeError):
        return None
    return encoded.dictionary, encoded.indices.cast(pa.int64())


def _python_values(keys: pa.Array[Any], step: str) -> list[Any]:
    """The values of a column as Python's own types. Nanoseconds would come as types of pandas, where that is
    installed; so they come in microseconds, or not at all."""
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
            f"{where}a key of Arrow type {keys.type} is none of Python's values (finer than a microsecond, beyond the "
            f"years 1 to 9999, in an unknown zone, or not UTF-8): cast the column before it is used as key.",
            step=step,
            type_name=str(keys.type),
        ) from None
    return values


def _array(slots: Sequence[int]) -> pa.Array[Any]:
    import pyarrow as pa

    return pa.array(slots, pa.uint32())
