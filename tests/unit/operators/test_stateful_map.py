"""`stateful_map`: one state per key, one output per record."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateful_map import StatefulMap
from tests.unit.operators.stepping import Stepped


def collect(key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    return (key, value, state), value


def test_each_key_meets_its_own_state_in_order_over_batches() -> None:
    step = Stepped(partial(StatefulMap, fn=collect, default=None))
    step.push(Batch([1, 2, 3], keys=["a", "b", "a"], timestamps=[7, 8, 9]), Batch([4], keys=["a"]))
    assert step.values() == [("a", 1, None), ("b", 2, None), ("a", 3, 1), ("a", 4, 3)]
    assert [(key, at) for key, _, at in step.rows()] == [("a", 7), ("b", 8), ("a", 9), ("a", None)]


def test_a_key_without_state_starts_from_the_default() -> None:
    step = Stepped(partial(StatefulMap, fn=lambda _, value, seen: (seen, [*seen, value]), default=list))
    assert step.push(Batch([1, 2, 3], keys=["a", "a", "b"])).values() == [[], [1], []]


def test_a_state_of_none_drops_the_key_which_starts_from_the_default_again() -> None:
    step = Stepped(partial(StatefulMap, fn=lambda _, value, seen: (seen, value), default=int))
    step.push(Batch([5, None], keys=["a", "a"]))
    assert step.operator.keys == 0
    assert step.push(Batch([1], keys=["a"])).values() == [0, 5, 0]


@pytest.mark.parametrize("state", [0, "", False, [], np.zeros(2)], ids=repr)
def test_other_false_states_are_kept(state: Any) -> None:
    step = Stepped(partial(StatefulMap, fn=lambda _, value, __: (value, state), default=None))
    assert step.push(Batch([1], keys=["a"])).operator.keys == 1


def test_a_record_it_raises_on_leaves_the_state_as_it_was() -> None:
    def add(key: str, value: int, total: int) -> tuple[int, int]:
        return total + value, total + value

    step = Stepped(partial(StatefulMap, fn=add, default=int), on_error="skip")
    assert step.push(Batch([1, "x", 2], keys=["a"] * 3)).values() == [1, 3]


@pytest.mark.parametrize("result", [None, 7, (1,), (1, 2, 3)])
def test_a_result_that_is_no_pair_is_the_fault_of_the_function(result: Any) -> None:
    step = Stepped(partial(StatefulMap, fn=lambda *_: result, default=None))
    with pytest.raises(OperatorError, match=r"<lambda> at .*test_stateful_map\.py:\d+"):
        step.push(Batch([1], keys=["a"]))
    assert step.operator.keys == 0
