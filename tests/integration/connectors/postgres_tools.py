"""What the tests of PostgreSQL share: statements, schemas, and sources whose polls wait for their first rows."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from malstrom_py.sources.base import Part
from tests.servers import Server, wait_until

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
    of_database = f"FROM pg_replication_slots WHERE database = '{name}'"

    def drops_slots() -> bool:
        run(dsn_of(server), f"SELECT pg_terminate_backend(active_pid) {of_database} AND active")
        run(dsn_of(server), f"SELECT pg_drop_replication_slot(slot_name) {of_database} AND NOT active")
        return run(dsn_of(server), f"SELECT 1 {of_database}") == []

    wait_until(drops_slots, "the slots of the database are gone")
    run(dsn_of(server), f"DROP DATABASE {name} WITH (FORCE)")


def run(dsn: str, *statements: str) -> list[Any]:
    """Run statements; return the rows of the last."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement.encode())
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


class CuttingProxy:
    """Passes messages between clients and a server, and cuts the connection at the message number ``cut_at``.

    The messages of clients are counted from 0, over all connections, without those that open a session. ``late``: the
    message still arrives, and its answer does not.
    """

    def __init__(self, server: Server, cut_at: int, *, late: bool) -> None:
        self._server = server
        self._cut_at = cut_at
        self._late = late
        self.seen = 0
        self.cut_kind = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self._closing = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def has_cut(self) -> bool:
        return self.seen > self._cut_at

    def close(self) -> None:
        self._closing = True
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            client.settimeout(30)
            server = socket.create_connection(("127.0.0.1", self._server.port), 30)
            for target in (self._of_client, self._of_server):
                thread = threading.Thread(target=target, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _of_client(self, client: socket.socket, server: socket.socket) -> None:
        try:
            (size,) = struct.unpack("!I", _exactly(client, 4))
            server.sendall(struct.pack("!I", size) + _exactly(client, size - 4))
            while True:
                head = _exactly(client, 5)
                body = _exactly(client, struct.unpack("!I", head[1:])[0] - 4)
                is_cut = self.seen == self._cut_at
                self.seen += 1
                if is_cut:
                    self.cut_kind = head[:1]
                if is_cut and not self._late:
                    return
                if is_cut:
                    _shut(client)  # no answer arrives any more
                server.sendall(head + body)
                if is_cut:
                    time.sleep(0.05)  # the server gets some time to act on it before its connection ends too
                    return
        except (OSError, EOFError):
            return
        finally:
            _shut(client)
            _shut(server)

    def _of_server(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass
        finally:
            _shut(client)
            _shut(server)
            client.close()
            server.close()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_at(server: Server, dsn: str, number: int, *, late: bool) -> Iterator[tuple[str, CuttingProxy]]:
    """Yield a DSN whose connections end at a message, and the proxy that cuts them."""
    proxy = CuttingProxy(server, number, late=late)
    try:
        through = dsn.replace(f":{server.port}/", f":{proxy.port}/")
        yield f"{through}&sslmode=disable&gssencmode=disable", proxy
    finally:
        proxy.close()
