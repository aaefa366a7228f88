"""`filter`: keeps the records whose value the predicate holds true, with their keys and timestamps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateless import Filter
from tests.unit.operators.stepping import Stepped

BOTH_LAYOUTS = pytest.mark.parametrize("columns", [{}, {"keys": ["a", "b", "c"], "timestamps": [1, 2, 3]}])


def test_records_are_kept_in_order_with_keys_timestamps_and_part() -> None:
    step = Stepped(partial(Filter, predicate=lambda n: n % 2))
    step.push(Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p"))
    assert step.rows() == [("a", 1, 10), ("c", 3, 30)]
    assert step.batches()[0].part == "p"
    assert step.counters.filtered == 1


def test_unkeyed_untimed_records_are_kept_in_order_with_their_part() -> None:
    step = Stepped(partial(Filter, predicate=lambda n: n % 2)).push(Batch([1, 2, 3], part="p"))
    assert step.rows() == [(None, 1, None), (None, 3, None)]
    assert step.batches()[0].part == "p"


@BOTH_LAYOUTS
def test_a_batch_of_which_nothing_is_left_is_not_sent(columns: dict[str, Any]) -> None:
    step = Stepped(partial(Filter, predicate=lambda _: False)).push(Batch([1, 2, 3], **columns))
    assert step.messages() == []
    assert step.counters.filtered == 3
    assert step.counters.rows_out == [0]


@BOTH_LAYOUTS
def test_truth_is_that_of_python(columns: dict[str, Any]) -> None:
    step = Stepped(partial(Filter, predicate=lambda value: value)).push(Batch([np.bool_(True), [], "x"], **columns))
    assert step.values() == [np.bool_(True), "x"]


@BOTH_LAYOUTS
def test_a_verdict_that_is_neither_true_nor_false_follows_on_error(columns: dict[str, Any]) -> None:
    def verdict(number: int) -> object:
        return np.array([True, False]) if number == 2 else True

    skipping = Stepped(partial(Filter, predicate=verdict), on_error="skip").push(Batch([1, 2, 3], **columns))
    assert skipping.values() == [1, 3]
    assert (skipping.counters.skipped, skipping.counters.filtered) == (1, 0)
    with pytest.raises(OperatorError, match=r"'under-test'.*verdict at .*test_filter\.py:\d+"):
        Stepped(partial(Filter, predicate=verdict)).push(Batch([1, 2, 3], **columns))


@BOTH_LAYOUTS
def test_skipped_records_are_not_counted_as_filtered(columns: dict[str, Any]) -> None:
    step = Stepped(partial(Filter, predicate=lambda n: 1 // (n - 2)), on_error="skip").push(Batch([1, 2, 3], **columns))
    assert step.values() == [1, 3]
    assert (step.counters.skipped, step.counters.filtered) == (1, 0)
