"""`max`: the largest value per key so far."""

from __future__ import annotations

from functools import partial

import numpy as np

from malstrom_py.data.batch import Batch
from malstrom_py.operators.aggregate import Max
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped


def test_each_key_has_its_own_over_batches() -> None:
    step = Stepped(Max)
    step.push(Batch([5, 1, 3], keys=["a", "b", "a"], timestamps=[7, 8, 9]), Batch([9, 2], keys=["a", "b"]))
    assert step.rows() == [("a", 5, 7), ("b", 1, 8), ("a", 5, 9), ("a", 9, None), ("b", 2, None)]


def test_of_equal_values_the_first_stays() -> None:
    assert [type(value) for value in Stepped(Max).push(Batch([1, 1.0, True], keys=["a"] * 3)).values()] == [int] * 3


def test_by_takes_what_is_compared_from_each_value() -> None:
    step = Stepped(partial(Max, by=field_getter("n", "max"))).push(Batch([{"n": 2}, {"n": 3}], keys=["a", "a"]))
    assert step.values() == [2, 3]


def test_what_cannot_be_compared_leaves_the_state_as_it_was() -> None:
    step = Stepped(Max, on_error="skip").push(Batch([2, "x", None, np.array([1, 3]), 2], keys=["a"] * 5))
    assert step.values() == [2, 2]
    assert step.counters.skipped == 3


def test_a_first_value_without_order_does_not_spoil_those_behind_it() -> None:
    step = Stepped(Max, on_error="skip").push(Batch([None, 2, 2], keys=["a"] * 3))
    assert (step.values(), step.counters.skipped) == ([2, 2], 1)
