"""Batches of columns between workers are decoded to equal columns of the same types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import CodecError

VALUES = {
    "int": (pa.int8(), [1, -128, None]),
    "float": (pa.float64(), [0.5, -0.0, float("inf")]),
    "text": (pa.large_string(), ["", "é\0", None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    "nested": (pa.list_(pa.struct([("x", pa.decimal128(5, 2))])), [[], None, [{"x": None}]]),
    "null": (pa.null(), [None, None, None]),
    "time": (pa.timestamp("s", "Europe/Oslo"), [0, -1, None]),
}


def batch_of(columns: dict[str, pa.Array], **others: Any) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(columns), **others)


def round_trip(batch: ColumnBatch) -> ColumnBatch:
    codec = Codec()
    found = codec.decode_batch(codec.encode_batch(batch, step="x"), step="x")
    assert isinstance(found, ColumnBatch)
    assert found.columns.equals(batch.columns)
    assert found.columns.schema.equals(batch.columns.schema)
    assert not batch.rows_made
    return found


@pytest.mark.parametrize("name", VALUES)
def test_values_of_each_type_come_back(name: str) -> None:
    kind, values = VALUES[name]
    round_trip(batch_of({"a": pa.array(values, kind), "b": pa.array([1, 2, 3])}))


def test_keys_and_timestamps_come_back_as_what_they_were() -> None:
    arrays = batch_of({"n": pa.array([1, 2])}, key_column=pa.array(["a", None]), time_column=pa.array([5, 6]))
    found = round_trip(arrays)
    assert found.key_column is not None
    assert found.key_column.equals(arrays.key_column)
    assert found.time_column is not None
    assert found.time_column.type == pa.int64()
    assert (found.keys, found.timestamps) == (["a", None], [5, 6])
    lists = round_trip(batch_of({"n": pa.array([1, 2])}, keys=[("a", 1), 2.5], timestamps=[7, 8], part="in/0"))
    assert (lists.keys, lists.timestamps, lists.part) == ([("a", 1), 2.5], [7, 8], "in/0")
    assert lists.key_column is None


@given(start=st.integers(0, 50), rows=st.integers(1, 50))
def test_a_slice_is_sent_without_what_it_is_cut_from(start: int, rows: int) -> None:
    whole = batch_of({"s": pa.array([str(n) * 10 for n in range(100)])}, key_column=pa.array(range(100)))
    part = whole.cut(start, start + rows)
    found = round_trip(part)
    assert found.keys == list(range(start, start + rows))
    assert len(Codec().encode_batch(part, step="x")) < len(Codec().encode_batch(whole, step="x"))


def test_damage_is_a_codec_error() -> None:
    data = Codec().encode_batch(batch_of({"n": pa.array([1, 2])}), step="x")
    for at in range(0, len(data), 7):
        with pytest.raises(CodecError):
            Codec().decode_batch(data[:at], step="x")
        with pytest.raises(CodecError):
            Codec().decode_batch(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], step="x")
