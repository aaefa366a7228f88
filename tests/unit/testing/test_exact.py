"""Exact comparison finds every visible difference, and no other."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.testing.exact import copy_batch, same, same_batch
from tests.ids import shown

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    left: Any
    right: Any


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


TWICE = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

SAME = [
    TWICE.replace(fold=1),
    Decimal("NaN"),
    1,
    "a",
    None,
    float("nan"),
    [1, (2, {"a": {3}})],
    Point(1, 2),
    Pair(1, [2]),
    Plain(Plain([1])),
    Slotted({"a": 1}),
    np.array([1, 2]),
    Decimal("1.0"),
    frozenset(["a"]),
]


@pytest.mark.parametrize("value", SAME, ids=shown)
def test_a_copy_is_the_same(value: Any) -> None:
    assert same(value, copy.deepcopy(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (TWICE, TWICE.replace(fold=1)),
        (TWICE.astimezone(UTC), TWICE),
        (0.0, -0.0),
        ((1, 2), [1, 2]),
        (Point(1, 2), (1, 2)),
        ([1, (2,)], [1, [2]]),
        ({1: "a"}, {True: "a"}),
        ({1}, {1.0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({}, OrderedDict()),
        ({1, 2}, frozenset([1, 2])),
        (Pair(1, 2), Pair(1, 2.0)),
        (Plain(1), Plain(2)),
        (Plain(1), Slotted(1)),
        (Slotted([1]), Slotted([2])),
        (np.array([1, 2]), np.array([1, 3])),
        ([1], [1, 1]),
        ({1}, {1, 2}),
    ],
    ids=shown,
)
def test_what_differs_in_type_or_contents_is_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert not same(other, one)


def test_batches_are_compared_column_by_column() -> None:
    batch = Batch([[1]], keys=["a"], timestamps=[5], part="p")
    assert same_batch(batch, copy_batch(batch))
    assert not same_batch(batch, Batch([[1]], keys=["a"], timestamps=[5]))
    assert not same_batch(batch, Batch([[1]], keys=["b"], timestamps=[5], part="p"))
    copied = copy_batch(batch)
    batch.values[0].append(2)
    assert not same_batch(batch, copied)
