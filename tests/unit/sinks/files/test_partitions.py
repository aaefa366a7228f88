"""Partitioned output: folder names as Hive and Spark write them, and the rows of each folder."""

from __future__ import annotations

import datetime as dt
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.files.partitions import NULL_NAME, checked_columns, escaped, folder_of, parse_folder, split


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


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("x", "x"),
        ("a b", "a b"),
        ("..", ".."),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("a=b:c", "a%3Db%3Ac"),
        ("\0\n\x7f", "%00%0A%7F"),
        ("\"#'*?\\{[]^", "%22%23%27%2A%3F%5C%7B%5B%5D%5E"),
        ("é日", "é日"),
        (7, "7"),
        (-(2**70), str(-(2**70))),
        (True, "true"),
        (False, "false"),
        (dt.date(33, 1, 2), "0033-01-02"),
        (None, NULL_NAME),
    ],
)
def test_names_are_those_of_spark_and_hive(value: Any, name: str) -> None:
    assert folder_of(["a"], [value]) == f"a={name}"


def test_each_column_is_a_folder_in_the_one_before() -> None:
    assert folder_of(["a", "b/c"], [1, "x"]) == "a=1/b%2Fc=x"


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3))
def test_no_text_leaves_its_folder_and_each_comes_back(values: list[str]) -> None:
    names = [f"c{number}" for number in range(len(values))]
    path = PurePosixPath(folder_of(names, values))
    assert len(path.parts) == len(values)
    assert not {"..", ".", "/"} & set(path.parts)
    assert [unquote(part.partition("=")[2], errors="strict") for part in path.parts] == values
    assert list(map(parse_folder, path.parts)) == list(zip(names, values, strict=True))


@given(st.text(max_size=5), st.text(max_size=5))
def test_different_text_has_different_names(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("", "an empty string"),
        (NULL_NAME, "whose partition would be that of None"),
        ("\ud800", "not valid UTF-8"),
        ("x" * 254, "255 bytes"),
        ("é" * 127, "255 bytes"),
        ("/" * 85, "255 bytes"),
    ],
)
def test_a_value_without_a_name_of_its_own_is_refused_and_not_told(value: str, match: str) -> None:
    with pytest.raises(SinkError, match=match) as raised:
        folder_of(["a"], [value])
    assert "column 'a'" in str(raised.value)
    assert "xxx" not in str(raised.value)


def test_the_longest_name_is_taken() -> None:
    assert len(folder_of(["a"], ["x" * 253])) == 255


def test_columns_are_one_or_a_list() -> None:
    assert checked_columns(None) == ()
    assert checked_columns("a") == ("a",)
    assert checked_columns(["a", "b"]) == checked_columns(("a", "b")) == ("a", "b")


@pytest.mark.parametrize(
    "columns",
    [[], (), "", [""], ["a", "a"], ["a", 1], 5, {"a": 1}, {"a"}, iter(["a"]), "_a", ".a", "a" * 230, "\ud800"],
)
def test_columns_that_cannot_be_are_refused(columns: Any) -> None:
    with pytest.raises(PlanError, match=r"sinks\.Files: .*partition"):
        checked_columns(columns)
