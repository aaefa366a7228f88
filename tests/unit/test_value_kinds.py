"""`Kinds`: what Arrow would quietly mix is refused, whatever comes first, at any depth."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.value_kinds import Kinds

DAY, AT = dt.date(2013, 1, 1), dt.datetime(2013, 1, 1)  # noqa: DTZ001
ZONED = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


def check_all(batches: list[list[Any]]) -> None:
    kinds = Kinds(PlanError)
    for values in batches:
        kinds.check("n", values)


@pytest.mark.parametrize(("one", "other"), [(DAY, AT), (AT, ZONED), (ZONED, DAY), ("a", b"a"), (bytearray(b"a"), "a")])
def test_two_kinds_are_refused_in_one_column_and_taken_in_two(one: Any, other: Any) -> None:
    for batches in ([[one, other]], [[one], [other]], [[None], [one], [None, other]]):
        with pytest.raises(PlanError, match=r"column 'n' holds .* and .*: make them alike"):
            check_all(batches)
    kinds = Kinds(PlanError)
    kinds.check("n", [one])
    kinds.check("m", [other])


@pytest.mark.parametrize(
    ("values", "column"),
    [([[DAY], [AT]], r"n\[\]"), ([{"m": "a"}, {"m": b"a"}], r"n\.m"), ([[{"m": DAY}, {"m": AT}]], r"n\[\]\.m")],
)
def test_kinds_inside_lists_and_dicts_are_told_apart_too(values: list[Any], column: str) -> None:
    with pytest.raises(PlanError, match=f"column '{column}' holds"):
        Kinds(PlanError).check("n", values)


def test_other_values_are_left_to_arrow() -> None:
    Kinds(PlanError).check("n", [1, 2.5, None, "a"])
