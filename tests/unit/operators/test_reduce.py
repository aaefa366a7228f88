"""`reduce`: combines all values of a key into one, running."""

from __future__ import annotations

from functools import partial
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.operators.aggregate import Reduce
from tests.unit.operators.stepping import Stepped


def test_the_first_value_passes_as_it_is_and_the_function_combines_the_rest() -> None:
    calls: list[tuple[Any, Any]] = []

    def join(left: str, right: str) -> str:
        calls.append((left, right))
        return left + right

    step = Stepped(partial(Reduce, fn=join))
    step.push(Batch(["a", "x", "b"], keys=[1, 2, 1], timestamps=[4, 5, 6]), Batch(["c"], keys=[1]))
    assert step.rows() == [(1, "a", 4), (2, "x", 5), (1, "ab", 6), (1, "abc", None)]
    assert calls == [("a", "b"), ("ab", "c")]


def test_an_accumulation_of_none_is_not_forgotten() -> None:
    step = Stepped(partial(Reduce, fn=lambda left, right: (left, right)))
    assert step.push(Batch([None, 1], keys=["a", "a"])).values() == [None, (None, 1)]


def test_a_record_it_raises_on_leaves_the_accumulation_as_it_was() -> None:
    step = Stepped(partial(Reduce, fn=lambda left, right: left // right), on_error="skip")
    assert step.push(Batch([8, 0, 2], keys=["a"] * 3)).values() == [8, 4]
