"""The base of all steps: control messages pass, and no step depends on how batches are cut."""

from __future__ import annotations

from functools import partial

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Control, PartFinished, PartOpened
from malstrom_py.operators.base import Operator, OperatorFactory, StepContext
from malstrom_py.operators.branching import Branch
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Inspect, Map
from tests.unit.operators.stepping import Stepped


def picky(value: int) -> int:
    if value % 7 == 3:
        raise ValueError
    return value % 3


STATELESS: dict[str, OperatorFactory] = {
    "assign_timestamps": partial(AssignTimestamps, fn=picky, unit="ms"),
    "branch": partial(Branch, predicate=picky),
    "filter": partial(Filter, predicate=picky),
    "filter_map": partial(FilterMap, fn=lambda value: picky(value) or None),
    "flat_map": partial(FlatMap, fn=lambda value: range(picky(value))),
    "inspect": partial(Inspect, fn=picky),
    "key_by": partial(KeyBy, fn=picky),
    "map": partial(Map, fn=picky),
}
EVERY_STATELESS_STEP = pytest.mark.parametrize("name", sorted(STATELESS))


@EVERY_STATELESS_STEP
def test_a_batch_is_accounted_for(name: str) -> None:
    step = Stepped(STATELESS[name], on_error="dead-letter", ports=2 if name == "branch" else 1)
    step.push(Batch(list(range(50))))
    counters = step.counters
    assert counters.rows_in == 50
    assert counters.dead_letters == 7
    if name != "flat_map":
        assert sum(counters.rows_out) + counters.filtered == 50


@pytest.mark.parametrize("name", sorted(STATELESS.keys() - {"key_by"}))
def test_parts_pass_through_the_source_region(name: str) -> None:
    parts: list[Control] = [PartOpened("p"), PartFinished("p")]
    assert Stepped(STATELESS[name]).push(*parts).messages() == parts


def test_an_operator_that_takes_no_batches_says_so() -> None:
    step = Stepped(Operator)
    with pytest.raises(NotImplementedError, match="Operator takes no batches"):
        step.push(Batch([1]))
    assert Operator(StepContext("test", "bare")).keys is None
