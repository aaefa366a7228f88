"""`sum`: the running sum per key."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Sum
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped


def test_each_key_is_summed_apart_over_batches() -> None:
    step = Stepped(Sum).push(Batch([1, 2, 3], keys=["a", "b", "a"], timestamps=[7, 8, 9]), Batch([4], keys=["b"]))
    assert step.rows() == [("a", 1, 7), ("b", 2, 8), ("a", 4, 9), ("b", 6, None)]


@pytest.mark.parametrize("number", [Decimal("0.1"), Fraction(1, 3), np.float64(0.5), 1 << 200, 1j])
def test_numbers_of_every_kind_are_summed_in_their_kind(number: Any) -> None:
    total = Stepped(Sum).push(Batch([number, number], keys=["a", "a"])).values()[-1]
    assert total == number + number
    assert type(total) is type(number)


def test_by_takes_a_number_from_each_value() -> None:
    step = Stepped(partial(Sum, by=field_getter("n", "sum"))).push(Batch([{"n": 2}, {"n": 3}], keys=["a", "a"]))
    assert step.values() == [2, 5]


def test_what_cannot_be_added_leaves_the_sum_as_it_was() -> None:
    step = Stepped(Sum, on_error="dead-letter").push(Batch([1, None, 2, "x"], keys=["a"] * 4))
    assert step.values() == [1, 3]
    assert [letter.value for letter in step.dead_letters] == [None, "x"]


def test_a_dead_letter_holds_the_whole_value_not_what_by_took_of_it() -> None:
    step = Stepped(partial(Sum, by=lambda row: row["n"]), on_error="dead-letter")
    step.push(Batch([{"n": 1}, {"m": 2}, {"n": None}, {"n": 4}], keys=["a", "b", "c", "a"]))
    assert step.rows() == [("a", 1, None), ("a", 5, None)]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("b", {"m": 2}), ("c", {"n": None})]


def test_a_sum_that_fails_names_the_step_and_no_file_of_this_package() -> None:
    with pytest.raises(OperatorError, match="'under-test' failed for key 'a'") as caught:
        Stepped(Sum).push(Batch(["x"], keys=["a"]))
    assert "malstrom_py" not in str(caught.value)
    with pytest.raises(OperatorError, match=r"<lambda> at .*test_sum\.py"):
        Stepped(partial(Sum, by=lambda value: value)).push(Batch(["x"], keys=["a"]))
