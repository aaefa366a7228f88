"""The tables of `sinks.Postgres` in the database: the target, staged rows, and the row that records the last commit.

Rules (S3, S7):
- A staging table is made and filled in one transaction, by `stage`. So it is complete, or not there.
- `publish` moves the rows of all staging tables of a snapshot, drops these, and records the snapshot in
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, LiteralString

from malstrom_py.connectors.postgres.encoding import TargetColumn
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.base import CommitContext, SnapshotId

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

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
    """The table that rows are written into."""

    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    identities: tuple[str, ...] = ()

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


def find_target(connection: psycopg.Connection[Any], table: str, owner: str) -> Target:
    """Return the table that ``table`` names, as SQL would."""
    found = connection.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'f')",
        [table],
    ).fetchone()
    if found is None:
        raise lasting(SinkError(f"{owner}: there is no table {table} in the database: create it, or correct the name"))
    oid, schema, name, kind = found
    if kind == "f":
        raise lasting(
            SinkError(
                f"{owner}: {table} is a foreign table, which PostgreSQL does not write in one transaction with the "
                f"record of the commit: give the DSN and the table of the other server"
            )
        )
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, NULL), attidentity, attgenerated, attnotnull, atthasdef "
        "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [oid],
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
    return Target(schema, name, columns, tuple(row[0] for row in rows if row[2] == "d"))


def check_keys(connection: psycopg.Connection[Any], target: Target, keys: Sequence[str], owner: str) -> Keys:
    """Return the columns ``keys``; `SinkError` unless a unique index is on exactly these, as ``ON CONFLICT`` needs."""
    missing = [key for key in keys if key not in target.moved]
    if missing:
        raise lasting(SinkError(f"{owner}: keys has {missing[0]!r}, and table {target} has no such column to write"))
    indexes = connection.execute(
        # Before PostgreSQL 15 there is no such column, and all NULLs are distinct.
        "SELECT array_agg(a.attname::text), bool_or(coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)) "
        "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
        "WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate "
        "AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
        [target.schema, target.name],
    ).fetchall()
    found = [take_nulls for names, take_nulls in indexes if set(names) == set(keys)]
    if not found:
        listed = ", ".join(keys)
        raise lasting(
            SinkError(
                f"{owner}: table {target} has no unique index on ({listed}): run "
                f"ALTER TABLE {target} ADD UNIQUE ({listed})"
            )
        )
    return Keys(tuple(keys), any(found))


def prefix_of(job: str, step: str) -> str:
    """Return how the names of the staging tables of a step begin.

    >>> prefix_of("docs", "out")
    '_malstrom_99d3f0c9eeee_'
    """
    return f"_malstrom_{_hash(job, step)}_"


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def stage(
    connection: psycopg.Connection[Any],
    target: Target,
    context: CommitContext,
    *,
    worker: int,
    spool: IO[bytes],
    segments: Sequence[Segment],
    keys: Keys,
) -> list[str]:
    """Make the staging tables, fill them in the same transaction, and return their names.

    Rows to delete have a table for themselves: it has the keys alone, as the other columns may not be NULL.
    """
    written = f"{prefix_of(context.job, context.step)}{_hash(context.snapshot)}_{worker}_{secrets.token_hex(4)}"
    about = {"job": context.job, "step": context.step, "snapshot": context.snapshot, "worker": worker}
    names: list[str] = []
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = on")
        for segment in segments:
            name = f"{written}{_DELETES}" if segment.deletes else written
            if name not in names:
                make = _create_deletes if segment.deletes else _create
                make(connection, target, name, keys)
                comment = _sql("COMMENT ON TABLE {} IS {}", _table(target.schema, name), _literal(json.dumps(about)))
                connection.execute(comment)
                names.append(name)
            _copy(connection, target, name, spool, segment, numbered=bool(keys.names))
    return names


def _create_deletes(connection: psycopg.Connection[Any], target: Target, name: str, keys: Keys) -> None:
    into, by, source = _table(target.schema, name), _names(keys.names), _table(target.schema, target.name)
    connection.execute(
        _sql("CREATE TABLE {} WITH (autovacuum_enabled = off) AS SELECT {} FROM {} WITH NO DATA", *(into, by, source))
    )
    _number(connection, into, keys)


def _create(connection: psycopg.Connection[Any], target: Target, name: str, keys: Keys) -> None:
    staged, like = _table(target.schema, name), _table(target.schema, target.name)
    connection.execute(
        _sql(
            "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS)"
            " WITH (autovacuum_enabled = off)",
            staged,
            like,
        )
    )
    for column in target.identities:
        connection.execute(
            _sql(
                "ALTER TABLE {} ALTER {} SET DEFAULT nextval(pg_get_serial_sequence({}, {}))",
                staged,
                _names([column]),
                _literal(like.as_string(connection)),
                _literal(column),
            )
        )
    # Of a column GENERATED ALWAYS AS IDENTITY, the commit makes the value.
    for column in _always(connection, target):
        connection.execute(_sql("ALTER TABLE {} DROP COLUMN {} CASCADE", staged, _names([column])))
    if keys.names:
        _number(connection, staged, keys)


def _number(connection: psycopg.Connection[Any], staged: sql.Identifier, keys: Keys) -> None:
    """Add the columns that give the rows of a key an order."""
    for key in () if keys.take_nulls else keys.names:
        connection.execute(_sql("ALTER TABLE {} ALTER {} SET NOT NULL", staged, _names([key])))
    connection.execute(_sql("ALTER TABLE {} ADD {} bigint, ADD {} bigint", staged, _names([VERSION]), _names([ROW])))


def _always(connection: psycopg.Connection[Any], target: Target) -> list[str]:
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attidentity = 'a'",
        [_table(target.schema, target.name).as_string(connection)],
    )
    return [name for (name,) in rows]


def _copy(
    connection: psycopg.Connection[Any],
    target: Target,
    name: str,
    spool: IO[bytes],
    segment: Segment,
    *,
    numbered: bool,
) -> None:
    columns = [*segment.columns, *((VERSION, ROW) if numbered else ())]
    statement = _sql("COPY {} ({}) FROM STDIN", _table(target.schema, name), _names(columns))
    spool.seek(segment.start)
    left = segment.end - segment.start
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        while left:
            block = spool.read(min(left, _COPY_BYTES))
            if not block:
                raise SinkError("rows that wait for their snapshot are no longer in the temporary file")
            left -= len(block)
            copy.write(block)


@contextmanager
def locked(connection: psycopg.Connection[Any], target: Target, context: CommitContext) -> Iterator[str]:
    """Begin a transaction that no other one of this job and step runs beside; yield the last committed snapshot."""
    from psycopg import IsolationLevel

    make_commits(connection, target.schema)
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    commits = _table(target.schema, COMMITS)
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = on")
        row = (context.job, context.step)
        connection.execute(_sql("INSERT INTO {} VALUES (%s, %s, '') ON CONFLICT DO NOTHING", commits), row)
        found = connection.execute(
            _sql("SELECT snapshot FROM {} WHERE job = %s AND step = %s FOR UPDATE", commits), row
        ).fetchone()
        yield "" if found is None else found[0]


def make_commits(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make the table of commits, if it is missing. From here on, the session keeps to `IDLE_S`."""
    commits = _table(schema, COMMITS)
    connection.execute(_sql("SET idle_in_transaction_session_timeout = {}", _literal(int(IDLE_S * 1000))))
    there = connection.execute("SELECT to_regclass(%s)", [commits.as_string(connection)]).fetchone()
    if there is not None and there[0] is not None:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATE_LOCK])
        connection.execute(
            _sql(
                "CREATE TABLE IF NOT EXISTS {} (job text, step text, snapshot text NOT NULL,"
                " committed_at timestamptz, PRIMARY KEY (job, step))",
                commits,
            )
        )


def publish(
    connection: psycopg.Connection[Any],
    target: Target,
    context: CommitContext,
    *,
    tables: Sequence[str],
    keys: Keys,
    ignores: bool,
) -> None:
    """Move the rows of ``tables`` into the target, unless that was done before.

    ``ignores``: leave out rows that a unique index refuses.
    """
    with locked(connection, target, context) as last:
        there = _existing(connection, target.schema, tables)
        if last >= context.snapshot:
            if there:
                raise lasting(
                    SinkError(
                        f"rows of snapshot {context.snapshot} of step {context.step!r} are not committed, and those of "
                        f"the later snapshot {last} are: another run of this job has taken over, or a clock was set "
                        f"back. Run one job of a name at a time; start this one again"
                    )
                )
            return
        missing = [name for name in tables if name not in there]
        if missing:
            raise lasting(
                SinkError(
                    f"the staged rows of snapshot {context.snapshot} of step {context.step!r} were removed from "
                    f"schema {target.schema} before their commit. Resume from an older snapshot"
                )
            )
        written = [name for name in tables if not name.endswith(_DELETES)]
        moved = _movable(connection, target, written) if written else list(keys.names)
        if keys.names:
            _upsert(connection, target, tables, keys, moved)
        else:
            _append(connection, target, tables, moved, ignores=ignores)
        _drop(connection, target.schema, tables)
        connection.execute(
            _sql(
                "UPDATE {} SET snapshot = %s, committed_at = now() WHERE job = %s AND step = %s",
                _table(target.schema, COMMITS),
            ),
            (context.snapshot, context.job, context.step),
        )


def _movable(connection: psycopg.Connection[Any], target: Target, tables: Sequence[str]) -> list[str]:
    """Return the columns that the target and all staged tables have: the target may have been altered in between.

    A column that was added gets its default, and one that was dropped is left out. Both may also be a new name.
    """
    rows = connection.execute(
        "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = ANY (%s) AND a.attnum > 0 "
        "AND NOT a.attisdropped GROUP BY a.attname HAVING count(*) = %s",
        [target.schema, list(tables), len(tables)],
    )
    staged = {name for (name,) in rows}
    moved = [name for name in target.moved if name in staged]
    gone = sorted(staged.difference((column.name for column in target.columns), (VERSION, ROW)))
    if gone and len(moved) < len(target.moved):
        raise lasting(
            SinkError(
                f"column {gone[0]!r} of staged rows is no longer in table {target}, which has other columns: was it "
                f"renamed? Give it its former name back until the job has committed the rows"
            )
        )
    return moved


def _append(
    connection: psycopg.Connection[Any],
    target: Target,
    tables: Sequence[str],
    moved: Sequence[str],
    *,
    ignores: bool,
) -> None:
    from psycopg import sql

    columns = _names(moved)
    action = sql.SQL(" ON CONFLICT DO NOTHING" if ignores else "")
    into = _table(target.schema, target.name)
    for name in tables:
        connection.execute(
            _sql("INSERT INTO {} ({}) SELECT {} FROM {}{}", into, columns, columns, _table(target.schema, name), action)
        )


def _upsert(
    connection: psycopg.Connection[Any], target: Target, tables: Sequence[str], keys: Keys, moved: Sequence[str]
) -> None:
    """Write the last row of each key: of the highest version of the routing table, then the last of its writer.

    Deletes come first, in a statement for themselves: a row may take the unique value of a row that is deleted.
    """
    from psycopg import sql

    into, by = _table(target.schema, target.name), _names(keys.names)
    written = [name for name in tables if not name.endswith(_DELETES)]
    if len(written) < len(tables):
        # An index is used for = alone, so NULLs are compared only where there can be some.
        same: LiteralString = "t.{} IS NOT DISTINCT FROM last.{}" if keys.take_nulls else "t.{} = last.{}"
        pairs = sql.SQL(" AND ").join(_sql(same, _names([key]), _names([key])) for key in keys.names)
        last = _last(target, tables, keys, keys.names)
        connection.execute(_sql("DELETE FROM {} AS t USING {} WHERE {} AND {}", into, last, _names([_DELETED]), pairs))
    if not written:
        return
    columns, last = _names(moved), _last(target, tables, keys, moved)
    others = [name for name in moved if name not in keys.names]
    values = sql.SQL(", ").join(_sql("{} = EXCLUDED.{}", _names([name]), _names([name])) for name in others)
    action = _sql("DO UPDATE SET {}", values) if others else sql.SQL("DO NOTHING")
    insert = _sql(
        "INSERT INTO {} ({}) SELECT {} FROM {} WHERE NOT {}", into, columns, columns, last, _names([_DELETED])
    )
    connection.execute(_sql("{} ON CONFLICT ({}) {}", insert, by, action))


def _last(target: Target, tables: Sequence[str], keys: Keys, columns: Sequence[str]) -> sql.Composed:
    """Compose a query of the last row of each key in ``tables``: its ``columns``, and whether it is deleted."""
    from psycopg import sql

    def select(name: str) -> sql.Composed:
        deletes = name.endswith(_DELETES)
        found = [sql.SQL("NULL") if deletes and one not in keys.names else sql.Identifier(one) for one in columns]
        order, is_deleted = _names([VERSION, ROW]), sql.SQL("true" if deletes else "false")
        taken = (sql.SQL(", ").join(found), order, is_deleted, _names([_DELETED]), _table(target.schema, name))
        return _sql("SELECT {}, {}, {} AS {} FROM {}", *taken)

    # Those with all columns first: from them, a NULL takes its type.
    selects = [select(name) for name in sorted(tables, key=lambda name: name.endswith(_DELETES))]
    by, version, row = _names(keys.names), _names([VERSION]), _names([ROW])
    return _sql(
        "(SELECT DISTINCT ON ({}) * FROM ({}) AS staged ORDER BY {}, {} DESC, {} DESC) AS last",
        *(by, sql.SQL(" UNION ALL ").join(selects), by, version, row),
    )


def discard(connection: psycopg.Connection[Any], target: Target, context: CommitContext, tables: Sequence[str]) -> None:
    """Drop staging tables, if they are there."""
    if tables:
        with locked(connection, target, context):
            _drop(connection, target.schema, tables)


def discard_where(
    connection: psycopg.Connection[Any],
    target: Target,
    context: CommitContext,
    is_left_over: Callable[[SnapshotId], bool],
) -> None:
    """Drop the staging tables of this job and step whose snapshot ``is_left_over``."""
    rows = connection.execute(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        [target.schema, prefix_of(context.job, context.step)],
    ).fetchall()
    found = [name for name, about in rows if _is_ours(about, context) and is_left_over(json.loads(about)["snapshot"])]
    discard(connection, target, context, found)


def _is_ours(about: str | None, context: CommitContext) -> bool:
    try:
        named = json.loads(about or "")
        return (named["job"], named["step"]) == (context.job, context.step) and isinstance(named["snapshot"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _existing(connection: psycopg.Connection[Any], schema: str, tables: Sequence[str]) -> set[str]:
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = ANY (%s)",
        [schema, list(tables)],
    )
    return {name for (name,) in rows}


def _drop(connection: psycopg.Connection[Any], schema: str, tables: Sequence[str]) -> None:
    for name in tables:
        connection.execute(_sql("DROP TABLE IF EXISTS {}", _table(schema, name)))


def _sql(text: LiteralString, *parts: Any) -> sql.Composed:
    """Compose a statement of constants of this module and of names that psycopg quotes."""
    from psycopg import sql

    return sql.SQL(text).format(*parts)


def _table(schema: str, name: str) -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier(schema, name)


def _names(names: Sequence[str]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, names))


def _literal(value: Any) -> sql.Literal:
    from psycopg import sql

    return sql.Literal(value)
