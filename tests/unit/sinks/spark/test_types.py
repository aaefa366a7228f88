"""Types: what Spark reads, what it has no type for, and when a column has drifted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from malstrom_py.data.schema import joined_type
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.files.schemas import without_nulls
from malstrom_py.sinks.spark.schema import given_schema, joined_schema, schema_for_spark

SAME = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(),
    pa.binary(), pa.decimal128(38, 0), pa.null(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    pa.list_(pa.struct([("a", pa.int64())])), pa.map_(pa.string(), pa.list_(pa.null())),
]  # fmt: skip
CHANGED = [
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()),
    (pa.date64(), pa.date32()),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.decimal256(38, 3), pa.decimal128(38, 3)),
    (pa.decimal32(5, 1), pa.decimal128(5, 1)),
    (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
    (pa.list_(pa.float16(), 3), pa.list_(pa.float32())),
    (pa.struct([("a", pa.uint8())]), pa.struct([("a", pa.int16())])),
    (pa.map_(pa.large_string(), pa.uint32()), pa.map_(pa.string(), pa.int64())),
]


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


@pytest.mark.parametrize(("kind", "found"), [*((kind, kind) for kind in SAME), *CHANGED], ids=str)
def test_a_type_becomes_one_that_spark_reads(kind: pa.DataType, found: pa.DataType) -> None:
    assert schema_for_spark(schema(c=kind)).field("c").type == found


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("us"), pa.duration("us"), pa.decimal256(39, 0), pa.decimal128(3, -2), pa.struct([]),
        pa.month_day_nano_interval(), pa.list_(pa.struct([("deep", pa.time32("s"))])),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_spark_lacks_names_the_column(kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match=r"column 'c.*, for which Spark has no type"):
        schema_for_spark(schema(c=kind))


def test_names_that_spark_takes_for_one_are_refused() -> None:
    with pytest.raises(SinkError, match="the columns 'a' and 'A' differ in case only"):
        schema_for_spark(schema(a=pa.int64(), A=pa.int64()))
    with pytest.raises(SinkError, match="the fields of column 's' 'x' and 'X' differ"):
        schema_for_spark(schema(s=pa.struct([("x", pa.int64()), ("X", pa.int64())])))


def test_what_is_of_no_type_is_text_in_a_file() -> None:
    deep = pa.struct([("a", pa.list_(pa.null())), ("b", pa.map_(pa.string(), pa.null()))])
    assert without_nulls(deep) == pa.struct([("a", pa.list_(pa.string())), ("b", pa.map_(pa.string(), pa.string()))])


@pytest.mark.parametrize(
    ("known", "found", "joined"),
    [
        (pa.int64(), pa.int64(), pa.int64()),
        (pa.null(), pa.int64(), pa.int64()),
        (pa.int64(), pa.null(), pa.int64()),
        (pa.decimal128(3, 1), pa.decimal128(4, 2), pa.decimal128(4, 2)),
        (pa.decimal128(38, 0), pa.decimal128(4, 2), None),
        (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int8())),
        (pa.int64(), pa.float64(), None),
        (pa.int32(), pa.int64(), None),
        (pa.list_(pa.string()), pa.list_(pa.int64()), None),
        (pa.struct([("a", pa.null())]), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
    ],
    ids=str,
)
def test_a_column_keeps_its_type_once_it_has_one(
    known: pa.DataType, found: pa.DataType, joined: pa.DataType | None
) -> None:
    assert joined_type(known, found) == joined


def test_drift_names_every_column_and_whose_it_is() -> None:
    known, found = schema(a=pa.int64(), b=pa.null(), c=pa.int64()), schema(b=pa.string(), c=pa.string(), d=pa.int64())
    with pytest.raises(SinkError) as raised:
        joined_schema(known, found, of_known="here", of_found="there")
    assert "'a' (only here), 'd' (only there), 'c' (int64 here, string there)" in str(raised.value)
    many = pa.schema([(f"c{n:02}", pa.int64()) for n in range(30)])
    with pytest.raises(SinkError, match=r"'c09' \(only there\) and 20 more"):
        joined_schema(pa.schema([]), many, of_known="here", of_found="there")


def test_a_schema_is_given_by_arrow_or_by_spark() -> None:
    from pyspark.sql.types import LongType, StringType, StructType, TimestampNTZType, TimestampType, VariantType

    spark = StructType().add("n", LongType()).add("at", TimestampType()).add("here", TimestampNTZType())
    assert given_schema(spark).equals(schema(n=pa.int64(), at=pa.timestamp("us", "UTC"), here=pa.timestamp("us")))
    assert given_schema(schema(t=pa.dictionary(pa.int8(), pa.large_string()), none=pa.null())).equals(
        schema(t=pa.string(), none=pa.string())
    )
    for wrong in (StringType(), {"n": "long"}, StructType().add("v", VariantType()), pa.schema([])):
        with pytest.raises(PlanError):
            given_schema(wrong)
    with pytest.raises(PlanError, match="each column once"):
        given_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    with pytest.raises(PlanError, match="column 't' holds"):
        given_schema(schema(t=pa.time64("us")))
