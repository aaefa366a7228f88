"""The types of Spark SQL and those of Arrow, each in terms of the other.

Rules. To Arrow: what would lose something, or mean something else, is an error that names the column and says what to
cast it to; ``TIMESTAMP`` is in UTC, independent of the session's time zone. To Spark: what it has no type for gets the
next larger one (unsigned numbers) or text (times of day), or is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, inside, kind_of, plain_type, type_of
from malstrom_py.errors import SourceError
from malstrom_py.errors.text import instead_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_DIGITS_MAX: Final = 38

_NONE: Final = type(None)

INT_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PYTHON_OF: Final = {
    **dict.fromkeys(INT_BITS, int),
    **dict.fromkeys(("string", "char", "varchar"), str),
    "boolean": bool,
    "double": float,
    "binary": bytes,
    "date": date,
}
"""Names of types of Spark whose values are those of one type of Python, whole numbers below a number."""


class PlainColumns:
    """Says which values of the columns of a ``schema`` are already of the type of Python for them."""

    def __init__(self, schema: StructType) -> None:
        names = [one.dataType.typeName() for one in schema]
        self._nullable = [one.nullable for one in schema]
        self._types = tuple(map(_PYTHON_OF.get, names))
        self._ends = {at: 1 << (INT_BITS[name] - 1) for at, name in enumerate(names) if name in INT_BITS}

    def have(self, row: Sequence[Any]) -> bool:
        """Return whether all values of a row are."""
        if tuple(map(type, row)) != self._types:
            return False
        for at, end in self._ends.items():  # a generator would cost more than all else here
            if not -end <= row[at] < end:
                return False
        return bool(row)

    def have_column(self, at: int, values: Collection[Any]) -> bool:
        """Return whether all ``values`` of a column are, but None if the column is nullable."""
        kinds = set(map(type, values))
        has_none = self._nullable[at] and _NONE in kinds
        if kinds != ({_NONE, self._types[at]} if has_none else {self._types[at]}):
            return False
        if (end := self._ends.get(at)) is None:
            return True
        known = [value for value in values if value is not None] if has_none else values
        return bool(-end <= min(known) and max(known) < end)


_ARROW_OF: Final = {
    "BooleanType": "bool",
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float",
    "DoubleType": "double",
    "StringType": "string",
    "BinaryType": "binary",
    "DateType": "date32[day]",
    "TimestampType": "timestamp[us, tz=UTC]",
    "TimestampNTZType": "timestamp[us]",
    "DayTimeIntervalType": "duration[us]",
    "NullType": "null",
}
"""Types without parameters: Spark's class -> Arrow's name."""

_SPARK_OF: Final = {arrow: spark for spark, arrow in _ARROW_OF.items()}

_REMEDIES: Final = {
    "YearMonthIntervalType": "an interval of months is not a length of time: cast it to int or string",
    "CalendarIntervalType": "it mixes months with lengths of time: cast it to string, or make it an interval of days",
    "VariantType": "each row may be of another type: cast it to one type, or make it a string by to_json",
    "TimeType": "Spark itself cannot write it: cast it to string",
    "GeographyType": "make it binary by st_asbinary",
    "GeometryType": "make it binary by st_asbinary",
}


def arrow_schema(schema: Any, *, error: type[Exception] = SourceError) -> pa.Schema:
    """What rows of a Spark ``schema`` are in Arrow; ``error`` names the first column that cannot be carried."""
    import pyarrow as pa

    return pa.schema([(field.name, arrow_type(field.dataType, field.name, error=error)) for field in schema.fields])


def requested_schema(schema: StructType) -> pa.Schema:
    """Return ``schema`` in Arrow, with the nullability that Spark compares with the batches it gets."""
    import pyarrow as pa

    pairs = zip(arrow_schema(schema), schema.fields, strict=True)
    return pa.schema([field.with_nullable(requested.nullable) for field, requested in pairs])


def check_requested(schema: StructType, found: StructType, what: str) -> None:
    """Raise `SourceError` unless the columns of a requested ``schema`` are ``found`` in ``what``, in the same types."""
    if unknown := [name for name in schema.names if name not in found.names]:
        raise SourceError(f"{what} has no column {', '.join(map(repr, unknown))}{instead_of(unknown[0], found.names)}")
    for requested in schema.fields:
        kind = found[requested.name].dataType
        if requested.dataType != kind:
            raise SourceError(
                f"column {requested.name!r} of {what} is {kind.simpleString()}, and the schema has it as "
                f"{requested.dataType.simpleString()}: leave the schema out, and cast the column"
            )


def arrow_type(kind: Any, path: str, *, error: type[Exception] = SourceError) -> pa.DataType:
    """What the Spark type ``kind`` of the column at ``path`` is in Arrow; ``error`` if it cannot be carried."""
    import pyarrow as pa
    from pyspark.sql import types

    if isinstance(kind, types.DecimalType):
        if not (0 < kind.precision <= _DIGITS_MAX and kind.scale <= kind.precision):
            raise error(
                f"column {path!r} is {kind.simpleString()}: a decimal has 1 to {_DIGITS_MAX} digits, and no more than "
                f"these after the point"
            )
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.StringType | types.CharType | types.VarcharType):  # any collation
        return pa.string()
    if isinstance(kind, types.ArrayType):
        return pa.list_(arrow_type(kind.elementType, f"{path}[]", error=error))
    if isinstance(kind, types.MapType):
        keys = arrow_type(kind.keyType, f"{path}[key]", error=error)
        if pa.types.is_null(keys):
            raise error(
                f"column {path!r} is of the Spark type {kind.simpleString()}, an empty map(), which cannot be carried: "
                f"cast it, for instance to map<string, string>"
            )
        return pa.map_(keys, arrow_type(kind.valueType, f"{path}[value]", error=error))
    if isinstance(kind, types.StructType):
        fields = [(field.name, arrow_type(field.dataType, f"{path}.{field.name}", error=error)) for field in kind]
        return pa.struct(fields)
    name = _ARROW_OF.get(type(kind).__name__)
    if name is None:
        raise error(_refusal(kind, path))
    return pa.timestamp("us", "UTC") if kind == types.TimestampType() else pa.type_for_alias(name)


def _refusal(kind: Any, path: str) -> str:
    from pyspark.sql.types import UserDefinedType

    if isinstance(kind, UserDefinedType):
        remedy = f"only its own class understands it: make it an array or a struct ({kind.sqlType().simpleString()})"
    else:
        remedy = _REMEDIES.get(type(kind).__name__, "cast it to string")
    return f"column {path!r} is of the Spark type {kind.simpleString()}, which cannot be carried: {remedy}"


def spark_schema(schema: pa.Schema) -> StructType:
    """``schema`` in Spark; `SourceError` names the first column that Spark cannot have."""
    from pyspark.sql.types import StructType

    spark = StructType()
    for field in schema:
        spark.add(field.name, _type(plain_type(field.type), field.name))
    return spark


def spark_form(kind: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type in which Spark reads a column of ``kind``, which is not nested; None if it has no type.

    Unsigned ints become the next larger ones, for Spark's are signed.
    """
    import pyarrow as pa

    match kind_of(kind):
        case ColumnKind.NAIVE | ColumnKind.ZONED | ColumnKind.STR | ColumnKind.BYTES | ColumnKind.DATE as found:
            return type_of(found)
        case ColumnKind.DECIMAL if kind.precision <= _DIGITS_MAX and 0 <= kind.scale <= kind.precision:
            return pa.decimal128(kind.precision, kind.scale)
        case ColumnKind.NULL | ColumnKind.BOOL | ColumnKind.INT | ColumnKind.FLOAT:
            wider = {
                pa.uint8(): pa.int16(),
                pa.uint16(): pa.int32(),
                pa.uint32(): pa.int64(),
                pa.uint64(): pa.decimal128(20, 0),
                pa.float16(): pa.float32(),
            }
            return wider.get(kind, kind)
    return None


def _type(kind: pa.DataType, path: str) -> Any:
    from pyspark.sql import types

    within = [_type(inner, f"{path}{place}") for place, inner in inside(kind)]
    match kind_of(kind):
        case ColumnKind.STRUCT:
            return types.StructType(list(map(types.StructField, [field.name for field in kind], within)))
        case ColumnKind.MAP:
            return types.MapType(*within)
        case ColumnKind.LIST:
            return types.ArrayType(*within)
        case ColumnKind.TIME:
            return types.StringType()
        case ColumnKind.DURATION as found:
            form = type_of(found)
        case _:
            form = spark_form(kind)
    if form is None:
        raise SourceError(f"column {path!r} is {kind} in Arrow, for which Spark has no type: convert it in the job")
    if kind_of(form) is ColumnKind.DECIMAL:
        return types.DecimalType(form.precision, form.scale)
    return getattr(types, _SPARK_OF[str(form)])()
