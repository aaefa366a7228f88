"""``Postgres``: a source of the rows of a table or query of PostgreSQL, pinned when a job starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.postgres.connecting import checked_dsn, connect, database_errors
from malstrom_py.connectors.postgres.reading import OWNER, Row, RowReader
from malstrom_py.connectors.postgres.splitting import Range, Shape, find_ranges, find_shape
from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.sources.base import BaseSource, Part, SourcePart
from malstrom_py.sources.pinned.shared import SharedPin
from malstrom_py.sources.polled import PolledPart
from malstrom_py.sources.polled.part import UpTo, has_finished, position_in
from malstrom_py.sources.polled.reading import ReaderFeed
from malstrom_py.validation import checked_names, checked_text, checked_whole

if TYPE_CHECKING:
    import psycopg

_PARTS_MAX: Final = 1_000


class Postgres(BaseSource[dict[str, Any]]):
    """A source that reads each row of a table or query of PostgreSQL exactly once, at one snapshot of the database.

    ``source``: the name of a table, as in SQL, or a query that begins with SELECT, WITH, VALUES or TABLE. ``columns``:
    the columns to read, all by default. Values are dicts, column -> value, with the types of psycopg: a numeric is a
    Decimal, a timestamptz a datetime in UTC, JSON is decoded, an array is a list, bytea is bytes.

    The program that starts the job exports a snapshot of the database, and holds it until the job has ended; all
    partitions are read at it, also those that begin later. That keeps VACUUM from removing old rows for so long.

    ``split_by``: a column whose values divide the rows into up to ``parts`` partitions of about the same size, found by
    one pass of the server over the column; the first column of the primary key by default. Rows without a value are one
    more partition. A query without ``split_by``, or a table without a primary key, is one partition. Within a
    partition, rows are read in the order of ``split_by``, then of the primary key or of a hash of the row: an index on
    ``split_by`` helps.

    **After a restart** the partitions and positions are those of the snapshot of the job, and the database is read at a
    new snapshot: the former one ended with the program. Rows that did not change are read exactly once. A row that was
    inserted, changed or deleted in between is read in its new state if its place comes after the position of its
    partition, and not read again otherwise. For all changes use `PostgresChanges`.

    SourceError: there is no such table or column, a value that Python cannot hold (an infinite date), or the session
    that holds the snapshot has ended. PlanError: wrong arguments, or psycopg is not installed. Needs PostgreSQL 12.

    >>> Postgres("postgresql://app@db.example.com/shop", "sales", split_by="id", parts=4)
    Postgres('sales', split_by='id')
    """

    def __init__(
        self,
        dsn: str,
        source: str,
        *,
        split_by: str | None = None,
        parts: int = 8,
        columns: Iterable[str] | None = None,
    ) -> None:
        self._dsn = checked_dsn(dsn, OWNER)
        checked_whole(parts, f"{OWNER}: parts", most=_PARTS_MAX)
        if isinstance(columns, str):
            raise PlanError(f"{OWNER}: columns must be several names, such as ['id', 'price']")
        self._source = checked_text(source, f"{OWNER}: source", "the name of a table, or a query")
        self._split_by = split_by
        self._parts = parts
        self._columns = (
            None if columns is None else tuple(checked_names(columns, f"{OWNER}: columns", "names, at least one"))
        )
        self._pin = SharedPin[_Pin]()
        self._holder: psycopg.Connection[Any] | None = None

    def __repr__(self) -> str:
        by = f", split_by={self._split_by!r}" if self._split_by else ""
        columns = f", columns={list(self._columns)!r}" if self._columns else ""
        return f"Postgres({self._source!r}{by}{columns})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process: the pin, without the session that holds it."""
        return {**self.__dict__, "_holder": None}

    def pin(self, job: str, record: Any = None) -> None:
        """Export a snapshot of the database, and find the partitions; those in ``record``, if there is one."""
        ranges = None if record is None else self._ranges_in(record)

        def find() -> _Pin:
            if self._pin.is_copy:
                return self._pin.of(self)
            with database_errors(OWNER, SourceError):
                return self._pinned_now(record, ranges)

        self._pin.take(self, find, lambda pin: ranges is None or ranges == pin.ranges)

    def pin_record(self) -> dict[str, Any]:
        """Return the partitions in plain types."""
        pin = self._pin.of(self)
        ranges = [[each.part, each.low, each.high] for each in pin.ranges]
        return {"source": repr(self), "shape": pin.shape.record(), "ranges": ranges}

    def unpin(self, *, keep: bool = False) -> None:
        """Release the snapshot of the database, once no job reads it. ``keep`` changes nothing: nothing is stored."""
        self._pin.leave(self._released)

    def _released(self, keep: bool) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()

    def list_parts(self) -> Sequence[Part]:
        """See `PartitionedSource.list_parts`."""
        return [Part(each.part) for each in self._pin.of(self).ranges]

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        """See `PartitionedSource.build_part`."""
        pin = self._pin.of(self)
        known = next((each for each in pin.ranges if each.part == part), None)
        if known is None:
            raise SourceError(f"{OWNER}: {self!r} has no partition {part}: start the job from the beginning")
        position = {"after": None, "same": 0} if state is None else position_in(state)
        reader = RowReader(self._dsn, pin.snapshot, pin.shape, known, position)
        return PolledPart(
            ReaderFeed(reader, f"{OWNER}-{part}"),
            position,
            values=partial(_dicts, pin.shape.columns),
            describe=lambda row: (f"a row of {self._source!r}", row),
            up_to=UpTo(),
            is_finished=has_finished(state),
        )

    def _pinned_now(self, record: Any, ranges: Sequence[Range] | None) -> _Pin:
        holder = connect(self._dsn)
        try:
            holder.execute("SET idle_in_transaction_session_timeout = 0")
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            exported = holder.execute("SELECT pg_export_snapshot()").fetchone()
            shape = find_shape(holder, self._source, self._split_by, self._columns, OWNER)
            if record is not None and shape.record() != record["shape"]:
                raise lasting(
                    SourceError(
                        f"{OWNER}: the columns or the primary key of {self._source!r} have changed since the snapshot "
                        f"that the job resumes from: start the job from the beginning under another name"
                    )
                )
            found = find_ranges(holder, shape, self._parts) if ranges is None else list(ranges)
        except BaseException:
            holder.close()
            raise
        self._holder = holder
        return _Pin("" if exported is None else exported[0], shape, tuple(found))

    def _ranges_in(self, record: Any) -> tuple[Range, ...]:
        if not isinstance(record, dict) or record.get("source") != repr(self):
            former = record.get("source") if isinstance(record, dict) else "another source"
            raise lasting(
                SourceError(
                    f"the snapshot to resume from reads {former}, and the job now reads {self!r}: give the job its "
                    f"former source, or start from the beginning under another job name"
                )
            )
        return tuple(Range(part, low, high) for part, low, high in record["ranges"])


@dataclass(frozen=True, slots=True)
class _Pin:
    """The exported snapshot of the database, and what is read at it."""

    snapshot: str
    shape: Shape
    ranges: tuple[Range, ...]


def _dicts(names: Sequence[str], rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    return map(dict, map(zip, repeat(names), rows))
