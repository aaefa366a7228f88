"""A source that gives another one's records no faster than it is given, so that a job can be watched while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from malstrom_py import sources

AT_ONCE_S = 0.1
"""Rows are given so many seconds' worth at a time: many small batches cost more than a few large ones."""

BEHIND_S = 1.0
"""What was not read in its time is caught up with, but no further back."""


class Paced(sources.BaseSource[Any]):
    """Gives of each part of ``source`` at most ``rows_per_s``, also where the part moves to another worker."""

    def __init__(
        self, source: sources.BaseSource[Any], rows_per_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._source = source
        self._rows_per_s = rows_per_s
        self._clock = clock

    def pin(self, job: str, record: Any = None) -> None:
        """As ``source`` is pinned."""
        self._source.pin(job, record)

    def pin_record(self) -> Any:
        """What ``source`` has pinned."""
        return self._source.pin_record()

    def unpin(self, *, keep: bool = False) -> None:
        """The job has ended."""
        self._source.unpin(keep=keep)

    def list_parts(self) -> Sequence[sources.Part]:
        return self._source.list_parts()

    def build_part(self, part: sources.Part, state: Any) -> sources.SourcePart[Any]:
        return _PacedPart(self._source.build_part(part, state), self._rows_per_s, self._clock)


class _PacedPart(sources.BasePart[Any]):
    """Its clock starts when a worker begins to read it."""

    def __init__(self, part: sources.SourcePart[Any], rows_per_s: float, clock: Callable[[], float]) -> None:
        self._part = part
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._paid_s = clock()

    def poll(self, rows_max: int) -> Any:
        now_s = self._clock()
        self._paid_s = max(self._paid_s, now_s - BEHIND_S)
        if now_s - self._paid_s < AT_ONCE_S:
            return None
        due = int((now_s - self._paid_s) * self._rows_per_s + 1e-6)
        rows: Any = self._part.poll(max(1, min(rows_max, due)))
        self._paid_s += 0 if rows is None else len(rows) / self._rows_per_s
        return rows

    def is_finished(self) -> bool:
        return self._part.is_finished()

    def snapshot(self) -> Any:
        return self._part.snapshot()

    def close(self) -> None:
        self._part.close()
