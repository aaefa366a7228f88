"""What a processor sends, in the types of its output: as Spark converts it.

Rules. Rows of Spark are taken by name, frames by name or, without names, in place; columns that the output does not
have are left out. A row that lacks a column has null there, as in Spark, and a frame that lacks one is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn
from zoneinfo import ZoneInfo

from malstrom_py.data.row_form import python_values, rows_of
from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import text_of
from malstrom_py.spark.ddl import struct_of
from malstrom_py.spark.state_variables import plain
from malstrom_py.spark.types import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ERRORS: Final = (ValueError, TypeError, OverflowError, LookupError, AttributeError, NotImplementedError)
"""What Arrow and Spark raise for a value that they do not convert."""

_EXACT: Final = {"string": str, "bool": bool, "binary": bytes, "double": float, "date32[day]": date}
_EXACT_INTS: Final = {f"int{bits}": 1 << (bits - 1) for bits in (8, 16, 32, 64)}
_ZONES: Final = {"timestamp[us]": (None,), "timestamp[us, tz=UTC]": (UTC, ZoneInfo("UTC"))}
"""What is kept unchanged: values of a type of Python, whole numbers below a number, moments with one of these zones."""


class SentRows:
    """The columns of an ``output``, a StructType or text in Spark's DDL. `PlanError`: there are no such types here."""

    def __init__(self, output: Any) -> None:
        import pyarrow as pa

        self._schema: StructType = struct_of(output, "output")
        self._names = list(self._schema.names)
        self._kinds = [arrow_type(one.dataType, one.name, error=PlanError) for one in self._schema]
        names = list(map(str, self._kinds))
        self._is_simple = not any(pa.types.is_nested(kind) or pa.types.is_binary(kind) for kind in self._kinds)
        fields = zip(self._names, self._kinds, self._schema, strict=True)
        self._arrow = pa.schema([pa.field(name, kind, one.nullable) for name, kind, one in fields])
        self._exact = tuple(int if name in _EXACT_INTS else _EXACT.get(name) for name in names)
        self._ends = {at: _EXACT_INTS[name] for at, name in enumerate(names) if name in _EXACT_INTS}
        self._zones = [_ZONES.get(name, ()) for name in names]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentRows, (self._schema,)

    def of_row(self, row: Any) -> dict[str, Any]:
        """Return a row of Spark as a dict. ValueError, TypeError: it is none, or a value does not fit its column."""
        names = self._names
        if getattr(row, "__fields__", None) != names:
            row = self._by_name(row)
        if tuple(map(type, row)) == self._exact:
            for at, end in self._ends.items():
                if not -end <= row[at] < end:
                    break
            else:
                return dict(zip(names, row, strict=True))
        return {name: self._convert(at, value) for at, (name, value) in enumerate(zip(names, row, strict=True))}

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

        kind = type(value)
        if kind is self._exact[at] and (kind is not int or -self._ends[at] <= value < self._ends[at]):
            return value
        if kind is datetime and value.tzinfo in self._zones[at]:
            return value
        if value is None:
            if not self._schema[at].nullable:
                self._refuse(at, value, "the column is NOT NULL")
            return None
        try:
            return python_values(pa.array([_plain(value)], self._kinds[at]), "a row")[0]
        except _ERRORS as error:
            self._refuse(at, value, text_of(error), error)

    def _refuse(self, at: int, value: Any, fault: str, error: Exception | None = None) -> NoReturn:
        kind = self._schema[at].dataType.simpleString()
        raise ValueError(f"column {self._names[at]!r} of the output is {kind}, got {shown(value)}: {fault}") from error

    def in_frame(self, frame: Any) -> list[dict[str, Any]]:
        """Return the rows of a frame of pandas as dicts. ValueError, TypeError: as `of_row`."""
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


def _plain(value: Any) -> Any:
    """Return ``value`` with dicts in place of rows of Spark."""
    fields = getattr(value, "__fields__", None)
    if fields is not None:
        return {name: _plain(one) for name, one in zip(fields, value, strict=True)}
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return value
