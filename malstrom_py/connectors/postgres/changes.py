"""``PostgresChanges``: a source of the changes of tables of PostgreSQL, by logical replication."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from malstrom_py.connectors.postgres.connecting import checked_dsn, connected
from malstrom_py.connectors.postgres.slots import OWNER, Chunk, SlotReader, advance, find_slot, log_end
from malstrom_py.connectors.read_ahead import ReadAhead
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import BasePart, Part, SourcePart
from malstrom_py.sources.up_to_ends import UpToEnds, has_finished


class PostgresChanges(UpToEnds[dict[str, Any]]):
    """A source of the changes of tables of PostgreSQL, in the order of their transactions, each exactly once.

    ``publication`` says which tables and operations are read; ``slot`` is a logical replication slot with the plugin
    ``pgoutput``, for which the server keeps its log. Make both once, in this order::

        CREATE PUBLICATION sales_pub FOR TABLE sales;
        SELECT pg_create_logical_replication_slot('sales_slot', 'pgoutput');

    The server needs ``wal_level = logical``, the user the attribute REPLICATION, and PostgreSQL 12 or newer. Each
    reader takes one more slot while it runs (``max_replication_slots``): it reads a temporary copy. The slot is
    advanced only after a snapshot that contains the changes is durable and all sinks have committed it. Without
    snapshots it is advanced at the end of the job.

    Values: dicts with ``op`` ("insert", "update", "delete" or "truncate"), ``schema``, ``table``, ``new`` (the row
    after an insert or update), ``old`` (the row before an update or delete: the columns of the replica identity, all
    with REPLICA IDENTITY FULL; None if an update did not change them), ``unchanged`` (the names of large columns that
    are missing in ``new``, because an update did not change them), ``lsn`` and ``index`` (the place of the commit, and
    of the change in its transaction), ``committed_at``. Rows have the columns of the table at the time of the change,
    with the types of psycopg; a value that Python cannot hold, such as an infinite date or one BC, is PostgreSQL's text
    of it, such as ``"infinity"``. There is one partition: changes are read by one worker.

    ``follow=False`` ends at the end of the server's log at the start of the job; a job with snapshots that has finished
    reads, when it is started again, the changes since. A slot that keeps ``warn_bytes`` or
    more of the log is warned of, with its size.

    SourceError: the slot or the publication is missing (the error has the SQL that makes it), the slot is in use,
    belongs to another plugin or database, or was advanced past the snapshot that the job resumes from.
    PlanError: wrong arguments, or psycopg is not installed.

    >>> PostgresChanges("postgresql://app@db.example.com/shop", "sales_pub", "sales_slot")
    PostgresChanges('sales_pub', 'sales_slot')
    """

    def __init__(
        self, dsn: str, publication: str, slot: str, *, follow: bool = True, warn_bytes: int = 1 << 30
    ) -> None:
        super().__init__(OWNER, follow=follow)
        self._dsn = checked_dsn(dsn, OWNER)
        if not isinstance(publication, str) or not publication:
            raise PlanError(f"{OWNER}: publication must be a name")
        if not isinstance(slot, str) or not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
            raise PlanError(f"{OWNER}: slot must be a name of lower case letters, digits and _, of at most 63")
        if type(warn_bytes) is not int or warn_bytes < 1:
            raise PlanError(f"{OWNER}: warn_bytes must be a number of bytes of at least 1")
        self._publication = publication
        self._slot = slot
        self._warn_bytes = warn_bytes

    def __repr__(self) -> str:
        return f"PostgresChanges({self._publication!r}, {self._slot!r})"

    def list_parts(self) -> Sequence[Part]:
        """Return the one partition, which is named as the slot. Checks slot and publication."""
        with connected(self._dsn, OWNER, SourceError) as connection:
            find_slot(connection, self._slot, self._publication)
        return [Part(self._slot)]

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        """See `PartitionedSource.build_part`."""
        if part != self._slot:
            raise SourceError(f"{self!r} has no partition {part}: the snapshot is of another slot")
        position = {"lsn": 0, "commit": 0, "index": 0, "finished": False} if state is None else dict(state)
        position["finished"] = not self._follow and has_finished(position) and not self.has_more(part, position)
        return ChangesPart(self._reader, position)

    def _find_ends(self) -> dict[str, int]:
        with connected(self._dsn, OWNER, SourceError) as connection:
            return {self._slot: log_end(connection)}

    def _is_at(self, position: Any, end: int) -> bool:
        return position is not None and bool(position["lsn"] >= end)

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Advance the slot to the position in a durable snapshot (see `BaseSource`)."""
        position = positions.get(Part(self._slot))
        if position is not None and position["lsn"]:
            advance(self._dsn, self._slot, self._publication, position["lsn"])

    def _reader(self, position: dict[str, Any]) -> SlotReader:
        return SlotReader(
            *(self._dsn, self._slot, self._publication, position),
            follow=self._follow,
            stop=self._end_of(Part(self._slot)),
            warn_bytes=self._warn_bytes,
        )


_NAMES: Final = ("lsn", "commit", "index")


class ChangesPart(BasePart[dict[str, Any]]):
    """The changes of a slot while they are read."""

    def __init__(self, reader_of: Any, position: dict[str, Any]) -> None:
        self._reader_of = reader_of
        self._position = position
        self._reader: SlotReader | None = None
        self._ahead: ReadAhead[Chunk] | None = None
        self._chunk = Chunk((0, 0, 0))
        self._next = 0

    def poll(self, rows_max: int) -> list[dict[str, Any]] | None:
        """See `SourcePart.poll`."""
        if self._position["finished"]:
            return None
        if self._ahead is None:
            reader: SlotReader = self._reader_of(self._position)
            self._reader = reader
            self._ahead = ReadAhead(reader.fetch, name="postgres-changes", release=reader.release)
        chunk = self._chunk
        if self._next == len(chunk.rows):
            found = self._ahead.take()
            if found is None:
                return None
            self._chunk, self._next, chunk = found, 0, found
        return self._taken(chunk, rows_max)

    def _taken(self, chunk: Chunk, rows_max: int) -> list[dict[str, Any]] | None:
        """Return the next rows of ``chunk``, and move the position after them."""
        rows = chunk.rows[self._next : self._next + rows_max]
        self._next += len(rows)
        if self._next == len(chunk.rows):
            self._move_to(chunk.last)
            self._position["finished"] = chunk.is_end
        else:
            self._move_to(chunk.positions[self._next - 1])
        return rows or None

    def is_finished(self) -> bool:
        """See `SourcePart.is_finished`."""
        return self._position["finished"] is True

    def snapshot(self) -> dict[str, Any]:
        """See `SourcePart.snapshot`."""
        return dict(self._position)

    def lag_bytes(self) -> int | None:
        """Return the bytes of the server's log that were not read yet; None before the first poll."""
        if self._reader is None or not self._reader.log_end:
            return None
        return max(0, self._reader.log_end - int(self._position["lsn"]))

    def close(self) -> None:
        """See `SourcePart.close`."""
        if self._ahead is not None and self._reader is not None:
            self._reader.cancel()
            self._ahead.close()

    def _move_to(self, place: tuple[int, int, int]) -> None:
        self._position.update(zip(_NAMES, place, strict=True))
