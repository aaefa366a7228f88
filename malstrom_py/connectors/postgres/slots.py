"""Replication slots: what is checked of one, how its changes are read without moving it, and how it is advanced.

Rules:
- The user's slot is moved by `advance` only, to places that a durable snapshot contains. A reader moves a temporary
  copy of the slot, which ends with its session. So changes can be read again, from any place at or after the slot's.
- A transaction is read in chunks: the server keeps one of any size in a file.
- A position is ``{"lsn": the place after the last complete transaction, "commit": the place of the commit of the
  transaction that is being read, "index": the changes taken of it}``. 0 is the start of the slot.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.postgres.connecting import cancel, connect, connected, database_errors
from malstrom_py.connectors.postgres.pgoutput import Begin, Change, Commit, Decoder, Loader, lsn_of, lsn_text
from malstrom_py.connectors.postgres.splitting import literal, quoted
from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.polled import PolledChunk, PolledReader

if TYPE_CHECKING:
    import psycopg

OWNER: Final = "sources.PostgresChanges"
CHANGES_MAX: Final = 10_000
"""About how many changes the server decodes per call; a transaction is decoded as a whole."""

_FETCH: Final = b"FETCH 2000 FROM malstrom"
_PAUSE_S: Final = 0.1
_BUSY_S: Final = 30.0
"""The longest wait for a slot that a function uses."""

_WARN_EVERY_S: Final = 300.0
_LOG: Final = logging.getLogger("malstrom_py.sources.postgres")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical replication slot. ``confirmed``: the place up to which its user has taken the changes."""

    name: str
    confirmed: int
    retained_bytes: int


def find_slot(connection: psycopg.Connection[Any], name: str, publication: str) -> Slot:
    """Return the slot; `SourceError` with the SQL that helps if the slot or the publication cannot be used."""
    if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone() is None:
        raise _refused(
            f"there is no publication {publication!r} in the database of the DSN. Run: "
            f'CREATE PUBLICATION "{publication}" FOR TABLE …;'
        )
    row = _described(connection, name)
    if row is None:
        level = connection.execute("SHOW wal_level").fetchone()
        first = "" if level == ("logical",) else "ALTER SYSTEM SET wal_level = logical; restart the server, and then "
        raise _refused(
            f"there is no replication slot {name!r}. Run: {first}"
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
        )
    plugin, is_here, active_pid, status, confirmed, retained, _ = row
    if plugin != "pgoutput" or not is_here:
        where = "is of another database" if plugin == "pgoutput" else f"has the plugin {plugin}"
        raise _refused(
            f"the replication slot {name!r} {where}. Choose another name, and run: "
            f"SELECT pg_create_logical_replication_slot('…', 'pgoutput');"
        )
    if status == "lost" or confirmed is None:
        raise _refused(
            f"the server has removed what the replication slot {name!r} kept (max_slot_wal_keep_size). Changes are "
            f"lost: copy the tables again, and make a new slot"
        )
    if active_pid is not None:
        raise SourceError(
            f"{OWNER}: the replication slot {name!r} is in use by the session with pid {active_pid}: end it, or give "
            f"each reader a slot"
        )
    return Slot(name, lsn_of(confirmed), int(retained or 0))


def _described(connection: psycopg.Connection[Any], name: str) -> Any:
    """Return what the server says of a slot. Waits while a function uses it: an acknowledgement moves it right now."""
    ends_s = time.monotonic() + _BUSY_S
    while True:
        row = connection.execute(
            "SELECT plugin, database = current_database(), active_pid, coalesce(wal_status, ''), "
            "confirmed_flush_lsn::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, "
            "EXISTS (SELECT 1 FROM pg_stat_replication AS r WHERE r.pid = active_pid) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            [name],
        ).fetchone()
        if row is None or row[2] is None or row[6] or time.monotonic() > ends_s:
            return row
        time.sleep(_PAUSE_S)


def _refused(text: str) -> SourceError:
    return lasting(SourceError(f"{OWNER}: {text}"))


def warn_of(slot: Slot, warn_bytes: int) -> None:
    """Log a warning if the server keeps much of its log for the slot."""
    if slot.retained_bytes >= warn_bytes:
        _LOG.warning(
            "the replication slot %r keeps %d MB of the log of the server. Only a job with snapshots releases them, "
            "after each snapshot. If no job reads the slot, run: SELECT pg_drop_replication_slot('%s');",
            *(slot.name, slot.retained_bytes >> 20, slot.name),
        )


def advance(dsn: str, name: str, publication: str, lsn: int) -> None:
    """Release what the slot keeps from before ``lsn``."""
    with connected(dsn, OWNER, SourceError) as connection:
        if lsn > find_slot(connection, name, publication).confirmed:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [name, lsn_text(lsn)])


Place = tuple[int, int, int]
"""``lsn``, ``commit`` and ``index`` of a position."""


def position_at(place: Place) -> dict[str, int]:
    """Return the position of a place.

    >>> position_at((60, 0, 0))
    {'lsn': 60, 'commit': 0, 'index': 0}
    """
    return dict(zip(("lsn", "commit", "index"), place, strict=True))


def log_end(connection: psycopg.Connection[Any]) -> int:
    """Return the end of the server's log."""
    found = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert found is not None
    return lsn_of(found[0])


class SlotReader(PolledReader[Row]):
    """The session that decodes the changes of one slot. ``stop``: where to end; None for ever."""

    retried = ()

    def __init__(
        self, dsn: str, slot: str, publication: str, place: Place, *, warn_bytes: int, stop: int | None = None
    ) -> None:
        self._dsn = dsn
        self._slot = slot
        self._publication = publication
        self._warn_bytes = warn_bytes
        self._copy = f"malstrom_{secrets.token_hex(8)}"
        self._connection: psycopg.Connection[Any] | None = None
        self._transactions = _Transactions(*place)
        self._decoder = Decoder(self._loader_of)
        self._is_fetching = False
        self._stop_at = stop
        self._warned_s = 0.0
        self._loaders: dict[int, Loader] = {}
        self._log_end = 0
        """The end of the server's log, when it was last asked."""

    def read(self, rows_max: int) -> PolledChunk[Row] | None:
        """Return the next changes, or a later position without changes; None if there is neither right now."""
        with database_errors(OWNER, SourceError):
            connection = self._connection or self._opened()
            if not self._is_fetching:
                self._decode_more(connection)
            messages = connection.execute(_FETCH, binary=True).fetchall()
            if messages:
                return self._transactions.chunk(self._decoder, (data for (data,) in messages))
            connection.execute("COMMIT")
            self._is_fetching = False
            return self._progress(connection)

    def interrupt(self) -> None:
        cancel(self._connection)

    def close(self) -> None:
        """Close the session, and with it the copy of the slot."""
        if self._connection is not None:
            self._connection.close()

    def lag_bytes(self, position: Any) -> int | None:
        """Return the bytes of the server's log that were not read yet; None before it was asked."""
        return max(0, self._log_end - (0 if position is None else position["lsn"])) if self._log_end else None

    def _opened(self) -> psycopg.Connection[Any]:
        self._connection = connection = connect(self._dsn)
        slot = find_slot(connection, self._slot, self._publication)
        self._warn(connection, slot)
        start = self._transactions.lsn
        if start and slot.confirmed > start:
            raise _refused(
                f"the replication slot {self._slot!r} is at {lsn_text(slot.confirmed)}, and the snapshot that the job "
                f"resumes from at {lsn_text(start)}: the changes between were released. Resume from a newer snapshot, "
                f"or copy the tables again and start from the beginning"
            )
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s, true)", [self._slot, self._copy])
        if start > slot.confirmed:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [self._copy, lsn_text(start)])
        self._log_end = log_end(connection)
        return connection

    def _decode_more(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("BEGIN")
        options = f"'proto_version', '1', 'publication_names', {literal(quoted(self._publication))}"
        upto = "NULL" if self._stop_at is None else f"'{lsn_text(self._stop_at)}'"
        connection.execute(
            f"DECLARE malstrom NO SCROLL CURSOR FOR SELECT data FROM pg_logical_slot_get_binary_changes("
            f"'{self._copy}', {upto}, {CHANGES_MAX}, {options})".encode()
        )
        self._is_fetching = True

    def _progress(self, connection: psycopg.Connection[Any]) -> PolledChunk[Row] | None:
        """Return a chunk without rows if the log was decoded further; None otherwise."""
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text, pg_current_wal_flush_lsn()::text "
            "FROM pg_replication_slots WHERE slot_name = %s",
            [self._copy],
        ).fetchone()
        if row is None:
            raise SourceError(f"{OWNER}: the copy of the replication slot {self._slot!r} is gone: start the job again")
        reached, self._log_end = map(lsn_of, row)
        if time.monotonic() - self._warned_s > _WARN_EVERY_S:
            self._warn(connection, find_slot(connection, self._slot, self._publication))
        is_end = self._stop_at is not None and reached >= self._stop_at
        if self._transactions.moved_to(reached) or is_end:
            return PolledChunk(after=position_at((self._transactions.lsn, 0, 0)), is_end=is_end)
        return None

    def _warn(self, connection: psycopg.Connection[Any], slot: Slot) -> None:
        warn_of(slot, self._warn_bytes)
        self._warned_s = time.monotonic()

    def _loader_of(self, oid: int) -> Loader:
        """Return what makes a value of the text of a type: that of psycopg."""
        from psycopg.adapt import Transformer
        from psycopg.pq import Format

        if oid not in self._loaders:
            self._loaders[oid] = Transformer(self._connection).get_loader(oid, Format.TEXT).load
        return self._loaders[oid]


class _Transactions:
    """Follows transactions and their changes, and leaves out the changes that were taken before."""

    def __init__(self, lsn: int, commit: int, index: int) -> None:
        self.lsn = lsn
        self._resumed = (commit, index)
        self._commit = 0
        self._index = 0
        self._at: Any = None

    def moved_to(self, reached: int) -> bool:
        """Take it that everything before ``reached`` is complete; return whether that is news."""
        if reached <= self.lsn:
            return False
        self.lsn = reached
        return True

    def chunk(self, decoder: Decoder, messages: Iterator[bytes]) -> PolledChunk[Row]:
        """Return the changes in ``messages`` that were not taken before."""
        rows: list[Row] = []
        places: list[Place] = []
        for data in messages:
            for event in decoder.decode(data):
                if isinstance(event, Begin):
                    self._begin(event)
                elif isinstance(event, Commit):
                    self._end(event)
                elif not self._was_taken():
                    rows.append(self._row(event))
                    places.append((self.lsn, self._commit, self._index))
        commit, index = self._resumed
        # Changes that were taken before, and are decoded again, never move the position back.
        taken = max(self._index, index) if self._commit == commit else self._index
        last = (self.lsn, self._commit, taken) if self._index else (self.lsn, commit, index)
        return PolledChunk(rows, lambda number: position_at(places[number]), after=position_at(last))

    def _begin(self, event: Begin) -> None:
        self._commit, self._index, self._at = event.commit, 0, event.at
        commit, index = self._resumed
        if index and event.commit > commit:
            raise _refused(
                f"the transaction at {lsn_text(commit)}, of which the job has read {index} changes, is no longer "
                f"decoded: the slot was replaced. Resume from another snapshot, or start from the beginning"
            )

    def _end(self, event: Commit) -> None:
        if event.commit == self._resumed[0]:
            self._resumed = (0, 0)
        self.lsn, self._commit, self._index = event.end, 0, 0

    def _was_taken(self) -> bool:
        """Count a change, and return whether it was taken before."""
        self._index += 1
        commit, index = self._resumed
        return self._commit == commit and self._index <= index

    def _row(self, event: Change) -> Row:
        return {
            "op": event.op,
            "schema": event.schema,
            "table": event.table,
            "new": event.new,
            "old": event.old,
            "unchanged": list(event.unchanged),
            "lsn": self._commit,
            "index": self._index - 1,
            "committed_at": self._at,
        }
