"""`sinks.Postgres` on a real server: the contract, what it writes of each type, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from malstrom_py import sinks
from malstrom_py.testing.contracts import check_sink
from tests.servers import Server

pytestmark = pytest.mark.needs_postgres


def dsn_of(server: Server, database: str = "postgres") -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    """Return the DSN of a new schema's tables."""
    name = f"s{next(_NUMBERS)}"
    with psycopg.connect(dsn_of(postgres), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    yield f"{dsn_of(postgres)}?options=-csearch_path%3D{name}"
    with psycopg.connect(dsn_of(postgres), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {name} CASCADE")


_NUMBERS = itertools.count()


def run(dsn: str, *statements: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_it_keeps_the_contract_of_sinks(dsn: str, mode: str) -> None:
    tables = itertools.count()

    def make() -> sinks.Postgres:
        name = f"t{next(tables)}"
        run(dsn, f"CREATE TABLE {name} (value int PRIMARY KEY, n int DEFAULT 7)", "DROP TABLE IF EXISTS malstrom_commits")
        return sinks.Postgres(dsn, name, mode=mode, keys=["value"] if mode == "upsert" else ())  # type: ignore[arg-type]

    check_sink(make, lambda sink: [row[0] for row in run(dsn, f"SELECT value FROM {sink._table} ORDER BY ctid")])
