"""`filter_map`: map and filter in one; None, and only None, drops the record."""

from __future__ import annotations

from functools import partial

import numpy as np

from malstrom_py.data.batch import Batch
from malstrom_py.operators.stateless import FilterMap
from tests.unit.operators.stepping import Stepped


def test_none_drops_the_record_and_its_key_and_timestamp() -> None:
    step = Stepped(partial(FilterMap, fn=lambda n: n * 10 if n != 2 else None))
    step.push(Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[4, 5, 6], part="p"))
    assert step.rows() == [("a", 10, 4), ("c", 30, 6)]
    assert step.batches()[0].part == "p"
    assert step.counters.filtered == 1


def test_other_false_values_are_kept() -> None:
    falsy = [0, "", False, [], 0.0]
    assert Stepped(partial(FilterMap, fn=lambda value: value)).push(Batch(falsy)).values() == falsy


def test_array_results_are_kept() -> None:
    out = Stepped(partial(FilterMap, fn=lambda n: np.zeros(2) if n else None)).push(Batch([0, 1])).values()
    assert [array.shape for array in out] == [(2,)]


def test_a_batch_of_which_nothing_is_left_is_not_sent() -> None:
    step = Stepped(partial(FilterMap, fn=lambda _: None)).push(Batch([1, 2], keys=["a", "b"]))
    assert step.messages() == []
    assert step.counters.filtered == 2


def test_skipped_records_are_not_counted_as_filtered() -> None:
    step = Stepped(partial(FilterMap, fn=lambda n: 1 // n), on_error="skip").push(Batch([1, 0]))
    assert step.values() == [1]
    assert (step.counters.skipped, step.counters.filtered) == (1, 0)
