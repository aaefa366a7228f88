"""Aggregates: what they give is what a naive computation gives, value by value and merged in any way."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sources, windows
from malstrom_py.agg import Aggregation
from malstrom_py.codec import Codec
from malstrom_py.errors import PlanError


def spread() -> Aggregation[Any, Any]:
    return agg.custom(
        init=list,
        add=lambda seen, value: [min([*seen, value]), max([*seen, value])],
        merge=lambda left, right: [min([*left, *right]), max([*left, *right])] if left or right else [],
        finish=lambda seen: seen[1] - seen[0] if seen else None,
    )


EXACT: dict[str, tuple[Aggregation[Any, Any], Callable[[list[Any]], Any]]] = {
    "count": (agg.count(), len),
    "sum": (agg.sum(), sum),
    "min": (agg.min(), lambda values: min(values, default=None)),
    "max": (agg.max(), lambda values: max(values, default=None)),
    "mean": (agg.mean(), lambda values: sum(values) / len(values) if values else None),
    "first": (agg.first(), lambda values: values[0] if values else None),
    "last": (agg.last(), lambda values: values[-1] if values else None),
    "n_unique": (agg.n_unique(), lambda values: len(set(values))),
    "custom": (spread(), lambda values: max(values) - min(values) if values else None),
}
"""With fractions these are exact; `std` is tried apart."""


FRACTIONS = st.lists(st.fractions(-100, 100, max_denominator=12), max_size=12)


def state_of(one: Aggregation[Any, Any], values: Sequence[Any]) -> Any:
    state = one.init()
    for value in values:
        state = one.add(state, value)
    return state


@given(values=FRACTIONS)
def test_it_is_what_a_naive_computation_gives(values: list[Fraction]) -> None:
    found = {name: one.finish(state_of(one, values)) for name, (one, _) in EXACT.items()}
    assert found == {name: naive(values) for name, (_, naive) in EXACT.items()}


@given(values=FRACTIONS, cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_merging_is_associative_and_keeps_the_order(values: list[Fraction], cuts: tuple[int, int]) -> None:
    low, high = sorted(cuts)
    for name, (one, naive) in EXACT.items():
        first, second, third = (state_of(one, part) for part in (values[:low], values[low:high], values[high:]))
        left = one.merge(one.merge(first, second), third)
        right = one.merge(first, one.merge(second, third))
        assert left == right == state_of(one, values), name
        assert one.finish(left) == naive(values), name


@given(left=FRACTIONS, right=FRACTIONS)
def test_merging_changes_neither_of_the_two_and_the_state_of_nothing_changes_nothing(
    left: list[Fraction], right: list[Fraction]
) -> None:
    for name, one in {"std": agg.std(), **{name: one for name, (one, _) in EXACT.items()}}.items():
        of_left, of_right = state_of(one, left), state_of(one, right)
        assert one.merge(one.init(), of_left) == of_left == one.merge(of_left, one.init()), name
        one.merge(of_left, of_right)
        assert (of_left, of_right) == (state_of(one, left), state_of(one, right)), name


# Standard deviation.


@given(values=st.lists(st.integers(-(10**6), 10**6), max_size=30), cut=st.integers(0, 30), shift=st.integers(0, 10**9))
def test_std_is_that_of_a_sample_added_or_merged(values: list[int], cut: int, shift: int) -> None:
    one = agg.std()
    values = [value + shift for value in values]
    exact = statistics.stdev(values) if len(values) > 1 else None
    merged = one.merge(state_of(one, values[:cut]), state_of(one, values[cut:]))
    for state in (state_of(one, values), merged):
        found = one.finish(state)
        assert (found is None) is (exact is None)
        if found is not None and exact is not None:
            assert found == pytest.approx(exact, rel=1e-6, abs=1e-4)


def test_std_keeps_its_digits_far_from_zero() -> None:
    values = [1e9 + step for step in (4.0, 7.0, 13.0, 16.0)] * 100
    one = agg.std()
    assert one.finish(state_of(one, values)) == pytest.approx(statistics.stdev(values), rel=1e-9)
    halves = one.merge(state_of(one, values[:200]), state_of(one, values[200:]))
    assert one.finish(halves) == pytest.approx(statistics.stdev(values), rel=1e-9)
    assert one.finish(state_of(one, [7])) is None
    assert one.finish(state_of(one, [7.1] * 100)) == 0.0
    assert type(one.finish(state_of(one, [Decimal("1.5"), Decimal("2.5")]))) is float


# Kinds of numbers, None and NaN: as the steps sum, min, max and mean have it.


@pytest.mark.parametrize("make", [agg.sum, agg.min, agg.max, agg.mean, agg.std])
@pytest.mark.parametrize("before", [[], [1, 2]])
def test_none_is_refused_and_leaves_the_state_as_it_was(make: Any, before: list[int]) -> None:
    one = make()
    state = state_of(one, before)
    with pytest.raises(TypeError):
        one.add(state, None)
    assert state == state_of(one, before)


def test_none_is_a_value_to_those_that_do_not_compute() -> None:
    results = {
        one.name: one.finish(state_of(one, [None, 1, None])) for one in (agg.first(), agg.last(), agg.n_unique())
    }
    assert results == {"first": None, "last": None, "n_unique": 2}
    assert agg.last().finish(state_of(agg.last(), [1, None])) is None
    assert agg.count().finish(state_of(agg.count(), [None, None])) == 2


@pytest.mark.parametrize("make", [agg.sum, agg.mean, agg.std])
def test_nan_stays(make: Any) -> None:
    one = make()
    assert math.isnan(one.finish(state_of(one, [1.0, math.nan, 2.0])))
    assert math.isnan(one.finish(one.merge(state_of(one, [1.0, 2.0]), state_of(one, [math.nan, 1.0]))))


@pytest.mark.parametrize("nan", [math.nan, Decimal("NaN")])
def test_nan_is_larger_than_every_number_in_any_order(nan: Any) -> None:
    for values in permutations([nan, type(nan)(1), 3, -float(nan)]):
        assert agg.min().finish(state_of(agg.min(), values)) == 1
        largest = agg.max().finish(state_of(agg.max(), values))
        assert largest != largest
        for cut in range(1, 4):
            parts = [state_of(agg.min(), values[:cut]), state_of(agg.min(), values[cut:])]
            assert agg.min().merge(*parts) == 1
    assert math.isnan(agg.min().finish(state_of(agg.min(), [math.nan, math.nan])))


BERLIN = ZoneInfo("Europe/Berlin")
FIRST, SECOND = (datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=BERLIN) for fold in (0, 1))
BETWEEN = datetime(2024, 10, 27, 2, 45, tzinfo=BERLIN)  # of the first time, so before SECOND


def test_times_with_a_zone_are_compared_as_instants_and_keep_their_zone() -> None:
    for values in permutations([SECOND, BETWEEN, FIRST, SECOND.astimezone(UTC)]):
        assert agg.min().finish(state_of(agg.min(), values)) is FIRST
        assert agg.max().finish(state_of(agg.max(), values)).astimezone(UTC) == SECOND.astimezone(UTC)
        assert agg.n_unique().finish(state_of(agg.n_unique(), values)) == 3
        pairs = [(value, 1) for value in values]
        assert agg.min().finish(state_of(agg.min(), pairs)) == (FIRST, 1)
        assert agg.n_unique().finish(state_of(agg.n_unique(), pairs)) == 3


LONG = [Decimal("1E+30"), Decimal("1E-20"), Decimal("-1E+30"), Decimal(1)]


@pytest.mark.parametrize("precision", [3, 28, 90])
def test_sums_of_decimals_are_exact_in_every_context(precision: int) -> None:
    with localcontext(prec=precision) as context:
        context.traps[Inexact] = precision == 3
        total, mean = state_of(agg.sum(), LONG), agg.mean().finish(state_of(agg.mean(), LONG))
        merged = agg.sum().merge(state_of(agg.sum(), LONG[:2]), state_of(agg.sum(), LONG[2:]))
        third = agg.mean().finish(state_of(agg.mean(), [Decimal(1), 0, 0]))
        std = agg.std().finish(state_of(agg.std(), LONG[1:]))
    assert total == merged == Decimal("1.00000000000000000001")
    assert mean == Decimal("0.2500000000000000000025")
    assert third == Decimal("0." + "3" * 28)
    assert std == agg.std().finish(state_of(agg.std(), LONG[1:]))


@pytest.mark.parametrize("one", [agg.sum(), agg.mean()])
def test_a_sum_of_decimals_that_is_too_long_is_an_error_that_says_what_to_do(one: Any) -> None:
    with pytest.raises(ArithmeticError, match="more than 1,000 digits: round the values before"):
        state_of(one, [Decimal("1E+1000"), Decimal(1)])
    rows = iter([("a", Decimal("1E+1000")), ("a", Decimal(1))])
    with pytest.raises(ArithmeticError, match="more than 1,000 digits"):
        one.run(rows, [], {})


@pytest.mark.parametrize("one", [agg.sum(), agg.mean(), agg.min(), agg.max()])
@given(st.lists(st.decimals() | st.floats() | st.integers() | st.none(), max_size=6))
def test_many_rows_give_what_one_after_the_other_gives(one: Any, values: list[Any]) -> None:
    fast: list[Any] = []
    slow: list[Any] = []
    with suppress(TypeError, ArithmeticError):
        one.run(zip(["a"] * 6, values, strict=False), fast, {})
    state = one.init()
    with suppress(TypeError, ArithmeticError):
        for value in values:
            state = one.add(state, value)
            slow.append(one.finish(state))
    assert list(map(repr, fast)) == list(map(repr, slow))


def test_all_nan_are_one_value_also_after_their_state_was_stored() -> None:
    one, codec = agg.n_unique(), Codec()
    state = state_of(one, [float("nan"), 1.0, float("nan")])
    restored = codec.decode_at_rest(codec.encode_at_rest(state, step="n"), step="n")
    assert one.finish(state_of(one, [float("nan")])) == 1
    assert one.finish(state_of(one, [(float("nan"),), (float("nan"),)])) == 1, "also within tuples"
    assert one.finish(one.add(restored, float("nan"))) == 2


def test_what_is_equal_in_python_is_one_value() -> None:
    assert agg.n_unique().finish(state_of(agg.n_unique(), [1, 1.0, True, Decimal(1), 0.0, -0.0, "1"])) == 3


# What is passed around.


@pytest.mark.parametrize("one", [agg.sum("n"), agg.std(len), agg.n_unique(), spread()], ids=repr)
def test_an_aggregate_can_be_shipped_and_does_the_same_there(one: Aggregation[Any, Any]) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(one))
    assert copy.finish(state_of(copy, [3, 5])) == one.finish(state_of(one, [3, 5]))


def test_an_aggregate_with_another_add_uses_it() -> None:
    def own(state: int, value: int) -> int:
        return state - value

    changed = replace(agg.sum(), add=own)
    assert mp.collect(mp.Job("j").source("in", sources.Memory([1, 2])).key_by("k", bool).aggregate("a", n=changed)) == [
        {"n": -1},
        {"n": -3},
    ]


def test_an_aggregate_tells_what_it_is_of() -> None:
    assert repr(agg.mean("price")) == "agg.mean('price')"
    assert repr(agg.max(len)) == "agg.max(len)"
    assert repr(agg.n_unique()) == "agg.n_unique()"


def test_an_aggregate_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        agg.sum().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("make", [agg.sum, agg.min, agg.max, agg.mean, agg.std, agg.first, agg.last, agg.n_unique])
@pytest.mark.parametrize("field", [3, ["n"], agg.count()])
def test_a_field_is_a_column_or_a_function(make: Any, field: Any) -> None:
    with pytest.raises(PlanError, match=r"agg\.\w+ takes a column's name or a function"):
        make(field)


@pytest.mark.parametrize("missing", ["init", "add", "merge", "finish"])
def test_the_parts_of_an_own_aggregate_are_functions(missing: str) -> None:
    async def later() -> int:
        return 0

    for wrong in (3, later):
        parts: dict[str, Any] = {"init": int, "add": max, "merge": max, "finish": int, missing: wrong}
        with pytest.raises(PlanError, match=rf"agg\.custom: {missing} must be a function"):
            agg.custom(**parts)


NULLS = st.lists(st.none() | st.integers(-9, 9), max_size=12)
KINDS: dict[str, Callable[[list[int]], Any]] = {
    "count": len,
    "sum": lambda values: sum(values) if values else None,
    "min": lambda values: min(values) if values else None,
    "max": lambda values: max(values) if values else None,
    "mean": lambda values: sum(values) / len(values) if values else None,
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
    "n_unique": lambda values: len(set(values)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(before=NULLS, after=NULLS)
def test_nulls_are_left_out_as_in_sql(kind: str, before: list[int | None], after: list[int | None]) -> None:
    one: agg.Aggregation[Any, Any] = getattr(agg, kind)(skip_nulls=True)
    parts = []
    for values in (before, after):
        state = one.init()
        for value in values:
            if one.check is not None:
                one.check(state, value)
            state = one.add(state, value)
        parts.append(state)
    known = [value for value in (*before, *after) if value is not None]
    assert one.finish(one.merge(*parts)) == KINDS[kind](known)


def test_count_of_a_field_needs_skip_nulls() -> None:
    with pytest.raises(PlanError, match="skip_nulls=True"):
        agg.count("price")


MOMENTS = st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(-9, 9)), max_size=12)


@given(before=MOMENTS, after=MOMENTS, skip=st.booleans())
def test_the_earliest_and_the_latest_go_by_time_and_ties_by_arrival(
    before: list[tuple[int, int | None]], after: list[tuple[int, int | None]], *, skip: bool
) -> None:
    known = [pair for pair in (*before, *after) if pair[1] is not None or not skip]
    wanted = {
        agg.earliest: min(known, key=lambda pair: pair[0], default=(0, None))[1],
        agg.latest: max(reversed(known), key=lambda pair: pair[0], default=(0, None))[1],
    }
    for make, value in wanted.items():
        one = make(skip_nulls=skip)
        assert one.finish(one.merge(state_of(one, before), state_of(one, after))) == value
        assert one.finish(state_of(one, [*before, *after])) == value


def test_the_earliest_needs_timestamps() -> None:
    untimed = mp.Job("untimed").source("rows", sources.Memory([1])).key_by("all", lambda row: 0)
    with pytest.raises(PlanError, match=r"open=agg.earliest\(\) goes by the timestamps .* or agg.first"):
        untimed.aggregate("figures", open=agg.earliest())
    with pytest.raises(PlanError, match=r"close=agg.latest\(\) goes by the timestamps .* or agg.last"):
        untimed.window("threes", windows.count(3)).aggregate(close=agg.latest())
