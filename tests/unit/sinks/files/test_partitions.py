"""Rows are divided by their partition columns, in order, without building rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.partitions import folder_of, split


def found(names: list[str], columns: list[pa.Array]) -> dict[str, list[int]]:
    rows = len(columns[0])
    return {
        folder: list(range(rows)) if indices is None else indices.to_pylist()
        for folder, indices in split(names, columns)
    }


@given(
    st.lists(
        st.tuples(st.sampled_from(["x", "y", None]), st.sampled_from([1, -2, None]), st.sampled_from([True, None])),
        min_size=1,
        max_size=30,
    )
)
def test_each_row_is_in_the_folder_of_its_values_in_order(rows: list[tuple[Any, ...]]) -> None:
    names = ["a", "b", "c"]
    kinds = [pa.string(), pa.int64(), pa.bool_()]
    for count in (1, 2, 3):
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)][:count]
        expected: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            expected.setdefault(folder_of(names[:count], row[:count]), []).append(index)
        assert found(names[:count], columns) == expected


@pytest.mark.parametrize(
    ("column", "folder"),
    [
        (pa.array([2**64 - 1], pa.uint64()), "a=18446744073709551615"),
        (pa.array(["x"], pa.large_string()), "a=x"),
        (pa.array([dt.date(2013, 1, 1)], pa.date64()), "a=2013-01-01"),
        (pa.array([None]), "a=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_a_batch_of_one_partition_is_not_copied(column: pa.Array, folder: str) -> None:
    assert list(split(["a"], [column])) == [(folder, None)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.timestamp("us"),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal128(5, 2),
        pa.binary(),
        pa.list_(pa.int64()),
        pa.struct([("x", pa.int64())]),
    ],
    ids=str,
)
def test_other_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match=r"column 'a' holds .*, and output is partitioned by str, int, bool or date"):
        list(split(["a"], [pa.array([None], kind)]))
