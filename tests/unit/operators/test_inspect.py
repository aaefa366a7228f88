"""`inspect`: calls a function for its effect and forwards records unchanged."""

from __future__ import annotations

from functools import partial
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.operators.stateless import Inspect
from tests.unit.operators.stepping import Stepped


def test_each_value_is_seen_once_in_order_and_the_batch_passes_untouched() -> None:
    seen: list[Any] = []
    batch = Batch([1, None, 3], keys=["a", "b", "c"], timestamps=[1, 2, 3], part="p")
    step = Stepped(partial(Inspect, fn=seen.append)).push(batch)
    assert seen == [1, None, 3]
    assert step.messages() == [batch]


def test_what_the_function_returns_is_ignored() -> None:
    assert Stepped(partial(Inspect, fn=lambda _: "x")).push(Batch([1])).values() == [1]


def test_a_record_it_raises_on_does_not_pass() -> None:
    step = Stepped(partial(Inspect, fn=lambda n: 1 // n), on_error="skip").push(Batch([1, 0, 2], timestamps=[4, 5, 6]))
    assert step.rows() == [(None, 1, 4), (None, 2, 6)]
