"""The caches of slots, of rows and of columns: they answer right, ask once, and stay within their bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.rescale.slots import KEY_BYTES_MAX, SlotCache, TextSlots, slots_of


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


def test_a_huge_key_is_not_kept() -> None:
    asked = Asked(size=KEY_BYTES_MAX + 1)
    cache = SlotCache(asked)
    assert cache.slots_of(["huge", "huge"]) == [1, 2]
    assert len(cache) == 0


class Numbered:
    """Gives each key it is asked about the next slot."""

    def __init__(self) -> None:
        self.keys: list[object] = []

    def __call__(self, keys: Sequence[object]) -> list[int]:
        first = len(self.keys)
        self.keys += keys
        return list(range(first, len(self.keys)))


def test_a_key_of_a_column_is_asked_about_once() -> None:
    asked = Numbered()
    cache = TextSlots(asked)
    assert cache.slots_of(pa.array([], pa.string())).tolist() == []
    assert cache.slots_of(pa.array(["a", None, "a", "b"])).tolist() == [0, 1, 0, 2]
    assert cache.slots_of(pa.array(["c", "b", "c", None], pa.large_string())).tolist() == [3, 2, 3, 1]
    assert asked.keys == ["a", None, "b", "c"]


def test_a_full_cache_of_columns_starts_anew() -> None:
    asked = Numbered()
    cache = TextSlots(asked, keys_max=3)
    assert cache.slots_of(pa.array(["a", "b", "c"])).tolist() == [0, 1, 2]
    assert cache.slots_of(pa.array(["a", "d"])).tolist() == [0, 3]
    assert len(cache) == 0
    assert cache.slots_of(pa.array(["a"])).tolist() == [4]


def test_the_bytes_of_the_keys_of_columns_are_bounded() -> None:
    cache = TextSlots(Numbered(), bytes_max=1000)
    for number in range(50):
        cache.slots_of(pa.array([f"{number:0100}"]))
        assert len(cache) <= 10


def test_a_partitioner_that_fails_leaves_no_key_without_a_slot() -> None:
    asked = Numbered()
    fails = [True]

    def slots_of(keys: Sequence[object]) -> list[int]:
        if fails:
            raise ValueError(fails.pop())
        return asked(keys)

    cache = TextSlots(slots_of)
    with pytest.raises(ValueError, match="True"):
        cache.slots_of(pa.array(["a", "b"]))
    assert cache.slots_of(pa.array(["b", "a"])).tolist() == [0, 1]


def test_keys_that_have_no_ids_are_left_to_others() -> None:
    asked = Numbered()
    cache = TextSlots(asked)
    assert cache.slots_of(pa.array(["a"])).tolist() == [0]
    assert cache.slots_of(pa.array([b"a"])) is None  # bytes are not text
    broken = pa.array([b"a", b"\xff"]).view(pa.string())
    assert cache.slots_of(broken) is None
    assert cache.slots_of(pa.array(["a"])).tolist() == [1]


@given(st.lists(st.lists(st.none() | st.text(max_size=2))))
def test_columns_have_the_slots_of_their_rows(batches: list[list[str | None]]) -> None:
    cache = TextSlots(lambda keys: slots_of(keys, 1024), keys_max=20)
    for keys in batches:
        assert cache.slots_of(pa.array(keys, pa.string())).tolist() == slots_of(keys, 1024)
