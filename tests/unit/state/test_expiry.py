"""Until when states live: the buckets do what one time per key says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.state.expiry import Expiry


@given(
    ttl=st.sampled_from([1, 3, 8, 50]),
    moves=st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), min_size=1, max_size=5),
            st.integers(1, 30),
            st.sampled_from(["take", "undated"]),
        ),
        max_size=30,
    ),
)
def test_each_key_expires_exactly_at_its_time(ttl: int, moves: list[Any]) -> None:
    expiry, frontier = Expiry(ttl), 0
    until: dict[str, int] = {}
    undated: set[str] = set()
    for move in moves:
        if isinstance(move, list):
            keys, times = [key for key, _ in move], [frontier + 1 + ahead for _, ahead in move]
            expiry.touch(keys, times)
            for key, time in zip(keys, times, strict=True):
                until[key] = max(time + ttl, until.get(key, 0))
            undated.difference_update(keys)
        elif move == "take":
            taken = {key: until.pop(key) for key in "ab" if key in until}
            expiry.forget(taken)
            expiry.put(taken)
            until |= taken
        elif move == "undated":
            undated |= {"x"} - until.keys()
            expiry.undated |= {"x"} - until.keys()
        else:
            frontier += move
            until |= dict.fromkeys(undated, frontier + 1 + ttl)
            undated = set()
            gone = {key for key, end in until.items() if end <= frontier}
            assert sorted(expiry.expired(frontier)) == sorted(gone)
            for key in gone:
                del until[key]
        assert expiry.until == until


def test_a_key_is_kept_in_few_buckets_however_many_records_it_has() -> None:
    expiry = Expiry(80)
    for time in range(10_000):
        expiry.touch(["a", "b"], [time, time])
        expiry.expired(time - 1)
    assert len(expiry.until) == 2
    assert sum(map(len, expiry._buckets.values())) <= 2 * 10
    assert len(expiry._due) <= 2


@pytest.mark.parametrize("times", [[5, 1], [1, 5], [3, 3]])
def test_the_last_time_of_a_key_counts_in_any_order(times: list[int]) -> None:
    expiry = Expiry(10)
    expiry.touch(["a", "a"], times)
    assert expiry.until == {"a": max(times) + 10}
