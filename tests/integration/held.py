"""Classes of another module that hold what a test gives them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A named tuple."""

    first: Any
    second: int


class Held(list[Any]):
    """A list that is made of its elements, not of a list of them."""

    def __init__(self, *elements: Any) -> None:
        super().__init__(elements)
