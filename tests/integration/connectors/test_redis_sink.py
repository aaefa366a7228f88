"""`sinks.RedisStream` appends each row once, also if it is interrupted between any two of its calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
import redis as client_of_redis
from redis.crc import key_slot

from malstrom_py import sinks
from malstrom_py.connectors.redis import client as connections
from malstrom_py.connectors.redis import scripts, sink
from malstrom_py.errors import SinkError
from malstrom_py.testing.contracts import check_sink
from malstrom_py.testing.contracts.sinks import batch_of, context_of, worker_of
from tests.servers import Server, redis_server

pytestmark = pytest.mark.needs_redis
_names = count()


@pytest.fixture
def client(redis: Server) -> Iterator[Any]:
    with closing(client_of_redis.Redis(port=redis.port, protocol=2)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"sink-{next(_names)}"


def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


def values_in(client: Any, name: str) -> list[Any]:
    return [json.loads(fields[b"value"]) for _, fields in client.xrange(name)]


def staged(made: sinks.RedisStream, number: int, values: range) -> bytes:
    with closing(made.open(worker_of())) as writer:
        writer.write(batch_of(list(values)))
        return writer.pre_commit(context_of(number))


def test_a_stream_keeps_the_contract_of_sinks(redis: Server, client: Any) -> None:
    check_sink(
        lambda: sinks.RedisStream(url(redis), f"contract-{next(_names)}"),
        lambda made: values_in(client, made._stream),
    )


def test_a_value_becomes_fields(redis: Server, client: Any, name: str) -> None:
    made = sinks.RedisStream(url(redis), name)
    with closing(made.open(worker_of())) as writer:
        writer.write(
            batch_of([{"item": "lämp", "raw": b"\x00\xff", "pieces": 2, "price": 1.5, "tags": ["a"], "no": None}])
        )
        made.commit(context_of(1), [writer.pre_commit(context_of(1))])
    ((_, fields),) = client.xrange(name)
    assert fields == {
        b"item": "lämp".encode(),
        b"raw": b"\x00\xff",
        b"pieces": b"2",
        b"price": b"1.5",
        b"tags": b'["a"]',
        b"no": b"null",
    }


def test_a_large_commit_is_moved_in_steps_and_continues_after_any_of_them(
    redis: Server, client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two scripts the process that commits dies; another commits again."""
    monkeypatch.setattr(sink, "_ROWS_PER_CALL", 10)
    made = sinks.RedisStream(url(redis), name)
    payloads = [staged(made, 1, range(25)), staged(made, 1, range(25, 50))]
    commit = scripts.COMMIT
    seen = []
    for _ in range(4):
        # The second script of each commit fails, as if the process had died after the first.
        with monkeypatch.context() as patched:
            patched.setattr(
                scripts, "COMMIT", f"if redis.call('INCR', '{name}-n') % 2 == 0 then return {{}} end {commit}"
            )
            with pytest.raises(TypeError):
                made.commit(context_of(1), payloads)
        seen.append(client.xlen(name))
    assert seen == [10, 20, 30, 40]
    made.commit(context_of(1), payloads)
    assert values_in(client, name) == list(range(50))
    made.commit(context_of(1), payloads)
    assert values_in(client, name) == list(range(50))
    assert client.hlen(sink.keys_of(name, "contract", "out").index) == 0


def test_rows_of_a_key_that_has_moved_come_after_those_it_had_before(redis: Server, client: Any, name: str) -> None:
    made = sinks.RedisStream(url(redis), name)
    with closing(made.open(worker_of(0))) as gains, closing(made.open(worker_of(1))) as loses:
        gains.write(batch_of([0, 1]))
        loses.write(batch_of([2, 3]))
        for writer in (gains, loses):
            writer.moved(1)
        gains.write(batch_of([4, 5]))
        made.commit(context_of(1), [writer.pre_commit(context_of(1)) for writer in (gains, loses)])
    assert values_in(client, name) == [0, 1, 2, 3, 4, 5]


def test_staged_rows_that_are_gone_are_an_error(redis: Server, client: Any, name: str) -> None:
    made = sinks.RedisStream(url(redis), name)
    payload = staged(made, 1, range(3))
    ((_, key, _),) = json.loads(payload)
    client.delete(key)
    with pytest.raises(SinkError, match="are gone"):
        made.commit(context_of(1), [payload])
    assert client.xlen(name) == 0


def test_a_writer_whose_rows_a_newer_start_has_removed_stops(redis: Server, client: Any, name: str) -> None:
    made = sinks.RedisStream(url(redis), name)
    with closing(made.open(worker_of())) as zombie:
        zombie.write(batch_of(list(range(1_500))))
        made.recover(context_of(2, incarnation=2), [])
        with pytest.raises(SinkError, match="newer start"):
            zombie.pre_commit(context_of(3))
    assert client.keys(f"malstrom:{{{name}}}*") == []


def test_the_log_of_commits_is_bounded(redis: Server, client: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that it no longer has, and that comes again, changes nothing."""
    monkeypatch.setattr(scripts, "COMMIT", scripts.COMMIT.replace("1000", "2"))
    made = sinks.RedisStream(url(redis), name)
    payloads = [staged(made, number, range(number, number + 1)) for number in (1, 2, 3, 4)]
    for number in (1, 2, 3, 4, 1, 2, 3, 4):
        made.commit(context_of(number), [payloads[number - 1]])
    assert values_in(client, name) == [1, 2, 3, 4]
    assert client.zcard(sink.keys_of(name, "contract", "out").log) == 2


def test_what_redis_refuses_leaves_the_rows_staged(redis: Server, client: Any, name: str) -> None:
    """A user without the permission to trim lists: a commit that appended first would append twice."""
    made = sinks.RedisStream(url(redis), name)
    payload = staged(made, 1, range(3))
    client.execute_command("ACL", "SETUSER", "half", "on", ">secret", "~*", "+@all", "-ltrim")
    half = sinks.RedisStream(f"redis://half:secret@127.0.0.1:{redis.port}/0", name)
    with pytest.raises(SinkError) as raised:
        half.commit(context_of(1), [payload])
    assert "secret" not in str(raised.value)
    assert client.xlen(name) == 0
    made.commit(context_of(1), [payload])
    assert values_in(client, name) == [0, 1, 2]


def test_values_without_fields_and_targets_that_are_no_streams_are_refused(
    redis: Server, client: Any, name: str
) -> None:
    with closing(sinks.RedisStream(url(redis), name).open(worker_of())) as writer:
        with pytest.raises(SinkError, match="1 to 1000 fields"):
            writer.write(batch_of([{}]))
        with pytest.raises(SinkError, match="a object cannot be written"):
            writer.write(batch_of([object()]))
    wrong = sinks.RedisStream(url(redis), name, fields=lambda value: value["x"])
    with closing(wrong.open(worker_of())) as writer, pytest.raises(SinkError, match=r"fields=.* failed: TypeError"):
        writer.write(batch_of([1]))
    client.set(name, "text")
    with pytest.raises(SinkError, match="is not a stream"):
        sinks.RedisStream(url(redis), name).open(worker_of())


def test_old_entries_are_trimmed_on_request(redis: Server, client: Any, name: str) -> None:
    made = sinks.RedisStream(url(redis), name, length_max=100)
    made.commit(context_of(1), [staged(made, 1, range(3_000))])
    assert client.xlen(name) < 1_000
    assert values_in(client, name)[-1] == 2_999


def test_a_redis_that_is_killed_between_two_calls_keeps_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is followed by a kill; every second commit is made twice, as after a lost answer."""
    monkeypatch.setattr(sink, "_ROWS_PER_CALL", 40)
    with redis_server() as server, closing(client_of_redis.Redis(port=server.port, protocol=2)) as client:
        made = sinks.RedisStream(url(server), "out")

        def killed() -> None:
            server.kill()
            server.start()

        for number in (1, 2):
            first = 100 * (number - 1)
            with closing(made.open(worker_of())) as writer:
                writer.write(batch_of(list(range(first, first + 60))))
                killed()
                writer.write(batch_of(list(range(first + 60, first + 100))))
                killed()
                payload = writer.pre_commit(context_of(number))
                killed()
            for _ in range(number):
                made.commit(context_of(number), [payload])
                killed()
        assert values_in(client, "out") == list(range(200))


def test_a_redis_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(connections, "_TRIES", 1)
    with redis_server() as server:
        made = sinks.RedisStream(f"redis://:hunter2@127.0.0.1:{server.port}", name)
    with pytest.raises(SinkError, match="does not answer") as raised:
        made.commit(
            context_of(1), [b'[[0, "malstrom:{%s}:%s:contract:out:rows:1", 1]]' % (name.encode(), name.encode())]
        )
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("stream", ["orders", "{shop}:orders", "a{b}{c}"])
def test_its_keys_are_on_the_node_of_the_stream(stream: str) -> None:
    keys = sink.keys_of(stream, "job", "out")
    assert len({key_slot(key.encode()) for key in (stream, keys.index, keys.log, keys.fresh())}) == 1
