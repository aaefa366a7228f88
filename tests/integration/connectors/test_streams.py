"""The sources of Redis and NATS read each message once, resume exactly, and notice a stream that was made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.patient import PatientSource, read, wait_for_error
from tests.integration.connectors.streams import NatsStream, RedisStream, Stream, opened
from tests.servers import nats_server, redis_server, wait_until

NEEDS = {"redis": pytest.mark.needs_redis, "nats": pytest.mark.needs_nats}
EACH = [pytest.param(kind, marks=mark) for kind, mark in NEEDS.items()]
SERVERS: dict[str, Any] = {"redis": (RedisStream, redis_server), "nats": (NatsStream, nats_server)}


@pytest.fixture(params=EACH)
def stream(request: pytest.FixtureRequest) -> Stream:
    made: Stream = request.getfixturevalue(f"{request.param}_stream")
    made.create()
    return made


def test_a_stream_keeps_the_contract_of_sources(stream: Stream) -> None:
    stream.add([*range(7), "text", *range(8, 20)])
    check_source(PatientSource(stream.source(), 20, stream.rows_before), cuts_max=4)


def test_what_value_does_not_take_is_malformed_after_the_rows_before_it(stream: Stream) -> None:
    stream.add([1, "secret", 3])
    with opened(stream.source()) as part:
        assert read(part, 1) == [1]
        with pytest.raises(MalformedRecord, match=stream.malformed) as raised:
            wait_for_error(part)
        assert raised.value.record == stream.record(b"secret")
        position = part.snapshot()
    with opened(stream.source(), position) as part:
        assert read(part, 1) == [3]


def test_many_messages_are_read_in_order_and_lag_is_what_is_left(stream: Stream) -> None:
    stream.add(range(1_000))
    with opened(stream.source()) as part:
        assert read(part, 300) == list(range(300))
        assert part.lag_rows() == 700  # type: ignore[attr-defined]  # optional
        assert read(part, 700) == list(range(300, 1_000))
        stream.add(range(3))
        assert read(part, 3) == [0, 1, 2]


@pytest.mark.parametrize("after", [0, 2, 40])
def test_a_stream_that_was_made_again_is_an_error(after: int, stream: Stream) -> None:
    """Also when it has more messages than the one before, and larger ids."""
    stream.add(range(5))
    position = stream.position_after(5, on_gap="skip")
    stream.remove()
    stream.create()
    stream.add(range(after))
    with (
        opened(stream.source(on_gap="skip"), position) as part,
        pytest.raises(SourceError, match=rf"'{stream.name}' .*was deleted or made again"),
    ):
        wait_for_error(part)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("kind", EACH)
def test_a_server_that_is_killed_is_read_on_when_it_is_back(kind: str) -> None:
    make, served = SERVERS[kind]
    with served() as server:
        stream: Stream = make(server, "in")
        stream.create()
        stream.add(range(10))
        with opened(stream.source()) as part:
            assert read(part, 10) == list(range(10))
            for begin in (10, 20):
                server.kill()
                server.start()
                wait_until(lambda: _is_back(stream), "the stream is back")
                stream.add(range(begin, begin + 10))
                assert read(part, 10) == list(range(begin, begin + 10))


def _is_back(stream: Stream) -> bool:
    return not isinstance(stream, NatsStream) or stream.call(lambda js: js.stream_info(stream.name)) is not None


def test_follow_false_reads_up_to_the_message_that_is_the_newest_at_the_start(stream: Stream) -> None:
    stream.add(range(20))
    source = stream.source(follow=False)
    check_source(PatientSource(source, 20, stream.rows_before), cuts_max=3)
    stream.add_unseen()
    source.pin("docs")
    stream.add(range(30, 40))
    with opened(source) as part:
        assert read(part, 20) == list(range(20))
        wait_until(lambda: not part.poll(1) and part.is_finished(), "it ends before what was added later")
        position = part.snapshot()
    with opened(source, position) as part:
        wait_until(lambda: not part.poll(1) and part.is_finished(), "a finished part has nothing more")
    source.unpin()


@pytest.mark.parametrize(
    ("stream", "start", "first", "total"),
    [
        *(pytest.param(kind, "first", 2, 15, marks=mark) for kind, mark in NEEDS.items()),
        *(pytest.param(kind, "new", 0, 12, marks=mark) for kind, mark in NEEDS.items()),
        pytest.param("nats", 2, 1, 14, marks=NEEDS["nats"]),
        pytest.param("nats", 7, 0, 12, marks=NEEDS["nats"]),
    ],
    indirect=["stream"],
)
def test_a_finished_job_that_is_run_again_reads_what_is_new(
    stream: Stream, start: Any, first: int, total: int, tmp_path: Path
) -> None:
    out = sinks.Memory()

    def read_again() -> mp.RunResult:
        job = mp.Job("again")
        source = stream.source(both=True, follow=False, start=start)
        job.source("in", source).key_by("all", lambda n: "all").sum("sum").sink("out", out)
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    stream.add(range(1, 3))
    assert read_again().read == first
    stream.add(range(3, 5))
    stream.add(range(5, 6), beside=True)
    again = read_again()
    assert (again.read, again.resumed_finished) == (3, False)
    assert read_again().read == 0
    assert out.items[-1] == total, "the state continues"
