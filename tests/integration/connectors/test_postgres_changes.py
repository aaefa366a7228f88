"""`sources.PostgresChanges` on a real server: the contract, what a change is, the slot, and what is refused."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from malstrom_py import sources
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part, acknowledges
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.postgres_tools import Patient, Waiting, new_database, read_all, run
from tests.servers import Server, wait_until

pytestmark = pytest.mark.needs_postgres

SLOT_SQL = "SELECT pg_create_logical_replication_slot('slot_{}', 'pgoutput')"


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_database(postgres) as dsn:
        run(dsn, "CREATE TABLE t (id int PRIMARY KEY, name text)", "CREATE PUBLICATION pub FOR ALL TABLES")
        run(dsn, SLOT_SQL.format(dsn[-2:]))
        yield dsn


def source_of(dsn: str, **options: Any) -> sources.PostgresChanges:
    return sources.PostgresChanges(dsn, "pub", f"slot_{dsn[-2:]}", **{"follow": False, **options})


def confirmed(dsn: str) -> Any:
    return run(dsn, f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'slot_{dsn[-2:]}'")[0][0]


def test_it_keeps_the_contract_of_sources(dsn: str) -> None:
    run(dsn, "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 12) i", "UPDATE t SET name = 'y' WHERE id < 3")
    run(dsn, "DELETE FROM t WHERE id = 4", "TRUNCATE t")
    check_source(Patient(source_of(dsn)), cuts_max=2)


def test_changes_come_in_the_order_of_commits_with_values_of_python(dsn: str) -> None:
    run(dsn, "CREATE TABLE u (id int PRIMARY KEY, at date, many int[])", "ALTER TABLE t REPLICA IDENTITY FULL")
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        first.execute("INSERT INTO t VALUES (1, 'first')")
        second.execute("INSERT INTO u VALUES (1, '2020-01-01', '{1,2}')")
        second.commit()
        first.execute("UPDATE t SET name = NULL")
    run(dsn, "UPDATE u SET id = 2", "DELETE FROM t", "TRUNCATE t, u")
    rows = read_all(source_of(dsn))
    found = [(row["op"], row["table"], row["old"] and row["old"].get("id"), row["new"]) for row in rows]
    assert [each[:3] for each in found] == [
        *[("insert", "u", None), ("insert", "t", None), ("update", "t", 1)],
        *[("update", "u", 1), ("delete", "t", 1), ("truncate", "t", None), ("truncate", "u", None)],
    ]
    assert rows[0]["new"]["many"] == [1, 2]
    assert rows[2]["old"] == {"id": 1, "name": "first"}
    assert rows[2]["new"] == {"id": 1, "name": None}
    assert rows[3]["old"] == {"id": 1}
    assert [row["index"] for row in rows[:3]] == [0, 0, 1]
    assert rows[0]["lsn"] < rows[1]["lsn"] == rows[2]["lsn"]
    assert rows[0]["committed_at"].tzinfo is not None


def test_large_values_that_did_not_change_are_named_and_a_table_may_be_altered(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE big (id int PRIMARY KEY, data text, n int)",
        "ALTER TABLE big ALTER data SET STORAGE EXTERNAL",
    )
    run(dsn, "INSERT INTO big VALUES (1, repeat('x', 100000), 0)", "UPDATE big SET n = 1")
    run(dsn, "ALTER TABLE big ADD more text DEFAULT 'm', DROP n", "INSERT INTO big VALUES (2, 'y')")
    run(dsn, "ALTER TABLE big REPLICA IDENTITY FULL", "UPDATE big SET more = 'z' WHERE id = 1")
    rows = read_all(source_of(dsn))
    assert (rows[1]["new"], rows[1]["unchanged"]) == ({"id": 1, "n": 1}, ["data"])
    assert rows[2]["new"] == {"id": 2, "data": "y", "more": "m"}
    assert (rows[3]["unchanged"], len(rows[3]["new"]["data"])) == ([], 100_000)


def test_a_large_transaction_is_read_in_chunks_and_resumed_in_its_middle(dsn: str) -> None:
    run(dsn, "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 25000) i", "INSERT INTO t VALUES (0, 'after')")
    source = source_of(dsn)
    assert acknowledges(source)
    [part] = source.list_parts()
    opened = Waiting(source.build_part(part, None), 30)
    rows: list[Any] = []
    while len(rows) < 12_345:
        rows += opened.poll(12_345 - len(rows)) or []
    position = opened.snapshot()
    opened.close()
    source.acknowledge("docs", {part: position})
    opened = Waiting(source.build_part(part, position), 30)
    while not opened.is_finished():
        rows += opened.poll(1000) or []
    opened.close()
    assert [row["new"]["id"] for row in rows] == [*range(1, 25_001), 0]


def test_the_slot_is_advanced_only_by_an_acknowledgement(dsn: str) -> None:
    source, before = source_of(dsn), confirmed(dsn)
    [part] = source.list_parts()
    run(dsn, "INSERT INTO t VALUES (1, 'x')")
    assert len(read_all(source)) == 1
    assert confirmed(dsn) == before
    opened = Waiting(source.build_part(part, None), 30)
    while not opened.is_finished():
        opened.poll(10)
    end = opened.snapshot()
    opened.close()
    source.acknowledge("docs", {part: {"lsn": 0, "commit": 0, "index": 0, "finished": False}})
    assert confirmed(dsn) == before
    for _ in range(2):
        source.acknowledge("docs", {part: end})
        assert confirmed(dsn) > before
    assert read_all(source) == []
    old = {"lsn": 1, "commit": 0, "index": 0, "finished": False}
    opened = Waiting(source.build_part(part, old), 30)
    with pytest.raises(SourceError, match="the changes between were released"):
        opened.poll(1)
    opened.close()


def test_changes_are_followed_and_the_lag_is_known(dsn: str) -> None:
    opened = Waiting(source_of(dsn, follow=True).build_part(Part(f"slot_{dsn[-2:]}"), None), 30)
    run(dsn, "INSERT INTO t VALUES (1, 'x')")
    assert opened.poll(10)[0]["new"] == {"id": 1, "name": "x"}
    run(dsn, "INSERT INTO t VALUES (2, 'x')")
    assert opened.poll(10)[0]["new"]["id"] == 2
    assert opened.lag_bytes() >= 0
    assert not opened.is_finished()
    opened.close()


def test_a_value_that_python_cannot_hold_is_its_text(dsn: str) -> None:
    run(dsn, "CREATE TABLE d (id int PRIMARY KEY, day date, at timestamptz, days date[])")
    run(
        dsn,
        "INSERT INTO d VALUES (1, '2020-01-01', '2020-01-01+00', '{2020-01-01}'), "
        "(2, '0044-03-15 BC', 'infinity', '{-infinity,2020-01-01}'), (3, '10000-01-01', NULL, NULL)",
    )
    source = source_of(dsn)
    opened = Waiting(source.build_part(source.list_parts()[0], None), 30)
    read = [tuple(row["new"].values())[1:] for row in opened.poll(10)]
    opened.close()
    day = dt.date(2020, 1, 1)
    assert read[0][::2] == (day, [day])
    assert read[1:] == [("0044-03-15 BC", "infinity", "{-infinity,2020-01-01}"), ("10000-01-01", None, None)]


def test_what_is_missing_is_made_by_the_sql_in_the_error(dsn: str) -> None:
    with pytest.raises(SourceError, match=r'CREATE PUBLICATION "missing" FOR TABLE'):
        sources.PostgresChanges(dsn, "missing", "nothing").list_parts()
    with pytest.raises(SourceError, match="Run: SELECT") as raised:
        sources.PostgresChanges(dsn, "pub", "made_later").list_parts()
    run(dsn, str(raised.value).partition("Run: ")[2])
    assert sources.PostgresChanges(dsn, "pub", "made_later").list_parts() == ["made_later"]
    run(dsn, "SELECT pg_create_logical_replication_slot('other_plugin', 'test_decoding')")
    with pytest.raises(SourceError, match="has the plugin test_decoding"):
        sources.PostgresChanges(dsn, "pub", "other_plugin").list_parts()


def test_a_forgotten_slot_is_warned_of_with_its_size(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    run(dsn, "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i")
    with caplog.at_level(logging.WARNING, "malstrom_py.sources.postgres"):
        read_all(source_of(dsn, warn_bytes=1 << 20))
    [record] = caplog.records
    assert "MB of the log" in record.getMessage()
    assert "pg_drop_replication_slot" in record.getMessage()


def test_a_slot_that_another_session_reads_is_refused(dsn: str) -> None:
    slot = f"slot_{dsn[-2:]}"
    with closing(psycopg.connect(dsn, autocommit=True, replication="database")) as other:
        start = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
        other.pgconn.send_query(start.encode())
        wait_until(lambda: active(dsn, slot), "the slot is in use")
        with pytest.raises(SourceError, match=f"'{slot}' is in use by the session with pid"):
            source_of(dsn).list_parts()
    wait_until(lambda: not active(dsn, slot), "the slot is free")


def active(dsn: str, slot: str) -> bool:
    return bool(run(dsn, f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'")[0][0])
