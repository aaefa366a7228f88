"""What a processor sends, in the types of its output: as Spark converts it.

Rules. Rows of Spark are taken by name, frames by name or, without names, in place; columns that the output does not
have are left out. A row that lacks a column has null there, as in Spark, and a frame that lacks one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn
from zoneinfo import ZoneInfo

from malstrom_py.data.row_form import dicts_of, python_values, rows_of
from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import text_of
from malstrom_py.spark.ddl import struct_of
from malstrom_py.spark.stored_values import plain
from malstrom_py.spark.types import PlainColumns, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ERRORS: Final = (ValueError, TypeError, OverflowError, LookupError, AttributeError, NotImplementedError)
"""What Arrow and Spark raise for a value that they do not convert."""

_ZONES: Final = {"timestamp": (UTC, ZoneInfo("UTC")), "timestamp_ntz": (None,)}
"""The zones of moments that are kept unchanged."""


class SentRows:
    """The columns of an ``output``, a StructType or text in Spark's DDL. `PlanError`: there are no such types here."""

    def __init__(self, output: Any) -> None:
        import pyarrow as pa

        self._schema: StructType = struct_of(output, "output")
        self._names = list(self._schema.names)
        self._kinds = [arrow_type(one.dataType, one.name, error=PlanError) for one in self._schema]
        self._is_simple = not any(pa.types.is_nested(kind) or pa.types.is_binary(kind) for kind in self._kinds)
        fields = zip(self._names, self._kinds, self._schema, strict=True)
        self._arrow = pa.schema([pa.field(name, kind, one.nullable) for name, kind, one in fields])
        self._plain = PlainColumns(self._schema)
        self._given = list(map(_giving, self._kinds))
        self._copied = [at for at, give in enumerate(self._given) if give is not _same]
        self._zones = [_ZONES.get(one.dataType.typeName(), ()) for one in self._schema]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentRows, (self._schema,)

    def take(self, row: Any) -> Sequence[Any]:
        """Return the values of a row of Spark for `of_taken`. ValueError, TypeError: it is none, or a map has no pairs.

        Lists and the like are copied: the processor may change them afterwards.
        """
        if getattr(row, "__fields__", None) != self._names:
            row = self._by_name(row)
        if not self._copied:
            taken: Sequence[Any] = row
            return taken
        values = list(row)
        for at in self._copied:
            try:
                values[at] = self._given[at](values[at])
            except _ERRORS as error:
                self._refuse(at, values[at], text_of(error), error)
        return values

    def of_taken(self, rows: list[Sequence[Any]]) -> list[dict[str, Any]]:
        """Return taken rows as dicts. ValueError, TypeError: a value does not fit its column."""
        if not rows:
            return []
        columns = zip(range(len(self._names)), zip(*rows, strict=True), strict=True)
        return dicts_of(self._names, [self._converted(at, values) for at, values in columns])

    def _converted(self, at: int, values: tuple[Any, ...]) -> Sequence[Any]:
        """Return a column as values of its type, by one call of Arrow if they need one and none is wrong."""
        if self._plain.have_column(at, values):
            return values
        if not self._zones[at]:  # moments are often kept unchanged, and Arrow is slow with them
            with suppress(*_ERRORS):
                made = self._made(at, values)
                if self._schema[at].nullable or None not in made:
                    return made
        return [self._convert(at, value) for value in values]

    def _made(self, at: int, values: Sequence[Any]) -> list[Any]:
        import pyarrow as pa

        return python_values(pa.array(values, self._kinds[at]), "a row")

    def _by_name(self, row: Any) -> list[Any]:
        found = getattr(row, "__fields__", None)
        if found is None:
            raise TypeError(f"a processor sends rows of Spark with names, Row(a=1), got {shown(row)}")
        if not set(found) & set(self._names):
            raise ValueError(f"a row has the columns {', '.join(found)}, and the output {', '.join(self._names)}")
        values = dict(zip(found, row, strict=True))
        return [values.get(name) for name in self._names]

    def _convert(self, at: int, value: Any) -> Any:
        """Return a value as one of its column."""
        if type(value) is datetime and value.tzinfo in self._zones[at]:
            return value
        if value is None:
            if not self._schema[at].nullable:
                self._refuse(at, value, "the column is NOT NULL")
            return None
        if self._plain.have_column(at, (value,)):
            return value
        try:
            return self._made(at, [value])[0]
        except _ERRORS as error:
            self._refuse(at, value, text_of(error), error)

    def _refuse(self, at: int, value: Any, fault: str, error: Exception | None = None) -> NoReturn:
        kind = self._schema[at].dataType.simpleString()
        raise ValueError(f"column {self._names[at]!r} of the output is {kind}, got {shown(value)}: {fault}") from error

    def in_frame(self, frame: Any) -> list[dict[str, Any]]:
        """Return the rows of a frame of pandas as dicts. ValueError, TypeError: as `take` and `of_taken`."""
        import pandas as pd  # type: ignore[import-untyped]
        import pyarrow as pa

        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"frames of pandas are to be sent, got {shown(frame)}")
        if not len(frame):
            return []
        if self._is_simple:  # one call, which has the same values
            try:
                return rows_of(pa.RecordBatch.from_pandas(frame, self._arrow, preserve_index=False, nthreads=1))
            except _ERRORS:
                """It has no names, or a column of another type, or is wrong."""
        names, found = self._names, list(frame.columns)
        by_name = any(isinstance(one, str) for one in found)
        if not (set(names) <= set(found) if by_name else len(names) <= len(found)):
            raise ValueError(f"a frame has the columns {', '.join(map(str, found))}, and the output {', '.join(names)}")
        frame = frame[names] if by_name else frame
        columns = [self._column(at, frame.iloc[:, at]) for at in range(len(names))]
        return rows_of(pa.RecordBatch.from_arrays(columns, names))

    def _column(self, at: int, series: Any) -> pa.Array:
        try:
            made = self._array(at, series)
        except _ERRORS as error:
            self._refuse(at, self._first_refused(at, series), text_of(error), error)
        if made.null_count and not self._schema[at].nullable:
            self._refuse(at, None, "the column is NOT NULL")
        return made

    def _array(self, at: int, series: Any) -> pa.Array:
        """Return a column of a frame in Arrow: by the calls of Spark, in its order."""
        import pandas as pd
        import pyarrow as pa
        from pyspark.sql.pandas.types import _create_converter_from_pandas

        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.dtype.categories.dtype)
        kind = self._schema[at].dataType
        series = _create_converter_from_pandas(kind, timezone="UTC", error_on_duplicated_field_names=False)(series)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        try:
            return pa.Array.from_pandas(series, mask=mask, type=self._kinds[at])
        except pa.ArrowInvalid:
            return pa.Array.from_pandas(series, mask=mask).cast(self._kinds[at])

    def _first_refused(self, at: int, series: Any) -> Any:
        """Return the first value that is refused, found by halves."""
        while len(series) > 1:
            middle = len(series) // 2
            try:
                self._array(at, series.iloc[:middle])
            except _ERRORS:
                series = series.iloc[:middle]
            else:
                series = series.iloc[middle:]
        return plain(series.iloc[0])


def _giving(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what copies a value of ``kind`` that can change, for Arrow: with dicts in place of rows of Spark.

    ValueError: an entry of a map is none. Arrow ends the process where a map is given as a list that has None.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return partial(_struct, [(field.name, _giving(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return partial(_map, _giving(kind.key_type), _giving(kind.item_type))
    if pa.types.is_list(kind):
        give = _giving(kind.value_type)
        return partial(_list, None if give is _same else give)
    return _bytes if pa.types.is_binary(kind) else _same


def _same(value: Any) -> Any:
    return value


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _dict_of(value: Any) -> Any:
    """Return ``value``, or a dict of a row of Spark."""
    fields = getattr(value, "__fields__", None)
    return value if fields is None else dict(zip(fields, value, strict=True))


def _struct(fields: list[tuple[str, Callable[[Any], Any]]], value: Any) -> Any:
    value = _dict_of(value)
    if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        value = dict(value)  # Arrow takes pairs, too
    if isinstance(value, Mapping):
        return {name: give(value.get(name)) for name, give in fields}
    if isinstance(value, tuple) and len(value) == len(fields):
        return tuple(give(one) for (_, give), one in zip(fields, value, strict=True))
    return value


def _map(give_key: Callable[[Any], Any], give: Callable[[Any], Any], value: Any) -> Any:
    value = _dict_of(value)
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return value
    entries = value.items() if isinstance(value, Mapping) else map(_pair, value)
    return [(give_key(key), give(one)) for key, one in entries]


def _pair(entry: Any) -> tuple[Any, Any]:
    """Return an entry of a map as key and value, as Arrow and Spark take it."""
    entry = _dict_of(entry)
    if isinstance(entry, Mapping):
        return entry.get("key"), entry.get("value")
    if not (isinstance(entry, tuple) and len(entry) == 2):
        raise ValueError("the entries of a map are pairs")
    return entry[0], entry[1]


def _list(give: Callable[[Any], Any] | None, value: Any) -> Any:
    value = _dict_of(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        return value
    if give is None:
        return copy(value) if hasattr(value, "dtype") else list(value)  # Arrow takes arrays by their type
    return list(map(give, value))
