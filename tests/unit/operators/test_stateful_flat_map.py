"""`stateful_flat_map`: one state per key, any number of outputs per record, read before the state is set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateful_map import StatefulFlatMap
from tests.unit.operators.stepping import Stepped, cut


def repeat(key: str, value: int, seen: int) -> tuple[Iterable[tuple[int, int]], int]:
    return ((value, seen) for _ in range(value)), seen + value


def stepped(fn: Any = repeat, **options: Any) -> Stepped:
    return Stepped(partial(StatefulFlatMap, fn=fn, default=int), keyed=True, **options)


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_outputs_keep_key_and_time_of_their_record_in_order(records: list[tuple[str, int]], sizes: list[int]) -> None:
    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = stepped(timed=True).push(*cut(batch, sizes))
    seen: dict[str, int] = {}
    expected = []
    for at, (key, value) in enumerate(records):
        expected += [(key, (value, seen.get(key, 0)), at)] * value
        seen[key] = seen.get(key, 0) + value
    assert step.rows() == expected
    assert step.operator.keys == len(seen)


def test_outputs_that_raise_half_way_leave_the_state_as_it_was_and_send_nothing() -> None:
    def torn(key: str, value: int, seen: int) -> tuple[Iterator[int], int]:
        def outputs() -> Iterator[int]:
            yield seen
            if value < 0:
                raise ValueError("secret")

        return outputs(), seen + 1

    step = stepped(torn, on_error="dead-letter").push(Batch([1, -1, 1, -2], keys=["a", "a", "a", "b"]))
    assert step.values() == [0, 1]
    assert [letter.value for letter in step.dead_letters] == [-1, -2]
    assert step.operator.keys == 1
    with pytest.raises(OperatorError, match=r"torn at .*test_stateful_flat_map\.py") as caught:
        stepped(torn).push(Batch([-1], keys=["a"]))
    assert "secret" not in str(caught.value)


def test_outputs_may_change_what_the_state_is_made_of_before_it_is_kept() -> None:
    """A generator that fills the very list that is returned as the new state: it is read first."""

    def fill(key: str, value: int, _: int) -> tuple[Iterator[int], list[int]]:
        kept: list[int] = []

        def outputs() -> Iterator[int]:
            kept.append(value)
            yield value

        return outputs(), kept

    step = stepped(fill).push(Batch([7], keys=["a"]))
    assert isinstance(step.operator, StatefulFlatMap)
    assert step.operator.states == {"a": [7]}


def test_no_outputs_send_no_batch_and_a_state_of_none_drops_the_key() -> None:
    step = stepped(lambda key, value, seen: ((), value or None)).push(Batch([1], keys=["a"]))
    assert (step.messages(), step.operator.keys) == ([], 1)
    assert step.push(Batch([0], keys=["a"])).operator.keys == 0


@pytest.mark.parametrize("result", [None, 7, (1,), (1, 2), ([], 1, 2), (None, 1)], ids=repr)
def test_what_is_no_pair_of_outputs_and_state_is_the_fault_of_the_function(result: Any) -> None:
    step = stepped(lambda *_: result)
    with pytest.raises(OperatorError, match=r"<lambda> at .*test_stateful_flat_map\.py:\d+"):
        step.push(Batch([1], keys=["a"]))
    assert step.operator.keys == 0
