"""Copies of what a user's function may change, and nothing else is copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from malstrom_py.data.unshared import unshared


class Seen(NamedTuple):
    name: str
    parts: object = None


@dataclass(frozen=True)
class Bid:
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


@pytest.mark.parametrize("value", [1, "a", None, (1, "a"), Seen("a"), Bid(1), Bid(1, "b")])
def test_what_cannot_change_is_not_copied(value: object) -> None:
    assert unshared(value) is value


@pytest.mark.parametrize(
    "value", [[1], [[1]], {"a": [1]}, Seen("a", [1]), Bid(1, [1]), Best(1), Best(1, [1]), More(1), (1, [2])]
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
