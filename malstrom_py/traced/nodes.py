"""What a traced function computes: operations on fields and constants, and a tree of the questions that it asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "time", "date", "other"]
"""Of what type the values of a column are in Python; ``time`` is a datetime without a zone."""


class NotTraceable(BaseException):
    """The function needs a value, and not only its kind. No handler of the function sees it. ``why``: in words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NoFields(NotTraceable):
    """The function does something with its row that no row of named fields has: it is never traced."""

    def __init__(self) -> None:
        super().__init__("uses the row otherwise than by its fields")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """``operation`` on other nodes and constants. Its value in each row is of ``kind``."""

    operation: str
    arguments: tuple[Any, ...]
    kind: Kind


class Listed(tuple[Any, ...]):
    """What is in a list or set that the function returns, which is not the same value as a tuple."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What the function returns on a path: constants, nodes, and tuples, lists and dicts of them.

    ``risky``: nodes on the path whose operation may raise, whether or not the function uses what they give.
    """

    value: Any
    risky: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Failing:
    """A path on which the function raises, or does what proxies cannot."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the function asks whether ``test`` is true."""

    test: Node
    yes: Tree
    no: Tree


Tree = Result | Failing | Choice


def leaves(tree: Tree) -> Iterator[Result | Failing]:
    """Yield the ends of all paths."""
    if isinstance(tree, Choice):
        yield from leaves(tree.yes)
        yield from leaves(tree.no)
    else:
        yield tree
