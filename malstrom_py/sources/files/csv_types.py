"""The types of csv columns: those a user may name, and when what looks like numbers is text.

A type that is found by itself never loses anything of what it was found by: identifiers beyond 64 bits would become
floats and then equal, ``00501`` would become 501.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from malstrom_py.errors import PlanError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

ColumnType = Literal["bool", "date", "float64", "int64", "str", "time", "timestamp", "timestamp_utc"]
COLUMN_TYPES: Final[tuple[ColumnType, ...]] = get_args(ColumnType)


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a name in `COLUMN_TYPES`.

    >>> arrow_type("timestamp_utc")
    TimestampType(timestamp[us, tz=UTC])
    """
    import pyarrow as pa

    types = {
        "bool": pa.bool_(),
        "date": pa.date32(),
        "float64": pa.float64(),
        "int64": pa.int64(),
        "str": pa.string(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"),
        "timestamp_utc": pa.timestamp("us", "UTC"),
    }
    return types[name]


def check_types(types: object) -> dict[str, ColumnType]:
    """The ``types`` a user gave; `PlanError` unless they are column names -> names of `COLUMN_TYPES`."""
    if types is None:
        return {}
    if not isinstance(types, Mapping) or not all(isinstance(name, str) for name in types):
        raise PlanError('sources.Files: types is a dict, column -> type, for instance types={"zip": "str"}')
    for name, kind in types.items():
        if kind not in COLUMN_TYPES:
            shown = repr(kind) if isinstance(kind, str) else f"a {type(kind).__name__}"
            raise PlanError(f"sources.Files: the type of {name!r} is one of {', '.join(COLUMN_TYPES)}, got {shown}")
    return dict(types)


def with_types(part: str, schema: pa.Schema, types: Mapping[str, ColumnType]) -> pa.Schema:
    """``schema`` of the file ``part`` with the given ``types``; `SourceError` if it lacks one of their columns."""
    import pyarrow as pa

    if missing := sorted(set(types).difference(schema.names)):
        raise SourceError(f"{part} has no column {', '.join(map(repr, missing))}, as types= says: correct types=")
    return pa.schema(
        [(field.name, arrow_type(types[field.name]) if field.name in types else field.type) for field in schema]
    )


def number_like_text(column: pa.ChunkedArray) -> bool:
    """Whether whole numbers have leading zeros or, where all are whole, one does not fit 64 bits.

    >>> import pyarrow as pa
    >>> number_like_text(pa.chunked_array([["00501", "1"]])), number_like_text(pa.chunked_array([["501", "0.5"]]))
    (True, False)
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made while it is imported, so that no checker knows them
    if pc.any(pc.match_substring_regex(column, r"^\s*[+-]?0[0-9]+\s*$")).as_py():
        return True
    if not pc.all(pc.match_substring_regex(column, r"^\s*[+-]?[0-9]+\s*$")).as_py():
        return False
    long = column.filter(pc.greater_equal(pc.binary_length(column), 19)).to_pylist()
    return any(len(text.strip()) > 20 or not -(1 << 63) <= int(text) < 1 << 63 for text in long)
