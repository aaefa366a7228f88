"""``Memory``: a source over items in memory, for tests, notebooks and small jobs.

Marks among the items end a run (`EOF`), break it (`ABORT`) or hold the source up (`PAUSE`), as in bytewax's
``TestingSource``. A source with an `EOF` pins which of its runs a job is at, so that a run that resumes after a failure
ends where it would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import WAIT_MAX_S, BasePart, BaseSource, Part
from malstrom_py.validation import checked_seconds, checked_whole
from malstrom_py.worker_context import current_clock

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EOF:
    """Ends a run there, as if there were no more items; the next run of the job continues after it."""


@dataclass(slots=True, eq=False)
class ABORT:
    """Breaks a run there, once: the source fails, and the job resumes from its last snapshot."""

    has_triggered: bool = field(default=False, init=False)

    def __reduce__(self) -> Any:
        raise PlanError(
            "sources.Memory.ABORT breaks a job once, which only the process knows that holds the items: run the job by "
            "mp.run in this process or by mp.Simulation. To break a job in other processes, end one of them"
        )


@dataclass(frozen=True, slots=True)
class PAUSE:
    """Holds the source up for ``for_s`` seconds of the job's clock."""

    for_s: float

    def __post_init__(self) -> None:
        checked_seconds(self.for_s, "sources.Memory.PAUSE: for_s", finite=True)


Mark = EOF | ABORT | PAUSE

_MARKS: Final = frozenset((EOF, ABORT, PAUSE))


class Memory(BaseSource[V]):
    """Deals ``items`` round-robin to ``parts`` partitions and keeps their order in each.

    ``Memory.EOF()`` among the items ends a run there, and the next run of a job with snapshots continues after it.
    ``Memory.ABORT()`` breaks the run there by a `SourceError`, once. ``Memory.PAUSE(for_s=5)`` gives no items for so
    long. `EOF` and `PAUSE` apply to all partitions, and `ABORT` to the one that gets the next item.

    >>> source = Memory(["a", "b", "c"], parts=2)
    >>> source.list_parts()
    ['0', '1']
    >>> source.build_part(Part("0"), None).poll(10)
    ['a', 'c']

    Raises:
        PlanError: ``items`` is not iterable, or has a class such as ``Memory.EOF`` instead of ``Memory.EOF()``;
            ``parts`` is not a whole number above 0; a subclass gets marks.
    """

    EOF: Final = EOF
    ABORT: Final = ABORT
    PAUSE: Final = PAUSE

    def __init__(self, items: Iterable[V | Mark], parts: int = 1) -> None:
        checked_whole(parts, "sources.Memory: parts")
        if not isinstance(items, Iterable):
            raise PlanError(f"sources.Memory takes an iterable of items, got {type(items).__name__}")
        everything: list[Any] = items if isinstance(items, list) else list(items)
        kinds = {*map(type, everything)}
        if type in kinds and (bare := _MARKS.intersection(item for item in everything if type(item) is type)):
            name = min(mark.__name__ for mark in bare)
            given = "for_s=…" if name == "PAUSE" else ""
            raise PlanError(f"sources.Memory: write sources.Memory.{name}({given}) among the items, with parentheses")
        if kinds.isdisjoint(_MARKS):
            self._parts = [everything] if parts == 1 else [everything[index::parts] for index in range(parts)]
            return
        if type(self) is not Memory:
            raise PlanError(f"{type(self).__name__}: marks are for sources.Memory itself, not for its subclasses")
        self._parts = _dealt(everything, parts)
        # Only a source that ends several runs pins: snapshots of jobs with other sources have no pin of it.
        this: Any = self
        this.__class__ = _MemoryInRuns if EOF in kinds else _MarkedMemory

    def __repr__(self) -> str:
        items = sum(type(item) not in _MARKS for part in self._parts for item in part)
        parts = len(self._parts)
        return f"Memory({items} item{'' if items == 1 else 's'}{'' if parts == 1 else f' in {parts} partitions'})"

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(index)) for index in range(len(self._parts))]

    def build_part(self, part: Part, state: Any) -> _MemoryPart[V]:
        return _MemoryPart(self._parts[int(part)], _reached(state)["items"])


class _MarkedMemory(Memory[V]):
    """Items with an `ABORT` or a `PAUSE` among them."""

    def build_part(self, part: Part, state: Any) -> _MemoryPart[V]:
        return _MarkedPart(self._parts[int(part)], _reached(state)["items"])


class _MemoryInRuns(Memory[V]):
    """Items with an `EOF` among them. ``_run``: how many of them earlier runs have ended at."""

    _run = 0
    reads_new = True

    def pin(self, job: str, record: Any = None) -> None:
        """Read the run of ``record`` again, or the first one."""
        self._run = record or 0

    def pin_next(self, job: str, record: Any) -> None:
        """Read the run after that of ``record``."""
        self._run = record + 1

    def pin_record(self) -> int:
        return self._run

    def has_read(self, position: Any) -> bool:
        return bool(_reached(position)["runs"] > self._run)

    def has_more(self, part: Part, position: Any) -> bool:
        return not self.has_read(position) and _reached(position)["items"] < len(self._parts[int(part)])

    def build_part(self, part: Part, state: Any) -> _MemoryPart[V]:
        return _PartInRuns(self._parts[int(part)], _reached(state), self._run)


def _reached(position: Any) -> Mapping[str, int]:
    """Return a position, or where none is the beginning, as of items with an `EOF`: a run before may have had none."""
    return position if isinstance(position, Mapping) else {"items": position or 0, "runs": 0}


def _dealt(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """Deal ``items`` round-robin; marks go to all parts, an `ABORT` to the one whose turn it is."""
    dealt: list[list[Any]] = [[] for _ in range(parts)]
    turn = 0
    for item in items:
        if isinstance(item, EOF | PAUSE):
            for part in dealt:
                part.append(item)
        else:
            dealt[turn % parts].append(item)
            turn += type(item) is not ABORT
    return dealt


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

    def snapshot(self) -> Any:
        return self._position

    def lag_rows(self) -> int:
        return len(self._items) - self._position

    def close(self) -> None:
        """Do nothing: no resource is open."""


class _MarkedPart(_MemoryPart[V]):
    """A part with marks among its items."""

    def __init__(self, items: list[Any], position: int) -> None:
        super().__init__(items, position)
        self._until_s: float | None = None

    def poll(self, rows_max: int) -> list[V]:
        rows: list[V] = []
        items = self._items
        while len(rows) < rows_max and self._position < len(items):
            item = items[self._position]
            if type(item) in _MARKS and (rows or self._stops_at(item)):
                break  # what is before a mark is processed before it
            self._position += 1
            if type(item) not in _MARKS:
                rows.append(item)
        return rows

    def _stops_at(self, mark: Any) -> bool:
        """Return whether no item after ``mark`` may be read now."""
        if type(mark) is PAUSE:
            return self._pauses(mark.for_s)
        if mark.has_triggered:
            return False
        mark.has_triggered = True
        raise SourceError(f"the run is broken at item {self._position}, where the items have a sources.Memory.ABORT")

    def _pauses(self, for_s: float) -> bool:
        now_s = current_clock().monotonic_s()
        if self._until_s is None:
            self._until_s = now_s + for_s
        left_s = self._until_s - now_s
        self.wait_max_s = min(max(left_s, 0.001), WAIT_MAX_S)
        if left_s <= 0:
            self._until_s, self.wait_max_s = None, WAIT_MAX_S
        return left_s > 0


class _PartInRuns(_MarkedPart[V]):
    """A part that ends at each `EOF`. ``runs``: how many runs have ended before ``position``; ``run``: the present."""

    def __init__(self, items: list[Any], position: Mapping[str, int], run: int) -> None:
        super().__init__(items, position["items"])
        self._runs = position["runs"]
        self._run = run

    def poll(self, rows_max: int) -> list[V]:
        rows = super().poll(rows_max)
        if self._position == len(self._items):
            self._runs = self._run + 1
        return rows

    def _stops_at(self, mark: Any) -> bool:
        if type(mark) is not EOF:
            return super()._stops_at(mark)
        self._runs += 1
        if ended := self.is_finished():
            self._position += 1
        return ended

    def is_finished(self) -> bool:
        return self._runs > self._run

    def snapshot(self) -> Any:
        return {"items": self._position, "runs": self._runs}
