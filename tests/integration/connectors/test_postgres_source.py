"""`sources.Postgres` on a real server: the contract, parts, one snapshot of the database, types, and resumption."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest

from malstrom_py import sources
from malstrom_py.errors import SourceError
from malstrom_py.testing.contracts import check_source
from malstrom_py.testing.contracts.clauses import copied
from tests.integration.connectors.postgres_tools import Patient, Waiting, new_schema, read_all, run
from tests.servers import Server

pytestmark = pytest.mark.needs_postgres


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_schema(postgres) as dsn:
        yield dsn


@contextmanager
def pinned(source: sources.Postgres) -> Iterator[None]:
    source.pin("docs")
    try:
        yield
    finally:
        source.unpin()


def test_it_keeps_the_contract_of_sources(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (n int, s text)", "INSERT INTO t SELECT i / 3, i / 6 FROM generate_series(1, 40) i")
    run(dsn, "INSERT INTO t VALUES (NULL, 'a'), (NULL, 'a'), (NULL, NULL)")
    source = sources.Postgres(dsn, "t", split_by="n", parts=2)
    with pinned(source):
        check_source(Patient(source), cuts_max=3)


@pytest.mark.parametrize(
    ("split_by", "parts"),
    [("id", 4), ("word", 4), ("at", 4), ("price", 4), (None, 4), ("id", 1)],
)
def test_each_row_is_in_one_part(dsn: str, split_by: str | None, parts: int) -> None:
    run(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY, word text, at timestamptz, price numeric)",
        "INSERT INTO t SELECT i, 'w' || i % 7, now() + i * interval '1 s', i % 11 FROM generate_series(1, 200) i",
        "UPDATE t SET word = NULL, at = NULL, price = NULL WHERE id % 10 = 0",
    )
    source = sources.Postgres(dsn, "t", split_by=split_by, parts=parts, columns=["id"])
    with pinned(source):
        assert (len(source.list_parts()) > 3) is (parts > 1)
        assert sorted(row["id"] for row in read_all(source, rows_max=7)) == list(range(1, 201))


def test_all_parts_are_read_at_one_snapshot_also_by_copies(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 20)")
    source = sources.Postgres(dsn, "t", parts=3)
    with pinned(source):
        run(dsn, "DELETE FROM t WHERE id < 10", "INSERT INTO t SELECT generate_series(21, 40)")
        copy = copied(source)
        copy.pin("docs")
        assert sorted(row["id"] for row in read_all(copy)) == list(range(1, 21))
        copy.unpin()
    with pytest.raises(SourceError, match="is not pinned"):
        source.list_parts()
    with pytest.raises(SourceError, match="no longer holds the snapshot"):
        read_all(copy)


def test_a_resumed_job_reads_the_rows_that_did_not_change_once(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (a text, b int)", "INSERT INTO t SELECT i / 10, i / 2 FROM generate_series(0, 39) i")
    first = sources.Postgres(dsn, "SELECT * FROM t WHERE a LIKE '%'", split_by="a", parts=1)
    first.pin("docs")
    part = Waiting(first.build_part(first.list_parts()[0], None), 30)
    rows = part.poll(13)
    position, record = part.snapshot(), first.pin_record()
    part.close()
    first.unpin(keep=True)

    run(dsn, "DELETE FROM t WHERE b = 1", "INSERT INTO t VALUES ('3', 1000), ('0', 1001)")
    second = sources.Postgres(dsn, "SELECT * FROM t WHERE a LIKE '%'", split_by="a", parts=1)
    second.pin("docs", record)
    try:
        part = Waiting(second.build_part(second.list_parts()[0], position), 30)
        while not part.is_finished():
            rows += part.poll(5) or []
        part.close()
    finally:
        second.unpin()
    assert sorted(row["b"] for row in rows) == sorted([*(i // 2 for i in range(40)), 1000])
    with pytest.raises(SourceError, match="give the job its former source"):
        sources.Postgres(dsn, "t").pin("docs", record)


@pytest.mark.parametrize(
    "statements",
    [
        # The name of a column may be that under which the rows are queried.
        ["CREATE TABLE t (q int, n int)", "INSERT INTO t SELECT nullif(i % 2, 0), i FROM generate_series(1, 9) i"],
        # A primary key may have columns that are only stored in its index.
        [
            "CREATE TABLE t (id int, q int, n int, PRIMARY KEY (id) INCLUDE (q))",
            "INSERT INTO t SELECT i, NULL, i FROM generate_series(1, 9) i",
        ],
        # A primary key says nothing of the tables that inherit.
        [
            "CREATE TABLE t (id int PRIMARY KEY, n int)",
            "CREATE TABLE child () INHERITS (t)",
            "INSERT INTO child SELECT 1, i FROM generate_series(2, 9) i",
            "INSERT INTO t VALUES (1, 1)",
        ],
    ],
    ids=["q", "include", "inherited"],
)
def test_a_part_resumes_after_each_row(dsn: str, statements: list[str]) -> None:
    run(dsn, *statements)
    source = sources.Postgres(dsn, "t", columns=["n"], parts=1)
    with pinned(source):
        [name] = source.list_parts()
        found, places = [], set()
        part = Waiting(source.build_part(name, None), 30)
        while rows := part.poll(1):
            found += [row["n"] for row in rows]
            position = part.snapshot()
            places.add((tuple(position["after"]), position["same"]))
            part.close()
            part = Waiting(source.build_part(name, position), 30)
        part.close()
    assert sorted(found) == list(range(1, 10))
    assert {same for _, same in places} == {1}  # rows that differ share no place
    assert None not in [text for after, _ in places for text in after]


def test_values_have_the_types_of_python(dsn: str) -> None:
    source = sources.Postgres(
        dsn,
        "SELECT 1::int2 AS i, 2.50::numeric AS d, 'x'::text AS s, true AS b, '\\x00ff'::bytea AS y, "
        "'2020-01-01 12:00+02'::timestamptz AS z, '2020-01-01'::date AS day, '{1,2}'::int[] AS many, "
        "'{\"a\": [1]}'::jsonb AS j, NULL::int AS nothing, 1.5::float8 AS f",
    )
    with pinned(source):
        [row] = read_all(source)
    assert row == {
        "i": 1,
        "d": Decimal("2.50"),
        "s": "x",
        "b": True,
        "y": b"\0\xff",
        "many": [1, 2],
        "j": {"a": [1]},
        "z": dt.datetime(2020, 1, 1, 10, tzinfo=dt.UTC),
        "day": dt.date(2020, 1, 1),
        "nothing": None,
        "f": 1.5,
    }


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("missing", {}, "there is no table missing"),
        ("SELECT 1 AS a", {"split_by": "b"}, "there is no column 'b'; the columns are 'a'"),
        ("SELECT 1 AS a, 2 AS a", {}, "two columns of one name"),
        ("SELECT nothing FROM pg_class", {}, "UndefinedColumn"),
    ],
)
def test_what_cannot_be_read_is_named(dsn: str, source: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        sources.Postgres(dsn, source, **options).pin("docs")  # type: ignore[arg-type]


def test_a_type_that_python_does_not_know_is_read_as_text(dsn: str) -> None:
    run(
        dsn,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE m (id mood PRIMARY KEY, many mood[], price money, prices money[], bits bit(3), at point)",
        "INSERT INTO m VALUES ('ok', '{sad,ok}', '1.50', '{2}', '101', '(1,2)'), ('sad', NULL, NULL, NULL, NULL, NULL)",
    )
    source = sources.Postgres(dsn, "m", parts=2)
    with pinned(source):
        rows = read_all(source)
    (price, prices) = run(dsn, "SELECT price::text, prices::text FROM m WHERE price IS NOT NULL")[0]
    nothing = dict.fromkeys(("many", "price", "prices", "bits", "at"))
    full = {"id": "ok", "many": "{sad,ok}", "price": price, "prices": prices, "bits": "101", "at": "(1,2)"}
    assert rows == [{"id": "sad", **nothing}, full]


def test_a_value_that_python_cannot_hold_is_an_error_without_the_value(dsn: str) -> None:
    source = sources.Postgres(dsn, "SELECT 'infinity'::timestamptz AS t")
    with pinned(source):
        with pytest.raises(SourceError, match="a value cannot be converted: cast its column") as raised:
            read_all(source)
        assert "infinity" not in str(raised.value)
