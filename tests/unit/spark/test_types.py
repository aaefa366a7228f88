"""Every type of Spark SQL has one in Arrow, or an error that says where it is and what to make of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from malstrom_py.errors import SinkError, SourceError
from malstrom_py.spark.types import arrow_schema, arrow_type

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
def test_a_type_is_carried(kind: Any, expected: pa.DataType) -> None:
    assert arrow_type(kind, "c") == expected


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
