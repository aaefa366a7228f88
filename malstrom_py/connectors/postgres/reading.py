"""Reads one partition of `sources.Postgres` with a cursor of the server, ahead of the polls.

The position is ``{"after": the texts of the order of the last row, "same": how many rows at that place were read}``.
Only equal rows share a place, so that it does not matter which of them come first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.postgres.connecting import cancel, connect, database_errors
from malstrom_py.connectors.postgres.splitting import Range, Shape, statement_of
from malstrom_py.errors import SourceError
from malstrom_py.sources.polled import PolledChunk, PolledReader

if TYPE_CHECKING:
    import psycopg

_CHUNK_ROWS: Final = 5_000
_FETCH: Final = f"FETCH {_CHUNK_ROWS} FROM malstrom".encode()
OWNER: Final = "sources.Postgres"

Row = tuple[Any, ...]
"""The columns of a row, and then the texts of its order."""


class RowReader(PolledReader[Row]):
    """The session of one partition."""

    retried = ()

    def __init__(self, dsn: str, snapshot: str, shape: Shape, part: Range, position: dict[str, Any]) -> None:
        self._dsn = dsn
        self._snapshot = snapshot
        self._shape = shape
        self._part = part
        self._position = position
        self._to_skip: int = position["same"]
        self._connection: psycopg.Connection[Any] | None = None

    def read(self, rows_max: int) -> PolledChunk[Row]:
        with database_errors(f"{OWNER}: partition {self._part.part!r}", SourceError):
            connection = self._connection or self._opened()
            fetched: list[Row] = connection.execute(_FETCH, binary=True).fetchall()
        rows = self._unread(fetched)
        position = partial(self._position_after, self._position, rows)
        if rows:
            self._position = position(len(rows) - 1)
        return PolledChunk(rows, position, is_end=len(fetched) < _CHUNK_ROWS)

    def interrupt(self) -> None:
        """End a statement that takes long: sorting the rows of a large part may take minutes."""
        cancel(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _position_after(self, before: dict[str, Any], rows: list[Row], number: int) -> dict[str, Any]:
        """Return the position after a row: its place, and how many rows at this place were read."""
        width = len(self._shape.columns)
        place, first = rows[number][width:], number
        while first and rows[first - 1][width:] == place:
            first -= 1
        is_continued = not first and before["after"] == list(place)
        return {"after": list(place), "same": number - first + 1 + (before["same"] if is_continued else 0)}

    def _unread(self, rows: list[Row]) -> list[Row]:
        """Return ``rows`` without those at the place of the position that were read before."""
        if not self._to_skip or self._position["after"] is None:
            return rows
        width, place = len(self._shape.columns), tuple(self._position["after"])
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
        query = statement_of(self._shape, self._part, self._position["after"])
        self._connection.execute(b"DECLARE malstrom NO SCROLL CURSOR FOR " + query)
        return self._connection
