"""What the tests of PostgreSQL share: statements, schemas, and sources whose polls wait for their first rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from malstrom_py.sources.base import Part
from tests.servers import Server

_NUMBERS = itertools.count()


def dsn_of(server: Server, database: str = "postgres") -> str:
    """Return the DSN of a database of the server."""
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


@contextmanager
def new_schema(server: Server) -> Iterator[str]:
    """Make a schema; yield a DSN whose tables are in it."""
    name = f"s{next(_NUMBERS)}"
    run(dsn_of(server), f"CREATE SCHEMA {name}")
    yield f"{dsn_of(server)}?options=-csearch_path%3D{name}"
    run(dsn_of(server), f"DROP SCHEMA {name} CASCADE")


@contextmanager
def new_database(server: Server) -> Iterator[str]:
    """Make a database, which changes are decoded of; yield its DSN."""
    name = f"d{next(_NUMBERS)}"
    run(dsn_of(server), f"CREATE DATABASE {name}")
    yield dsn_of(server, name)
    run(
        dsn_of(server),
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}' AND NOT active",
        f"DROP DATABASE {name} WITH (FORCE)",
    )


def run(dsn: str, *statements: str) -> list[Any]:
    """Run statements; return the rows of the last."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


class Waiting:
    """A part whose polls wait up to ``wait_s`` for rows: the contract polls without a pause."""

    def __init__(self, part: Any, wait_s: float) -> None:
        self._part = part
        self._wait_s = wait_s

    def poll(self, rows_max: int) -> Any:
        ends = time.monotonic() + self._wait_s
        while True:
            rows = self._part.poll(rows_max)
            if rows or self._part.is_finished() or time.monotonic() > ends:
                return rows
            time.sleep(0.002)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class Patient:
    """A source whose parts are `Waiting`."""

    def __init__(self, source: Any, wait_s: float = 30.0) -> None:
        self.source = source
        self._wait_s = wait_s

    def list_parts(self) -> Any:
        return self.source.list_parts()

    def build_part(self, part: Part, state: Any) -> Any:
        return Waiting(self.source.build_part(part, state), self._wait_s)


def read_all(source: Any, *, rows_max: int = 1000) -> list[Any]:
    """Return the rows of all parts of a source whose parts end."""
    rows: list[Any] = []
    for part in source.list_parts():
        opened = Waiting(source.build_part(part, None), 30.0)
        try:
            while not opened.is_finished():
                rows += opened.poll(rows_max) or []
        finally:
            opened.close()
    return rows
