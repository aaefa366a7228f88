"""One part of a source while it is read: how much it is asked for, when again, and what it gives as a batch."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.portions import Portion
from malstrom_py.sources.base import Part, SourcePart

_BACKOFF_MIN_S: Final = 0.001
_BACKOFF_MAX_S: Final = 0.5
_POLL_MAX_S: Final = 0.1

ROWS_FIRST: Final = 4
"""How many rows a part is asked for at first."""


class PartReader:
    """One part while it is read here."""

    __slots__ = (
        "gives_columns",
        "name",
        "part",
        "poll_at_s",
        "portion",
        "quiet_since_s",
        "row_bytes",
        "rows",
        "source_part",
        "wait_s",
    )

    def __init__(self, part: Part, name: str, source_part: SourcePart[Any]) -> None:
        self.part = part
        self.name = name
        self.source_part = source_part
        self.poll_at_s = 0.0
        self.wait_s = 0.0
        self.quiet_since_s: float | None = None
        self.rows = ROWS_FIRST
        self.portion = Portion(ROWS_FIRST)
        self.row_bytes = 1
        self.gives_columns = False

    def poll(self, rows_max: int, *, frames: bool = False) -> Any:
        """What the part gives. ``frames``: by the way that is fastest for frames of Polars, where it has one."""
        poll = getattr(self.source_part, "poll_columns", None) if frames and self.gives_columns else None
        return self.source_part.poll(rows_max) if poll is None else poll(rows_max)

    def adapt(self, took_s: float, rows_max: int, bytes_max: int) -> None:
        """How many rows to ask for next, after a poll that took ``took_s``."""
        rows = self.rows // 4 if took_s > _POLL_MAX_S else self.rows * 2
        self.rows = max(1, min(rows, rows_max, bytes_max // self.row_bytes))

    def came(self) -> None:
        """Something came: ask again at once."""
        self.poll_at_s = self.wait_s = 0.0
        self.quiet_since_s = None

    def delay(self, now_s: float, linger_s: float) -> float:
        """Nothing came: ask again after ``linger_s``, twice as late each time up to half a second.

        Returns for how long nothing has come: 0 at first.
        """
        self.wait_s = max(linger_s, min(max(self.wait_s * 2, _BACKOFF_MIN_S), _BACKOFF_MAX_S))
        self.poll_at_s = now_s + self.wait_s
        if self.quiet_since_s is None:
            self.quiet_since_s = now_s
        return now_s - self.quiet_since_s


def size_of(value: Any) -> int:
    """About how many bytes a value takes: its own, and those of its items one level down.

    >>> size_of("x" * 1000) > 1000, size_of({"column": "x" * 1000}) > 1000
    (True, True)
    """
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return getsizeof(value, 64) + sum(getsizeof(item, 64) for item in items)


def batch_of(polled: Any, part: str) -> Batch:
    """What a part has polled as a batch: columns stay columns."""
    if isinstance(polled, ColumnBatch):
        polled.part, polled.named = part, True
        return polled
    if hasattr(polled, "schema"):  # an Arrow RecordBatch, told without importing Arrow
        return ColumnBatch(polled, part=part, named=True)
    return Batch(polled if isinstance(polled, list) else list(polled), part=part)


def row_bytes(batch: Batch) -> int:
    """About how many bytes a row of ``batch`` takes."""
    if isinstance(batch, ColumnBatch):
        return max(1, batch.size // len(batch))
    return size_of(batch.values[-1])
