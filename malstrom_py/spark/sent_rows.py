"""What a processor sends, in the types of its output: as Spark converts it.

Rules. Rows of Spark are taken by name, frames by name or, without names, in place; columns that the output does not
have are left out. A row that lacks a column has null there, as in Spark, and a frame that lacks one is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
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
        self.is_simple = not any(pa.types.is_nested(kind) or pa.types.is_binary(kind) for kind in self._kinds)
        fields = zip(self._names, self._kinds, self._schema, strict=True)
        self._arrow = pa.schema([pa.field(name, kind, one.nullable) for name, kind, one in fields])
        self._plain = PlainColumns(self._schema)
        self._zones = [_ZONES.get(one.dataType.typeName(), ()) for one in self._schema]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentRows, (self._schema,)

    def of_rows(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return rows of Spark as dicts. ValueError, TypeError: one is none, or a value does not fit its column."""
        names = self._names
        if not rows:
            return []
        found = [getattr(row, "__fields__", None) for row in rows]
        if found.count(names) < len(rows):
            rows = [row if fields == names else self._by_name(row) for fields, row in zip(found, rows, strict=True)]
        columns = zip(*rows, strict=True)
        return dicts_of(names, [self._converted(at, next(columns)) for at in range(len(names))])

    def _converted(self, at: int, values: tuple[Any, ...]) -> Sequence[Any]:
        if self._plain.have_column(at, values):
            return values
        return [self._convert(at, value) for value in values]

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
        import pyarrow as pa

        if type(value) is datetime and value.tzinfo in self._zones[at]:
            return value
        if value is None:
            if not self._schema[at].nullable:
                self._refuse(at, value, "the column is NOT NULL")
            return None
        if self._plain.have_column(at, (value,)):
            return value
        try:
            return python_values(pa.array([_plain(value, self._kinds[at])], self._kinds[at]), "a row")[0]
        except _ERRORS as error:
            self._refuse(at, value, text_of(error), error)

    def _refuse(self, at: int, value: Any, fault: str, error: Exception | None = None) -> NoReturn:
        kind = self._schema[at].dataType.simpleString()
        raise ValueError(f"column {self._names[at]!r} of the output is {kind}, got {shown(value)}: {fault}") from error

    def in_frame(self, frame: Any) -> list[dict[str, Any]]:
        """Return the rows of a frame of pandas as dicts. ValueError, TypeError: as `of_rows`."""
        import pandas as pd  # type: ignore[import-untyped]
        import pyarrow as pa

        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"frames of pandas are to be sent, got {shown(frame)}")
        if not len(frame):
            return []
        if self.is_simple:  # one call, which has the same values
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


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return ``value`` with dicts in place of rows of Spark. ValueError: an entry of a map is none.

    Arrow ends the process where a map is given as a list that has None.
    """
    import pyarrow as pa

    fields = getattr(value, "__fields__", None)
    if fields is not None:
        value = dict(zip(fields, value, strict=True))
    if pa.types.is_struct(kind):
        if isinstance(value, Mapping):
            return {field.name: _plain(value.get(field.name), field.type) for field in kind}
        if isinstance(value, tuple) and len(value) == kind.num_fields:
            return tuple(_plain(one, field.type) for one, field in zip(value, kind, strict=True))
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return value
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, Mapping) else map(_pair, value)
        return [(_plain(key, kind.key_type), _plain(one, kind.item_type)) for key, one in entries]
    if pa.types.is_list(kind) and pa.types.is_nested(kind.value_type):
        return [_plain(one, kind.value_type) for one in value]
    return value


def _pair(entry: Any) -> tuple[Any, Any]:
    """Return an entry of a map as key and value, as Arrow and Spark take it."""
    if fields := getattr(entry, "__fields__", None):
        entry = dict(zip(fields, entry, strict=True))
    if isinstance(entry, Mapping):
        return entry.get("key"), entry.get("value")
    if not (isinstance(entry, tuple) and len(entry) == 2):
        raise ValueError("the entries of a map are pairs")
    return entry[0], entry[1]
