"""The cache of ``enrich``: bounded in number and in time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.operators.enrich.calls import ABSENT, Answers, Cache


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 5, "5s"])
def test_a_lifetime_is_a_timedelta_above_zero(ttl: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: ttl"):
        Cache(ttl=ttl)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, None])
def test_a_size_is_a_whole_number_of_at_least_one(size: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: size"):
        Cache(size=size)


def test_looking_an_answer_up_does_not_prolong_its_life_but_a_new_one_does() -> None:
    answers = Answers(Cache(ttl=timedelta(seconds=5)))
    answers.put("a", 1, now_s=0)
    assert answers.get("a", now_s=4) == 1
    assert answers.get("a", now_s=6) is ABSENT
    answers.put("a", 2, now_s=6)
    assert answers.get("a", now_s=10) == 2
