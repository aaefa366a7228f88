"""`count`: how many records a key has had."""

from __future__ import annotations

from malstrom_py.data.batch import Batch
from malstrom_py.operators.aggregate import Count
from tests.unit.operators.stepping import Stepped


def test_each_key_is_counted_apart_over_batches() -> None:
    step = Stepped(Count)
    step.push(Batch(["x", "y", "z"], keys=["a", "b", "a"], timestamps=[1, 2, 3]), Batch(["w"], keys=["a"]))
    assert step.rows() == [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("a", 3, None)]
    assert step.operator.keys == 2


def test_none_is_a_key_and_a_value_like_any_other() -> None:
    assert Stepped(Count).push(Batch([None, None], keys=[None, None])).rows() == [(None, 1, None), (None, 2, None)]


def test_keys_that_are_equal_share_one_count() -> None:
    assert Stepped(Count).push(Batch([0, 0, 0], keys=[1, 1.0, True])).values() == [1, 2, 3]
