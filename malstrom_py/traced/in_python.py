"""Columns as they would be if their values had been Python's: the types that steps and sinks see after a function.

Rule: a value that Python cannot hold, or a type of which it is not known here, is `Unproven`: rows say what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.row_form import is_within_datetime
from malstrom_py.data.schema import ColumnKind, kind_of, type_of
from malstrom_py.traced.nodes import Kind

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS: Final = (ColumnKind.BOOL, ColumnKind.INT, ColumnKind.FLOAT)
_TIMES: Final = (ColumnKind.NAIVE, ColumnKind.ZONED, ColumnKind.DATE)
_PLAIN: Final[Mapping[Kind, type]] = {"bool": bool, "int": int, "float": float, "str": str}
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


class Unproven(Exception):
    """These rows must be done by the function."""


def kinds_of(schema: pa.Schema) -> dict[str, Kind]:
    """Return the kinds of the columns of ``schema``."""
    return {field.name: kind_in_python(field.type) for field in schema}


def kind_in_python(type_: pa.DataType) -> Kind:
    """Return the kind of the values of a column."""
    import pyarrow as pa

    of = pa.types
    if of.is_dictionary(type_):
        return "str" if kind_in_python(type_.value_type) == "str" else "other"
    if of.is_integer(type_):
        return "int"
    if of.is_float32(type_) or of.is_float64(type_):
        return "float"
    if of.is_boolean(type_):
        return "bool"
    if of.is_string(type_) or of.is_large_string(type_) or of.is_string_view(type_):
        return "str"
    if of.is_timestamp(type_) and type_.tz is None and type_.unit != "ns":
        return "time"
    return "date" if of.is_date32(type_) else "other"


def check_held(columns: pa.RecordBatch) -> None:
    """Raise `Unproven` if Python may not hold a value of ``columns``."""
    for column in columns.columns:
        _check(column)


def in_python_types(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``columns`` in the types of their values. Raises `Unproven`, or what Arrow raises."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([in_python_type(one) for one in columns.columns], names=columns.schema.names)


def in_python_type(column: pa.Array) -> pa.Array:
    """Return ``column`` in the type of its values. Raises `Unproven`, or what Arrow raises.

    >>> import pyarrow as pa
    >>> in_python_type(pa.array([1, None], pa.int8())).type
    DataType(int64)
    """
    _check(column)
    kind = kind_of(column.type)
    if column.null_count == len(column) or kind in (ColumnKind.DECIMAL, ColumnKind.BYTES):
        raise Unproven  # the type of None alone is known by other batches, that of a decimal by its digits
    wanted = type_of(ColumnKind.STR if kind is ColumnKind.ENCODED else kind)
    return column if column.type == wanted else column.cast(wanted)


def column_like(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return Python ``values`` as a column of ``type_``. Raises `Unproven`, or what Arrow raises, if it differs.

    >>> import pyarrow as pa
    >>> column_like([1, None], pa.int64()).to_pylist()
    [1, None]
    """
    import pyarrow as pa

    of = _PLAIN.get(kind_in_python(type_))
    if of is None or pa.types.is_float32(type_) or not set(map(type, values)) <= {of, NoneType}:
        raise Unproven
    return pa.array(values, type_)


def _is_ascii(column: pa.Array) -> bool:
    """Return whether all bytes of text are below 128, which is UTF-8. False for views, whose bytes are elsewhere."""
    import numpy as np
    import pyarrow as pa

    if not len(column) or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return False
    _, offsets, data = column.buffers()
    if data is None:
        return True
    ends = np.frombuffer(offsets, np.int32 if pa.types.is_string(column.type) else np.int64)
    first, last = ends[column.offset], ends[column.offset + len(column)]
    return bool(np.frombuffer(data, np.uint8)[first:last].max(initial=0) < 128)


def _check(column: pa.Array) -> None:
    import pyarrow as pa

    kind = kind_of(column.type)
    if kind is ColumnKind.ENCODED and isinstance(column, pa.DictionaryArray):
        kind, column = kind_of(column.dictionary.type), column.dictionary
        if kind is not ColumnKind.STR:
            raise Unproven
    if kind is ColumnKind.STR:
        if not _is_ascii(column):  # a tenth of the time
            column.validate(full=True)
    elif kind in _TIMES:
        is_date = pa.types.is_date32(column.type)
        if not is_date and (column.type.unit not in _PER_SECOND or column.type.tz not in (None, "UTC")):
            raise Unproven
        if not is_within_datetime(column, *((1, 86_400) if is_date else (_PER_SECOND[column.type.unit],))):
            raise Unproven
    elif kind not in _NUMBERS and kind not in (ColumnKind.DECIMAL, ColumnKind.BYTES):
        raise Unproven
    if pa.types.is_float16(column.type):
        raise Unproven
