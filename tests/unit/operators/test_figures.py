"""The steps with one figure per key: what `test_keyed` and `test_failures_in_every_step` do not check."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Count, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OperatorFactory
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped, cut

NUMBERS: list[Any] = [Decimal("0.1"), Fraction(1, 3), np.float64(0.5), 1 << 200, 1j]


def pair(left: Any, right: Any) -> Any:
    return left, right


@pytest.mark.parametrize(
    ("factory", "values", "expected"),
    [
        (Count, [None, None], [1, 2]),
        (Min, [1, 1.0, True], [1, 1, 1]),
        (Max, [1, 1.0, True], [1, 1, 1]),
        *((Sum, [n, n], [n, n + n]) for n in NUMBERS),
        (Mean, [Decimal(1), Decimal(2)], [Decimal(1), Decimal("1.5")]),
        (Mean, [np.float64(1)], [np.float64(1)]),
        (partial(Fold, fn=lambda seen, value: None if seen == 0 else value, default=int), [1, 2], [None, 2]),
        (partial(Reduce, fn=pair), ["a", "b", "c"], ["a", ("a", "b"), (("a", "b"), "c")]),
        (partial(Reduce, fn=pair), [None, 1], [None, (None, 1)]),
        (partial(Distinct, by=lambda value: value[0]), ["xa", "xb", "ya"], ["xa", "ya"]),
        (partial(TopN, n=2, by=lambda value: value[0]), ["1x", "1y", "1z"], [["1x"], ["1x", "1y"], ["1x", "1y"]]),
    ],
)
def test_values_of_every_kind_keep_their_kind_and_of_equal_ones_the_first_stays(
    factory: OperatorFactory, values: list[Any], expected: list[Any]
) -> None:
    found = Stepped(factory).push(Batch(values, keys=["a"] * len(values))).values()
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


def test_keys_that_are_equal_share_one_figure_and_none_is_a_key() -> None:
    assert Stepped(Count).push(Batch([0, 0, 0, 0], keys=[1, 1.0, True, None])).values() == [1, 2, 3, 1]


@pytest.mark.parametrize(("step", "expected"), [(Sum, [2, 5]), (Min, [2, 2]), (Max, [2, 3]), (Mean, [2.0, 2.5])])
def test_by_takes_a_number_from_each_value(step: Any, expected: list[Any]) -> None:
    factory = partial(step, by=field_getter("n", "step"))
    assert Stepped(factory).push(Batch([{"n": 2}, {"n": 3}], keys=["a", "a"])).values() == expected


@pytest.mark.parametrize(
    ("factory", "values", "expected"),
    [
        (Sum, [1, None, 2, "x"], [1, 3]),
        (Mean, [1, 10**400, None, 3], [1.0, 2.0]),
        (Min, [2, "x", None, np.array([1, 3]), 2], [2, 2]),
        (Max, [2, "x", None, np.array([1, 3]), 2], [2, 2]),
        (Min, [None, 2, 2], [2, 2]),
        (Max, [None, 2, 2], [2, 2]),
        (partial(Distinct, by=None), [[1], 2, {}, 2, [1], 3], [2, 3]),
        (partial(TopN, n=2, by=None), [1, "x", None, 2], [[1], [2, 1]]),
        (partial(TopN, n=2, by=None), [None, 2, 3], [[2], [3, 2]]),
    ],
)
@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_value_that_cannot_be_taken_leaves_the_figure_as_it_was(
    factory: OperatorFactory, values: list[Any], expected: list[Any], on_error: Any
) -> None:
    step = Stepped(factory, on_error=on_error).push(Batch(values, keys=["a"] * len(values)))
    assert step.values() == expected
    refused = step.counters.skipped + step.counters.dead_letters
    assert refused == len(values) - len(expected) - step.counters.filtered


def test_a_dead_letter_holds_the_whole_value_not_what_by_took_of_it() -> None:
    step = Stepped(partial(Sum, by=lambda row: row["n"]), on_error="dead-letter")
    step.push(Batch([{"n": 1}, {"m": 2}, {"n": None}, {"n": 4}], keys=["a", "b", "c", "a"]))
    assert step.rows() == [("a", 1, None), ("a", 5, None)]
    assert [(letter.key, letter.value) for letter in step.dead_letters] == [("b", {"m": 2}), ("c", {"n": None})]


@pytest.mark.parametrize(
    ("factory", "values", "said"),
    [
        (Sum, ["secret"], "TypeError: unsupported operand type"),
        (partial(Sum, by=lambda value: value), ["secret"], r"TypeError in .*<lambda> at .*test_figures\.py"),
        (partial(Distinct, by=None), [["secret"]], r"TypeError: unhashable type: 'list'\. Name a column"),
        (partial(Distinct, by=lambda value: [value]), ["secret"], r"TypeError in .*<lambda> at .*test_figures\.py"),
        (partial(TopN, n=2, by=None), [1, "secret"], "TypeError: '<' not supported .* Name a column"),
        (partial(Fold, fn=pair, default=lambda: 1 // 0), ["secret"], "ZeroDivisionError"),
    ],
)
def test_a_value_that_cannot_be_taken_fails_naming_step_and_key_not_the_value_nor_a_file_of_ours(
    factory: OperatorFactory, values: list[Any], said: str
) -> None:
    with pytest.raises(OperatorError, match=rf"'under-test' failed for key 'a': {said}") as caught:
        Stepped(factory).push(Batch(values, keys=["a"] * len(values)))
    assert "secret" not in str(caught.value)
    assert "malstrom_py" not in str(caught.value)


def test_the_default_of_a_fold_is_made_once_per_key_and_one_that_raises_leaves_no_state() -> None:
    made: list[int] = []
    step = Stepped(partial(Fold, fn=lambda _, value: value, default=lambda: made.append(1)))
    step.push(Batch([None, 1, 2], keys=["a", "a", "b"]))
    assert len(made) == 2
    failing = Stepped(partial(Fold, fn=pair, default=lambda: 1 // 0), on_error="skip").push(Batch([1], keys=["a"]))
    assert (failing.operator.keys, failing.counters.skipped) == (0, 1)


VALUES = st.sampled_from([0, 1, 2, None, "", (1, 2), 1.0, True])


@given(records=st.lists(st.tuples(st.sampled_from("ab"), VALUES)), sizes=st.lists(st.integers(1, 5), max_size=20))
def test_distinct_passes_each_value_once_per_key_whatever_the_cuts(
    records: list[tuple[str, Any]], sizes: list[int]
) -> None:
    batch = Batch([v for _, v in records], keys=[k for k, _ in records], timestamps=list(range(len(records))))
    step = Stepped(partial(Distinct, by=None), keyed=True, timed=True).push(*cut(batch, sizes))
    seen: set[tuple[str, Any]] = set()
    expected = []
    for at, record in enumerate(records):
        if record not in seen:
            seen.add(record)
            expected.append((*record, at))
    assert step.rows() == expected
    assert step.counters.filtered == len(records) - len(expected)


PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 1000))


@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), PAIRS), max_size=25),
    n=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 5), max_size=20),
)
def test_top_n_gives_what_a_stable_sort_of_all_so_far_gives(
    records: list[tuple[str, tuple[int, int]]], n: int, sizes: list[int]
) -> None:
    """A stable sort by falling rank keeps equal ones in the order they came: of equals the first stays ahead."""
    asked: list[int] = []

    def rank(value: tuple[int, int]) -> int:
        asked.append(value[0])
        return value[0]

    batch = Batch([value for _, value in records], keys=[key for key, _ in records])
    step = Stepped(partial(TopN, n=n, by=rank), keyed=True).push(*cut(batch, sizes))
    seen: dict[str, list[tuple[int, int]]] = {}
    expected = []
    for key, value in records:
        seen.setdefault(key, []).append(value)
        expected.append(sorted(seen[key], key=lambda value: -value[0])[:n])
    assert step.values() == expected  # lists that were sent before have not changed
    assert asked == [value[0] for _, value in records]  # once per record, however many are kept
