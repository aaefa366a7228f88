"""`map`: one output per record, under the same key and timestamp."""

from __future__ import annotations

from functools import partial

import numpy as np

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Control, Epoch, PartFinished, PartOpened
from malstrom_py.operators.stateless import Map
from tests.unit.operators.stepping import Stepped


def double(number: int) -> int:
    return number * 2


def test_each_value_is_replaced_and_keys_timestamps_and_part_stay() -> None:
    step = Stepped(partial(Map, fn=double))
    step.push(Batch([1, 2], keys=["a", "b"], timestamps=[10, 20], part="p"))
    assert step.rows() == [("a", 2, 10), ("b", 4, 20)]
    assert step.batches()[0].part == "p"


def test_the_batch_that_came_is_left_as_it_was() -> None:
    values = [1, 2, 3]
    Stepped(partial(Map, fn=double)).push(Batch(values))
    assert values == [1, 2, 3]


def test_none_is_a_value_like_any_other() -> None:
    assert Stepped(partial(Map, fn=lambda _: None)).push(Batch([1, 2])).values() == [None, None]


def test_array_results_pass_as_they_are() -> None:
    out = Stepped(partial(Map, fn=lambda n: np.array([n, n]))).push(Batch([1, 2])).values()
    assert [list(array) for array in out] == [[1, 1], [2, 2]]


def test_control_messages_pass_in_order() -> None:
    step = Stepped(partial(Map, fn=double))
    control: list[Control] = [PartOpened("p"), Epoch(5), PartFinished("p"), Epoch(MAX_EPOCH)]
    assert step.push(*control).messages() == control
