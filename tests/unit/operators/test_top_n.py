"""`top_n`: per record the largest values of its key so far."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import TopN
from tests.unit.operators.stepping import Stepped, cut

PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 1000))


def stepped(n: int = 2, by: Any = None, **options: Any) -> Stepped:
    return Stepped(partial(TopN, n=n, by=by), keyed=True, **options)


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), PAIRS), max_size=25),
    n=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_each_list_is_what_a_stable_sort_of_all_so_far_gives(
    records: list[tuple[str, tuple[int, int]]], n: int, sizes: list[int]
) -> None:
    """A stable sort by falling rank keeps equal ones in the order they came: of equals the first stays ahead."""
    batch = Batch([value for _, value in records], keys=[key for key, _ in records])
    step = stepped(n, lambda value: value[0]).push(*cut(batch, sizes))
    seen: dict[str, list[tuple[int, int]]] = {}
    expected = []
    for key, value in records:
        seen.setdefault(key, []).append(value)
        expected.append(sorted(seen[key], key=lambda value: -value[0])[:n])
    assert step.values() == expected


def test_a_later_equal_does_not_drive_out_the_first() -> None:
    step = stepped(2, lambda value: value[0]).push(Batch([(1, "x"), (1, "y"), (1, "z")], keys=["a"] * 3))
    assert step.values() == [[(1, "x")], [(1, "x"), (1, "y")], [(1, "x"), (1, "y")]]


def test_lists_that_were_sent_do_not_change_afterwards() -> None:
    step = stepped().push(Batch([1], keys=["a"]))
    first = step.values()[0]
    step.push(Batch([2], keys=["a"]))
    assert first == [1]


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_values_that_have_no_order_with_the_others_go_the_way_of_the_policy(policy: Any) -> None:
    step = stepped(on_error=policy).push(Batch([1, "x", None, 2], keys=["a"] * 4))
    assert step.values() == [[1], [2, 1]]
    assert step.counters.skipped + step.counters.dead_letters == 2


def test_a_value_without_order_fails_naming_the_step_and_not_the_value() -> None:
    with pytest.raises(
        OperatorError,
        match=r"'under-test' failed for key 'a': TypeError: '<' not supported .* Name a column",
    ) as caught:
        stepped().push(Batch([1, "secret"], keys=["a"] * 2))
    assert "secret" not in str(caught.value)


def test_by_that_raises_is_named_and_its_record_left_out() -> None:
    def rank(value: int) -> float:
        return 1 / value

    step = stepped(by=rank, on_error="skip").push(Batch([1, 0, 2], keys=["a"] * 3))
    assert step.values() == [[1], [1, 2]]
    with pytest.raises(OperatorError, match=r"rank at .*test_top_n\.py"):
        stepped(by=rank).push(Batch([0], keys=["a"]))
    assert stepped(by=rank, on_error="skip").push(Batch([0], keys=["a"])).operator.keys == 0


def test_a_first_value_without_order_does_not_spoil_those_behind_it() -> None:
    step = stepped(on_error="skip").push(Batch([None, 2, 3], keys=["a"] * 3))
    assert (step.values(), step.counters.skipped) == ([[2], [3, 2]], 1)


def test_by_is_asked_once_per_record_however_many_are_kept() -> None:
    asked: list[int] = []

    def rank(value: int) -> int:
        asked.append(value)
        return value

    stepped(50, by=rank).push(Batch(list(range(100)), keys=["a"] * 100))
    assert asked == list(range(100))
