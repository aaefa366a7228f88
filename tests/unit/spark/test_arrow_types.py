"""Columns of Arrow as Spark has them: there and back where Spark has such a type, refused by name where it has not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.spark.types import arrow_schema, spark_schema


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(),
        pa.int8(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.decimal128(10, 2),
        pa.null(),
        pa.list_(pa.int16()),
        pa.map_(pa.string(), pa.list_(pa.float64())),
        pa.struct([("a", pa.struct([("b", pa.date32())]))]),
    ],
    ids=str,
)
def test_what_spark_has_goes_there_and_back(kind: pa.DataType) -> None:
    schema = pa.schema([("c", kind)])
    assert arrow_schema(spark_schema(schema)) == schema


@pytest.mark.parametrize(
    ("kind", "spark"),
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
def test_what_spark_has_not_becomes_larger_or_text(kind: pa.DataType, spark: str) -> None:
    assert spark_schema(pa.schema([("c", kind)]))["c"].dataType.simpleString() == spark


@pytest.mark.parametrize("kind", [pa.decimal256(60, 3), pa.month_day_nano_interval(), pa.sparse_union([])], ids=str)
def test_what_spark_cannot_have_is_refused_with_the_name_of_the_column(kind: pa.DataType) -> None:
    with pytest.raises(SourceError, match=r"column 'c\.d' is .* for which Spark has no type"):
        spark_schema(pa.schema([("c", pa.struct([("d", kind)]))]))
