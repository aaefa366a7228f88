"""`branch`: each record goes to exactly one of two streams."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.branching import NO, YES, Branch
from tests.unit.operators.stepping import Stepped


def test_records_part_by_the_predicate_with_keys_timestamps_and_part() -> None:
    step = Stepped(partial(Branch, predicate=lambda n: n % 2), ports=2)
    step.push(Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p"))
    assert step.rows(YES) == [("a", 1, 10), ("c", 3, 30)]
    assert step.rows(NO) == [("b", 2, 20)]
    assert {batch.part for port in (YES, NO) for batch in step.batches(port)} == {"p"}


def test_a_side_without_records_is_sent_no_batch() -> None:
    step = Stepped(partial(Branch, predicate=lambda _: True), ports=2).push(Batch([1]))
    assert step.messages(NO) == []


def test_epochs_go_both_ways() -> None:
    step = Stepped(partial(Branch, predicate=bool), ports=2).push(Epoch(5), Epoch(MAX_EPOCH))
    assert step.epochs(YES) == step.epochs(NO) == [5, MAX_EPOCH]


def test_a_record_that_raises_goes_neither_way() -> None:
    step = Stepped(partial(Branch, predicate=lambda n: 1 // n > 0), ports=2, on_error="dead-letter")
    step.push(Batch([1, 0, 2], keys=["a", "b", "c"]))
    assert (step.values(YES), step.values(NO)) == ([1], [2])
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("b", 0)]


def test_a_verdict_that_is_neither_true_nor_false_follows_on_error() -> None:
    def verdict(number: int) -> object:
        return np.array([True, False]) if number == 2 else number == 1

    step = Stepped(partial(Branch, predicate=verdict), ports=2, on_error="skip").push(Batch([1, 2, 3]))
    assert (step.values(YES), step.values(NO), step.counters.skipped) == ([1], [3], 1)
    with pytest.raises(OperatorError, match="'under-test'"):
        Stepped(partial(Branch, predicate=verdict), ports=2).push(Batch([2]))
