"""The contract of polled sources, for a model broker, Redis, NATS and Kafka: positions, order of errors, bounded runs,
servers that are silent, die and come back.
"""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.patient import PatientSource, read, wait_for_error
from tests.integration.connectors.streams import ModelStream, NatsStream, RedisStream, Stream, opened
from tests.servers import nats_server, redis_server, wait_until

NEEDS = {"redis": pytest.mark.needs_redis, "nats": pytest.mark.needs_nats}
SERVED = [pytest.param(kind, marks=mark) for kind, mark in NEEDS.items()]
EACH = ["model", "kafka", *SERVED]
SERVERS: dict[str, Any] = {"redis": (RedisStream, redis_server), "nats": (NatsStream, nats_server)}


@pytest.fixture(params=EACH)
def stream(request: pytest.FixtureRequest) -> Any:
    made: Any = request.getfixturevalue(f"{request.param}_stream")
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
        wait_until(lambda: bool(part.lag_rows() == 700), "it is known how many are left")  # type: ignore[attr-defined]
        assert read(part, 700) == list(range(300, 1_000))
        stream.add(range(3))
        assert read(part, 3) == [0, 1, 2]
    assert part.lag_rows() is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", SERVED, indirect=True)
@pytest.mark.parametrize("after", [0, 2, 40])
def test_a_stream_that_was_made_again_is_an_error(after: int, stream: RedisStream | NatsStream) -> None:
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
@pytest.mark.parametrize("kind", SERVED)
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
        *(("model", "first", 2, 15), ("kafka", "first", 2, 15), ("model", "new", 0, 12), ("kafka", "new", 0, 12)),
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


@pytest.mark.parametrize("start", ["first", "new"])
def test_a_job_that_fails_before_its_first_snapshot_restarts_where_it_began(stream: Stream, start: str) -> None:
    stream.add(range(3))
    source = stream.source(start=start)
    source.pin("docs")
    expected = [0, 1, 2, 3, 4] if start == "first" else [3, 4]
    stream.add([3, 4])
    for _ in range(2):
        with opened(source) as part:
            assert read(part, len(expected)) == expected
    resumed = stream.source(start=start)
    resumed.pin("docs", source.pin_record())
    with opened(resumed) as part:
        assert read(part, len(expected)) == expected
    for each in (source, resumed):
        each.unpin()


def test_a_part_is_closed_while_nothing_arrives_and_twice(stream: Stream) -> None:
    stream.add([1])
    for rows in (0, 1):
        part = stream.source().build_part(stream.source().list_parts()[0], None)
        assert read(part, rows) == [1][:rows]
        part.close()
        part.close()


@pytest.mark.parametrize("kind", SERVED)
def test_a_part_is_closed_while_its_server_is_silent_and_read_on_when_it_answers(kind: str) -> None:
    make, served = SERVERS[kind]
    with served() as server:
        stream: Any = make(server, "in")
        stream.create()
        stream.add([1, 2])
        source = stream.source()
        with opened(source) as part:
            assert read(part, 2) == [1, 2]
            position = part.snapshot()
            server.process.send_signal(signal.SIGSTOP)
        try:
            source.build_part(source.list_parts()[0], position).close()
        finally:
            server.process.send_signal(signal.SIGCONT)
        stream.add([3])
        with opened(source, position) as part:
            assert read(part, 1) == [3]


def test_positions_are_exact_at_each_record(model_stream: ModelStream) -> None:
    model_stream.add(range(150))
    check_source(PatientSource(model_stream.source(), 150, model_stream.rows_before), cuts_max=150)
    check_source(PatientSource(model_stream.source(follow=False), 150, model_stream.rows_before), cuts_max=30)


def test_what_is_read_ahead_is_bounded(model_stream: ModelStream) -> None:
    model_stream.add(range(10_000))
    with opened(model_stream.source()) as part:
        wait_until(lambda: model_stream.asked == 2, "two chunks are read")
        assert read(part, 64) == list(range(64))
        wait_until(lambda: model_stream.asked == 3, "another is read for one that was taken")
        time.sleep(0.1)
        assert model_stream.asked == 3


def test_an_error_at_a_record_comes_after_the_one_before_it_and_stays(model_stream: ModelStream) -> None:
    model_stream.add(range(100))
    model_stream.poison = 70
    with opened(model_stream.source()) as part:
        assert read(part, 70) == list(range(70))
        for _ in range(2):
            with pytest.raises(KeyError, match="poison"):
                wait_for_error(part)
            assert part.snapshot() == {"position": 70}


def test_a_value_function_that_raises_stop_iteration_loses_no_record(stream: Stream) -> None:
    """An iterator of values ends there, and must not be taken for one that has no more records."""
    stream.add([1, 2, 3])

    def value(*arguments: Any) -> int:
        number = int(arguments[-1][b"n"] if isinstance(arguments[-1], dict) else arguments[-1])
        return number if number != 2 else next(iter(()))

    with opened(stream.source(value=value)) as part:
        assert read(part, 1) == [1]
        with pytest.raises(MalformedRecord, match="StopIteration"):
            wait_for_error(part)
        assert read(part, 1) == [3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda records: [number for record in records for number in (1, 2)], "4 values or more for 3 records"),
        (lambda records: [], "no value"),
    ],
)
def test_values_that_are_not_one_per_record_are_an_error(model_stream: ModelStream, values: Any, message: str) -> None:
    model_stream.add(range(3))
    source = model_stream.source()
    source.values = values
    with opened(source) as part, pytest.raises(SourceError, match=message):
        wait_for_error(part)


def test_a_malformed_record_of_a_reader_is_an_error_that_says_where_to_raise_it(model_stream: ModelStream) -> None:
    """It would be raised by each poll, and a job that skips malformed records would never end."""
    model_stream.add(range(3))
    model_stream.poison, model_stream.raised = 1, MalformedRecord("bad", record=b"1")
    with opened(model_stream.source()) as part:
        assert read(part, 1) == [0]
        with pytest.raises(SourceError, match="raise in values") as raised:
            wait_for_error(part)
        assert not isinstance(raised.value, MalformedRecord)


def test_a_bounded_run_ends_with_the_last_record_before_its_end(model_stream: ModelStream) -> None:
    model_stream.add(range(100))
    source = model_stream.source(follow=False)
    source.pin("docs")
    model_stream.add(range(100, 300))
    with opened(source) as part:
        assert read(part, 99) == list(range(99))
        assert not part.is_finished()
        assert part.poll(10) == [99]
        assert part.is_finished()
        assert part.snapshot() == {"position": 100, "finished": True}
        assert part.poll(10) is None
    source.unpin()


def test_a_broker_that_is_down_for_a_while_is_read_on(model_stream: ModelStream) -> None:
    model_stream.add(range(3))
    with opened(model_stream.source()) as part:
        assert read(part, 3) == [0, 1, 2]
        states: tuple[Literal["down", "silent"], ...] = ("down", "silent")
        for state in states:
            model_stream.state = state
            asked = model_stream.asked
            wait_until(partial(_asks_again, model_stream, asked), "it is asked again")
            assert part.poll(10) is None
            model_stream.add([7])
            model_stream.state = "up"
            assert read(part, 1) == [7]


def test_a_broker_that_stays_away_is_an_error_without_secrets(model_stream: ModelStream) -> None:
    model_stream.state = "down"
    with opened(model_stream.source()) as part, pytest.raises(SourceError, match="a cannot be read: Conn") as raised:
        wait_for_error(part)
    assert "hunter2" not in str(raised.value)


def _asks_again(stream: ModelStream, asked: int) -> bool:
    return stream.asked > asked + 2
