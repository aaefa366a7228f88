"""Every type of Spark SQL has one in Arrow, or an error that says where it is and what to make of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from malstrom_py.errors import SinkError, SourceError
from malstrom_py.spark.types import arrow_schema, arrow_type, spark_schema

CARRIED: list[tuple[Any, pa.DataType]] = [
    (spark.BooleanType(), pa.bool_()),
    (spark.ByteType(), pa.int8()),
    (spark.ShortType(), pa.int16()),
    (spark.IntegerType(), pa.int32()),
    (spark.LongType(), pa.int64()),
    (spark.FloatType(), pa.float32()),
    (spark.DoubleType(), pa.float64()),
    (spark.DecimalType(5, 2), pa.decimal128(5, 2)),
    (spark.DecimalType(38, 18), pa.decimal128(38, 18)),
    (spark.StringType(), pa.string()),
    (spark.StringType("UTF8_LCASE"), pa.string()),
    (spark.CharType(4), pa.string()),
    (spark.VarcharType(4), pa.string()),
    (spark.BinaryType(), pa.binary()),
    (spark.DateType(), pa.date32()),
    (spark.TimestampType(), pa.timestamp("us", "UTC")),
    (spark.TimestampNTZType(), pa.timestamp("us")),
    (spark.DayTimeIntervalType(0, 3), pa.duration("us")),
    (spark.DayTimeIntervalType(1, 1), pa.duration("us")),
    (spark.NullType(), pa.null()),
    (spark.ArrayType(spark.TimestampType()), pa.list_(pa.timestamp("us", "UTC"))),
    (spark.MapType(spark.StringType(), spark.LongType()), pa.map_(pa.string(), pa.int64())),
    (
        spark.StructType().add("a", spark.IntegerType()).add("b", spark.ArrayType(spark.DateType())),
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.date32()))]),
    ),
]


class Point(spark.UserDefinedType):
    @classmethod
    def sqlType(cls) -> spark.DataType:  # noqa: N802 - it is Spark's name
        return spark.ArrayType(spark.DoubleType())


REFUSED: list[tuple[Any, str]] = [
    (spark.YearMonthIntervalType(), "cast it to int or string"),
    (spark.CalendarIntervalType(), "make it an interval of days"),
    (spark.VariantType(), "to_json"),
    (Point(), r"make it an array or a struct \(array<double>\)"),
]


@pytest.mark.parametrize(("kind", "expected"), CARRIED, ids=str)
def test_a_type_is_carried_there_and_back(kind: Any, expected: pa.DataType) -> None:
    assert arrow_type(kind, "c") == expected
    schema = pa.schema([("c", expected)])
    assert arrow_schema(spark_schema(schema)) == schema


@pytest.mark.parametrize(("kind", "remedy"), REFUSED, ids=lambda kind: str(kind)[:20])
def test_a_type_that_cannot_be_carried_is_told_with_a_remedy(kind: Any, remedy: str) -> None:
    with pytest.raises(SourceError, match=f"column 'c' is of the Spark type .*{remedy}"):
        arrow_type(kind, "c")


def test_the_place_inside_a_column_is_told() -> None:
    inner = spark.StructType().add("at", spark.YearMonthIntervalType())
    schema = (
        spark.StructType().add("n", "integer").add("events", spark.ArrayType(spark.MapType(spark.StringType(), inner)))
    )
    with pytest.raises(
        SourceError, match=r"column 'events\[\]\[value\]\.at' is of the Spark type interval year to month"
    ):
        arrow_schema(schema)


def test_a_sink_raises_its_own_error() -> None:
    with pytest.raises(SinkError, match="column 'v'"):
        arrow_schema(spark.StructType().add("v", spark.VariantType()), error=SinkError)


@pytest.mark.parametrize(
    ("kind", "wider"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.binary(4), "binary"),
        (pa.time64("us"), "string"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.large_list(pa.time32("s")), "array<string>"),
        (pa.decimal256(38, 3), "decimal(38,3)"),
    ],
    ids=str,
)
def test_what_spark_has_not_becomes_larger_or_text(kind: pa.DataType, wider: str) -> None:
    assert spark_schema(pa.schema([("c", kind)]))["c"].dataType.simpleString() == wider


@pytest.mark.parametrize("kind", [pa.decimal256(60, 3), pa.month_day_nano_interval(), pa.sparse_union([])], ids=str)
def test_what_spark_cannot_have_is_refused_with_the_name_of_the_column(kind: pa.DataType) -> None:
    with pytest.raises(SourceError, match=r"column 'c\.d' is .* for which Spark has no type"):
        spark_schema(pa.schema([("c", pa.struct([("d", kind)]))]))
