"""Slots: one by one, in lists and as vectors, always the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.errors import CodecError, PlanError
from malstrom_py.rescale import slots as slot_cache
from malstrom_py.rescale.keys.key_hash import hash_key
from malstrom_py.rescale.slots import SLOTS_MAX, StableSlots, mod_hashes, slot_of, slots_of
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
    find = StableSlots._find

    def counting(self: StableSlots, key: Any) -> tuple[int, int]:
        hashed.append(key)
        return find(self, key)

    monkeypatch.setattr(StableSlots, "_find", counting)
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
