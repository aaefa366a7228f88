"""Whole jobs through PostgreSQL, which are rescaled, stopped and resumed: each row is read and written once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.connectors.postgres_tools import new_database, run
from tests.servers import Server, wait_until

pytestmark = pytest.mark.needs_postgres

PATIENCE_S = 60


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_database(postgres) as dsn:
        yield dsn


ROWS = 20_000


def slowly(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row after a while: all rows take 40 s, so the job is stopped long before its end."""
    time.sleep(0.002)
    return row


def quickly(row: dict[str, Any]) -> dict[str, Any]:
    return row


def rows_job(dsn: str, pace: Any) -> mp.Job:
    """Copy a table, and write the last row of each key of it."""
    job = mp.Job("copies")
    rows = job.source("in", sources.Postgres(dsn, "orders", parts=5)).map("pace", pace)
    keyed = rows.key_by("by_item", lambda row: row["item"])
    keyed.sink("all", sinks.Postgres(dsn, "copied"))
    keyed.sink("last", sinks.Postgres(dsn, "last", mode="upsert", keys="item"))
    return job


def runtime_of(folder: Path, workers: int, rows_max: int = 10) -> mp.InProcess:
    return mp.InProcess(
        workers,
        batch=mp.Batching(rows_max=rows_max),
        snapshots=mp.Snapshots(folder / "kept", interval_s=0.1),
        progress=False,
    )


def test_a_table_is_copied_once_by_a_job_that_is_rescaled_stopped_and_resumed(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE orders (id int PRIMARY KEY, item int)",
        "INSERT INTO orders SELECT i, i % 7 FROM generate_series(1, 20000) i",
        "CREATE TABLE copied (id int, item int)",
        "CREATE TABLE last (item int PRIMARY KEY, id int)",
    )
    handle = runtime_of(tmp_path, 1).start(rows_job(dsn, slowly), control=False)
    handle.rescale(3, timeout_s=PATIENCE_S)
    wait_until(lambda: run(dsn, "SELECT 1 FROM copied LIMIT 1") != [], "the first rows are committed")
    handle.rescale(2, timeout_s=PATIENCE_S)
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    before = run(dsn, "SELECT count(*) FROM copied")[0][0]
    assert 0 < before < ROWS
    runtime_of(tmp_path, 2, 2_000).start(rows_job(dsn, quickly), control=False).wait(timeout_s=PATIENCE_S)
    assert run(dsn, "SELECT id FROM copied ORDER BY id") == [(number,) for number in range(1, ROWS + 1)]
    assert run(dsn, "SELECT count(*) FROM last") == [(7,)]
    assert run(dsn, "SELECT relname FROM pg_class WHERE relname LIKE '\\_malstrom%'") == []


def changes_job(dsn: str, *, follow: bool) -> mp.Job:
    job = mp.Job("changes")
    rows = job.source("in", sources.PostgresChanges(dsn, "pub", "jobs_slot", follow=follow))
    written = rows.map("new", lambda change: {"id": change["new"]["id"]})
    written.key_by("by_id", lambda row: row["id"]).sink("out", sinks.Postgres(dsn, "copied"))
    return job


def test_changes_are_written_once_and_the_slot_follows_the_snapshots(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE copied (id int)")
    run(dsn, "CREATE PUBLICATION pub FOR TABLE orders")
    run(dsn, "SELECT pg_create_logical_replication_slot('jobs_slot', 'pgoutput')")

    def confirmed() -> Any:
        return run(dsn, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'jobs_slot'")[0][0]

    def written() -> list[int]:
        return [row[0] for row in run(dsn, "SELECT id FROM copied ORDER BY id")]

    first = confirmed()
    handle = runtime_of(tmp_path, 1).start(changes_job(dsn, follow=True), control=False)
    run(dsn, "INSERT INTO orders SELECT generate_series(1, 300)")
    handle.rescale(2, timeout_s=PATIENCE_S)
    run(dsn, *(f"INSERT INTO orders VALUES ({number})" for number in range(301, 320)))
    wait_until(lambda: written() == list(range(1, 320)), "the changes are written")
    wait_until(lambda: confirmed() > first, "the slot is advanced")
    handle.stop(drain=False, timeout_s=PATIENCE_S)

    run(dsn, "INSERT INTO orders SELECT generate_series(320, 400)")
    second = confirmed()
    runtime_of(tmp_path, 3).start(changes_job(dsn, follow=False), control=False).wait(timeout_s=PATIENCE_S)
    assert written() == list(range(1, 401))
    wait_until(lambda: confirmed() > second, "the slot is advanced to the end")


def test_a_finished_job_of_changes_that_is_run_again_reads_what_is_new(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE copied (id int)")
    run(dsn, "CREATE PUBLICATION pub FOR TABLE orders")
    run(dsn, "SELECT pg_create_logical_replication_slot('jobs_slot', 'pgoutput')")
    for first in (1, 4, 6):
        run(dsn, f"INSERT INTO orders SELECT generate_series({first}, {first + 1})")
        runtime_of(tmp_path, 1).start(changes_job(dsn, follow=False), control=False).wait(timeout_s=PATIENCE_S)
        assert run(dsn, "SELECT max(id), count(*) = count(DISTINCT id) FROM copied") == [(first + 1, True)]
    assert run(dsn, "SELECT count(*) FROM copied") == [(6,)]


def test_a_job_of_changes_that_resumes_ends_where_it_would_have_ended(dsn: str) -> None:
    run(dsn, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR TABLE orders")
    run(dsn, "SELECT pg_create_logical_replication_slot('jobs_slot', 'pgoutput')")
    run(dsn, "INSERT INTO orders VALUES (1)")
    before = sources.PostgresChanges(dsn, "pub", "jobs_slot", follow=False)
    before.pin("changes")
    run(dsn, "INSERT INTO orders VALUES (2)")
    resumed = sources.PostgresChanges(dsn, "pub", "jobs_slot", follow=False)
    resumed.pin("changes", before.pin_record())
    part: Any = resumed.build_part(resumed.list_parts()[0], None)
    seen: list[Any] = []
    while not part.is_finished():
        seen += part.poll(9) or []
        time.sleep(0.002)
    part.close()
    assert [row["new"]["id"] for row in seen] == [1]
