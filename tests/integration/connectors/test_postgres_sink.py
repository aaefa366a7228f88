"""`sinks.Postgres` on a real server: the contract, what it writes of each type, and what it refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from malstrom_py import sinks
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.testing.contracts import check_sink
from malstrom_py.testing.contracts.sinks import context_of, worker_of
from tests.integration.connectors.postgres_tools import new_schema, run
from tests.servers import Server

pytestmark = pytest.mark.needs_postgres


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_schema(postgres) as dsn:
        yield dsn


@pytest.mark.long("upsert")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_it_keeps_the_contract_of_sinks(dsn: str, mode: Any) -> None:
    tables = itertools.count()

    def make() -> sinks.Postgres:
        name = f"t{next(tables)}"
        run(dsn, f"CREATE TABLE {name} (value int PRIMARY KEY, n int)", "DROP TABLE IF EXISTS malstrom_commits")
        return sinks.Postgres(dsn, name, mode=mode, keys=["value"] if mode == "upsert" else ())

    with psycopg.connect(dsn, autocommit=True) as reader:

        def read(sink: sinks.Postgres) -> list[Any]:
            return [row[0] for row in reader.execute(f"SELECT value FROM {sink._table} ORDER BY ctid".encode())]

        check_sink(make, read)


def write(dsn: str, *batches: Batch, table: str = "t", number: int = 1, **options: Any) -> None:
    """Write and commit batches, as one writer."""
    sink = sinks.Postgres(dsn, table, **options)
    sink.recover(context_of(number), [])
    writer = sink.open(worker_of())
    try:
        for batch in batches:
            writer.write(batch)
        sink.commit(context_of(number), [writer.pre_commit(context_of(number))])
    finally:
        writer.close()


moment = dt.datetime.fromisoformat

TEXTS = ["", "a\tb", "a\nb", "a\rb", "\\", "\\N", "\\.", "q\"'", "ü€😀", None, "NULL", "{}", "x" * 70_000]
COLUMNS: list[tuple[str, list[Any]]] = [
    ("text", TEXTS),
    ("text[]", [["a", 'q"\\', None, "NULL", ""], [], None, [["x"], ["y,z"]]]),
    ("bytea", [b"", b"\0\xff\\", None, bytearray(b"a")]),
    ("bytea[]", [[b"\0\\", None], None]),
    ("bigint", [0, -(2**63), 2**63 - 1, None]),
    ("numeric", [decimal.Decimal("1.10"), decimal.Decimal("NaN"), decimal.Decimal("1E+20"), None, 10**30]),
    ("double precision", [0.1, float("nan"), float("inf"), -float("inf"), 1e300, -0.0, None, 5e-324]),
    ("real", [0.5, None]),
    ("boolean", [True, False, None]),
    ("timestamptz", [dt.datetime(2020, 1, 1, 1, 2, 3, 4, dt.timezone(dt.timedelta(hours=2))), None]),
    ("timestamp", [moment("0001-01-01"), moment("9999-12-31T23:59:59.999999"), None]),
    ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    ("time", [dt.time(1, 2, 3, 4), None]),
    ("interval", [dt.timedelta(days=-1, seconds=5, microseconds=7), None]),
    ("uuid", [uuid.UUID(int=5), None]),
    ("jsonb", [{"a": ["x\ty\\", 1, None, {"b": "\n"}]}, [1, "2"], 3, True, None, [dt.date(2020, 1, 1)]]),
    ("inet", [ipaddress.ip_address("10.0.0.1"), None]),
    ("int[]", [[1, None, 2], [], [[1], [2]], None]),
]


def as_read(kind: str, value: Any) -> Any:
    """Return how psycopg reads a value of a column."""
    if kind == "jsonb" and value == [dt.date(2020, 1, 1)]:
        return ["2020-01-01"]
    if kind == "numeric" and value is not None:
        return decimal.Decimal(f"{decimal.Decimal(value):f}")
    return bytes(value) if isinstance(value, bytearray) else value


def test_values_are_read_as_they_were_written(dsn: str) -> None:
    make_table(dsn, [kind for kind, _ in COLUMNS])
    rows = rows_of_lists([values for _, values in COLUMNS])
    write(dsn, Batch(rows))
    # Each value is also encoded without others of another type beside it.
    write(dsn, *(Batch([{**row, "n": 1000 + row["n"]}]) for row in rows), number=2)
    for number, (kind, values) in enumerate(COLUMNS):
        require_column(dsn, number, [as_read(kind, value) for value in [*values, *[None] * 99][: len(rows)]] * 2)


def make_table(dsn: str, kinds: list[str]) -> None:
    """Make a table t with the columns n, v0, v1 and so on."""
    columns = ", ".join(f"v{number} {kind}" for number, kind in enumerate(kinds))
    run(dsn, f"CREATE TABLE t (n int, {columns})")


def rows_of_lists(lists: list[list[Any]]) -> list[dict[str, Any]]:
    """Return rows with one column per list; shorter ones end with None."""
    rows = itertools.zip_longest(*lists)
    return [{"n": n, **{f"v{number}": value for number, value in enumerate(row)}} for n, row in enumerate(rows)]


def require_column(dsn: str, number: int, expected: list[Any]) -> None:
    """Check the values of a column, as text: NaN is not equal to itself."""
    read = [row[0] for row in run(dsn, "SET timezone = 'UTC'", f"SELECT v{number} FROM t ORDER BY n")]
    assert list(map(repr, map(unzoned, read))) == list(map(repr, map(unzoned, expected))), f"v{number}"


def unzoned(value: Any) -> Any:
    return value.astimezone(dt.UTC).replace(tzinfo=None) if getattr(value, "tzinfo", None) else value


ARROW: list[tuple[str, pa.DataType, list[Any]]] = [
    ("text", pa.string(), TEXTS),
    ("text", pa.large_string(), TEXTS),
    ("text", pa.dictionary(pa.int8(), pa.string()), ["a\t", "b", None, "a\t"]),
    ("bigint", pa.int64(), [1, None, -5]),
    ("integer", pa.uint8(), [255, None]),
    ("double precision", pa.float64(), [0.1, float("nan"), float("inf"), None, 1e300]),
    ("real", pa.float32(), [0.5, None]),
    ("boolean", pa.bool_(), [True, None, False]),
    ("numeric", pa.decimal128(20, 3), [decimal.Decimal("-1.100"), None]),
    ("timestamptz", pa.timestamp("ms", "America/New_York"), [dt.datetime(2020, 1, 1, 1, tzinfo=dt.UTC), None]),
    ("timestamp", pa.timestamp("ns"), [moment("2020-01-01T01:02:03.456789"), None]),
    ("timestamp", pa.timestamp("s"), [moment("0001-01-01"), moment("9999-12-31")]),
    ("date", pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    ("date", pa.date64(), [dt.date(2020, 1, 1), None]),
    ("time", pa.time64("ns"), [dt.time(1, 2, 3, 4), None]),
    ("interval", pa.duration("us"), [dt.timedelta(days=1, microseconds=-1), None]),
    ("bytea", pa.binary(), [b"", b"\0\\\xff", None]),
    ("int[]", pa.list_(pa.int32()), [[1, None], [], None]),
    ("jsonb", pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
    ("jsonb", pa.string(), ['{"a": "\\\\t"}', None]),
    ("text", pa.null(), [None]),
]


def test_columns_of_arrow_are_read_as_they_were_written(dsn: str) -> None:
    make_table(dsn, [kind for kind, _, _ in ARROW])
    rows = rows_of_lists([values for _, _, values in ARROW])
    fields = [("n", pa.int64()), *((f"v{number}", arrow) for number, (_, arrow, _) in enumerate(ARROW))]
    # A slice: Arrow keeps the offsets of what is left out.
    write(dsn, ColumnBatch(pa.RecordBatch.from_pylist([rows[0], *rows], pa.schema(fields)).slice(1)))
    for number, (kind, _, values) in enumerate(ARROW):
        decoded = [{"a": "\\t"} if kind == "jsonb" and isinstance(value, str) else value for value in values]
        require_column(dsn, number, [*decoded, *[None] * 99][: len(rows)])


def test_columns_get_their_defaults_and_the_key_its_column(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE t (key text, n int, id serial, other int GENERATED ALWAYS AS IDENTITY, "
        "by_default int GENERATED BY DEFAULT AS IDENTITY, double int GENERATED ALWAYS AS (n * 2) STORED, "
        "made text DEFAULT 'm' NOT NULL, dropped int, CHECK (n < 100))",
        "ALTER TABLE t DROP dropped",
    )
    columns = ColumnBatch(pa.RecordBatch.from_pydict({"n": [3]}), keys=["c"])
    write(dsn, Batch([{"n": 1}, {"n": 2, "made": "x"}], keys=["a", "b"]), columns)
    assert run(dsn, "SELECT * FROM t ORDER BY n") == [
        ("a", 1, 1, 1, 1, 2, "m"),
        ("b", 2, 2, 2, 2, 4, "x"),
        ("c", 3, 3, 3, 3, 6, "m"),
    ]
    assert run(dsn, "SELECT relname FROM pg_class WHERE relname LIKE '\\_malstrom%'") == []


class Colour(enum.IntEnum):
    RED = 1


def test_subclasses_are_written_as_their_base(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (n int)")
    write(dsn, Batch([{"n": Colour.RED}]))
    assert run(dsn, "SELECT n FROM t") == [(1,)]


SECRET = "secret-value"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"n": 1, "more": 2}, r"rows have 1 field \('more'\) without a column in table .*which has 'n', 's'"),
        ({"s": SECRET}, "rows lack 'n', which table .*needs"),
        ({"n": SECRET}, "InvalidTextRepresentation .*column 'n'"),
        ({"n": 1, "s": f"{SECRET}\0"}, "column 's': a text has a NUL character"),
        ({"n": 1, "s": f"{SECRET}\ud800"}, "column 's': a text is not valid Unicode"),
        ({"n": 1, "s": b"secret-value"}, "column 's' of type text takes no bytes"),
        ({"n": 1, "s": [SECRET]}, "column 's' of type text takes no list"),
        ({"n": 1, "b": SECRET}, "column 'b' of type bytea takes no str"),
        ({"n": 1, "s": {SECRET: 1}}, "column 's' of type text takes no dict"),
        ({"n": 1, "j": {"a": float("nan")}}, "column 'j': JSON cannot hold NaN"),
        ({"n": None}, "NotNullViolation .*column 'n'"),
        ({"n": 777}, "CheckViolation .*constraint 't_n_check'"),
        ({"n": 10**12}, "NumericValueOutOfRange .*column 'n'"),
        ({"n": 1, "g": 1}, "PostgreSQL computes column 'g'"),
        ({"n": 1, "d": "31-secret-value"}, "InvalidDatetimeFormat .*column 'd'"),
        ({"n": 1, "d": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))}, "column 'd' has dates beyond"),
    ],
)
def test_what_the_table_refuses_fails_before_the_commit_and_without_the_value(
    dsn: str, row: dict[str, Any], words: str
) -> None:
    run(
        dsn,
        "CREATE TABLE t (n int NOT NULL CHECK (n <> 777), s text, b bytea, j jsonb, d date, "
        "g int GENERATED ALWAYS AS (n) STORED)",
    )
    writer = sinks.Postgres(dsn, "t").open(worker_of())
    with pytest.raises(SinkError, match=words) as raised:  # noqa: PT012  # in the write, or at the latest here
        writer.write(Batch([row]))
        writer.pre_commit(context_of(1))
    writer.close()
    assert SECRET not in str(raised.value)
    assert "777" not in str(raised.value)
    assert run(dsn, "SELECT relname FROM pg_class WHERE relname LIKE '\\_malstrom%'") == []


def test_an_upsert_writes_the_last_row_of_each_key(dsn: str) -> None:
    run(dsn, 'CREATE TABLE t ("a b" int, c text, n int, UNIQUE (c, "a b"))', "INSERT INTO t VALUES (1, 'x', 0)")
    rows = [{"a b": index % 2, "c": "x", "n": index} for index in range(10)]
    columns = ColumnBatch(pa.RecordBatch.from_pylist([{"n": 10, "c": "x", "a b": 0}, {"n": 11, "c": "y", "a b": 0}]))
    write(dsn, Batch(rows), columns, mode="upsert", keys=["a b", "c"])
    assert run(dsn, 'SELECT "a b", c, n FROM t ORDER BY n') == [(1, "x", 9), (0, "x", 10), (0, "y", 11)]


def test_rows_of_a_key_that_has_moved_follow_those_of_its_former_worker(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    sink, context = sinks.Postgres(dsn, "t", mode="upsert", keys="id"), context_of(1)
    sink.recover(context, [])
    first, second = sink.open(worker_of(0)), sink.open(worker_of(1))
    for writer, version, n in ((first, 1, 1), (second, 2, 2), (second, 2, 3), (first, 3, 4), (second, 4, 5)):
        writer.moved(version)
        writer.write(Batch([{"id": 1, "n": n}, {"id": n + 10, "n": n}]))
    payloads = [second.pre_commit(context), first.pre_commit(context)]
    sink.commit(context, payloads)
    first.close()
    second.close()
    assert run(dsn, "SELECT id, n FROM t ORDER BY id") == [(1, 5), *((n + 10, n) for n in range(1, 6))]


def test_rows_that_delete_take_the_rows_of_their_keys_away(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL UNIQUE, note text NOT NULL)",
        "INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c'), (4, 40, 'd')",
    )
    kept, gone = {"note": "new", "gone": False}, {"gone": True}
    rows = [
        {"id": 1, **gone},
        {"id": 2, "n": 10, **kept},  # the unique value of a row that is deleted
        {"id": 3, "n": 31, **kept},
        {"id": 3, "unknown": "ignored", **gone},
        {"id": 4, **gone},
        {"id": 4, "n": 41, **kept},
        {"id": 5, **gone},
    ]
    write(dsn, Batch(rows), mode="upsert", keys="id", delete_field="gone")
    assert run(dsn, "SELECT id, n FROM t ORDER BY id") == [(2, 10), (4, 41)]
    columns = pa.RecordBatch.from_pylist(
        [{"id": 2, "n": None, "note": None, "gone": True}, {"id": 6, "n": 60, "note": "e", "gone": False}]
    )
    write(dsn, ColumnBatch(columns), number=2, mode="upsert", keys="id", delete_field="gone")
    write(dsn, Batch([{"id": 4, **gone}]), number=3, mode="upsert", keys="id", delete_field="gone")
    assert run(dsn, "SELECT id, n FROM t ORDER BY id") == [(6, 60)]
    for row in ({"id": 1, "n": 1, "note": ""}, {"id": 1, "n": 1, "note": "", "gone": None}):
        with pytest.raises(SinkError, match="field 'gone' of some rows is missing or not a bool"):
            write(dsn, Batch([row]), number=4, mode="upsert", keys="id", delete_field="gone")
    with pytest.raises(SinkError, match="rows lack 'id'"):
        write(dsn, Batch([{"n": 1, "gone": True}]), number=5, mode="upsert", keys="id", delete_field="gone")
    for wrong in ({"mode": "append"}, {"mode": "upsert", "keys": "gone"}):
        with pytest.raises(PlanError, match="delete_field must name a field for mode='upsert'"):
            sinks.Postgres(dsn, "t", delete_field="gone", **wrong)  # type: ignore[arg-type]


def test_a_delete_is_in_order_with_the_rows_of_other_workers(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (a int, b int, n int, UNIQUE NULLS NOT DISTINCT (a, b))")
    sink, context = sinks.Postgres(dsn, "t", mode="upsert", keys=["a", "b"], delete_field="gone"), context_of(1)
    sink.recover(context, [])
    first, second = sink.open(worker_of(0)), sink.open(worker_of(1))
    for writer, version, key, gone in (
        (first, 1, 1, False),
        (second, 2, 1, True),
        (first, 1, None, True),
        (second, 2, None, False),
        (second, 2, 3, True),
        (first, 3, 3, False),
    ):
        writer.moved(version)
        writer.write(Batch([{"a": key, "b": 0, "n": version, "gone": gone}]))
    sink.commit(context, [second.pre_commit(context), first.pre_commit(context)])
    assert run(dsn, "SELECT a, n FROM t ORDER BY n") == [(None, 2), (3, 3)]
    second.write(Batch([{"a": None, "b": 0, "gone": True}]))
    sink.commit(context_of(2), [second.pre_commit(context_of(2))])
    first.close()
    second.close()
    assert run(dsn, "SELECT a, n FROM t") == [(3, 3)]
    assert staged(dsn) == []


def test_an_upsert_without_its_index_or_key_is_refused(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int, n int)", "CREATE UNIQUE INDEX ON t (id) WHERE n > 0")
    sink = sinks.Postgres(dsn, "t", mode="upsert", keys="id")
    with pytest.raises(SinkError, match=r"no unique index on \(id\): run ALTER TABLE .* ADD UNIQUE \(id\)") as raised:
        sink.open(worker_of())
    run(dsn, str(raised.value).partition("run ")[2])
    writer = sink.open(worker_of())
    with pytest.raises(SinkError, match=r"key column 'id' .*is None.*NULLS NOT DISTINCT \(id\)"):
        writer.write(Batch([{"id": None, "n": 1}]))
    writer.close()


def test_a_key_may_be_null_where_the_index_takes_two_nulls_for_one(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE t (a int, b int, n int, UNIQUE NULLS NOT DISTINCT (a, b))",
        "INSERT INTO t VALUES (1, NULL, 0)",
    )
    rows = [(1, None, 1), (None, None, 2), (1, None, 3), (2, 2, 4), (None, None, 5)]
    write(dsn, Batch([dict(zip("abn", row, strict=True)) for row in rows]), mode="upsert", keys=["a", "b"])
    assert run(dsn, "SELECT a, b, n FROM t ORDER BY n") == [(1, None, 3), (2, 2, 4), (None, None, 5)]


def test_rows_that_a_unique_index_refuses_are_left_out_if_asked(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int PRIMARY KEY, n int UNIQUE)", "INSERT INTO t VALUES (1, 10)")
    rows = [{"id": 1, "n": 11}, {"id": 2, "n": 10}, {"id": 3, "n": 12}, {"id": 3, "n": 13}]
    write(dsn, Batch(rows), on_conflict="ignore")
    assert run(dsn, "SELECT id, n FROM t ORDER BY id") == [(1, 10), (3, 12)]
    with pytest.raises(PlanError, match="mode='upsert' replaces rows"):
        sinks.Postgres(dsn, "t", mode="upsert", keys="id", on_conflict="ignore")
    with pytest.raises(PlanError, match="on_conflict must be 'fail' or 'ignore'"):
        sinks.Postgres(dsn, "t", on_conflict="update")  # type: ignore[arg-type]


def test_a_target_that_is_missing_or_cannot_be_reached_is_named_without_the_password(dsn: str) -> None:
    with pytest.raises(SinkError, match="there is no table nothing"):
        sinks.Postgres(dsn, "nothing").open(worker_of())
    with pytest.raises(SinkError, match=r'invalid name syntax.*in double quotes, as in shop\."my sales"'):
        sinks.Postgres(dsn, "my sales").open(worker_of())
    bad = dsn.replace("postgres@", "postgres:hush@").replace("/postgres?", "/nowhere?")
    with pytest.raises(SinkError, match="nowhere") as raised:
        sinks.Postgres(bad, "t").open(worker_of())
    assert "hush" not in str(raised.value)
    assert "hush" not in repr(sinks.Postgres(bad, "t"))


def test_rows_that_a_unique_index_refuses_at_the_commit_leave_all_in_place(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (5)")
    sink, context = sinks.Postgres(dsn, "t"), context_of(1)
    sink.recover(context, [])
    writer = sink.open(worker_of())
    writer.write(Batch([{"id": 4}, {"id": 5}]))
    payload = writer.pre_commit(context)
    writer.close()
    with pytest.raises(SinkError, match=r"UniqueViolation .*constraint 't_pkey'.*mode='upsert'"):
        sink.commit(context, [payload])
    assert run(dsn, "SELECT id FROM t") == [(5,)]
    run(dsn, "DELETE FROM t")
    sink.commit(context, [payload])
    assert run(dsn, "SELECT id FROM t") == [(4,), (5,)]


def staged(dsn: str) -> list[str]:
    """Return which snapshots staging tables are of."""
    rows = run(dsn, "SELECT obj_description(c.oid, 'pg_class')::json FROM pg_class c WHERE relname LIKE '\\_malstrom%'")
    return sorted(f"{about['job']} {about['snapshot']}" for (about,) in rows)


def test_a_start_drops_the_staging_tables_of_dead_starts_and_no_others(dsn: str) -> None:
    """Of each dead start, of any worker. What belongs to a durable snapshot, a later start or another job stays."""
    run(dsn, "CREATE TABLE t (id int)")
    sink = sinks.Postgres(dsn, "t")

    def stage(context: CommitContext, worker: int = 0) -> bytes:
        writer = sink.open(worker_of(worker))
        writer.write(Batch([{"id": worker}]))
        payload = writer.pre_commit(context)
        writer.close()
        return payload

    durable = stage(context_of(1))
    for number in (2, 2, 3, 8):
        stage(context_of(number), worker=number)
    stage(replace(context_of(2), job="other"))
    job = context_of(1).job
    names = {number: f"{job} {context_of(number).snapshot}" for number in range(10)}
    other = f"other {context_of(2).snapshot}"
    assert staged(dsn) == sorted([names[1], names[2], names[2], names[3], names[8], other])
    sink.recover(context_of(5, incarnation=2), [context_of(1).snapshot])
    assert staged(dsn) == sorted([names[1], names[8], other])
    sink.commit(context_of(1), [durable])
    sink.recover(context_of(9, incarnation=3), [context_of(1).snapshot])
    assert staged(dsn) == [other]
    assert run(dsn, "SELECT id FROM t") == [(0,)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_target_that_is_altered_between_a_snapshot_and_its_commit(dsn: str, mode: Any) -> None:
    run(dsn, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    keys = {"mode": mode, "keys": "id"} if mode == "upsert" else {}
    sink = sinks.Postgres(dsn, "t", **keys)
    changes = ["ADD COLUMN c int DEFAULT 7", "DROP COLUMN b", "RENAME COLUMN a TO n"]
    for number, change in enumerate(changes, 1):
        context = context_of(number)
        sink.recover(context, [])
        writer = sink.open(worker_of())
        writer.write(Batch([{"id": number, "a": number}]))
        payload = writer.pre_commit(context)
        writer.close()
        run(dsn, f"ALTER TABLE t {change}")
        if change.startswith("RENAME"):  # its values must not be lost
            with pytest.raises(SinkError, match=r"column 'a' of staged rows is no longer in table .*former name"):
                sink.commit(context, [payload])
            run(dsn, "ALTER TABLE t RENAME COLUMN n TO a")
        sink.commit(context, [payload])
    assert run(dsn, "SELECT id, a, c FROM t ORDER BY id") == [(1, 1, 7), (2, 2, 7), (3, 3, 7)]


def test_a_computed_column_may_be_made_of_an_identity(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, g int GENERATED ALWAYS AS (id * 2) STORED, n int)")
    write(dsn, Batch([{"n": 5}]))
    assert run(dsn, "SELECT * FROM t") == [(1, 2, 5)]


def test_a_foreign_table_is_refused_as_it_is_not_in_the_transaction(dsn: str) -> None:
    name = f"far_{dsn[-2:]}"
    run(dsn, f"CREATE FOREIGN DATA WRAPPER {name}", f"CREATE SERVER {name} FOREIGN DATA WRAPPER {name}")
    run(dsn, f"CREATE FOREIGN TABLE t (n int) SERVER {name}")
    with pytest.raises(SinkError, match="t is a foreign table"):
        sinks.Postgres(dsn, "t").open(worker_of())
    run(dsn, f"DROP FOREIGN DATA WRAPPER {name} CASCADE")


def test_the_rights_that_the_page_names_suffice(dsn: str) -> None:
    user, schema = f"app_{dsn[-2:]}", dsn.rpartition("%3D")[2]
    run(dsn, "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n int)", f"CREATE ROLE {user} LOGIN")
    run(dsn, f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}", f"GRANT SELECT, INSERT ON t TO {user}")
    run(dsn, f"GRANT USAGE ON SEQUENCE t_id_seq TO {user}")
    write(dsn.replace("postgres@", f"{user}@"), Batch([{"n": 5}]))
    assert run(dsn, "SELECT * FROM t") == [(1, 5)]
    run(dsn, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_rows_of_many_megabytes_wait_in_a_file(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (n int, s text)")
    write(dsn, *(Batch([{"n": n, "s": "x" * 500_000} for n in range(start, start + 10)]) for start in (0, 10, 20)))
    assert run(dsn, "SELECT count(*), sum(length(s)) FROM t") == [(30, 15_000_000)]


def test_the_session_may_have_other_settings(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (at timestamptz, d date)")
    odd = f"{dsn}%20-cTimeZone%3DAsia/Tokyo%20-cDateStyle%3Ddmy%20-cdefault_transaction_isolation%3Dserializable"
    write(odd, Batch([{"at": moment("2020-01-02T03:00"), "d": dt.date(2020, 2, 1)}]))
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        row = connection.execute("SELECT at::text, d FROM t").fetchone()
    assert row == ("2020-01-02 03:00:00+00", dt.date(2020, 2, 1))
