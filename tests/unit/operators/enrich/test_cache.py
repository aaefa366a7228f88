"""The cache of ``enrich``: bounded in number and in time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import PlanError
from malstrom_py.operators.enrich.cache import ABSENT, Answers, Cache


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 5, "5s"])
def test_a_lifetime_is_a_timedelta_above_zero(ttl: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: ttl"):
        Cache(ttl=ttl)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, None])
def test_a_size_is_a_whole_number_of_at_least_one(size: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: size"):
        Cache(size=size)


def test_an_answer_is_kept_for_its_lifetime_and_no_longer() -> None:
    answers = Answers(Cache(ttl=timedelta(seconds=5)))
    answers.put("a", 1, now_s=100)
    assert answers.get("a", now_s=104.999) == 1
    assert answers.get("a", now_s=105) is ABSENT
    assert len(answers) == 0


def test_looking_an_answer_up_does_not_prolong_its_life_but_a_new_one_does() -> None:
    answers = Answers(Cache(ttl=timedelta(seconds=5)))
    answers.put("a", 1, now_s=0)
    assert answers.get("a", now_s=4) == 1
    assert answers.get("a", now_s=6) is ABSENT
    answers.put("a", 2, now_s=6)
    assert answers.get("a", now_s=10) == 2


def test_none_is_an_answer() -> None:
    answers = Answers(Cache())
    answers.put("a", None, now_s=0)
    assert answers.get("a", now_s=1e12) is None


@given(things=st.lists(st.integers(0, 6), max_size=40), size=st.integers(1, 4))
def test_it_holds_what_was_asked_for_last(things: list[int], size: int) -> None:
    answers = Answers(Cache(size=size))
    order: list[int] = []
    for thing in things:
        assert (answers.get(thing, now_s=0) is ABSENT) is (thing not in order)
        if thing in order:
            order.remove(thing)
        else:
            answers.put(thing, thing, now_s=0)
        order = [*order, thing][-size:]
        assert len(answers) == len(order)
