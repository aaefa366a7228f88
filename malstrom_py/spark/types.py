"""Which types of Spark SQL can be carried, and as what Arrow has them.

Rule: what would lose something, or mean something else, is an error that names the column and says what to cast it to.
Moments are in UTC, whatever the session's time zone: Arrow has ``TIMESTAMP`` as ``timestamp[us, tz=UTC]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

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
