"""What columns of Arrow are in Spark SQL: the way back from `malstrom_py.spark.types`.

Rule: what Spark has no type for gets the next larger one (unsigned numbers) or text (times of day); else it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PLAIN: Final = {
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
    name = _PLAIN.get(str(kind))
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
