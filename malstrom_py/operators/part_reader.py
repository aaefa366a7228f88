"""The reader of one part of a source: how many rows to poll, when to poll next, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from malstrom_py.errors import shown
from malstrom_py.operators.batch_sizing import BatchSize
from malstrom_py.sources.base import BasePart, Part, lag_of

_BACKOFF_MIN_S: Final = 0.001
_POLL_MAX_S: Final = 0.1
_POLL_QUICK_S: Final = 0.005

COLUMNS_GROWTH: Final = 8
"""How many times more rows are asked for after a quick poll of columns: a small batch costs as much as a large one."""

ROWS_FIRST: Final = 4
"""The number of rows of the first poll of a part."""


class ReadPart(NamedTuple):
    """How far a part has been read: its records, its position for people, and what could be read and was not yet."""

    part: Part
    rows: int
    position: str
    lag_rows: int | None
    lag_bytes: int | None


class PartReader:
    """The reader of one part: how many rows to poll, and when to poll next."""

    __slots__ = (
        "_bad_rows",
        "_by_frames",
        "batch_size",
        "count",
        "gives_columns",
        "name",
        "part",
        "poll_at_s",
        "quiet_since_s",
        "row_bytes",
        "rows",
        "source_part",
        "wait_s",
    )

    def __init__(self, part: Part, name: str, source_part: BasePart[Any], *, bad_rows: bool) -> None:
        """``bad_rows``: whether records that cannot be read fail no job."""
        self.part = part
        self.name = name
        self.source_part = source_part
        self.count = 0
        """How many records this reader has read."""
        self.poll_at_s = 0.0
        self.wait_s = 0.0
        self.quiet_since_s: float | None = None
        self.rows = ROWS_FIRST
        self.batch_size = BatchSize(ROWS_FIRST)
        self.row_bytes = 1
        self.gives_columns = False
        self._by_frames = False
        self._bad_rows = bad_rows
        if bad_rows:
            source_part.set_polls(frames=False, bad_rows=True)

    @property
    def rows_next(self) -> int:
        """The number of rows of the next poll."""
        return min(self.rows, self.batch_size.rows)

    @property
    def pace(self) -> int | None:
        """The number of rows with which another worker may begin; None: with few, as rows were slow here."""
        return self.rows if self.rows <= self.batch_size.rows else None

    def expect(self, rows: int) -> None:
        """Ask for so many ``rows`` in the first poll."""
        self.rows = rows
        self.batch_size = BatchSize(rows)

    def set_frames(self) -> None:
        """Poll Polars frames from now on, if the part gives columns and can."""
        if self.gives_columns and not self._by_frames:
            self._by_frames = True
            self.source_part.set_polls(frames=True, bad_rows=self._bad_rows)

    def adapt(self, took_s: float, rows_max: int, bytes_max: int) -> None:
        """Set the number of rows of the next poll, after one that took ``took_s``."""
        if self.gives_columns:
            self.batch_size.growth = COLUMNS_GROWTH
        times = self.batch_size.growth if took_s < _POLL_QUICK_S else 2
        rows = self.rows // 4 if took_s > _POLL_MAX_S else self.rows * times
        self.rows = max(1, min(rows, rows_max, bytes_max // self.row_bytes))

    def came(self) -> None:
        """Note that records came: the next poll is due immediately."""
        self.poll_at_s = self.wait_s = 0.0
        self.quiet_since_s = None

    def delay(self, now_s: float, linger_s: float) -> float:
        """Note that no records came: back off from ``linger_s``, doubling up to the limit of the part. Return for how
        long no records have come: 0 at first."""
        wait_s = min(max(self.wait_s * 2, _BACKOFF_MIN_S), self.source_part.wait_max_s)
        self.wait_s = max(linger_s, wait_s)
        self.poll_at_s = now_s + self.wait_s
        if self.quiet_since_s is None:
            self.quiet_since_s = now_s
        return now_s - self.quiet_since_s

    def position(self, *, moves: bool) -> str:
        """Describe where the part is, for people; empty if that is unknown. ``moves``: whether it has positions."""
        try:
            return describe_position(self.source_part.snapshot()) if moves else ""
        except Exception:  # a later snapshot raises it; no job fails because of a text for people
            return ""

    def read(self, *, moves: bool) -> ReadPart:
        """Describe what has been read."""
        part = self.source_part
        lags = lag_of(part.lag_rows), lag_of(part.lag_bytes)
        return ReadPart(self.part, self.count, self.position(moves=moves), *lags)


def describe_position(position: Any) -> str:
    """Describe the position of a part for people: the row of a file, a number or a text; empty if it is not readable.

    >>> describe_position(3), describe_position({"schema": b"...", "rows": 1200}), describe_position({"schema": b"..."})
    ('position 3', 'row 1,200', '')
    >>> describe_position({"file": "a.parquet", "row_group": 2, "records": 7, "finished": False})
    'row 7 of row group 2'
    """
    if isinstance(position, (int, float, str)):
        return f"position {shown(position)}"
    if not isinstance(position, Mapping):
        return ""
    if isinstance(position.get("file"), str) and isinstance(group := position.get("row_group"), int):
        return f"row {position.get('records', position.get('row')):,} of row group {group}"  # of a pinned file
    if isinstance(rows := position.get("rows"), int):
        return f"row {rows:,}"
    if isinstance(current := position.get("current"), Mapping):  # of a folder that is followed
        upto = describe_position(current.get("position"))
        return f"{upto} of {shown(current.get('file'))}" if upto else ""
    plain = all(isinstance(value, (int, float, str)) for value in position.values())
    return ", ".join(f"{name} {shown(value)}" for name, value in position.items()) if plain else ""
