"""What dies, stops or is cut off while `sinks.Postgres` publishes rows: each row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.testing.contracts.sinks import context_of, worker_of
from tests.integration.connectors.postgres_tools import cut_at, new_schema, run
from tests.servers import Server, postgres_server, wait_until

pytestmark = pytest.mark.needs_postgres


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    with new_schema(postgres) as dsn:
        run(dsn, "CREATE TABLE t (id int, n int)", "CREATE TABLE u (id int PRIMARY KEY, n int DEFAULT 0)")
        yield dsn


def sink_of(dsn: str, mode: str) -> sinks.Postgres:
    return sinks.Postgres(dsn, "t") if mode == "append" else sinks.Postgres(dsn, "u", mode="upsert", keys="id")


def staged(sink: sinks.Postgres, context: CommitContext, ids: Sequence[int], worker: int = 0) -> bytes:
    """Return the payload of a writer that has written rows and is closed."""
    writer = sink.open(worker_of(worker))
    try:
        writer.write(Batch([{"id": number} for number in ids]))
        return writer.pre_commit(context)
    finally:
        writer.close()


def numbered(number: int) -> CommitContext:
    """Return the context of a snapshot, the later the larger the number."""
    return CommitContext("cut", "out", f"20200101T00{number:04d}000000Z-00000000", 1)  # type: ignore[arg-type]


def commits_cut(server: Server, dsn: str, mode: str, *, late: bool, every: int) -> int:
    """Cut a commit at message after message, finish it, and return the number of messages of a whole commit."""
    sink = sink_of(dsn, mode)
    sink.recover(numbered(0), [])
    number, expected = 0, []
    while True:
        context, ids = numbered(number + 1), [number * 10, number * 10 + 1]
        payloads = [staged(sink, context, ids[:1]), staged(sink, context, ids[1:], worker=1)]
        expected += ids
        with cut_at(server, dsn, number, late=late) as (through, proxy):
            try:
                sink_of(through, mode).commit(context, payloads)
                failed = False
            except SinkError:
                failed = True
        assert not failed or proxy.has_cut
        sink.recover(numbered(number + 2), [context.snapshot])
        sink.commit(context, payloads)
        assert [
            row[0] for row in run(dsn, f"SELECT id FROM {'t' if mode == 'append' else 'u'} ORDER BY id")
        ] == expected
        if not proxy.has_cut:
            return proxy.seen
        number += every


def test_a_connection_that_is_cut_at_the_messages_of_a_commit(postgres: Server, dsn: str) -> None:
    assert commits_cut(postgres, dsn, "append", late=True, every=13) > 20
    assert run(dsn, "SELECT relname FROM pg_class WHERE relname LIKE '\\_malstrom%'") == []


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_connection_that_is_cut_at_each_message_of_a_commit(
    postgres: Server, dsn: str, mode: str, late: bool
) -> None:
    assert commits_cut(postgres, dsn, mode, late=late, every=1) > 20


@pytest.mark.long
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_connection_that_is_cut_at_each_message_of_a_pre_commit(postgres: Server, dsn: str, late: bool) -> None:
    """What is staged by a call that fails is never visible, and removed by the next start."""
    number = 0
    while True:
        with cut_at(postgres, dsn, number, late=late) as (through, proxy):
            sink = sink_of(dsn, "append")
            writer = sink.open(worker_of())
            writer._opened = sink_of(through, "append")._opened
            writer.write(Batch([{"id": number}]))
            try:
                payload = writer.pre_commit(numbered(number + 1))
            except SinkError:
                payload = None
            writer.close()

        def is_clean(after: int = number + 2) -> bool:
            sink_of(dsn, "append").recover(numbered(after), [])
            return run(dsn, "SELECT relname FROM pg_class WHERE relname LIKE '\\_malstrom%'") == []

        wait_until(is_clean, "the server has acted on the last message, and what is staged was removed")
        assert run(dsn, "SELECT * FROM t") == []
        if payload is not None:
            assert proxy.cut_kind in (b"", b"X"), "only the message that ends a session may be lost"
            return
        number += 1


def test_a_zombie_writer_and_its_coordinator_publish_nothing(dsn: str) -> None:
    sink = sink_of(dsn, "append")
    sink.recover(context_of(1), [])
    zombie = sink.open(worker_of())
    zombie.write(Batch([{"id": 1}]))
    # The job fails over while the writer is stopped: its rows are read and written again.
    sink.recover(context_of(2, incarnation=2), [])
    sink.commit(context_of(2, incarnation=2), [staged(sink, context_of(2), [1, 2])])
    payload = zombie.pre_commit(context_of(1))
    zombie.close()
    with pytest.raises(SinkError, match="another run of this job has taken over"):
        sink.commit(context_of(1), [payload])
    assert run(dsn, "SELECT id FROM t") == [(1,), (2,)]
    sink.recover(context_of(3, incarnation=3), [context_of(2).snapshot])
    with pytest.raises(SinkError, match="were removed from schema"):
        sink.commit(context_of(3), [payload])
    sink.commit(context_of(1), [payload])
    assert run(dsn, "SELECT id FROM t") == [(1,), (2,)]


STOPPED = """
import os, signal, sys
from malstrom_py import sinks
from malstrom_py.connectors.postgres import staging
from malstrom_py.testing.contracts.sinks import context_of

staging.IDLE_S = 0.5
drop = staging.Session.drop

def stop(*arguments):
    os.kill(os.getpid(), signal.SIGSTOP)
    drop(*arguments)

staging.Session.drop = stop
sinks.Postgres(sys.argv[1], "t").commit(context_of(1), [sys.argv[2].encode()])
"""


def test_a_committer_that_is_stopped_in_its_transaction_and_then_continues(dsn: str) -> None:
    sink = sink_of(dsn, "append")
    sink.recover(context_of(1), [])
    payload = staged(sink, context_of(1), [1, 2])
    command = [sys.executable, "-c", STOPPED, dsn, payload.decode()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stopped:
        try:
            assert os.waitpid(stopped.pid, os.WUNTRACED)[1] & 0xFF == 0x7F, "it has ended"
            # The server ends the session of the stopped process, which holds the lock.
            sink.recover(context_of(2, incarnation=2), [context_of(1).snapshot])
            sink.commit(context_of(1), [payload])
            assert run(dsn, "SELECT id FROM t") == [(1,), (2,)]
        finally:
            stopped.send_signal(signal.SIGCONT)
        _, error = stopped.communicate(timeout=60)
    assert "SinkError" in error
    assert run(dsn, "SELECT id FROM t") == [(1,), (2,)]


class Engine:
    """Calls a sink as the engine does, with two snapshots; a call that fails is a crash, after which it starts again.

    ``between(n)`` is called before each call, where n is the number of the call in the first start.
    """

    def __init__(self, dsn: str, mode: str, between: Callable[[int], None]) -> None:
        self._dsn = dsn
        self._mode = mode
        self._between = between
        self._call = 0
        self._manifests: dict[str, tuple[CommitContext, bytes]] = {}
        self._read = 0
        self.crashes = 0

    def run(self) -> None:
        for start in range(1, 20):
            try:
                return self._start(start)
            except SinkError:
                self.crashes += 1
        raise AssertionError("it crashes at each start")

    def _start(self, start: int) -> None:
        sink = sink_of(self._dsn, self._mode)
        sink.recover(numbered(start * 10), list(self._manifests))  # type: ignore[arg-type]
        for context, payload in self._manifests.values():
            self._next()
            sink.commit(context, [payload])
        self._next()
        writer = sink.open(worker_of())
        try:
            for read in range(self._read, 2):
                context = numbered(start * 10 + 1 + read)
                self._next()
                writer.write(Batch([{"id": read * 2}, {"id": read * 2 + 1}]))
                self._next()
                payload = writer.pre_commit(context)
                self._next()
                self._manifests[context.snapshot] = (context, payload)
                self._read = read + 1
                self._next()
                sink.commit(context, [payload])
                self._next()
        finally:
            writer.close()

    def _next(self) -> None:
        self._call += 1
        self._between(self._call)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_server_that_is_killed_between_any_two_calls(mode: str) -> None:
    with postgres_server() as server, new_schema(server) as dsn:
        calls = 10
        for kill_at in range(1, calls + 1):
            run(dsn, "DROP TABLE IF EXISTS t, u, malstrom_commits")
            run(dsn, "CREATE TABLE t (id int)", "CREATE TABLE u (id int PRIMARY KEY)")

            def between(call: int, kill_at: int = kill_at) -> None:
                if call == kill_at:
                    server.kill()
                    server.start()

            Engine(dsn, mode, between).run()
            assert run(dsn, f"SELECT id FROM {'t' if mode == 'append' else 'u'} ORDER BY id") == [
                (0,),
                (1,),
                (2,),
                (3,),
            ]
