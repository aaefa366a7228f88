"""`Pair`, the result of every join, and what joins by window count.

Rules: the left stream is side 0, the right one side 1. A pair is sent once, under its key, above every epoch
(watermark) that the step has forwarded. R4: what is kept of both sides is one state per key, so both move together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from malstrom_py.operators.unmatched import Unmatched

L_co = TypeVar("L_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Pair(NamedTuple, Generic[L_co, R_co]):
    """A result of a join: the tuple ``(left, right)`` of two values, None where a partner is missing.

    >>> Pair("desk", 30) == ("desk", 30), Pair("desk", 30).right
    (True, 30)
    """

    left: L_co
    right: R_co


pair_of: Final[Callable[[tuple[Any, Any]], Pair[Any, Any]]] = partial(tuple.__new__, Pair)
"""Make a pair of a tuple, without a Python call."""


def pairs_of(lefts: Iterable[Any], rights: Iterable[Any]) -> list[Pair[Any, Any]]:
    """Return the pairs of two columns, row by row; a fifth faster than `pair_of` of each."""
    new: Any = tuple.__new__
    return list(map(new, repeat(Pair), zip(lefts, rights, strict=True)))


How = Literal["inner", "left", "outer"]
"""Which records of a join come out without a partner: none, those of the left stream, those of both."""

Direction = Literal["backward", "forward", "nearest"]
"""Where the partner of an as-of join is: at or before the left record, at or after it, or the nearer of the two."""


def count_alone(unmatched: Unmatched, how: How, left: int, right: int) -> None:
    """Count the records of a join by window that have no partner; ``how`` says of which streams they are dropped."""
    dropped = (left if how == "inner" else 0) + (right if how != "outer" else 0)
    unmatched.dropped(dropped)
    unmatched.mistaken(left + right - dropped)


def count_pairs(unmatched: Unmatched, how: How, sent: int, alone: tuple[int, int]) -> None:
    """Count the ``sent`` records of a join by window, and the left and right ones that have no partner."""
    count_alone(unmatched, how, *alone)
    if sent > (alone[0] if how != "inner" else 0) + (alone[1] if how == "outer" else 0):
        unmatched.right()
