"""`distinct`: the first record of each value per key."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Acquire, Collect
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Distinct
from tests.unit.operators.stepping import Stepped, cut


def stepped(by: Any = None, **options: Any) -> Stepped:
    return Stepped(partial(Distinct, by=by), keyed=True, **options)


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1, 2, None, "", (1, 2), 1.0, True]))),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_each_value_passes_once_per_key_whatever_the_cuts(records: list[tuple[str, Any]], sizes: list[int]) -> None:
    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = stepped(timed=True).push(*cut(batch, sizes))
    seen: set[tuple[str, Any]] = set()
    expected = []
    for at, record in enumerate(records):
        if record not in seen:
            seen.add(record)
            expected.append((*record, at))
    assert step.rows() == expected
    assert step.counters.filtered == len(records) - len(expected)


def test_by_says_what_is_the_same_and_the_whole_record_passes() -> None:
    step = stepped(lambda value: value[0]).push(Batch([("x", 1), ("x", 2), ("y", 3)], keys=["a"] * 3))
    assert step.values() == [("x", 1), ("y", 3)]


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_value_that_cannot_be_hashed_goes_the_way_of_the_policy_and_is_not_seen(policy: Any) -> None:
    step = stepped(on_error=policy).push(Batch([[1], 2, {}, 2, [1], 3], keys=["a"] * 6))
    assert step.values() == [2, 3]
    assert step.counters.skipped + step.counters.dead_letters == 3
    assert step.counters.filtered == 1


def test_a_value_that_cannot_be_hashed_leaves_a_new_key_without_state() -> None:
    assert stepped(on_error="skip").push(Batch([[1]], keys=["a"])).operator.keys == 0


def test_a_value_that_cannot_be_hashed_fails_naming_step_and_type_of_the_error() -> None:
    with pytest.raises(
        OperatorError,
        match=r"'under-test' failed for key 'a': TypeError: unhashable type: 'list'\. Name a column",
    ):
        stepped().push(Batch([["secret"]], keys=["a"]))
    with pytest.raises(OperatorError, match=r"TypeError in .*<lambda> at .*test_distinct\.py"):
        stepped(lambda value: [value]).push(Batch([1], keys=["a"]))


def test_what_was_seen_moves_with_the_key() -> None:
    giver, taker = stepped(), stepped()
    giver.push(Batch([1, 2, 1], keys=["a", "a", "b"]))
    taken = Collect(frozenset({"a"}))
    giver.push(taken)
    taker.push(Acquire(taken.states), Batch([1, 3], keys=["a", "a"]))
    assert taker.values() == [3]
    giver.push(Batch([1, 1], keys=["b", "a"]))
    assert giver.rows()[-1] == ("a", 1, None)
    assert giver.operator.keys == 2
