"""Numbers of keys shared by several indexes: the ids are those that a `GroupIndex` gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.state.group_index import GroupIndex, NotColumnar
from malstrom_py.state.key_symbols import KeySymbols, SymbolIndex

CLOSE = st.integers(-5, 5)
INTS = st.one_of(CLOSE, st.sampled_from([9_000, 20_000, 2**63 - 1, -(2**63), 10**9, 10**9 + 1]))
KEYS = st.one_of(
    st.lists(st.lists(CLOSE, min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(INTS, min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.one_of(st.none(), INTS), min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.sampled_from(["", "a", "ä", "🐜", None]), min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.sampled_from([b"", b"a", b"\xff"]), min_size=1, max_size=12), max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(batches=KEYS)
def test_ids_are_those_of_an_index_of_columns(batches: list[list[Any]]) -> None:
    symbols = KeySymbols()
    ours, theirs = [SymbolIndex(symbols) for _ in range(2)], [GroupIndex() for _ in range(2)]
    for number, keys in enumerate(batches):
        column = pa.array(keys)
        try:
            numbers = symbols.of(column)
        except NotColumnar:
            assert None in keys
            continue
        rows, expected = ours[number % 2].group(numbers), theirs[number % 2].group(column)
        assert rows.ids.tolist() == expected.ids.tolist()
        assert sorted(rows.which.tolist()) == sorted(set(rows.ids.tolist()))
        assert [rows.which[code] for code in rows.codes] == rows.ids.tolist()
        for one, other in zip(ours, theirs, strict=True):
            assert len(one) == len(other)
            assert one.keys().to_pylist() == other.keys().to_pylist()
            assert one.find(column).tolist() == other.find(column).tolist()


def test_ids_stay_when_numbers_spread_and_close_up() -> None:
    symbols, index = KeySymbols(), GroupIndex()
    ours = SymbolIndex(symbols)
    for keys in ([3, 1], [5_000, 1], [-9_000, 3], [70_000, 3], range(60_000), [-(2**63), 7, 70_000], [2**63 - 1, 5]):
        column = pa.array(keys, pa.int64())
        assert ours.group(symbols.of(column)).ids.tolist() == index.ids(column).tolist()
        assert ours.find(column).tolist() == index.find(column).tolist()
    assert ours.keys().equals(index.keys())


def test_keys_that_no_index_has_are_forgotten_once_they_are_many() -> None:
    symbols, kept, gone = KeySymbols(), None, None
    kept, gone = SymbolIndex(symbols), SymbolIndex(symbols)
    kept.group(symbols.of(pa.array(["b", "a"])))
    for batch in range(10):
        gone.group(symbols.of(pa.array([f"{batch}-{number}" for number in range(1000)])))
    kept.group(symbols.of(pa.array(["c"])))
    symbols.forget([kept, gone])
    assert symbols.of(pa.array(["c"])).tolist() == [10_002]
    symbols.forget([kept])
    assert symbols.of(pa.array(["new"])).tolist() == [10_003]  # looked at again once there are twice as many
    for batch in range(30):
        symbols.of(pa.array([f"{batch}+{number}" for number in range(1000)]))
    symbols.forget([kept])
    assert symbols.of(pa.array(["d"])).tolist() == [3]
    assert kept.keys().to_pylist() == ["b", "a", "c"]
    assert kept.group(symbols.of(pa.array(["a", "d", "b"]))).ids.tolist() == [1, 3, 0]
    symbols.forget([])
    assert symbols.of(pa.array([7])).tolist() == [7]


def test_integers_are_their_own_numbers_and_take_no_none() -> None:
    symbols = KeySymbols()
    assert symbols.find(pa.array([3]))[1].tolist() == [False]
    assert symbols.of(pa.array([2**62, -4], pa.int64())).tolist() == [2**62, -4]
    assert SymbolIndex(symbols).find(pa.array([None, 2**62])).tolist() == [-1, -1]
    with pytest.raises(NotColumnar):
        symbols.of(pa.array([1, None]))
    with pytest.raises(NotColumnar):
        symbols.of(pa.array(["a"]))
