"""Slots: one by one, in lists and as vectors, always the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.equality import settled_keys
from malstrom_py.errors import CodecError, PlanError
from malstrom_py.rescale import slots as arrow_slots
from malstrom_py.rescale import slots as slot_cache
from malstrom_py.rescale.keys.key_hash import hash_and_size, hash_key
from malstrom_py.rescale.slots import (
    SLOTS_MAX,
    SlotCache,
    StableSlots,
    mod_hashes,
    slot_of,
    slots_of,
    slots_of_arrow,
)
from tests.unit.state.accelerators import PATHS, running
from tests.vectors.key_hash_keys import key_of, published

INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS: list[Any] = [key_of(expression) for row in published() for expression in [row["key"], *row["equal"]]]


def test_f3_a_slot_is_the_hash_modulo_the_slots() -> None:
    for slots in (1, 2, 3, 1000, 1024, SLOTS_MAX):
        assert [slot_of(key, slots) for key in KEYS] == [hash_key(key) % slots for key in KEYS]


@given(st.lists(INT64, max_size=60), st.integers(1, SLOTS_MAX))
@settings(deadline=None)
def test_f4_the_vector_gives_the_slots_of_the_scalars(numbers: list[int], slots: int) -> None:
    alone = [slot_of(number, slots) for number in numbers]
    assert mod_hashes(np.array(numbers, dtype=np.int64), slots).tolist() == alone
    assert slots_of(numbers, slots) == alone
    assert slots_of([*numbers, "a"], slots)[:-1] == alone  # a mixed list goes one by one


def test_the_vector_of_the_caller_is_left_alone() -> None:
    numbers = np.arange(5, dtype=np.int64)
    mod_hashes(numbers, 8)
    assert numbers.tolist() == [0, 1, 2, 3, 4]


@given(st.binary(max_size=80), st.integers(0, 30), st.sampled_from([1, 7, 1024, 3000]))
@settings(deadline=None)
def test_f4_texts_of_each_length_have_the_slots_of_their_bytes(data: bytes, start: int, slots: int) -> None:
    texts = [data.hex()[start : start + length] for length in range(len(data))]
    pieces = [data[start : start + length] for length in range(len(data))]
    for keys, kind in ((texts, pa.string()), (pieces, pa.large_binary())):
        alone = [slot_of(key, slots) for key in keys]
        assert [hash_and_size(key)[0] % slots for key in keys] == alone
        assert slots_of(keys, slots) == alone
        assert slots_of_arrow(pa.array(keys, kind), slots).to_pylist() == alone


@pytest.mark.parametrize("beyond", [2**63, -(2**63) - 1, 10**400])
def test_integers_beyond_64_bits_may_be_durable_among_others(beyond: int) -> None:
    keys = [*range(50), beyond, *range(50)]
    assert slots_of(keys, 1024) == [slot_of(key, 1024) for key in keys]


def test_bools_may_be_durable_among_integers() -> None:
    keys = [True, False, *range(50)]
    assert slots_of(keys, 1024) == [slot_of(int(key), 1024) for key in keys]


def test_f4_a_list_of_anything_gives_the_slots_of_its_keys() -> None:
    keys = KEYS * 3
    random.Random(2).shuffle(keys)
    finder = StableSlots(1024, step="s")
    for _ in range(2):
        assert finder.slots_of(keys) == [slot_of(key, 1024) for key in keys]
    assert [finder.slot_of(key) for key in keys] == [slot_of(key, 1024) for key in keys]


@pytest.mark.parametrize("path", PATHS)
def test_f3_a_key_of_a_rarer_type_is_hashed_once_per_distinct_value(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[Any]()

    def counting(key: Any) -> tuple[int, int]:
        hashed.append(key)
        return hash_and_size(key)

    monkeypatch.setattr(slot_cache, "hash_and_size", counting)
    finder = StableSlots(1024)
    keys = [1.5, Decimal(7), ("a", 2.5), date(2013, 1, 1), 2**63] * 100
    with running(path):
        for _ in range(3):
            assert finder.slots_of(keys) == [slot_of(key, 1024) for key in keys]
    assert hashed == keys[:5]


LEAVES = (
    st.none()
    | st.booleans()
    | INT64
    | st.integers()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.floats(allow_nan=False)
)
ANY_KEY = LEAVES | st.recursive(LEAVES, lambda keys: st.lists(keys, max_size=3).map(tuple), max_leaves=12)


@given(st.lists(ANY_KEY | st.text(min_size=500, max_size=520).map(lambda text: (text,)), max_size=12))
@settings(deadline=None)
def test_f4_keys_of_every_type_have_the_slots_of_their_hashes_with_and_without_c(keys: list[Any]) -> None:
    hashes = [hash_key(key) for key in keys]
    for path in PATHS:
        with running(path):
            for slots in (1, 1000, SLOTS_MAX):
                assert StableSlots(slots).slots_of(keys) == [hashed % slots for hashed in hashes]


@pytest.mark.parametrize("path", PATHS)
def test_f4_texts_of_every_length_have_the_slots_of_their_hashes(path: str) -> None:
    """The hash takes stripes of 32 bytes, words of 8 and of 4, and single bytes; 9 bytes come before the text."""
    keys: list[Any] = ["abcdefgh\u00e9"[n % 9 :] * (n // 4) + "x" * n for n in range(140)] + [
        "\ud800",
        "a\udfff" * 9,
        "",
    ]
    keys += [key.encode("utf-8", "surrogatepass") for key in keys]
    keys += [(key,) for key in keys] + [((((((((((1,),),),),),),),),),)]
    with running(path):
        assert slots_of(keys, 1 << 20) == [hash_key(key) % (1 << 20) for key in keys]
        assert slots_of(tuple(keys), 1 << 20) == slots_of(keys, 1 << 20)


def test_the_cache_is_bounded_and_large_keys_stay_outside() -> None:
    finder = StableSlots(16)
    huge = ("x" * (slot_cache.KEY_BYTES_MAX + 1),)
    assert finder.slots_of([huge, 1.5, huge]) == [slot_of(huge, 16), slot_of(1.5, 16), slot_of(huge, 16)]
    assert len(finder._cache) == 1
    finder.slots_of([10**100_000])
    assert len(finder._cache) == 1
    finder.slots_of([("a" * 5000,), ("b" * 600,)])
    assert len(finder._cache) == 2


@pytest.mark.parametrize("call", ["slot_of", "slots_of", "bound slot_of", "bound slots_of"])
def test_f4_an_illegal_key_is_refused_naming_the_step(call: str) -> None:
    finder = StableSlots(8, step="carrier")
    calls: dict[str, Callable[[], object]] = {
        "slot_of": lambda: slot_of([], 8, step="carrier"),
        "slots_of": lambda: slots_of(["a", []], 8, step="carrier"),
        "bound slot_of": lambda: finder.slot_of([]),
        "bound slots_of": lambda: finder.slots_of(["a", []]),
    }
    with pytest.raises(CodecError) as raised:
        calls[call]()
    assert str(raised.value) == "step 'carrier': a key is of type list, which is not a legal key: make it a tuple."


@pytest.mark.parametrize("slots", [0, -1, 1.0, "8", None, SLOTS_MAX + 1])
def test_an_illegal_number_of_slots_is_refused(slots: Any) -> None:
    for call in (lambda: slot_of("a", slots), lambda: slots_of(["a"], slots), lambda: StableSlots(slots)):
        with pytest.raises(PlanError, match="slots must be a whole number from 1 to"):
            call()


# The cache.


class Asked:
    """Finds a slot by counting the questions."""

    def __init__(self, size: int = 50) -> None:
        self.keys: list[object] = []
        self._size = size

    def __call__(self, key: object) -> tuple[int, int]:
        self.keys.append(key)
        return len(self.keys), self._size


def test_a_key_is_asked_about_once() -> None:
    asked = Asked()
    cache = SlotCache(asked)
    assert cache.slots_of(["a", "b", "a"]) == [1, 2, 1]
    assert cache.slots_of(["b", "a"]) == [2, 1]
    assert (cache.slot_of("a"), cache.slot_of("c")) == (1, 3)
    assert asked.keys == ["a", "b", "c"]


def test_equal_keys_of_different_types_are_one() -> None:
    asked = Asked()
    assert SlotCache(asked).slots_of([1, True, 1.0]) == [1, 1, 1]
    assert asked.keys == [1]


def test_a_full_cache_starts_anew() -> None:
    asked = Asked()
    cache = SlotCache(asked, keys_max=3)
    for key in range(10):
        cache.slot_of(key)
        assert 1 <= len(cache) <= 3
    assert asked.keys == list(range(10))
    assert cache.slot_of(9) == 10


def test_a_batch_of_more_keys_than_fit_is_answered_in_full() -> None:
    asked = Asked()
    cache = SlotCache(asked, keys_max=3)
    assert cache.slots_of(range(20)) == list(range(1, 21))
    assert len(cache) <= 3


def test_the_bytes_of_the_keys_are_bounded() -> None:
    cache = SlotCache(Asked(size=100), bytes_max=1000)
    for key in range(50):
        cache.slot_of(key)
        assert len(cache) <= 10


# Keys in Arrow columns.


NOON = datetime(2013, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), [None, None]),
    (pa.bool_(), [True, False, None]),
    *((kind, [0, 1, -1, 127, None]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, [0, 1, 255]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1, None]),
    *((kind, [0.0, -0.0, 1.0, 0.5, float("inf"), -float("inf"), None]) for kind in (pa.float32(), pa.float64())),
    (pa.float16(), [np.float16(0.5), None]),
    *((kind, ["", "a", "Ü", "user-0001", None]) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, [b"", b"a", None]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(2), [b"ab", None]),
    *((kind, [date(2013, 1, 1), date(1, 1, 1), None]) for kind in (pa.date32(), pa.date64())),
    *((pa.timestamp(unit), [NOON, NOON - timedelta(days=20_000), None]) for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp(unit, "UTC"), [NOON.replace(tzinfo=UTC), None]) for unit in ("s", "ms", "us", "ns")),
    (pa.time32("s"), [time(12), None]),
    *((pa.time64(unit), [time(12, 0, 0, 5), None]) for unit in ("us", "ns")),
    *((pa.duration(unit), [timedelta(days=-1), None]) for unit in ("s", "ms", "us", "ns")),
    (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("0.50"), Decimal(-7), None]),
    (pa.decimal256(50, 2), [Decimal("1E+30"), None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "a"]),
    (pa.dictionary(pa.int32(), pa.int64()), [1, None, 2]),
    (pa.uuid(), [UUID(int=1).bytes, None]),
]


def as_key(kind: pa.DataType, value: Any) -> Any:
    return UUID(bytes=value) if kind == pa.uuid() and value is not None else value


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=lambda value: str(value)[:40])
def test_f4_a_column_gives_the_slots_of_its_python_values(kind: pa.DataType, values: list[Any]) -> None:
    values = values * 3
    expected = slots_of([as_key(kind, value) for value in values], 1024)
    column = pa.array(values, kind)
    slots = slots_of_arrow(column, 1024)
    assert (slots.type, slots.null_count, slots.to_pylist()) == (pa.uint32(), 0, expected)
    assert slots_of_arrow(column[1:], 1024).to_pylist() == expected[1:]
    chunked = pa.chunked_array([column, column[:0], column[:1]])
    assert slots_of_arrow(chunked, 1024).to_pylist() == expected + expected[:1]
    assert slots_of_arrow(column[:0], 1024).to_pylist() == []
    assert slots_of_arrow(pa.chunked_array([], kind), 1024).to_pylist() == []


def test_f4_layouts_agree_on_equal_keys_of_different_types() -> None:
    columns = [pa.array([1], kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(5, 2))]
    columns += [pa.array([True]), pa.array([1]).dictionary_encode()]
    assert {slots_of_arrow(column, 1024)[0].as_py() for column in columns} == {slot_of(1, 1024)}


def test_f4_the_two_readings_of_a_repeated_hour_are_two_keys_as_among_rows() -> None:
    hours = [datetime(2013, 11, 3, 5, 30, tzinfo=UTC), datetime(2013, 11, 3, 6, 30, tzinfo=UTC)]
    column = pa.array(hours, pa.timestamp("us", "America/New_York"))
    first, second = column.to_pylist()
    assert first == second, "as Python compares them"
    of_rows = slots_of(settled_keys([first, second]), 1024)
    assert slots_of_arrow(column, 1024).to_pylist() == of_rows == [slot_of(hour, 1024) for hour in hours]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=40))
@settings(deadline=None)
def test_f4_integers_with_nulls_agree_with_rows(values: list[int | None]) -> None:
    assert slots_of_arrow(pa.array(values, pa.int64()), 1000).to_pylist() == slots_of(values, 1000)


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=20), st.integers(0, 5))
@settings(deadline=None)
def test_f4_text_and_bytes_agree_with_rows_with_and_without_c(values: list[str | None], start: int) -> None:
    encoded = [None if value is None else value.encode() for value in values]
    columns: list[tuple[Any, list[Any]]] = [
        (kind, values) for kind in (pa.string(), pa.large_string(), pa.string_view())
    ]
    columns += [(kind, encoded) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())]
    for path in PATHS:
        with running(path):
            for kind, keys in columns:
                column = pa.array(keys, kind)[start:]
                assert slots_of_arrow(column, 1000).to_pylist() == slots_of(keys[start:], 1000)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", [b"\xff", b"abcdefgh\xe9", b"abcdefghij\xed\xa0\x80", b"abcdefg\xc3"], ids=repr)
def test_f4_text_that_is_not_utf_8_is_refused_naming_the_step(path: str, text: bytes) -> None:
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"good", text]).buffers())
    with running(path), pytest.raises(CodecError, match=r"^step 'carrier': a key .* not UTF-8"):
        StableSlots(8, step="carrier").slots_of_arrow(column)


def test_f3_only_distinct_values_become_python_values() -> None:
    asked: list[list[Any]] = []

    def count(keys: Any) -> list[int]:
        asked.append(list(keys))
        return slots_of(keys, 8)

    column = pa.array(["a", "b", None, "a"] * 100)
    for encoded in (column, column.dictionary_encode()):
        asked.clear()
        arrow_slots.column_slots(encoded, slots_of=count, slots_of_vector=None)
        assert asked == [["a", "b", None]]


def test_a_dictionary_may_hold_illegal_values_that_no_row_uses() -> None:
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 2, None]), pa.array([1.5, float("nan"), None]))
    assert slots_of_arrow(dictionary, 1024).to_pylist() == slots_of([1.5, None, None], 1024)


@pytest.mark.parametrize(
    ("column", "culprit"),
    [
        (pa.array([1.5, float("nan")]), "float"),
        (pa.array([[1]]), "list"),
        (pa.array([{"a": 1}]), "dict"),
        (pa.array([1], pa.timestamp("ns")), "timestamp[ns]"),
        (pa.array([1], pa.duration("ns")), "duration[ns]"),
        (pa.array([1], pa.time64("ns")), "time64[ns]"),
        (pa.array([2**60], pa.timestamp("s")), "timestamp[s]"),
        (pa.array([0], pa.timestamp("s", "Nowhere/Atall")), "timestamp[s, tz=Nowhere/Atall]"),
        (pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), "string"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_f4_an_illegal_value_in_a_column_is_refused_naming_the_step(column: pa.Array[Any], culprit: str) -> None:
    with pytest.raises(CodecError, match=r"^step 'carrier': a key ") as raised:
        StableSlots(8, step="carrier").slots_of_arrow(column)
    assert raised.value.type_name == culprit


def test_types_of_which_arrow_makes_no_dictionary_go_row_by_row() -> None:
    column = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])
    assert slots_of_arrow(column, 1024).to_pylist() == slots_of(["a", "a", "b"], 1024)
