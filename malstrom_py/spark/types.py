"""The types of Spark SQL and those of Arrow, each in terms of the other.

Which types of Spark SQL can be carried, and as what Arrow has them.

Rule: what would lose something, or mean something else, is an error that names the column and says what to cast it to.
Moments are in UTC, whatever the session's time zone: Arrow has ``TIMESTAMP`` as ``timestamp[us, tz=UTC]``.

What columns of Arrow are in Spark SQL: the way back from `malstrom_py.spark.types`.

Rule: what Spark has no type for gets the next larger one (unsigned numbers) or text (times of day); else it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PLAIN: Final = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
    "void": "null",
}
"""Types without parameters, by what Spark calls them in SQL."""

_REMEDIES: Final = {
    "YearMonthIntervalType": "an interval of months is no length of time: cast it to int or string",
    "CalendarIntervalType": "it mixes months with lengths of time: cast it to string, or make it an interval of days",
    "VariantType": "each row may be of another type: cast it to one type, or make it a string by to_json",
    "TimeType": "Spark itself cannot write it: cast it to string",
    "GeographyType": "make it binary by st_asbinary",
    "GeometryType": "make it binary by st_asbinary",
}


def arrow_schema(schema: Any, *, error: type[Exception] = SourceError) -> pa.Schema:
    """What rows of a Spark ``schema`` are in Arrow; ``error`` names the first column that cannot be carried.

    >>> from pyspark.sql.types import DayTimeIntervalType, StringType, StructType
    >>> spark = StructType().add("carrier", StringType()).add("delay", DayTimeIntervalType())
    >>> {field.name: str(field.type) for field in arrow_schema(spark)}
    {'carrier': 'string', 'delay': 'duration[us]'}
    """
    import pyarrow as pa

    return pa.schema([(field.name, arrow_type(field.dataType, field.name, error=error)) for field in schema.fields])


def arrow_type(kind: Any, path: str, *, error: type[Exception] = SourceError) -> pa.DataType:
    """What the Spark type ``kind`` of the column at ``path`` is in Arrow; ``error`` if it cannot be carried."""
    import pyarrow as pa
    from pyspark.sql import types

    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.DayTimeIntervalType):
        return pa.duration("us")
    if isinstance(kind, types.StringType | types.CharType | types.VarcharType):  # whatever its collation
        return pa.string()
    if isinstance(kind, types.ArrayType):
        return pa.list_(arrow_type(kind.elementType, f"{path}[]", error=error))
    if isinstance(kind, types.MapType):
        keys = arrow_type(kind.keyType, f"{path}[key]", error=error)
        return pa.map_(keys, arrow_type(kind.valueType, f"{path}[value]", error=error))
    if isinstance(kind, types.StructType):
        fields = [(field.name, arrow_type(field.dataType, f"{path}.{field.name}", error=error)) for field in kind]
        return pa.struct(fields)
    name = None if isinstance(kind, types.UserDefinedType) else _PLAIN.get(kind.simpleString())
    if name is None:
        raise error(_refusal(kind, path))
    return _named(name)


def _named(name: str) -> pa.DataType:
    import pyarrow as pa

    if name.startswith("timestamp"):
        return pa.timestamp("us", "UTC" if "UTC" in name else None)
    return pa.date32() if name.startswith("date") else pa.type_for_alias(name)


def _refusal(kind: Any, path: str) -> str:
    from pyspark.sql.types import UserDefinedType

    if isinstance(kind, UserDefinedType):
        remedy = f"only its own class understands it: make it an array or a struct ({kind.sqlType().simpleString()})"
    else:
        remedy = _REMEDIES.get(type(kind).__name__, "cast it to string")
    return f"column {path!r} is of the Spark type {kind.simpleString()}, which cannot be carried: {remedy}"


_PLAIN_OF_ARROW: Final = {
    "bool": "BooleanType",
    "int8": "ByteType",
    "int16": "ShortType",
    "int32": "IntegerType",
    "int64": "LongType",
    "uint8": "ShortType",
    "uint16": "IntegerType",
    "uint32": "LongType",
    "halffloat": "FloatType",
    "float": "FloatType",
    "double": "DoubleType",
    "string": "StringType",
    "large_string": "StringType",
    "string_view": "StringType",
    "time32[s]": "StringType",
    "time32[ms]": "StringType",
    "time64[us]": "StringType",
    "time64[ns]": "StringType",
    "binary": "BinaryType",
    "large_binary": "BinaryType",
    "binary_view": "BinaryType",
    "date32[day]": "DateType",
    "date64[ms]": "DateType",
    "null": "NullType",
}
"""Types without parameters."""


def spark_schema(schema: pa.Schema) -> StructType:
    """``schema`` in Spark; `SourceError` names the first column that Spark cannot have.

    >>> import pyarrow as pa
    >>> spark_schema(pa.schema([("n", pa.uint8()), ("at", pa.timestamp("ns"))])).simpleString()
    'struct<n:smallint,at:timestamp_ntz>'
    """
    from pyspark.sql.types import StructType

    spark = StructType()
    for field in schema:
        spark.add(field.name, _type(field.type, field.name))
    return spark


def _type(kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa
    from pyspark.sql import types

    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, path)
    if pa.types.is_nested(kind):
        return _nested(kind, path)
    if pa.types.is_timestamp(kind):
        return types.TimestampNTZType() if kind.tz is None else types.TimestampType()
    if pa.types.is_duration(kind):
        return types.DayTimeIntervalType()
    if pa.types.is_fixed_size_binary(kind):
        return types.BinaryType()
    if pa.types.is_uint64(kind):
        return types.DecimalType(20, 0)
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return types.DecimalType(kind.precision, kind.scale)
    name = _PLAIN_OF_ARROW.get(str(kind))
    if name is None:
        raise _refused(kind, path)
    return getattr(types, name)()


def _nested(kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa
    from pyspark.sql import types

    if pa.types.is_map(kind):
        return types.MapType(_type(kind.key_type, f"{path}[key]"), _type(kind.item_type, f"{path}[value]"))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return types.StructType([types.StructField(f.name, _type(f.type, f"{path}.{f.name}")) for f in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return types.ArrayType(_type(kind.value_type, f"{path}[]"))
    raise _refused(kind, path)


def _refused(kind: pa.DataType, path: str) -> SourceError:
    return SourceError(f"column {path!r} is {kind} in Arrow, which Spark has no type for: make it another in the job")
