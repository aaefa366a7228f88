"""Reads one partition of `sources.Postgres` with a cursor of the server, ahead of the polls.

The position is ``{"after": the texts of the order of the last row, "same": how many rows at that place were read,
"finished": …}``. Only equal rows share a place, so that it does not matter which of them come first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.postgres.connecting import connect, database_errors
from malstrom_py.connectors.postgres.splitting import Range, Shape, order_of, statement_of
from malstrom_py.connectors.read_ahead import ReadAhead
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import BasePart

if TYPE_CHECKING:
    import psycopg

_CHUNK_ROWS: Final = 5_000
_CANCEL_S: Final = 2.0
_FETCH: Final = f"FETCH {_CHUNK_ROWS} FROM malstrom".encode()
OWNER: Final = "sources.Postgres"

Chunk = list[tuple[Any, ...]]
"""Rows: their columns, and then the texts of their order."""


class RowFetcher:
    """The session of one partition, used in the thread that reads ahead."""

    def __init__(self, dsn: str, snapshot: str, shape: Shape, part: Range, position: dict[str, Any]) -> None:
        self._dsn = dsn
        self._snapshot = snapshot
        self._shape = shape
        self._part = part
        self._after: list[str] | None = position["after"]
        self._to_skip: int = position["same"]
        self._connection: psycopg.Connection[Any] | None = None

    def fetch(self) -> Chunk | None:
        """Return the next rows; `StopIteration` after the last."""
        with database_errors(f"{OWNER}: partition {self._part.part!r}", SourceError):
            connection = self._connection or self._opened()
            rows: Chunk = connection.execute(_FETCH, binary=True).fetchall()
        if not rows:
            raise StopIteration
        return self._unread(rows)

    def cancel(self) -> None:
        """End a statement that takes long, from another thread: sorting the rows of a large part may take minutes."""
        if self._connection is not None:
            with contextlib.suppress(Exception):  # the session may be gone, or be opened right now
                self._connection.cancel_safe(timeout=_CANCEL_S)

    def release(self) -> None:
        """Close the session."""
        if self._connection is not None:
            self._connection.close()

    def _unread(self, rows: Chunk) -> Chunk:
        """Return ``rows`` without those at the place of the position that were read before."""
        if not self._to_skip or self._after is None:
            return rows
        width, place = len(self._shape.columns), tuple(self._after)
        skipped = 0
        while skipped < min(self._to_skip, len(rows)) and rows[skipped][width:] == place:
            skipped += 1
        self._to_skip = self._to_skip - skipped if skipped == len(rows) else 0
        return rows[skipped:]

    def _opened(self) -> psycopg.Connection[Any]:
        import psycopg

        self._connection = connect(self._dsn)
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self._connection.execute(f"SET TRANSACTION SNAPSHOT '{self._snapshot}'".encode())
        except psycopg.Error as error:
            if error.sqlstate not in ("22023", "55000", "42704"):
                raise
            raise SourceError(
                f"{OWNER}: the database no longer holds the snapshot that the job reads: the session of the program "
                f"that started the job has ended. Start the job again: it reads the rest at a new one"
            ) from None
        self._connection.execute("SET LOCAL cursor_tuple_fraction = 1")
        query = statement_of(self._shape, self._part, self._after)
        self._connection.execute(b"DECLARE malstrom NO SCROLL CURSOR FOR " + query)
        return self._connection


class RowsPart(BasePart[dict[str, Any]]):
    """One partition while it is read; ``make_rows`` makes dicts of names and rows of values."""

    def __init__(
        self,
        shape: Shape,
        part: Range,
        position: dict[str, Any],
        open_fetcher: Callable[[dict[str, Any]], RowFetcher],
        make_rows: Callable[[Sequence[str], Sequence[tuple[Any, ...]]], list[dict[str, Any]]],
    ) -> None:
        self._shape = shape
        self._part = part
        self._width = len(shape.columns)
        self._has_order = bool(order_of(shape, part))
        self._position = dict(position)
        self._open_fetcher = open_fetcher
        self._make_rows = make_rows
        self._ahead: ReadAhead[Chunk] | None = None
        self._fetcher: RowFetcher | None = None
        self._rows: Chunk = []
        self._next = 0

    def poll(self, rows_max: int) -> list[dict[str, Any]] | None:
        """See `SourcePart.poll`."""
        if self._position["finished"]:
            return None
        if self._ahead is None:
            fetcher = self._open_fetcher(self._position)
            name = f"postgres-{self._part.part}"
            self._fetcher = fetcher
            self._ahead = ReadAhead(fetcher.fetch, name=name, release=fetcher.release)
        if self._next == len(self._rows):
            self._rows, self._next = self._ahead.take() or [], 0
        taken = self._rows[self._next : self._next + rows_max]
        self._next += len(taken)
        if self._next == len(self._rows) and self._ahead.is_finished:
            self._position["finished"] = True
        if not taken:
            return None
        self._move_to(taken)
        return self._make_rows(self._shape.columns, [row[: self._width] for row in taken])

    def is_finished(self) -> bool:
        """See `SourcePart.is_finished`."""
        return self._position["finished"] is True

    def snapshot(self) -> dict[str, Any]:
        """See `SourcePart.snapshot`."""
        return dict(self._position)

    def close(self) -> None:
        """See `SourcePart.close`."""
        if self._ahead is not None and self._fetcher is not None:
            if not self._ahead.is_finished:
                self._fetcher.cancel()
            self._ahead.close()

    def _move_to(self, taken: Chunk) -> None:
        """Move the position after the rows ``taken``."""
        place = taken[-1][self._width :]
        same = 1
        while same < len(taken) and taken[-1 - same][self._width :] == place:
            same += 1
        if same == len(taken) and self._position["after"] == list(place):
            same += self._position["same"]
        self._position["after"], self._position["same"] = list(place), same
