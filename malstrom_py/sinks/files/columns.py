"""Values into columns: the names are those of the first batch, the types widen as long as they can.

What a value becomes never depends on where the batches are cut: what would is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.kinds import Kinds

if TYPE_CHECKING:
    import pyarrow as pa


def fields_of(values: list[Any]) -> list[dict[str, Any]]:
    """Each value as its fields: a dict is them, a dataclass or namedtuple has them, anything else is ``value``.

    >>> fields_of([{"a": 1}, 2])
    [{'a': 1}, {'value': 2}]
    """
    if all(type(value) is dict for value in values):
        return values
    return [_fields(value) for value in values]


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return dict(zip(names, value, strict=True))
    return {"value": value}


class KeyRule:
    """Whether the stream's key is written: decided once, by the first value, and the same for every one."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, rows: list[dict[str, Any]], keys: list[Any] | None) -> bool:
        """Whether ``rows`` get the stream's ``keys``; `SinkError` if some have a field ``key`` and some have not."""
        if keys is None or not rows:
            return False
        if self._is_written is None:
            self._is_written = "key" not in rows[0]
        if sum("key" in row for row in rows) != (0 if self._is_written else len(rows)):
            raise SinkError(
                "column 'key' would hold the stream's key for some values and their own field for others: "
                "in a map step give all values a field 'key', or none"
            )
        return self._is_written


class Columns:
    """Turns the batches of one writer into record batches of one schema.

    A field that a record lacks is None. Types widen: a column that held only None takes any type, whole numbers
    become floats, structs get more fields; anything else is a `SinkError`. ``schema`` is the widest so far, and
    `widened` brings an earlier record batch to it.
    """

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self._key_rule = KeyRule()
        self._kinds = Kinds()

    def convert(self, batch: Batch) -> pa.RecordBatch:
        """The rows of ``batch`` as columns, after `schema` has widened to hold them."""
        import pyarrow as pa

        rows = fields_of(batch.values)
        with_key = self._key_rule.is_written(rows, batch.keys)
        known = _first_schema(rows, with_key) if self.schema is None else self.schema
        names = known.names
        if extra := set().union(*rows).difference(names):
            raise SinkError(
                f"columns {_listed(extra)} are not among those of the first batch ({_listed(names)}): "
                f"give every value the same fields, in a map step for instance, with None where there is nothing"
            )
        columns = [
            batch.keys if name == "key" and with_key and batch.keys else [row.get(name) for row in rows]
            for name in names
        ]
        for name, column in zip(names, columns, strict=True):
            self._kinds.check(name, column)
        arrays = [_array(name, column, kind) for name, column, kind in zip(names, columns, known.types, strict=True)]
        schema = pa.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
        self.schema = schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _first_schema(rows: list[dict[str, Any]], with_key: bool) -> pa.Schema:
    import pyarrow as pa

    names = list(dict.fromkeys(chain.from_iterable(rows)))
    check_names(names)
    if with_key:
        names.insert(0, "key")
    if not names:
        raise SinkError("the values have no fields, so there is no column to write: give them some")
    return pa.schema([(name, pa.null()) for name in names])


def check_names(names: Iterable[object]) -> None:
    """`SinkError` unless every field is named by a str: 1 and "1" would be one column."""
    for name in names:
        if not isinstance(name, str):
            raise SinkError(f"a column is named by a {type(name).__name__}: columns are named by str")


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``batch`` with the wider types of ``schema``."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.null_count == len(column):
            columns.append(pa.nulls(len(column), field.type))
            continue
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException:
            raise _unfit(field.name, f"{column.type} that cannot be written as {field.type}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_null_type(schema: pa.Schema) -> pa.Schema:
    """``schema`` as it stands in a file: a column of None only is one of str, for many readers know no null type."""
    import pyarrow as pa

    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema])


def _array(name: str, column: list[Any], known: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        array = pa.array(column)
        wider = _wider(known, array.type)
        return array if array.type == wider else pa.array(column, type=wider)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        kinds = _listed({type(value).__name__ for value in column if value is not None})
        before = "" if pa.types.is_null(known) else f" after {known}"
        raise _unfit(name, f"values of type {kinds}{before} that do not go into one column") from None


def _wider(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(found) and found.tz is not None:
        found = pa.timestamp(found.unit, "UTC")
    if known == found:
        return known
    both = [pa.schema([("", known)]), pa.schema([("", found)])]
    return pa.unify_schemas(both, promote_options="permissive").field(0).type


def _unfit(name: str, what: str) -> SinkError:
    return SinkError(f"column {name!r} holds {what}: make them alike in a map step")


def _listed(names: Iterable[str]) -> str:
    shown = sorted(map(str, names))
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return ", ".join(map(repr, shown[:10])) + more
