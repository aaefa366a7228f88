"""`fold`: accumulates the values of a key into something else, running."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Fold
from tests.unit.operators.stepping import Stepped


def extend(seen: list[int], number: int) -> list[int]:
    return [*seen, number]


def test_each_key_starts_from_a_default_of_its_own() -> None:
    step = Stepped(partial(Fold, fn=extend, default=list))
    step.push(Batch([1, 2, 3], keys=["a", "b", "a"], timestamps=[4, 5, 6]))
    assert step.rows() == [("a", [1], 4), ("b", [2], 5), ("a", [1, 3], 6)]


def test_the_default_is_made_once_per_key() -> None:
    made: list[int] = []

    def default() -> Any:
        made.append(1)

    step = Stepped(partial(Fold, fn=lambda _, value: value, default=default))
    step.push(Batch([None, 1, 2], keys=["a", "a", "b"]))
    assert len(made) == 2


def test_an_accumulation_of_none_is_not_forgotten() -> None:
    step = Stepped(partial(Fold, fn=lambda seen, value: None if seen == 0 else value, default=int))
    assert step.push(Batch([1, 2], keys=["a", "a"])).values() == [None, 2]


def test_a_record_it_raises_on_leaves_the_accumulation_as_it_was() -> None:
    step = Stepped(partial(Fold, fn=lambda total, value: total + value, default=int), on_error="skip")
    assert step.push(Batch([1, "x", 2], keys=["a"] * 3)).values() == [1, 3]


def test_a_default_that_raises_leaves_no_state_behind() -> None:
    def default() -> int:
        raise LookupError("nothing to start from")

    step = Stepped(partial(Fold, fn=extend, default=default), on_error="skip").push(Batch([1], keys=["a"]))
    assert (step.operator.keys, step.counters.skipped) == (0, 1)
    with pytest.raises(OperatorError, match="'under-test'"):
        Stepped(partial(Fold, fn=extend, default=default)).push(Batch([1], keys=["a"]))
