"""``PostgresChanges``: a source of the changes of tables of PostgreSQL, by logical replication."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from malstrom_py.connectors.postgres.connecting import checked_dsn, connected
from malstrom_py.connectors.postgres.slots import OWNER, SlotReader, advance, find_slot, log_end
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled import PolledSource
from malstrom_py.validation import checked_text, checked_whole


class PostgresChanges(PolledSource[dict[str, Any]]):
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
        if not isinstance(slot, str) or not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
            raise PlanError(f"{OWNER}: slot must be a name of lower case letters, digits and _, of at most 63")
        checked_whole(warn_bytes, f"{OWNER}: warn_bytes")
        self._publication = checked_text(publication, f"{OWNER}: publication", "a name")
        self._slot = slot
        self._warn_bytes = warn_bytes

    def __repr__(self) -> str:
        return f"PostgresChanges({self._publication!r}, {self._slot!r})"

    def list_parts(self) -> Sequence[Part]:
        """Return the one partition, which is named as the slot. Checks slot and publication."""
        with connected(self._dsn, OWNER, SourceError) as connection:
            find_slot(connection, self._slot, self._publication)
        return [Part(self._slot)]

    def open(self, part: Part, position: Any, end: int | None) -> SlotReader:
        if part != self._slot:
            raise SourceError(f"{self!r} has no partition {part}: the snapshot is of another slot")
        place = (0, 0, 0) if position is None else self.order(position)
        return SlotReader(self._dsn, self._slot, self._publication, place, stop=end, warn_bytes=self._warn_bytes)

    def find_ends(self) -> dict[str, int]:
        with connected(self._dsn, OWNER, SourceError) as connection:
            return {self._slot: log_end(connection)}

    def order(self, position: Any) -> tuple[int, int, int]:
        if position is None or isinstance(position, int):
            return (position or 0, 0, 0)
        return (position["lsn"], position["commit"], position["index"])

    def is_at(self, position: Any, end: int) -> bool:
        return self.order(position) >= self.order(end)

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Advance the slot to the position in a durable snapshot (see `BaseSource`)."""
        position = positions.get(Part(self._slot))
        if position is not None and position["lsn"]:
            advance(self._dsn, self._slot, self._publication, position["lsn"])
