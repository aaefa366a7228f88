"""Slots: one by one, in lists and as vectors, always the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.errors import CodecError, PlanError
from malstrom_py.rescale import slots as slot_cache
from malstrom_py.rescale.keys.key_hash import hash_key
from malstrom_py.rescale.slots import SLOTS_MAX, SlotCache, StableSlots, mod_hashes, slot_of, slots_of
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


@pytest.mark.parametrize("with_others", [False, True], ids=["text", "mixed"])
def test_f3_a_key_is_hashed_once_per_distinct_value(with_others: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[Any]()
    find, find_texts = StableSlots._find, StableSlots._find_texts

    def counting(self: StableSlots, key: Any) -> tuple[int, int]:
        hashed.append(key)
        return find(self, key)

    def counting_texts(self: StableSlots, keys: Sequence[str]) -> list[int]:
        hashed.extend(keys)
        return find_texts(self, keys)

    monkeypatch.setattr(StableSlots, "_find", counting)
    monkeypatch.setattr(StableSlots, "_find_texts", counting_texts)
    finder = StableSlots(1024)
    names = [f"user-{i % 100}" for i in range(1024)]
    keys: list[Any] = [*names, None, ("a", 1)] if with_others else names
    for _ in range(3):
        assert finder.slots_of(keys) == [slot_of(key, 1024) for key in keys]
    assert sorted(hashed, key=str) == sorted(set(keys), key=str)


@given(st.lists(st.lists(st.text(max_size=3) | st.text(min_size=255, max_size=260), max_size=6), max_size=6))
def test_f4_texts_that_are_learned_together_have_the_slots_of_each(batches: list[list[str]]) -> None:
    finder = StableSlots(1024)
    for keys in [["\ud800", "é"], *batches]:
        assert finder.slots_of(keys) == [slot_of(key, 1024) for key in keys]


def test_many_texts_stay_within_the_bounds_of_the_cache() -> None:
    texts = list(map(str, range(100)))
    for bounds in ({"keys_max": 30}, {"bytes_max": 3000}):
        cache = SlotCache(lambda key: (len(key), 100), lambda keys: list(map(len, keys)), **bounds)
        for start in range(0, 100, 10):
            assert cache.slots_of(texts[start : start + 10]) == list(map(len, texts[start : start + 10]))
            assert len(cache) <= 36
        assert cache.slots_of(texts) == list(map(len, texts))
        assert len(cache) <= 36


def test_the_cache_is_bounded_and_large_keys_stay_outside() -> None:
    finder = StableSlots(16)
    huge = "x" * (slot_cache.KEY_BYTES_MAX + 1)
    assert finder.slots_of([huge, "a", huge]) == [slot_of(huge, 16), slot_of("a", 16), slot_of(huge, 16)]
    assert len(finder._cache) == 1
    finder.slots_of([10**100_000])
    assert len(finder._cache) == 1
    finder.slots_of([("a" * 5000,), ("b" * 300,)])
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
