"""`mean`: the running mean per key."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.operators.aggregate import Mean
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped


def test_each_key_has_its_own_over_batches() -> None:
    step = Stepped(Mean).push(Batch([2, 10, 4], keys=["a", "b", "a"], timestamps=[7, 8, 9]), Batch([0], keys=["a"]))
    assert step.rows() == [("a", 2.0, 7), ("b", 10.0, 8), ("a", 3.0, 9), ("a", 2.0, None)]


def test_by_takes_a_number_from_each_value() -> None:
    step = Stepped(partial(Mean, by=field_getter("n", "mean"))).push(Batch([{"n": 2}, {"n": 3}], keys=["a", "a"]))
    assert step.values() == [2.0, 2.5]


def test_numbers_keep_their_kind() -> None:
    assert Stepped(Mean).push(Batch([Decimal(1), Decimal(2)], keys=["a", "a"])).values()[-1] == Decimal("1.5")
    assert type(Stepped(Mean).push(Batch([np.float64(1)], keys=["a"])).values()[0]) is np.float64


def test_a_record_whose_mean_cannot_be_told_leaves_the_mean_as_it_was() -> None:
    step = Stepped(Mean, on_error="skip").push(Batch([1, 10**400, None, 3], keys=["a"] * 4))
    assert step.values() == pytest.approx([1.0, 2.0])
    assert step.counters.skipped == 2
