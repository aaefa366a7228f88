"""Column types of tables: which Arrow type a new column gets, and how values are cast to a column that exists.

Rule: a value is never changed, except that a float may be rounded to a column of 32 bits. What does not fit is refused,
when it is written, by the name of its column and without the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, accepts, inside, kind_of, recast, type_of, with_inside
from malstrom_py.errors import SinkError
from malstrom_py.sinks.staged import Place

if TYPE_CHECKING:
    import pyarrow as pa

_DIGITS_MAX: Final = 38
_SAME_IN_TABLES: Final = {ColumnKind.BOOL, ColumnKind.DATE, ColumnKind.STR, ColumnKind.BYTES}
_REMEDY: Final = "convert it in a map step"


@dataclass(frozen=True)
class Shape:
    """The columns of a table, and where and how its files are written.

    ``schema``: all columns in order, with the types in files. ``place``: where the files are. ``in_files``:
    whether files contain the partition columns too. ``spec``: the id of the partitioning, for tables that have one.
    """

    where: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    place: Place
    in_files: bool
    spec: int = 0

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of a file."""
        import pyarrow as pa

        if self.in_files:
            return self.schema
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def missing_in(self, other: Shape) -> str | None:
        """Return what of this shape is not in ``other``, so that files of this shape do not fit; None if they do."""
        if self.partition_by != other.partition_by or self.spec != other.spec:
            return "its partition columns"
        for field in self.schema:
            index = other.schema.get_field_index(field.name)
            if index < 0 or not field.equals(other.schema.field(index), check_metadata=True):
                return f"column {field.name!r}"
        required = [field.name for field in other.schema if not field.nullable and field.name not in self.schema.names]
        return f"column {required[0]!r}, which may not be None" if required else None

    def fit(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``columns`` in the order and types of the table; columns that the table lacks are left out."""
        import pyarrow as pa

        arrays = []
        for field in self.schema:
            index = columns.schema.get_field_index(field.name)
            array = pa.nulls(len(columns), field.type) if index < 0 else self._cast(field, columns.column(index))
            if not field.nullable and array.null_count:
                raise SinkError(f"column {field.name!r} may not be None in {self.where}: give it a value in a map step")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, field: pa.Field, column: pa.Array) -> pa.Array:
        import pyarrow as pa

        if column.type == field.type:
            return column
        if column.null_count == len(column):
            return pa.nulls(len(column), field.type)
        what = f"{column.type}, which is not the type in {self.where}, {field.type}"
        if accepts(field.type, column.type):
            try:
                return recast(column, field.type)
            except (pa.ArrowException, OverflowError):
                what = f"values of {column.type} that do not fit the type in {self.where}, {field.type}"
        raise SinkError(f"column {field.name!r} holds {what}: {_REMEDY}")


def new_columns(schema: pa.Schema, known: Sequence[str]) -> list[pa.Field]:
    """Return the columns of ``schema`` that are not ``known``. Columns of None only are left out."""
    import pyarrow as pa

    return [field for field in schema if field.name not in known and not pa.types.is_null(field.type)]


def table_fields(fields: Sequence[pa.Field], system: str, *, has_times: bool) -> list[pa.Field]:
    """Return ``fields`` in the types of tables of ``system``. ``has_times``: whether these have times of day.

    >>> import pyarrow as pa
    >>> table_fields([pa.field("n", pa.uint8()), pa.field("at", pa.timestamp("ms"))], "Delta", has_times=False)
    [pyarrow.Field<n: int16>, pyarrow.Field<at: timestamp[us]>]

    Raises:
        SinkError: a column has no type yet, or one that such tables lack.
    """
    import pyarrow as pa

    found = []
    for field in fields:
        if place := _null_place(field.name, field.type):
            raise SinkError(
                f"{place!r} is None in all rows so far, so the type of column {field.name!r} is not known: create the "
                f"table, or the column, before the job starts, or give values of that type in a map step"
            )
        kind = _table_type(field.type, has_times=has_times)
        if kind is None:
            raise SinkError(f"column {field.name!r} holds {field.type}, a type that {system} tables lack: {_REMEDY}")
        found.append(pa.field(field.name, kind))
    return found


def _null_place(path: str, kind: pa.DataType) -> str | None:
    """Return where in a column there is no type yet, such as ``a.x`` or ``a[]``; None if all is known."""
    if kind_of(kind) is ColumnKind.NULL:
        return path
    return next(filter(None, (_null_place(f"{path}{place}", inner) for place, inner in inside(kind))), None)


def check_new_names(fields: Sequence[pa.Field], known: Sequence[str], where: str, illegal: str = "") -> None:
    """Raise `SinkError` for names of new columns that other readers take for another column, or cannot read."""
    there = {name.lower(): name for name in known}
    for field in fields:
        if not field.name or any(letter in illegal for letter in field.name):
            raise SinkError(
                f"column {field.name!r} cannot be a column of {where}, because of a character in its name: rename it "
                f"in a map step"
            )
        other = there.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise SinkError(f"columns {other!r} and {field.name!r} would be one in {where}: rename one in a map step")


def _table_type(kind: pa.DataType, *, has_times: bool) -> pa.DataType | None:
    import pyarrow as pa

    found = kind_of(kind)
    if found in _SAME_IN_TABLES:
        return type_of(found)
    if found in {ColumnKind.NAIVE, ColumnKind.ZONED}:
        return pa.timestamp("us", "UTC" if found is ColumnKind.ZONED else None)
    if found is ColumnKind.TIME:
        return pa.time64("us") if has_times else None
    simple: dict[ColumnKind, Callable[[Any], Any]] = {
        ColumnKind.INT: _signed,
        ColumnKind.FLOAT: lambda kind: pa.float32() if kind.bit_width < 64 else pa.float64(),
        ColumnKind.DECIMAL: _decimal,
    }
    if found in simple:
        return simple[found](kind)
    parts = [_table_type(inner, has_times=has_times) for _, inner in inside(kind)]
    if not parts or any(part is None for part in parts):
        return None
    return pa.list_(parts[0]) if found is ColumnKind.LIST else with_inside(kind, [part for part in parts if part])


def _signed(kind: pa.DataType) -> pa.DataType | None:
    """Return the signed type that holds all values of ``kind``; None for unsigned ints of 64 bits."""
    import pyarrow as pa

    if pa.types.is_signed_integer(kind):
        return kind
    return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width)


def _decimal(kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    if kind.precision > _DIGITS_MAX or not 0 <= kind.scale <= kind.precision:
        return None
    return pa.decimal128(kind.precision, kind.scale)
