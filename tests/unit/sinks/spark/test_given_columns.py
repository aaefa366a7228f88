"""A schema that was given: what fits it goes in, what does not names its column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.spark.encoding import GivenColumns

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
    return GivenColumns(pa.schema([("c", kind), ("other", pa.int64())]))


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
        SinkError, match=r"column 'c' holds values \(string\) that do not fit its type in the schema, int64"
    ):
        given(pa.int64()).admit(pa.record_batch({"c": ["a"]}))
    with pytest.raises(SinkError, match=r"columns 'x' are not in the schema"):
        given(pa.int64()).admit(pa.record_batch({"x": ["a"]}))
    with pytest.raises(SinkError, match=r"columns 'x', 'y' are not in the schema"):
        given(pa.int64()).convert([{"x": 1, "y": 2}])
    with pytest.raises(SinkError, match="two columns have the same name"):
        given(pa.int64()).admit(pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["c", "c"]))


def test_the_key_is_a_column_where_the_schema_has_one() -> None:
    columns = GivenColumns(pa.schema([("key", pa.string()), ("n", pa.int64())]))
    assert columns.convert([{"n": 1}], leading={"key": ["a"]}).to_pylist() == [{"key": "a", "n": 1}]
    assert given(pa.int64()).convert([{"c": 1}], leading={"key": ["a"]}).schema.names == ["c", "other"]
