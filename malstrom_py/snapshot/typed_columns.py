"""Values of states as typed columns: an Arrow type where all values of a column are of one kind, else JSON text.

Rule: a column has an Arrow type if all its values have that one type and survive the conversion unchanged. The schema
therefore depends on the values, not on their order.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from malstrom_py.data.schema import ColumnKind, type_of
from malstrom_py.data.unfit_values import is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

JSON: Final = "json"
"""The kind of a column of several, or of another type."""

_KINDS: Final = {
    bool: ColumnKind.BOOL,
    int: ColumnKind.INT,
    float: ColumnKind.FLOAT,
    str: ColumnKind.STR,
    bytes: ColumnKind.BYTES,
    dt.date: ColumnKind.DATE,
}
"""Python types whose values survive the conversion to an Arrow type unchanged."""

_BATCH_ROWS: Final = 1 << 14
_INT64: Final = range(-(2**63), 2**63)


def add_kind(kinds: set[str], value: object) -> None:
    """Add the kind of ``value`` to those of its column."""
    if value is not None:
        kinds.add(_kind_of(value))


def column_kind(kinds: set[str]) -> str:
    """Return the name of a `ColumnKind`, or "json" for a column of several; "str" if there is no value."""
    return next(iter(kinds)) if len(kinds) == 1 else JSON if kinds else ColumnKind.STR.value


def arrow_schema(kinds: Mapping[str, str]) -> pa.Schema:
    """Return the schema of columns of these ``kinds``."""
    import pyarrow as pa

    return pa.schema(
        [(name, pa.string() if kind == JSON else type_of(ColumnKind(kind))) for name, kind in kinds.items()]
    )


def arrow_batch(columns: Mapping[str, Iterable[Any]], kinds: Mapping[str, str]) -> pa.RecordBatch:
    """Convert ``columns`` of values to Arrow."""
    import pyarrow as pa

    schema = arrow_schema(kinds)
    arrays = [
        pa.array([None if value is None else _in_kind(value, kind) for value in columns[name]], schema.field(name).type)
        for name, kind in kinds.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_table(rows: Callable[[], Iterable[Mapping[str, Any]]], names: Iterable[str]) -> pa.Table:
    """Return ``rows`` as a table, whose first columns are ``names``. Rows are in memory some thousands together.

    They are iterated again if the kind of a column shows after the first thousands.

    >>> row_table(lambda: [{"key": "a", "n": 1}, {"key": "b", "n": 2, "more": [1]}], ["key"]).to_pylist()
    [{'key': 'a', 'n': 1, 'more': None}, {'key': 'b', 'n': 2, 'more': '[1]'}]
    """
    import pyarrow as pa

    found: dict[str, set[str]] = {name: set() for name in names}
    batches: list[pa.RecordBatch] = []
    guessed: list[dict[str, str]] = []
    for some in _some_of(rows()):
        for row in some:
            for name, value in row.items():
                add_kind(found.setdefault(name, set()), value)
        guessed.append(_kinds_of(found))
        batches.append(_batch_of(some, guessed[-1]))
    kinds = _kinds_of(found)
    if any(other != kinds for other in guessed):  # not schemas: text and JSON have one
        batches = [_batch_of(some, kinds) for some in _some_of(rows())]
    return pa.Table.from_batches(batches, arrow_schema(kinds))


def _kinds_of(found: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: column_kind(kinds) for name, kinds in found.items()}


def _some_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while some := list(islice(left, _BATCH_ROWS)):
        yield some


def _batch_of(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> pa.RecordBatch:
    return arrow_batch({name: [row.get(name) for row in rows] for name in kinds}, kinds)


def json_text(value: Any) -> str:
    """Encode any value that a snapshot can hold as JSON, for people and for SQL.

    Types that JSON lacks are mapped: tuples and sets to lists (sets sorted), dates and times to ISO 8601, durations to
    seconds, decimals and UUIDs to text, bytes to base64, NaN and infinities to text, a dict with a key that is not text
    to a list of pairs.
    """
    return json.dumps(_plain(value))


def _kind_of(value: object) -> str:
    kind = type(value)
    if kind is dt.datetime:
        return (ColumnKind.NAIVE if value.tzinfo is None else ColumnKind.ZONED).value  # type: ignore[attr-defined]
    if kind is int and value not in _INT64:
        return JSON
    if kind is str and not is_unicode(value):  # type: ignore[arg-type]
        return JSON
    return _KINDS[kind].value if kind in _KINDS else JSON


def _in_kind(value: Any, kind: str) -> Any:
    return json_text(value) if kind == JSON else value


def _plain(value: Any) -> Any:
    """Convert ``value`` into types of JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        if all(type(name) is str for name in value):
            return {name: _plain(part) for name, part in value.items()}
        return [[_plain(name), _plain(part)] for name, part in value.items()]
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=json.dumps)
    for kinds, convert in _AS_JSON:
        if isinstance(value, kinds):
            return convert(value)
    return _plain(value.tolist())  # of numpy


_AS_JSON: Final[tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...]] = (
    ((float,), lambda value: float(value) if math.isfinite(value) else str(float(value))),
    ((dt.date, dt.time), lambda value: value.isoformat()),
    ((dt.timedelta,), lambda value: value.total_seconds()),
    ((bytes, bytearray), lambda value: base64.b64encode(value).decode("ascii")),
    ((complex,), lambda value: [_plain(value.real), _plain(value.imag)]),
    ((Decimal, UUID, dt.tzinfo), str),
)
"""Types of values, and their conversion to JSON. A datetime is a date."""
