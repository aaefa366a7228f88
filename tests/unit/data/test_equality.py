"""Values are compared by their meaning: instants by UTC, NaN as the largest number; and copied if they can change."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.equality import first_reading, is_smaller, seen_form, settled, settled_keys
from malstrom_py.data.unshared import unshared

ZONES = [ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), UTC, timezone(timedelta(hours=2))]
DAYS = [datetime(2024, 10, 27), datetime(2024, 3, 31), datetime(2024, 11, 3), datetime(2024, 7, 1)]  # noqa: DTZ001
MOMENTS = st.builds(
    lambda day, minutes, zone, fold: (day + timedelta(minutes=minutes)).replace(tzinfo=zone, fold=fold),
    st.sampled_from(DAYS),
    st.sampled_from(range(0, 300, 30)),
    st.sampled_from(ZONES),
    st.sampled_from([0, 1]),
)


class Stop(NamedTuple):
    at: datetime
    price: Any


@dataclass(frozen=True)
class Seat:
    at: Any
    row: int


@dataclass(order=True)
class Bid:
    price: float
    at: datetime


INSIDE = [lambda one: one, lambda one: (1, one), lambda one: Stop(one, 2), lambda one: Seat(one, 3)]


@pytest.mark.parametrize("inside", INSIDE)
@given(one=MOMENTS, other=MOMENTS)
def test_times_with_a_zone_are_equal_and_ordered_as_in_utc(inside: Any, one: datetime, other: datetime) -> None:
    in_utc = [moment.astimezone(UTC) for moment in (one, other)]
    for form in (settled, seen_form):
        forms = form(inside(one)), form(inside(other))
        assert (forms[0] == forms[1]) == (in_utc[0] == in_utc[1])
        assert (hash(forms[0]) == hash(forms[1])) or in_utc[0] != in_utc[1]
        assert form(forms[0]) is forms[0]
        assert type(forms[0]) is type(inside(one))
    assert is_smaller(one, other) == is_smaller((1, one), (1, other)) == (in_utc[0] < in_utc[1])


@given(MOMENTS)
def test_a_settled_time_is_the_same_instant_with_the_same_clock_time(moment: datetime) -> None:
    form = settled(moment)
    assert form.astimezone(UTC) == moment.astimezone(UTC)
    assert form.replace(tzinfo=None) == moment.replace(tzinfo=None)
    copied = pickle.loads(pickle.dumps(form))
    codec = Codec()
    assert codec.decode_at_rest(codec.encode_at_rest(form, step="s")) == copied == form


def test_only_times_of_an_hour_that_comes_twice_or_never_change() -> None:
    usual = [datetime(2024, 7, 1, tzinfo=ZONES[0]), datetime.min.replace(tzinfo=ZONES[0]), datetime(2024, 7, 1), "a", 1]  # noqa: DTZ001
    assert settled_keys(usual) is usual
    assert settled_keys([Seat(usual[0], 1)])[0].at is usual[0]
    twice = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZONES[0])
    assert settled_keys([1, twice])[1].tzinfo == timezone(timedelta(hours=1))
    assert settled(twice) != settled(twice.replace(fold=0)) == first_reading(twice)


def test_nan_is_one_value_and_the_largest_number() -> None:
    nans = [float("nan"), -float("nan"), Decimal("NaN"), np.float64("nan"), np.float32("nan")]
    for one, other in product(nans, nans):
        assert seen_form(one) == seen_form(other)
        assert seen_form((1, frozenset([one]))) == seen_form((1, frozenset([other])))
        assert not is_smaller(one, other)
    for one, number in product(nans, [1, math.inf, -1.5, Decimal("1E+400"), Decimal("Infinity"), np.float64(2)]):
        assert is_smaller(number, one)
        assert not is_smaller(one, number)
        assert is_smaller((number, 2), (one, 1))
        assert is_smaller([1, number], [1, one])
        assert seen_form(one) != seen_form(number)
    with pytest.raises(TypeError):
        is_smaller(math.nan, "a")
    with pytest.raises(TypeError):
        is_smaller("a", math.nan)


def test_ordered_dataclasses_are_compared_field_by_field() -> None:
    first, second = (
        datetime(2024, 10, 27, 2, minute, fold=fold, tzinfo=ZONES[0]) for minute, fold in ((45, 0), (30, 1))
    )
    assert is_smaller(Bid(1.0, first), Bid(1.0, second))
    assert is_smaller(Bid(math.inf, second), Bid(math.nan, first))


def test_the_second_reading_of_pandas_is_found_again() -> None:
    second = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZONES[0])
    forms = {seen_form(one) for one in (pd.Timestamp(second), second, second.astimezone(UTC))}
    assert len(forms) == 1
    assert seen_form(pd.Timestamp(second.replace(fold=0))) not in forms
    assert seen_form(pd.NaT) is pd.NaT


@dataclass(eq=False)
class Thing:
    at: float


def test_what_is_compared_by_identity_stays_itself() -> None:
    thing = Thing(math.nan)
    assert seen_form(thing) is settled(thing) is thing


# Values that nothing shares


class Seen(NamedTuple):
    name: str
    parts: object = None


@dataclass(frozen=True)
class Offer:
    price: int
    parts: object = None


@dataclass
class Best:
    price: int
    parts: list[int] | None = None


@dataclass
class More(Best):
    seen: set[int] = field(default_factory=set)


class Loose(tuple[int, ...]):  # noqa: SLOT001  its attributes may change
    pass


@pytest.mark.parametrize("value", [1, "a", None, (1, "a"), Seen("a"), Offer(1), Offer(1, "b")])
def test_what_cannot_change_is_not_copied(value: object) -> None:
    assert unshared(value) is value


@pytest.mark.parametrize(
    "value", [[1], [[1]], {"a": [1]}, Seen("a", [1]), Offer(1, [1]), Best(1), Best(1, [1]), More(1), (1, [2])]
)
def test_what_may_change_is_copied_with_its_parts(value: object) -> None:
    copied = unshared(value)
    assert copied == value
    assert copied is not value
    parts = getattr(value, "parts", None)
    assert parts is None or getattr(copied, "parts", None) is not parts


def test_attributes_of_a_tuple_are_copied() -> None:
    loose = Loose((1,))
    loose.seen = []  # type: ignore[attr-defined]
    assert unshared(loose).seen is not loose.seen  # type: ignore[attr-defined]


def test_containers_in_containers_are_copied_at_any_depth_and_in_a_circle() -> None:
    deep: list[object] = [1]
    for _ in range(20):
        deep = [deep, {"a": deep}]
    copied = unshared(deep)
    circle: list[object] = []
    circle.append(circle)
    assert copied == deep
    while isinstance(deep[0], list):
        assert copied is not deep
        deep, copied = deep[0], copied[0]
    turned = unshared(circle)
    while turned[0] is not turned:
        turned = turned[0]
        assert turned is not circle
