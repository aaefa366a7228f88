"""Columns are packed or pickled by their types, and lengths are checked."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.codec.encoding_errors import NotDecodable
from malstrom_py.codec.in_flight import FLOATS, INTS, PICKLED, STRINGS, decode_column, encode_column


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("column", "tag"),
    [
        ([1, -(2**63), 2**63 - 1], INTS),
        ([1, 2**63], PICKLED),
        ([1, True], PICKLED),
        ([True, False], PICKLED),
        ([1.0, float("inf")], FLOATS),
        ([1.0, 2], PICKLED),
        (["a", "", "ключ", "\ud800"], STRINGS),
        (["a\0b"], PICKLED),
        (["a", Word("b")], PICKLED),
        ([None, None], PICKLED),
        ([b"a"], PICKLED),
        ([("a", 1)], PICKLED),
        ([], PICKLED),
    ],
)
def test_only_columns_of_one_exact_plain_type_are_packed(column: list[Any], tag: int) -> None:
    found, data = encode_column(column)
    back = decode_column(found, memoryview(data), len(column))
    assert found == tag
    assert back == column
    assert list(map(type, back)) == list(map(type, column))


@pytest.mark.parametrize("column", [[1, 2], [1.5, 2.5], ["a", "b"], [None, None]])
def test_a_column_of_another_length_is_refused(column: list[Any]) -> None:
    tag, data = encode_column(column)
    with pytest.raises(NotDecodable, match="a different length"):
        decode_column(tag, memoryview(data), 3)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(NotDecodable, match="unknown"):
        decode_column(0, memoryview(b""), 0)
