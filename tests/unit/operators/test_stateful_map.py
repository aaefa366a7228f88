"""`stateful_map` and `stateful_flat_map`: one state per key, set after the outputs have been read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap
from tests.ids import shown
from tests.unit.operators.stepping import Stepped, cut


def mapping(fn: Any, default: Any = None) -> Stepped:
    return Stepped(partial(StatefulMap, fn=fn, default=default), keyed=True)


def flat_mapping(fn: Any, **options: Any) -> Stepped:
    return Stepped(partial(StatefulFlatMap, fn=fn, default=int), keyed=True, **options)


def test_a_key_without_state_starts_from_the_default_also_after_none_has_dropped_it() -> None:
    step = mapping(lambda _, value, seen: (seen, value), default=list)
    step.push(Batch([5, None], keys=["a", "a"]))
    assert step.operator.keys == 0
    assert step.push(Batch([1, 2], keys=["a", "b"])).values() == [[], 5, [], []]


@pytest.mark.parametrize("state", [0, "", False, [], np.zeros(2)], ids=repr)
def test_other_false_states_are_kept(state: Any) -> None:
    assert mapping(lambda _, value, __: (value, state)).push(Batch([1], keys=["a"])).operator.keys == 1


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_outputs_keep_key_and_time_of_their_record_in_order(records: list[tuple[str, int]], sizes: list[int]) -> None:
    def repeat(key: str, value: int, seen: int) -> tuple[Iterable[tuple[int, int]], int]:
        return ((value, seen) for _ in range(value)), seen + value

    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = flat_mapping(repeat, timed=True).push(*cut(batch, sizes))
    seen: dict[str, int] = {}
    expected = []
    for at, (key, value) in enumerate(records):
        expected += [(key, (value, seen.get(key, 0)), at)] * value
        seen[key] = seen.get(key, 0) + value
    assert step.rows() == expected
    assert step.operator.keys == len(seen)


def test_outputs_may_change_what_the_state_is_made_of_before_it_is_kept() -> None:
    """A generator that fills the very list that is returned as the new state: it is read first."""

    def fill(key: str, value: int, _: int) -> tuple[Iterator[int], list[int]]:
        kept: list[int] = []

        def outputs() -> Iterator[int]:
            kept.append(value)
            yield value

        return outputs(), kept

    step = flat_mapping(fill).push(Batch([7], keys=["a"]))
    assert isinstance(step.operator, StatefulFlatMap)
    assert step.operator.states == {"a": [7]}


NO_PAIRS: list[Any] = [None, 7, (1,), ([], 1, 2)]


@pytest.mark.parametrize(
    ("make", "result"),
    [
        *zip(repeat(mapping), NO_PAIRS),
        *zip(repeat(flat_mapping), [*NO_PAIRS, (1, 2), (None, 1)]),
    ],
    ids=shown,
)
def test_what_is_no_pair_of_output_and_state_is_the_fault_of_the_function(make: Any, result: Any) -> None:
    step = make(lambda *_: result)
    with pytest.raises(OperatorError, match=r"<lambda> at .*test_stateful_map\.py:\d+"):
        step.push(Batch([1], keys=["a"]))
    assert step.operator.keys == 0
