"""``Memory``: a source over items in memory, for tests, notebooks and small jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from malstrom_py.errors import PlanError
from malstrom_py.sources.base import BasePart, BaseSource, Part
from malstrom_py.validation import checked_whole

V = TypeVar("V")


class Memory(BaseSource[V]):
    """Deals ``items`` round-robin to ``parts`` partitions and keeps their order in each.

    >>> source = Memory(["a", "b", "c"], parts=2)
    >>> source.list_parts()
    ['0', '1']
    >>> source.build_part(Part("0"), None).poll(10)
    ['a', 'c']
    """

    def __init__(self, items: Iterable[V], parts: int = 1) -> None:
        checked_whole(parts, "sources.Memory: parts")
        if not isinstance(items, Iterable):
            raise PlanError(f"sources.Memory takes an iterable of items, got {type(items).__name__}")
        everything = items if isinstance(items, list) else list(items)
        self._parts = [everything] if parts == 1 else [everything[index::parts] for index in range(parts)]

    def __repr__(self) -> str:
        items, parts = sum(map(len, self._parts)), len(self._parts)
        return f"Memory({items} item{'' if items == 1 else 's'}{'' if parts == 1 else f' in {parts} partitions'})"

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(index)) for index in range(len(self._parts))]

    def build_part(self, part: Part, state: Any) -> _MemoryPart[V]:
        return _MemoryPart(self._parts[int(part)], state or 0)


class _MemoryPart(BasePart[V]):
    def __init__(self, items: list[V], position: int) -> None:
        self._items = items
        self._position = position

    def poll(self, rows_max: int) -> list[V]:
        rows = self._items[self._position : self._position + rows_max]
        self._position += len(rows)
        return rows

    def is_finished(self) -> bool:
        return self._position >= len(self._items)

    def snapshot(self) -> int:
        return self._position

    def lag_rows(self) -> int:
        return len(self._items) - self._position

    def close(self) -> None:
        """Do nothing: no resource is open."""
