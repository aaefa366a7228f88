"""Rows into Arrow columns: the names are those of the first rows, the types widen as long as they can.

What a value becomes never depends on where the batches are cut: what would is refused. `malstrom_py.batches.rows_of`
is the way back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import MalstromError
from malstrom_py.value_kinds import Kinds

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED_MAX = 10


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


class RowColumns:
    """Turns the rows of one stream into record batches of one schema.

    A field that a row lacks is None. Types widen: a column that held only None takes any type, whole numbers become
    floats, structs get more fields; anything else is an error, made of its message by ``error``. ``schema`` is the
    widest so far (None before the first row), and `widened` brings an earlier record batch to it.

    >>> from malstrom_py.errors import SinkError
    >>> columns = RowColumns(SinkError)
    >>> columns.convert([{"n": 1}, {"n": None}]).to_pydict()
    {'n': [1, None]}
    >>> columns.convert([{"n": 1.5}]).schema == columns.schema
    True
    >>> columns.convert([{"m": 2}])
    Traceback (most recent call last):
    malstrom_py.errors.SinkError: columns 'm' are not among those of the first batch ('n'): give every value ...
    """

    def __init__(self, error: Callable[[str], MalstromError]) -> None:
        self._error = error
        self._schema: pa.Schema | None = None
        self._kinds = Kinds(error)

    @property
    def schema(self) -> pa.Schema | None:
        """The names of the first rows with the widest types so far; None before the first row."""
        return self._schema

    def convert(self, values: list[Any], *, leading: Mapping[str, list[Any]] | None = None) -> pa.RecordBatch:
        """``values`` as columns (see `fields_of`), after `schema` has widened to hold them.

        ``leading`` are columns of their own that stand before those of the values, each as long as ``values``; the
        same names must be given with every call. No values make no columns until there were some.
        """
        import pyarrow as pa

        if not values:
            return pa.RecordBatch.from_pylist([], schema=pa.schema([]) if self._schema is None else self._schema)
        rows, leading = fields_of(values), leading or {}
        known = self._first_schema(rows, leading) if self._schema is None else self._schema
        names = known.names
        if extra := set().union(*rows).difference(names):
            raise self._error(
                f"columns {_listed(extra)} are not among those of the first batch ({_listed(names)}): "
                f"give every value the same fields, in a map step for instance, with None where there is nothing"
            )
        columns = [leading[name] if name in leading else [row.get(name) for row in rows] for name in names]
        for name, column in zip(names, columns, strict=True):
            self._kinds.check(name, column)
        types = zip(names, columns, known.types, strict=True)
        arrays = [self._array(name, column, kind) for name, column, kind in types]
        schema = pa.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
        self._schema = schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
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
                raise self._unfit(field.name, f"{column.type} that cannot be written as {field.type}") from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _first_schema(self, rows: list[dict[str, Any]], leading: Mapping[str, list[Any]]) -> pa.Schema:
        import pyarrow as pa

        names = list(dict.fromkeys(chain.from_iterable(rows)))
        check_names(names, self._error)
        names = [*leading, *names]
        if not names:
            raise self._error("the values have no fields, so there is no column to write: give them some")
        return pa.schema([(name, pa.null()) for name in names])

    def _array(self, name: str, column: list[Any], known: pa.DataType) -> pa.Array:
        import pyarrow as pa

        try:
            array = pa.array(column)
            wider = _wider(known, array.type)
            return array if array.type == wider else pa.array(column, type=wider)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kinds = _listed({type(value).__name__ for value in column if value is not None})
            before = "" if pa.types.is_null(known) else f" after {known}"
            raise self._unfit(name, f"values of type {kinds}{before} that do not go into one column") from None

    def _unfit(self, name: str, what: str) -> MalstromError:
        return self._error(f"column {name!r} holds {what}: make them alike in a map step")


def check_names(names: Iterable[object], error: Callable[[str], MalstromError]) -> None:
    """The error unless every field is named by a str: 1 and "1" would be one column."""
    for name in names:
        if not isinstance(name, str):
            raise error(f"a column is named by a {type(name).__name__}: columns are named by str")


def _wider(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(found) and found.tz is not None:
        found = pa.timestamp(found.unit, "UTC")
    if known == found:
        return known
    both = [pa.schema([("", known)]), pa.schema([("", found)])]
    return pa.unify_schemas(both, promote_options="permissive").field(0).type


def _listed(names: Iterable[str]) -> str:
    shown = sorted(map(str, names))
    more = f" and {len(shown) - _LISTED_MAX} more" if len(shown) > _LISTED_MAX else ""
    return ", ".join(map(repr, shown[:_LISTED_MAX])) + more
