"""The tables of `sinks.Postgres` in the database: the target, staged rows, and the row that records the last commit.

Rules (S3, S7):
- A staging table is made and filled in one transaction, by `Session.stage`. So it is complete, or not there.
- `Session.publish` moves the rows of all staging tables of a snapshot, drops these, and records the snapshot in
  ``malstrom_commits``, in one transaction. So a staging table that exists is uncommitted.
- Each process that publishes or discards first locks the row of the job and step there: two come one after the other.
  A session that is idle in such a transaction, or in the one that makes ``malstrom_commits``, is ended by the server
  after `IDLE_S`: a stopped process holds no lock for longer.
- The name of a staging table has hashes of job, step and snapshot, because names have 63 bytes at most; the comment of
  the table has the full names.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, LiteralString

from malstrom_py.connectors.postgres.connecting import connected
from malstrom_py.connectors.postgres.encoding import TargetColumn
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.base import CommitContext, is_left_over

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

OWNER: Final = "sinks.Postgres"
COMMITS: Final = "malstrom_commits"
VERSION: Final = "_malstrom_version"
ROW: Final = "_malstrom_row"
_DELETED: Final = "_malstrom_deleted"
_DELETES: Final = "_deletes"
"""How the names of the staging tables end that hold the keys of rows to delete."""

IDLE_S: Final = 10.0
"""The longest pause of a process in a transaction that holds locks."""

_COPY_BYTES: Final = 1 << 18
_CREATE_LOCK: Final = 0x6D616C73
"""The advisory lock under which the table of commits is made: two sessions that make one table disturb each other."""


@dataclass(frozen=True, slots=True)
class Target:
    """The table that rows are written into. ``identities``: its columns with a sequence that rows may have a value of;
    ``computed_identities``: those whose value is always of the sequence.
    """

    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    identities: tuple[str, ...] = ()
    computed_identities: tuple[str, ...] = ()

    @property
    def moved(self) -> list[str]:
        """The columns that a commit moves: all but those that PostgreSQL computes."""
        return [column.name for column in self.columns if column.is_given]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns of a unique index by which rows are replaced; none if rows are added.

    ``take_nulls``: two NULLs are one key in the index.
    """

    names: tuple[str, ...] = ()
    take_nulls: bool = False


@dataclass(slots=True)
class Segment:
    """Encoded rows with the same columns: the bytes from ``start`` to ``end`` of a spool.

    ``deletes``: the rows are the keys of rows to delete.
    """

    columns: tuple[str, ...]
    start: int
    end: int
    deletes: bool = False


class Session:
    """A session with a target table ``name``, whose errors are those of `sinks.Postgres`. Opened by `opened`."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, keys: Sequence[str]) -> None:
        self.connection = connection
        self.target = self._find_target(name)
        self.keys = self._check_keys(keys) if keys else Keys()
        self._commits = self._table(COMMITS)
        self._into = self._table(self.target.name)

    def run(self, text: LiteralString, *parts: Any, given: Sequence[Any] | None = None) -> psycopg.Cursor[Any]:
        """Run a statement of constants of this module and of names that psycopg quotes."""
        return self.connection.execute(_sql(text, *parts), given)

    def _table(self, name: str) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self.target.schema, name)

    def _find_target(self, table: str) -> Target:
        """Return the table that ``table`` names, as SQL would."""
        found = self.run(
            "SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'f')",
            given=[table],
        ).fetchone()
        if found is None:
            raise _lasting(f"there is no table {table} in the database: create it, or correct the name")
        oid, schema, name, kind = found
        if kind == "f":
            raise _lasting(
                f"{table} is a foreign table, which PostgreSQL does not write in one transaction with the record of "
                f"the commit: give the DSN and the table of the other server"
            )
        rows = self.run(
            "SELECT attname, format_type(atttypid, NULL), attidentity, attgenerated, attnotnull, atthasdef "
            "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            given=[oid],
        ).fetchall()
        columns = tuple(
            TargetColumn(
                column,
                kind,
                is_given=not generated and identity != "a",
                is_required=not_null and not has_default and not identity and not generated,
            )
            for column, kind, identity, generated, not_null, has_default in rows
        )
        identities = {kind: tuple(row[0] for row in rows if row[2] == kind) for kind in "ad"}
        return Target(schema, name, columns, identities["d"], identities["a"])

    def _check_keys(self, keys: Sequence[str]) -> Keys:
        """Return the columns ``keys``; `SinkError` unless a unique index is on exactly these, for ``ON CONFLICT``."""
        target = self.target
        missing = [key for key in keys if key not in target.moved]
        if missing:
            raise _lasting(f"keys has {missing[0]!r}, and table {target} has no such column to write")
        indexes = self.run(
            # Before PostgreSQL 15 there is no such column, and all NULLs are distinct.
            "SELECT array_agg(a.attname::text), "
            "bool_or(coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)) "
            "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate "
            "AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
            given=[target.schema, target.name],
        ).fetchall()
        found = [take_nulls for names, take_nulls in indexes if set(names) == set(keys)]
        if not found:
            listed = ", ".join(keys)
            raise _lasting(
                f"table {target} has no unique index on ({listed}): run ALTER TABLE {target} ADD UNIQUE ({listed})"
            )
        return Keys(tuple(keys), any(found))

    def stage(self, context: CommitContext, worker: int, spool: IO[bytes], segments: Sequence[Segment]) -> list[str]:
        """Make the staging tables, fill them in the same transaction, and return their names.

        Rows to delete have a table for themselves: it has the keys alone, as the other columns may not be NULL.
        """
        written = f"{prefix_of(context.job, context.step)}{_hash(context.snapshot)}_{worker}_{secrets.token_hex(4)}"
        about = {"job": context.job, "step": context.step, "snapshot": context.snapshot, "worker": worker}
        names: list[str] = []
        with self.connection.transaction():
            self.run("SET LOCAL synchronous_commit = on")
            for segment in segments:
                name = f"{written}{_DELETES}" if segment.deletes else written
                if name not in names:
                    self._create(self._table(name), deletes=segment.deletes)
                    self.run("COMMENT ON TABLE {} IS {}", self._table(name), _literal(json.dumps(about)))
                    names.append(name)
                self._copy(self._table(name), spool, segment)
        return names

    def _create(self, staged: sql.Identifier, *, deletes: bool) -> None:
        if deletes:
            text: LiteralString = "CREATE TABLE {} WITH (autovacuum_enabled = off) AS SELECT {} FROM {} WITH NO DATA"
            self.run(text, staged, _names(self.keys.names), self._into)
        else:
            self.run(
                "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                " WITH (autovacuum_enabled = off)",
                *(staged, self._into),
            )
            sequence = _literal(self._into.as_string(self.connection))
            for column in self.target.identities:
                next_of: LiteralString = "ALTER TABLE {} ALTER {} SET DEFAULT nextval(pg_get_serial_sequence({}, {}))"
                self.run(next_of, staged, _names([column]), sequence, _literal(column))
            for column in self.target.computed_identities:  # the commit makes the value
                self.run("ALTER TABLE {} DROP COLUMN {} CASCADE", staged, _names([column]))
        if self.keys.names:  # the rows of a key get an order
            for key in () if self.keys.take_nulls else self.keys.names:
                self.run("ALTER TABLE {} ALTER {} SET NOT NULL", staged, _names([key]))
            self.run("ALTER TABLE {} ADD {} bigint, ADD {} bigint", staged, _names([VERSION]), _names([ROW]))

    def _copy(self, staged: sql.Identifier, spool: IO[bytes], segment: Segment) -> None:
        columns = [*segment.columns, *((VERSION, ROW) if self.keys.names else ())]
        spool.seek(segment.start)
        left = segment.end - segment.start
        statement = _sql("COPY {} ({}) FROM STDIN", staged, _names(columns))
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            while left:
                block = spool.read(min(left, _COPY_BYTES))
                if not block:
                    raise SinkError("rows that wait for their snapshot are no longer in the temporary file")
                left -= len(block)
                copy.write(block)

    @contextmanager
    def _locked(self, context: CommitContext) -> Iterator[str]:
        """Begin a transaction that no other one of this job and step runs beside; yield the last committed snapshot."""
        from psycopg import IsolationLevel

        self.make_commits()
        self.connection.isolation_level = IsolationLevel.READ_COMMITTED
        with self.connection.transaction():
            self.run("SET LOCAL synchronous_commit = on")
            row = (context.job, context.step)
            self.run("INSERT INTO {} VALUES (%s, %s, '') ON CONFLICT DO NOTHING", self._commits, given=row)
            text: LiteralString = "SELECT snapshot FROM {} WHERE job = %s AND step = %s FOR UPDATE"
            found = self.run(text, self._commits, given=row).fetchone()
            yield "" if found is None else found[0]

    def make_commits(self) -> None:
        """Make the table of commits, if it is missing. From here on, the session keeps to `IDLE_S`."""
        self.run("SET idle_in_transaction_session_timeout = {}", _literal(int(IDLE_S * 1000)))
        name = self._commits.as_string(self.connection)
        if self.run("SELECT to_regclass(%s)", given=[name]).fetchone() != (None,):
            return
        with self.connection.transaction():
            self.run("SELECT pg_advisory_xact_lock(%s)", given=[_CREATE_LOCK])
            self.run(
                "CREATE TABLE IF NOT EXISTS {} (job text, step text, snapshot text NOT NULL,"
                " committed_at timestamptz, PRIMARY KEY (job, step))",
                self._commits,
            )

    def publish(self, context: CommitContext, tables: Sequence[str], *, ignores: bool) -> None:
        """Move the rows of ``tables`` into the target, unless that was done before.

        ``ignores``: leave out rows that a unique index refuses.
        """
        with self._locked(context) as last:
            present = self._existing(tables)
            if last >= context.snapshot:
                if present:
                    raise _lasting(
                        f"rows of snapshot {context.snapshot} of step {context.step!r} are not committed, and those of "
                        f"the later snapshot {last} are: another run of this job has taken over, or a clock was set "
                        f"back. Run one job of a name at a time; start this one again"
                    )
                return
            if present != set(tables):
                raise _lasting(
                    f"the staged rows of snapshot {context.snapshot} of step {context.step!r} were removed from "
                    f"schema {self.target.schema} before their commit. Resume from an older snapshot"
                )
            written = [name for name in tables if not name.endswith(_DELETES)]
            moved = self._movable(written) if written else list(self.keys.names)
            if self.keys.names:
                self._upsert(tables, written, moved)
            else:
                self._append(tables, moved, ignores=ignores)
            self.drop(tables)
            self.run(
                "UPDATE {} SET snapshot = %s, committed_at = now() WHERE job = %s AND step = %s",
                self._commits,
                given=(context.snapshot, context.job, context.step),
            )

    def _movable(self, tables: Sequence[str]) -> list[str]:
        """Return the columns that the target and all staged tables have: the target may have been altered in between.

        A column that was added gets its default, and one that was dropped is left out. Both may also be a new name.
        """
        target = self.target
        rows = self.run(
            "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = ANY (%s) AND a.attnum > 0 "
            "AND NOT a.attisdropped GROUP BY a.attname HAVING count(*) = %s",
            given=[target.schema, list(tables), len(tables)],
        )
        staged = {name for (name,) in rows}
        moved = [name for name in target.moved if name in staged]
        gone = sorted(staged.difference((column.name for column in target.columns), (VERSION, ROW)))
        if gone and len(moved) < len(target.moved):
            raise _lasting(
                f"column {gone[0]!r} of staged rows is no longer in table {target}, which has other columns: was it "
                f"renamed? Give it its former name back until the job has committed the rows"
            )
        return moved

    def _append(self, tables: Sequence[str], moved: Sequence[str], *, ignores: bool) -> None:
        from psycopg import sql

        columns, action = _names(moved), sql.SQL(" ON CONFLICT DO NOTHING" if ignores else "")
        for name in tables:
            text: LiteralString = "INSERT INTO {} ({}) SELECT {} FROM {}{}"
            self.run(text, self._into, columns, columns, self._table(name), action)

    def _upsert(self, tables: Sequence[str], written: Sequence[str], moved: Sequence[str]) -> None:
        """Write the last row of each key: of the highest version of the routing table, then the last of its writer.

        Deletes come first, in a statement for themselves: a row may take the unique value of a row that is deleted.
        """
        from psycopg import sql

        keys, deleted = self.keys, _names([_DELETED])
        if len(written) < len(tables):
            # An index is used for = alone, so NULLs are compared only where there can be some.
            same: LiteralString = "t.{} IS NOT DISTINCT FROM last.{}" if keys.take_nulls else "t.{} = last.{}"
            pairs = sql.SQL(" AND ").join(_sql(same, _names([key]), _names([key])) for key in keys.names)
            text: LiteralString = "DELETE FROM {} AS t USING {} WHERE {} AND {}"
            self.run(text, self._into, self._last(tables, keys.names), deleted, pairs)
        if not written:
            return
        others = [name for name in moved if name not in keys.names]
        values = sql.SQL(", ").join(_sql("{} = EXCLUDED.{}", _names([name]), _names([name])) for name in others)
        self.run(
            "INSERT INTO {} ({}) SELECT {} FROM {} WHERE NOT {} ON CONFLICT ({}) {}",
            *(self._into, _names(moved), _names(moved), self._last(tables, moved), deleted, _names(keys.names)),
            _sql("DO UPDATE SET {}", values) if others else sql.SQL("DO NOTHING"),
        )

    def _last(self, tables: Sequence[str], columns: Sequence[str]) -> sql.Composed:
        """Compose a query of the last row of each key in ``tables``: its ``columns``, and whether it is deleted."""
        from psycopg import sql

        by, order, keys = _names(self.keys.names), _names([VERSION, ROW]), self.keys.names

        def select(name: str) -> sql.Composed:
            deletes = name.endswith(_DELETES)
            found = [sql.SQL("NULL") if deletes and one not in keys else sql.Identifier(one) for one in columns]
            is_deleted = sql.SQL("true" if deletes else "false")
            taken = (sql.SQL(", ").join(found), order, is_deleted, _names([_DELETED]), self._table(name))
            return _sql("SELECT {}, {}, {} AS {} FROM {}", *taken)

        # Those with all columns first: from them, a NULL takes its type.
        selects = [select(name) for name in sorted(tables, key=lambda name: name.endswith(_DELETES))]
        return _sql(
            "(SELECT DISTINCT ON ({}) * FROM ({}) AS staged ORDER BY {}, {} DESC, {} DESC) AS last",
            *(by, sql.SQL(" UNION ALL ").join(selects), by, _names([VERSION]), _names([ROW])),
        )

    def discard(self, context: CommitContext, tables: Sequence[str]) -> None:
        """Drop staging tables, if they are there."""
        if tables:
            with self._locked(context):
                self.drop(tables)

    def recover(self, context: CommitContext, committed: Collection[str]) -> None:
        """Drop the staging tables of this job and step that earlier starts have left."""
        self.make_commits()
        rows = self.run(
            "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
            given=[self.target.schema, prefix_of(context.job, context.step)],
        ).fetchall()
        of = ((name, _snapshot_of(about, context)) for name, about in rows)
        left = [name for name, snapshot in of if snapshot is not None and is_left_over(snapshot, context, committed)]
        self.discard(context, left)

    def _existing(self, tables: Sequence[str]) -> set[str]:
        rows = self.run(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = ANY (%s)",
            given=[self.target.schema, list(tables)],
        )
        return {name for (name,) in rows}

    def drop(self, tables: Sequence[str]) -> None:
        """Drop ``tables`` of the schema of the target."""
        for name in tables:
            self.run("DROP TABLE IF EXISTS {}", self._table(name))


@contextmanager
def opened(dsn: str, table: str, keys: Sequence[str] = ()) -> Iterator[Session]:
    """Open a session about ``table``, and close it. ``keys``: the columns by which rows are replaced, if they are."""
    with connected(dsn, OWNER, SinkError) as connection:
        yield Session(connection, table, keys)


def prefix_of(job: str, step: str) -> str:
    """Return how the names of the staging tables of a step begin.

    >>> prefix_of("docs", "out")
    '_malstrom_99d3f0c9eeee_'
    """
    return f"_malstrom_{_hash(job, step)}_"


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _lasting(text: str) -> SinkError:
    return lasting(SinkError(f"{OWNER}: {text}"))


def _snapshot_of(about: str | None, context: CommitContext) -> str | None:
    """Return the snapshot in the comment of a staging table; None if it is not one of this job and step."""
    try:
        named = json.loads(about or "")
        is_ours = (named["job"], named["step"]) == (context.job, context.step) and isinstance(named["snapshot"], str)
        return named["snapshot"] if is_ours else None
    except (ValueError, KeyError, TypeError):
        return None


def _sql(text: LiteralString, *parts: Any) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(text).format(*parts)


def _names(names: Sequence[str]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, names))


def _literal(value: Any) -> sql.Literal:
    from psycopg import sql

    return sql.Literal(value)
