"""The columns of a recording, as Spark reads them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.spark.recording_source import Column, parts_of


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[1, None], [2]], pa.int64()),
        ([[1], [2.5]], pa.float64()),
        ([["a"], [None]], pa.string()),
        ([[{"a": 1}], [{"b": "x"}]], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[dt.date(2013, 1, 1)]], pa.date32()),
        ([[(1, 2)], [(3,)]], pa.list_(pa.int64())),
        ([[1], ["a"]], None),
        ([[2**70]], None),
        ([[2**60, 0.5]], None),
        ([[("a", 1)]], None),
        ([[{1: 2}]], None),
        ([["a"], [b"a"]], None),
        ([[True], [1]], None),
        ([[None], ["\ud800"]], None),
    ],
    ids=repr,
)
def test_a_column_has_a_type_that_holds_all_values_or_is_json(batches: list[list[Any]], expected: Any) -> None:
    column = Column("value")
    for batch in batches:
        column.widen(batch)
    assert (column.type, column.is_json) == (expected, expected is None)
    known = Column("value", column.type, column.is_json)
    arrays = [known.array(batch) for batch in batches]
    assert {array.type for array in arrays} == {pa.string() if expected is None else expected}
    if expected is None:
        texts = [text for array in arrays for text in array.to_pylist()]
        assert [text is None for text in texts] == [value is None for batch in batches for value in batch]


def test_columns_and_rows_of_one_stream_have_one_type() -> None:
    columns = pa.RecordBatch.from_pylist([{"n": 1, "to": "a"}])
    batch = ColumnBatch(columns, key_column=pa.array(["k"]), time_column=pa.array([5]), named=True)
    parts = parts_of(batch)
    assert parts["key"].to_pylist() == ["k"]
    assert parts["timestamp"].to_pylist() == [5]
    column = Column("value")
    for values in (parts["value"], [{"n": 2, "more": 1.5}]):
        column.widen(values)
    known = Column("value", column.type)
    assert known.array(parts["value"]).to_pylist() == [{"n": 1, "to": "a", "more": None}]
    assert known.array([{"n": 2, "more": 1.5}]).to_pylist() == [{"n": 2, "to": None, "more": 1.5}]


def test_values_that_are_columns_become_json_beside_others() -> None:
    values = pa.RecordBatch.from_pylist([{"n": 1}]).to_struct_array()
    column = Column("value")
    for some in (values, ["a"]):
        column.widen(some)
    assert column.array(values).to_pylist() == ['{"n": 1}']
    assert column.array(["a"]).to_pylist() == ['"a"']
