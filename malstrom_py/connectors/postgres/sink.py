"""``Postgres``: a transactional sink of a table of PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal

import msgspec

from malstrom_py.connectors.postgres.connecting import checked_dsn
from malstrom_py.connectors.postgres.encoding import TargetColumn, encode
from malstrom_py.connectors.postgres.staging import (
    OWNER,
    ROW,
    VERSION,
    Keys,
    Segment,
    Session,
    Target,
    opened,
    prefix_of,
)
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import field_lists, fields_of
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.errors.text import list_fields, redacts
from malstrom_py.sinks.base import (
    BaseTransactionalSink,
    BaseTransactionalWriter,
    CommitContext,
    SnapshotId,
    has_no_results,
)
from malstrom_py.sinks.records import payloads_as
from malstrom_py.validation import checked_choice, checked_names, checked_text
from malstrom_py.worker_context import WorkerInfo

_SPOOL_BYTES: Final = 8 << 20


class Postgres(BaseTransactionalSink):
    """A sink that writes rows into a table of PostgreSQL, exactly once.

    At each snapshot, every worker writes its rows into a staging table beside the target. The commit moves the rows of
    all workers into ``table`` and records the snapshot in the table ``malstrom_commits`` there, in one transaction. A
    commit that is repeated, by any process, does nothing. Between snapshots rows wait in memory and, from 8 MB per
    worker on, in a temporary file.

    ``dsn``: a connection string of libpq. ``table``: as in SQL, such as ``sales`` or ``shop."Sales"``; it must exist.
    The user needs SELECT and INSERT on it (with ``mode="upsert"`` also UPDATE), USAGE on the sequences of its columns
    that rows lack, and CREATE in its schema. Needs PostgreSQL 12 or newer.

    The items of a dict and the fields of a dataclass or named tuple are written to the columns of their names; any
    other value to a column ``value``. The key of a keyed stream is written to a column ``key``, if the table has one
    and the values have no such field. A column that rows lack gets its default. Columns of Arrow are written without
    making rows. Values are written as text that PostgreSQL parses: a str may hold a number for a column of numbers, or
    JSON for a column of JSON, where other values are encoded. A datetime with a zone is written in UTC, and one
    without a zone is taken as UTC.

    ``mode="append"`` inserts each row; with ``on_conflict="ignore"`` a row that a unique index refuses is left out.
    ``mode="upsert"`` inserts or replaces the row with the same ``keys``, columns with a unique index; one of them may
    be None if that index has ``NULLS NOT DISTINCT`` (PostgreSQL 15). The last row of a key in a snapshot is the one
    written: the order is that of its worker, also after the key has moved to another worker. Give the stream the same
    key as the table: rows of one key that come from several workers at the same time have no order.
    ``delete_field`` names a bool field that all rows have and the table has not: where it is True, the row with the
    same keys is deleted, and other fields are ignored. It needs DELETE on the table.

    SinkError: an unknown column, a missing one without a default, a value that its column cannot hold: in the write, or
    at the snapshot, as NOT NULL and CHECK are checked when rows are staged. Unique and foreign keys, triggers and
    partitions are checked by the commit only: a row that they refuse stops the job at each start, until the table or
    the constraint is changed. PlanError: wrong arguments, or psycopg is not installed.

    >>> Postgres("postgresql://app@db.example.com/shop", "sales", mode="upsert", keys=["id"])
    Postgres('sales', mode='upsert', keys=['id'])
    >>> Postgres("postgresql://app@db.example.com/shop", "sales", mode="upsert")
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: sinks.Postgres: mode='upsert' needs keys, the columns of a unique index
    """

    takes_columns = True

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        keys: str | Iterable[str] = (),
        on_conflict: Literal["fail", "ignore"] = "fail",
        delete_field: str | None = None,
    ) -> None:
        checked_choice(mode, f"{OWNER}: mode", "append", "upsert")
        keys = (keys,) if isinstance(keys, str) else tuple(keys)
        named = tuple(checked_names(keys, f"{OWNER}: keys", "names of columns")) if keys else ()
        if mode == "upsert" and not named:
            raise PlanError(f"{OWNER}: mode='upsert' needs keys, the columns of a unique index")
        if mode == "append" and named:
            raise PlanError(f"{OWNER}: keys are for mode='upsert'")
        if delete_field is not None and (
            mode != "upsert" or not isinstance(delete_field, str) or delete_field in named
        ):
            raise PlanError(f"{OWNER}: delete_field must name a field for mode='upsert' that is not one of the keys")
        checked_choice(on_conflict, f"{OWNER}: on_conflict", "fail", "ignore")
        if mode == "upsert" and on_conflict == "ignore":
            raise PlanError(
                f"{OWNER}: mode='upsert' replaces rows, and on_conflict='ignore' keeps them: use it with mode='append'"
            )
        self._table = checked_text(table, f"{OWNER}: table", "the name of a table")
        self._dsn = checked_dsn(dsn, OWNER)
        self._keys = named
        self._ignores = on_conflict == "ignore"
        self._delete_field = delete_field

    def __repr__(self) -> str:
        keys = f", mode='upsert', keys={list(self._keys)!r}" if self._keys else ""
        keys += ", on_conflict='ignore'" if self._ignores else ""
        keys += f", delete_field={self._delete_field!r}" if self._delete_field else ""
        return f"Postgres({self._table!r}{keys})"

    def open(self, worker: WorkerInfo) -> PostgresWriter:
        with self._opened() as session:
            target, keys = session.target, session.keys
        return PostgresWriter(self._opened, target, keys, worker, self._delete_field)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the table has others."""
        with self._opened() as session:
            return has_no_results(column.name for column in session.target.columns)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if tables := self._named(context, payloads):
            with self._opened() as session:
                session.publish(context, tables, ignores=self._ignores)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if tables := self._named(context, payloads):
            with opened(self._dsn, self._table) as session:
                session.discard(context, tables)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        with opened(self._dsn, self._table) as session:
            session.recover(context, frozenset(committed))

    def _opened(self) -> AbstractContextManager[Session]:
        return opened(self._dsn, self._table, self._keys)

    def _named(self, context: CommitContext, payloads: Sequence[bytes]) -> list[str]:
        """Return the staging tables that ``payloads`` name."""
        tables = [name for staged in payloads_as(_Staged, payloads, context) for name in staged.tables]
        begin = prefix_of(context.job, context.step)
        if not all(name.startswith(begin) for name in tables):
            raise SinkError(f"a pre-commit payload of step {context.step!r} names a table of another job or step")
        return list(dict.fromkeys(tables))


class _Staged(msgspec.Struct):
    """A payload: staging tables."""

    tables: list[str]


class PostgresWriter(BaseTransactionalWriter):
    """Encodes the rows of one worker into a spool, and stages them at each snapshot."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Session]],
        target: Target,
        keys: Keys,
        worker: WorkerInfo,
        delete_field: str | None,
    ) -> None:
        self._opened = opened
        self._delete_field = delete_field
        self._target = target
        self._keys = keys
        self._worker = worker
        self._columns = {column.name: column for column in target.columns}
        self._required = frozenset(column.name for column in target.columns if column.is_required).union(keys.names)
        self._checked: set[tuple[tuple[str, ...], bool]] = set()
        self._spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115  # it is closed by `close`
        self._segments: list[Segment] = []
        self._version = 0
        self._row = 0

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        fields = batch.as_dicts() if isinstance(batch, ColumnBatch) else None
        if fields is not None:
            arrow = fields.columns
            names = arrow.schema.names
            if len(set(names)) < len(names):
                raise SinkError(f"{OWNER}: a batch has two columns of one name: rename one in a step before")
            self._add(dict(zip(names, arrow.columns, strict=True)), batch, 0, len(batch))
            return
        lists = field_lists(batch.values)
        if lists is not None:
            self._add(lists, batch, 0, len(batch))
            return
        rows = fields_of(batch.values)
        for start, end, names in _runs(rows):
            self._add({name: [row[name] for row in rows[start:end]] for name in names}, batch, start, end)

    def _add(self, columns: dict[Any, Any], batch: Batch, start: int, end: int) -> None:
        """Encode ``columns``, the rows from ``start`` to ``end`` of ``batch``, into the spool."""
        if "key" in self._columns and "key" not in columns:
            keys: Any = batch.keys if batch.key_column is None else batch.key_column
            columns = columns if keys is None else {"key": keys[start:end], **columns}
        numbers = range(self._row, self._row + end - start)
        self._row += len(numbers)
        if self._delete_field is None:
            self._spool_rows(columns, numbers)
            return
        marks = self._marks(columns, len(numbers))
        others = {name: values for name, values in columns.items() if name != self._delete_field}
        keys = {name: values for name, values in others.items() if name in self._keys.names}
        for deletes, given in ((False, others), (True, keys)):
            rows = [row for row, mark in enumerate(marks) if mark is deletes]
            if rows:
                found = {name: _picked(values, rows) for name, values in given.items()}
                self._spool_rows(found, [numbers[row] for row in rows], deletes=deletes)

    def _marks(self, columns: Mapping[Any, Any], count: int) -> list[Any]:
        """Return of each row whether it deletes."""
        values = columns.get(self._delete_field, [None] * count)
        marks: list[Any] = values if isinstance(values, list) else values.to_pylist()
        if not all(type(mark) is bool for mark in marks):
            raise SinkError(
                f"{OWNER}: field {self._delete_field!r} of some rows is missing or not a bool: give all rows True or "
                f"False in a step before, as delete_field={self._delete_field!r} asks for"
            )
        return marks

    def _spool_rows(self, columns: Mapping[Any, Any], numbers: Sequence[int], *, deletes: bool = False) -> None:
        """Encode rows into the spool. ``numbers``: their places among all rows of this writer."""
        names = tuple(columns)
        if (names, deletes) not in self._checked:
            self._check_names(names, deletes=deletes)
            self._checked.add((names, deletes))
        for key in () if self._keys.take_nulls else self._keys.names:
            if _has_null(columns[key]):
                raise self._null_in(key)
        found = {self._columns[name]: values for name, values in columns.items()}
        if self._keys.names:
            found = {**found, _VERSION: [self._version] * len(numbers), _ROW: list(numbers)}
        text = encode(found, len(numbers))
        begin = self._spool.seek(0, 2)
        self._spool.write(text)
        last = self._segments[-1] if self._segments else None
        if last is not None and (last.columns, last.deletes) == (names, deletes):
            last.end = begin + len(text)
        else:
            self._segments.append(Segment(names, begin, begin + len(text), deletes))

    def _null_in(self, key: str) -> SinkError:
        return SinkError(
            f"{OWNER}: the key column {key!r} of table {self._target} is None in a row, and in its unique index two "
            f"NULLs are two keys: fill it in a step before; or, with PostgreSQL 15, let the column take NULL and have "
            f"an index of UNIQUE NULLS NOT DISTINCT ({', '.join(self._keys.names)})"
        )

    def _check_names(self, names: tuple[Any, ...], *, deletes: bool = False) -> None:
        """Raise `SinkError` if rows with these fields do not fit the table. ``deletes``: they are keys alone."""
        unknown = [name for name in names if name not in self._columns]
        if unknown or not (names or deletes):
            known = list_fields([column.name for column in self._target.columns if column.is_given])
            count = f"{_counted(unknown)} without a column" if names else "no fields"
            raise SinkError(
                f"{OWNER}: rows have {count} in table {self._target}, which has {known}: select fields in a step "
                f"before, or change the table"
            )
        computed = [name for name in names if not self._columns[name].is_given]
        if computed:
            raise SinkError(
                f"{OWNER}: PostgreSQL computes column {computed[0]!r} of table {self._target}: rows must not have it"
            )
        required = frozenset(self._keys.names) if deletes else self._required
        missing = sorted(required.difference(names))
        if missing:
            raise SinkError(
                f"{OWNER}: rows lack {list_fields(missing)}, which table {self._target} needs: it is NOT NULL and "
                f"has no default, or it is a key"
            )

    def moved(self, version: int) -> None:
        """Take the new version of the routing table: what a key wrote under a lower one precedes (R4)."""
        self._version = version

    def pre_commit(self, context: CommitContext) -> bytes:
        if not self._segments:
            return msgspec.json.encode(_Staged([]))
        with self._opened() as session:
            names = session.stage(context, self._worker.worker, self._spool, self._segments)
        self._segments = []
        self._spool.seek(0)
        self._spool.truncate()
        return msgspec.json.encode(_Staged(names))

    def close(self) -> None:
        self._spool.close()


def _counted(fields: Sequence[Any]) -> str:
    """Return how many fields there are, and which: their names may be data."""
    which = "" if redacts() else f" ({list_fields([str(name) for name in fields])})"
    return f"{len(fields)} field{'' if len(fields) == 1 else 's'}{which}"


_VERSION: Final = TargetColumn(VERSION, "bigint")
_ROW: Final = TargetColumn(ROW, "bigint")


def _has_null(values: Any) -> bool:
    return bool(None in values if isinstance(values, list) else values.null_count)


def _picked(values: Any, rows: list[int]) -> Any:
    if len(rows) == len(values):
        return values
    return [values[row] for row in rows] if isinstance(values, list) else values.take(rows)


def _runs(rows: list[dict[Any, Any]]) -> Iterable[tuple[int, int, tuple[Any, ...]]]:
    """Yield start, end and names of runs of rows with the same fields."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index].keys() != rows[start].keys():
            yield start, index, tuple(rows[start])
            start = index
