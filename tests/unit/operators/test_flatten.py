"""`flatten`: each item of an iterable value becomes a record."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateless import Flatten
from tests.unit.operators.stepping import Stepped


def test_items_stand_in_order_with_the_key_and_timestamp_of_their_record() -> None:
    step = Stepped(Flatten).push(Batch([[1, 2], (), {3}], keys=["a", "b", "c"], timestamps=[10, 20, 30]))
    assert step.rows() == [("a", 1, 10), ("a", 2, 10), ("c", 3, 30)]


def test_only_one_level_is_flattened() -> None:
    assert Stepped(Flatten).push(Batch([[[1], [2]]])).values() == [[1], [2]]


def test_a_value_that_is_no_iterable_follows_on_error() -> None:
    step = Stepped(Flatten, on_error="dead-letter").push(Batch([[1], 2, [3]], keys=["a", "b", "c"]))
    assert step.values() == [1, 3]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("b", 2)]
    with pytest.raises(OperatorError, match="'under-test'"):
        Stepped(Flatten).push(Batch([2]))


def test_a_lazy_value_is_read_once() -> None:
    assert Stepped(Flatten).push(Batch([iter("ab")])).values() == ["a", "b"]


def test_a_value_without_items_is_nobody_s_function_s_fault() -> None:
    stream = mp.Job("test").source("in", sources.Memory([1]))
    with pytest.raises(
        OperatorError,
        match=r"'items' failed: TypeError: the value is of type int, which has no items. Filter",
    ):
        mp.collect(stream.flatten("items"))  # type: ignore[misc]
