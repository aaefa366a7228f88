"""`flat_map`: any number of outputs per record, each with the record's key and timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.stateless import FlatMap
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Stepped


def test_items_stand_in_order_with_the_key_and_timestamp_of_their_record() -> None:
    step = Stepped(partial(FlatMap, fn=range))
    step.push(Batch([2, 0, 1], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p"))
    assert step.rows() == [("a", 0, 10), ("a", 1, 10), ("c", 0, 30)]
    assert step.batches()[0].part == "p"


def test_an_untimed_unkeyed_stream_stays_so() -> None:
    batch = Stepped(partial(FlatMap, fn=range)).push(Batch([2])).batches()[0]
    assert batch.keys is None
    assert batch.timestamps is None


def test_a_batch_without_any_item_is_not_sent() -> None:
    assert Stepped(partial(FlatMap, fn=lambda _: [])).push(Batch([1], keys=["a"])).messages() == []


def test_a_generator_that_raises_midway_gives_no_items_of_its_record() -> None:
    def items(number: int) -> Iterator[int]:
        yield number
        if number == 2:
            raise ValueError("midway")
        yield number

    step = Stepped(partial(FlatMap, fn=items), on_error="skip").push(Batch([1, 2, 3], keys=["a", "b", "c"]))
    assert step.rows() == [("a", 1, None), ("a", 1, None), ("c", 3, None), ("c", 3, None)]
    with pytest.raises(OperatorError, match=r"items at .*test_flat_map\.py:\d+"):
        Stepped(partial(FlatMap, fn=items)).push(Batch([2]))


def test_a_result_that_is_no_iterable_is_the_fault_of_the_function() -> None:
    with pytest.raises(OperatorError, match="<lambda> at") as caught:
        Stepped(partial(FlatMap, fn=lambda n: n)).push(Batch([7]))
    assert isinstance(caught.value.__cause__, TypeError)


def test_arrays_give_their_items() -> None:
    assert Stepped(partial(FlatMap, fn=np.arange)).push(Batch([3], timestamps=[9])).rows() == [
        (None, 0, 9),
        (None, 1, 9),
        (None, 2, 9),
    ]


def test_of_much_made_of_little_only_a_slice_is_held_at_once() -> None:
    """The queue after the step never grows past about one slice of outputs, however many one record gives."""
    held: list[int] = []

    class Holding(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            held.append(len(batch))

    flat = FlatMap(StepContext("test", "flat"), fn=lambda n: range(1000))
    executor = Executor([NodeSpec("flat", flat), NodeSpec("held", Holding(StepContext("test", "held")), ((0, 0),))])
    executor.push(0, Batch(list(range(1024))))
    executor.run()
    assert sum(held) == 1024 * 1000
    assert max(held) <= 16_000
    assert max(held[1:]) <= 4096
