"""Columns of values as numpy arrays, and back: those that arrays add and compare as Python does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.state.group_index import NotColumnar

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any
"""A numpy array."""

_EXACT: Final = 2**53

_SCANNED: Final = 1 << 18
"""As many flags are looked at together."""


class Values(NamedTuple):
    """A column as numpy: ``data`` of int64 or float64, ``valid`` or None if all are, and the type of its results.

    ``seen``: of sums, how many values each is of.
    """

    data: Array
    valid: Array | None
    type: pa.DataType | None
    seen: Array | None = None

    @property
    def any(self) -> bool:
        """Whether there is a value that is not null."""
        return len(self.data) > 0 and (self.valid is None or bool(self.valid.any()))


def numbers_of(given: pa.Array | None) -> Values:
    """Return a column that can be added: ints, bools, which are 0 and 1, and floats."""
    import pyarrow as pa

    column: Any = _whole(given)
    kind = kind_of(column.type)
    if kind is ColumnKind.BOOL:
        return _values(column.cast(pa.int64()), pa.int64())
    if kind not in {ColumnKind.INT, ColumnKind.FLOAT, ColumnKind.NULL}:
        raise NotColumnar(f"sums of {column.type}")
    return comparable(column)


def comparable(given: pa.Array | None) -> Values:
    """Return a column whose values arrays compare as Python does."""
    import pyarrow as pa

    column: Any = _whole(given)
    type_ = column.type
    kind = kind_of(type_)
    if kind is ColumnKind.NULL:
        return _values(column.cast(pa.int64()), None)
    if kind is ColumnKind.INT:
        try:
            return _values(column.cast(pa.int64()), pa.int64())
        except pa.ArrowInvalid:
            raise NotColumnar("an integer beyond 64 bits") from None
    if type_ in {pa.float32(), pa.float64()}:
        return _values(column.cast(pa.float64()), pa.float64())
    if kind is ColumnKind.BOOL:
        return _values(column.cast(pa.int64()), type_)
    if str(type_) in _TIMES:
        return _times(column)
    raise NotColumnar(f"values of {type_}")


_YEAR_1_DAYS: Final = -719_162
_YEAR_10000_DAYS: Final = 2_932_897
# Times that Python compares as their numbers are: within one zone it compares clock times, so that UTC alone is taken.
_TIMES: Final = {
    f"timestamp[{unit}{zone}]": 86_400 * per_second
    for unit, per_second in (("s", 1), ("ms", 1_000), ("us", 1_000_000))
    for zone in ("", ", tz=UTC")
} | {"date32[day]": 1}


def _times(column: pa.Array) -> Values:
    """Return times as numbers. `NotColumnar` if one is beyond the years 1 to 9999."""
    import pyarrow as pa

    type_ = column.type
    per_day = _TIMES[str(type_)]
    values = _values(column.cast(pa.int32() if per_day == 1 else pa.int64()).cast(pa.int64()), type_)
    if values.any:
        known = values.data if values.valid is None else values.data[values.valid]
        if known.min() < _YEAR_1_DAYS * per_day or known.max() >= _YEAR_10000_DAYS * per_day:
            raise NotColumnar("a time beyond the years 1 to 9999")
    return values


def _whole(given: pa.Array | None) -> pa.Array:
    import pyarrow as pa

    if given is None:
        raise NotColumnar("no column of values")
    column: Any = given
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _values(column: pa.Array, type_: pa.DataType | None) -> Values:
    valid = validity(column)
    return Values((column if valid is None else column.fill_null(0)).to_numpy(zero_copy_only=False), valid, type_)


def validity(column: pa.Array) -> Array | None:
    """Return a flag per value, false where it is null; None if all are true."""
    if not column.null_count:
        return None
    return column.is_valid().to_numpy(zero_copy_only=False)


def dtype_of(type_: pa.DataType) -> str:
    """Return the numpy type of a column's ``data``."""
    return "float64" if kind_of(type_) is ColumnKind.FLOAT else "int64"


def arrow_of(data: Array, valid: Array | None, type_: pa.DataType | None) -> pa.Array:
    """Return ``data`` as a column of ``type_``; None: int64 or float64."""
    import pyarrow as pa

    column = pa.array(data, mask=None if valid is None or valid.all() else ~valid)
    if type_ is None or type_ == column.type:
        return column
    if pa.types.is_boolean(type_):
        return column.cast(type_)
    return (column.cast(pa.int32()) if pa.types.is_date32(type_) else column).view(type_)


def divided(totals: Array, seen: Array) -> pa.Array:
    """Divide as Python does: also the ints that are not floats, whose quotient is rounded once."""
    import numpy as np

    with np.errstate(all="ignore"):
        results = totals / seen
    if totals.dtype.kind == "i" and len(totals) and largest_of(totals) >= _EXACT:
        for place in np.flatnonzero((np.abs(totals) > _EXACT) & (seen > 0)).tolist():
            results[place] = int(totals[place]) / int(seen[place])
    return arrow_of(results, seen > 0, None)


def is_odd(values: Array) -> bool:
    """Return whether there is NaN or -0.0, for which numpy has other rules than Python."""
    import numpy as np

    if values.dtype.kind != "f":
        return False
    return bool(np.isnan(values).any() or (np.signbit(values) & (values == 0)).any())


def largest_of(totals: Array) -> float:
    """Return the largest distance from 0 of at least one integer."""
    return float(max(-float(totals.min()), float(totals.max())))


def number_column(values: list[Any]) -> pa.Array:
    """Return Python ``values`` as a column: ints, floats or bools, and None. `NotColumnar` if no array holds them."""
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 or kinds - {int, float, bool}:
        raise NotColumnar("values of several types, or of one that no array holds")
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        raise NotColumnar("an integer beyond 64 bits") from None


def longer(array: Array, capacity: int, absent: Any) -> Array:
    """Return ``array`` with ``capacity`` entries, the new ones ``absent``."""
    import numpy as np

    # Memory of zeros is not there before it is used: half of what grows by half is not.
    longer = np.full(capacity, absent, array.dtype) if absent else np.zeros(capacity, array.dtype)
    longer[: len(array)] = array
    return longer


def swept(flags_of: Callable[[], Array | None], end: int, ids_max: int) -> Iterator[Array]:
    """Clear the flags of ids below ``end``, ascending, and yield the ids that had one, ``ids_max`` together, each once.

    ``flags_of`` returns the flags by id, or None once ids are of other keys, which ends this. An id that gets its flag
    during that time is yielded, or keeps it.

    >>> import numpy as np
    >>> flags = np.array([True, False, True, True, True])
    >>> [ids.tolist() for ids in swept(lambda: flags, 4, 2)], flags.tolist()
    ([[0, 2], [3]], [False, False, False, False, True])
    """
    import numpy as np

    start = 0
    while start < end and (flags := flags_of()) is not None:
        found, room = list[Array](), ids_max
        while room and start < end:
            until = min(start + _SCANNED, end)
            some = start + flags[start:until].nonzero()[0][:room]
            room -= len(some)
            start = until if room else int(some[-1]) + 1
            found.append(some)
        ids = np.concatenate(found)
        flags[ids] = False
        if len(ids):
            yield ids
