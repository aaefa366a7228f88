"""A schema that was given: what fits it goes in, what does not names its column."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.given_columns import GivenColumns
from malstrom_py.sinks.files.target_columns import TargetColumns, length_limits, required_places

NAIVE = dt.datetime(2024, 1, 1)  # noqa: DTZ001
ZONED = NAIVE.replace(tzinfo=dt.UTC)
FITS: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), 5),
    (pa.float64(), 5),
    (pa.float32(), 0.5),
    (pa.decimal128(10, 2), Decimal("1.25")),
    (pa.decimal128(20, 0), 5),
    (pa.string(), "a"),
    (pa.binary(), b"a"),
    (pa.bool_(), True),
    (pa.date32(), dt.date(2024, 1, 1)),
    (pa.timestamp("us"), NAIVE),
    (pa.timestamp("us", "UTC"), ZONED),
    (pa.list_(pa.float64()), [1, None]),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), {"a": 1, "b": None}),
    (pa.map_(pa.string(), pa.int64()), {"k": 1}),
]
UNFIT: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), 500),
    (pa.int64(), 1.5),
    (pa.int64(), "1"),
    (pa.int64(), True),
    (pa.string(), 1),
    (pa.string(), b"a"),
    (pa.decimal128(3, 2), Decimal("1.255")),
    (pa.date32(), NAIVE),
    (pa.timestamp("us"), ZONED),
    (pa.timestamp("us", "UTC"), NAIVE),
    (pa.timestamp("us"), dt.date(2024, 1, 1)),
    (pa.list_(pa.int64()), ["a"]),
    (pa.struct([("a", pa.int8())]), {"b": 1}),
    (pa.map_(pa.string(), pa.int64()), {"k": "v"}),
]


def given(kind: pa.DataType) -> GivenColumns:
    return GivenColumns(TargetColumns(pa.schema([("c", kind), ("other", pa.int64())])))


@pytest.mark.parametrize(("kind", "value"), FITS, ids=str)
def test_what_fits_goes_in_as_rows_and_as_columns(kind: pa.DataType, value: Any) -> None:
    batch = given(kind).convert([{"c": value}, {"other": 1}, {"c": None}])
    assert batch.schema.types == [kind, pa.int64()]
    (first, *rest) = batch.column("c").to_pylist()
    assert (dict(first) if isinstance(value, dict) else first) == value
    assert rest == [None, None]
    assert given(kind).admit(batch).equals(batch)
    if not isinstance(value, dict):
        assert given(kind).admit(pa.record_batch({"c": [value, None, None]})).column("c").equals(batch.column("c"))


@pytest.mark.parametrize(("kind", "value"), UNFIT, ids=str)
def test_what_does_not_fit_names_the_column_and_not_the_value(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(SinkError, match="column 'c") as raised:
        given(kind).convert([{"c": value}])
    assert "500" not in str(raised.value)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        SinkError, match=r"column 'c' holds values \(string\) that do not fit its type in the schema of the sink, int64"
    ):
        given(pa.int64()).admit(pa.record_batch({"c": ["a"]}))
    with pytest.raises(SinkError, match=r"columns 'x' are not in the schema"):
        given(pa.int64()).admit(pa.record_batch({"x": ["a"]}))
    with pytest.raises(SinkError, match=r"columns 'x', 'y' are not in the schema"):
        given(pa.int64()).convert([{"x": 1, "y": 2}])
    with pytest.raises(SinkError, match="two columns have the same name"):
        given(pa.int64()).admit(pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["c", "c"]))


def test_the_key_is_a_column_where_the_schema_has_one() -> None:
    columns = GivenColumns(TargetColumns(pa.schema([("key", pa.string()), ("n", pa.int64())])))
    assert columns.convert([{"n": 1}], leading={"key": ["a"]}).to_pylist() == [{"key": "a", "n": 1}]
    assert given(pa.int64()).convert([{"c": 1}], leading={"key": ["a"]}).schema.names == ["c", "other"]


NOT_NULL = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
)
FULL = {"n": 1, "s": {"x": 1}, "l": [1], "m": {"k": 1}}


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({**FULL, "n": None}, "n"),
        ({name: FULL[name] for name in "slm"}, "n"),
        ({**FULL, "s": {"x": None}}, "s.x"),
        ({**FULL, "l": [1, None]}, r"l\[\]"),
        ({**FULL, "m": {"k": None}}, r"m\[value\]"),
    ],
)
def test_none_is_refused_where_the_schema_is_not_nullable(row: dict[str, Any], place: str) -> None:
    columns = GivenColumns(TargetColumns(NOT_NULL, required_places(NOT_NULL)))
    columns.convert([FULL, {"n": 1, "s": None, "l": None, "m": None}, {"n": 1}])
    with pytest.raises(SinkError, match=f"column '{place}' is None or missing in a row.*not nullable"):
        columns.convert([FULL, row])
    arrow = pa.RecordBatch.from_pylist([{"n": None}], pa.schema([("n", pa.int64())]))
    with pytest.raises(SinkError, match="column 'n' is None"):
        columns.admit(arrow)


def test_a_sink_with_a_schema_refuses_none_where_it_is_not_nullable(tmp_path: Path) -> None:
    job = mp.Job("docs")
    job.source("in", sources.Memory([{"n": None}])).sink("out", sinks.Spark(path=tmp_path, schema=NOT_NULL))
    with pytest.raises(SinkError, match="column 'n' is None or missing"):
        mp.run(job)


def test_rows_go_into_the_columns_of_a_table_by_name_in_any_case() -> None:
    target = TargetColumns(pa.schema([("n", pa.int32()), ("price", pa.decimal128(10, 2))]), table="sales")
    columns = GivenColumns(target)
    found = columns.convert([{"Price": 1, "N": 2}, {"N": None}])
    assert found.to_pydict() == {"n": [2, None], "price": [Decimal("1.00"), None]}
    assert columns.admit(pa.RecordBatch.from_pydict({"N": [1], "price": [3]})).num_rows == 1
    assert columns.convert([{"n": 1}], leading={"Price": [Decimal(2)], "key": ["a"]}).num_rows == 1
    with pytest.raises(SinkError, match="the rows lack columns 'price' of table 'sales'"):
        columns.convert([{"n": 1}])
    with pytest.raises(SinkError, match="columns 'x' are not in table 'sales'"):
        columns.convert([{"n": 1, "price": 1, "x": 1}])
    with pytest.raises(SinkError, match="two columns of the rows have names of one column"):
        columns.convert([{"n": 1, "N": 1, "price": 1}])
    with pytest.raises(SinkError, match=r"do not fit its type in table 'sales', int32"):
        columns.convert([{"n": 2**31, "price": 1}])


def test_a_text_that_is_longer_than_its_column_is_refused_with_both_lengths() -> None:
    texts = pa.schema([("v", pa.string()), ("s", pa.struct([("x", pa.string())])), ("l", pa.list_(pa.string()))])
    target = TargetColumns(texts, table="sales", lengths={"v": 3, "s.x": 2, "l[]": 1})
    columns = GivenColumns(target)
    fitting = {"v": "äöü  ", "s": {"x": "ab"}, "l": ["a", None]}
    assert columns.convert([fitting, {"v": None, "s": None, "l": None}]).num_rows == 2
    for wrong, place, length, limit in (
        ({"v": "abcd"}, "v", 4, 3),
        ({"s": {"x": "abc"}}, "s.x", 3, 2),
        ({"l": ["a", "bc"]}, "l[]", 2, 1),
    ):
        said = f"column '{re.escape(place)}' holds a text of {length} characters, and table 'sales' takes {limit}"
        with pytest.raises(SinkError, match=said):
            columns.convert([fitting, fitting | wrong])
        with pytest.raises(SinkError, match=said):
            columns.admit(pa.RecordBatch.from_pylist([fitting | wrong], texts))


def test_the_lengths_of_a_schema_of_spark_are_known_at_any_depth() -> None:
    from pyspark.sql import types as kinds

    inner = kinds.StructType([kinds.StructField("x", kinds.VarcharType(2)), kinds.StructField("n", kinds.LongType())])
    schema = kinds.StructType(
        [
            kinds.StructField("v", kinds.VarcharType(3)),
            kinds.StructField("l", kinds.ArrayType(inner)),
            kinds.StructField("m", kinds.MapType(kinds.StringType(), kinds.CharType(4))),
            kinds.StructField("s", kinds.StringType()),
        ]
    )
    assert length_limits(schema) == {"v": 3, "l[].x": 2, "m[value]": 4}
    assert length_limits(pa.schema([("v", pa.string())])) == {}
