"""``Generator``: a source over a user's iterator. The position is the number of items taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import describe_error, describe_function, failed_in, refuse_no_items, sentence
from malstrom_py.sources.base import BasePart, BaseSource, Part
from malstrom_py.validation import checked_whole

V = TypeVar("V")


class Generator(BaseSource[V]):
    """Reads what ``fn(part, start)`` yields, for partitions 0 to ``parts - 1`` (named ``"0"``, ``"1"``, …).

    ``start`` is the number of items taken from this partition before: 0 at first; on resume ``fn`` is called again and
    must continue there. Only polled items are taken, so the iterator may be endless. When ``fn`` raises, the items
    yielded before are delivered first; then `SourceError` names partition,
    position and function. PlanError: ``fn`` cannot be called, or ``parts`` is not a whole number above 0.

    >>> def squares(part, start):
    ...     yield from (n * n for n in range(start, 5))
    >>> source = Generator(squares)
    >>> part = source.build_part(Part("0"), None)
    >>> part.poll(3), part.snapshot(), part.is_finished()
    ([0, 1, 4], 3, False)
    >>> source.build_part(Part("0"), part.snapshot()).poll(10)
    [9, 16]
    """

    def __init__(self, fn: Callable[[int, int], Iterable[V]], parts: int = 1) -> None:
        if not callable(fn):
            raise PlanError(f"sources.Generator takes a function fn(part, start) -> iterator, got {type(fn).__name__}")
        checked_whole(parts, "sources.Generator: parts")
        self._fn = fn
        self._parts = int(parts)

    def __repr__(self) -> str:
        return f"Generator({describe_function(self._fn)}, parts={self._parts})"

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(index)) for index in range(self._parts)]

    def build_part(self, part: Part, state: Any) -> _GeneratorPart[V]:
        return _GeneratorPart(self._fn, int(part), state or 0)


class _GeneratorPart(BasePart[V]):
    """Calls ``fn`` at the first poll, so that its first error is reported like any later one."""

    def __init__(self, fn: Callable[[int, int], Iterable[V]], part: int, position: int) -> None:
        self._fn = fn
        self._part = part
        self._position = position
        self._items: Iterator[V] | None = None
        self._finished = False
        self._error: Exception | None = None

    def poll(self, rows_max: int) -> list[V] | None:
        if self._finished:
            return None
        rows: list[V] = []
        if self._error is None:
            try:
                if self._items is None:
                    made = self._fn(self._part, self._position)
                    refuse_no_items(made, "an iterator")
                    self._items = iter(made)
                # Items yielded before the iterator raised stay in the list.
                rows.extend(islice(self._items, rows_max))
                self._finished = len(rows) < rows_max
            except Exception as error:
                self._error = error
        if self._error is not None and not rows:
            raise self._failure("raised", self._error) from self._error
        self._position += len(rows)
        return rows or None

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        self._items = None
        if close is not None:
            try:
                close()
            except Exception as error:
                raise self._failure("raised while it was closed", error) from error

    def _failure(self, what: str, error: Exception) -> SourceError:
        return SourceError(
            f"the generator function {failed_in(self._fn, error)} {what} in partition {self._part} after item "
            f"{self._position}: {sentence(describe_error(error))}. Correct the function."
        )
