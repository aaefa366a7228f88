"""The keys of steps by slot: those that were found and those that are seen, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.workers.engine.state_transfer import KeyIndex

KEYS = st.sets(st.integers(0, 50))


def slots_of(keys: Sequence[Any]) -> list[int]:
    return [key % 4 for key in keys]


@given(KEYS, st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(0, 50)))))
def test_every_key_is_in_its_slot_once(found: set[int], steps: list[tuple[int, list[int]]]) -> None:
    every = set(found)
    index = KeyIndex(slots_of, found)
    for count, seen in steps:
        index.saw(seen)
        index.put(count)
        every |= set(seen)
    index.put(100)
    assert (index.left, len(index)) == (0, len(every))
    for slot in range(4):
        assert sorted(index.of(slot)) == sorted(key for key in every if key % 4 == slot)


def test_what_waits_is_not_hashed_when_it_is_seen() -> None:
    hashed: list[Any] = []

    def noted(keys: Sequence[Any]) -> list[int]:
        hashed.extend(keys)
        return slots_of(keys)

    index = KeyIndex(noted, {1, 2, 3})
    index.saw([1, 2, 3, 3, 1])
    assert (hashed, index.left) == ([], 3)
    index.put(2)
    assert (len(hashed), index.left) == (2, 1)
    index.saw([7])
    assert hashed[-1] == 7


def test_equal_keys_are_one() -> None:
    index = KeyIndex(slots_of, {1})
    index.saw([1.0, True])
    index.put(10)
    assert index.of(1) == [1]
