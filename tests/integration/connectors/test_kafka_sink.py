"""`sinks.Kafka` on a broker: at least once, and exactly once wherever a committer dies or comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors.kafka import publishing
from malstrom_py.connectors.kafka.producing import Sending
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.testing.contracts import check_sink
from malstrom_py.testing.contracts.sinks import batch_of, context_of, worker_of
from tests.kafka_broker import Broker

CALLS = ("init_transactions", "begin_transaction", "produce", "send_offsets_to_transaction", "commit_transaction")
"""The calls of a commit, in order; a commit of these tests produces three rows."""


class Killed(BaseException):
    """The process has died here."""


class Watched:
    """A producer that calls ``hook`` with the name of a call, and whether it is over."""

    def __init__(self, producer: Any, hook: Callable[[str, bool], None]) -> None:
        self._producer = producer
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._producer, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._hook(name, False)
            result = found(*args, **options)
            self._hook(name, True)
            return result

        return call


def watch(monkeypatch: pytest.MonkeyPatch, hook: Callable[[str, bool], None]) -> None:
    """Call ``hook`` around each call of the committers that are made from here on."""

    class WatchedSending(Sending):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.producer = Watched(self.producer, hook)  # type: ignore[assignment]

    monkeypatch.setattr(publishing, "Sending", WatchedSending)


def staged(sink: Any, values: list[Any], number: int = 1) -> bytes:
    writer = sink.open(worker_of())
    writer.write(Batch(values))
    payload: bytes = writer.pre_commit(context_of(number))
    writer.close()
    return payload


def exactly_once(kafka: Broker, topic: str, **options: Any) -> Any:
    return sinks.Kafka(kafka.bootstrap, topic, exactly_once=True, **options)


def marker(kafka: Broker, topic: str) -> int:
    """Return the marker of the last commit, -1 without one."""
    return kafka.offsets("malstrom.contract.out").get((topic, 0), -1)


def test_at_least_once_keeps_the_contract(kafka: Broker) -> None:
    check_sink(
        lambda: sinks.Kafka(kafka.bootstrap, kafka.new_topic()),
        lambda sink: kafka.visible(sink._topic),
        values=range(6),
    )


@pytest.mark.long("begin_transaction-*", "init_transactions-*")
@pytest.mark.parametrize("is_over", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_s7_a_committer_dies_between_two_calls(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, call: str, is_over: bool
) -> None:
    def die(name: str, over: bool) -> None:
        if (name, over) == (call, is_over):
            raise Killed

    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    first, payload = context_of(1), staged(sink, [1, 2, 3])
    with monkeypatch.context() as patch:
        watch(patch, die)
        with pytest.raises(Killed):
            sink.commit(first, [payload])
    other = cloudpickle.loads(cloudpickle.dumps(sink))
    other.recover(context_of(2, incarnation=2), [first.snapshot])
    other.commit(first, [payload])
    assert kafka.visible(topic) == [1, 2, 3]
    other.commit(context_of(2), [staged(other, [4], 2)])
    assert kafka.visible(topic) == [1, 2, 3, 4]


def test_rows_of_a_key_that_moved_are_published_in_the_order_of_the_versions(kafka: Broker) -> None:
    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    old, new = sink.open(worker_of(0)), sink.open(worker_of(1))
    old.write(Batch(["old 1"]))
    new.moved(1)
    new.write(Batch(["new 2"]))
    old.moved(1)
    old.write(Batch(["old 2"]))
    payloads = [writer.pre_commit(context_of(1)) for writer in (new, old)]
    for writer in (old, new):
        writer.close()
    sink.commit(context_of(1), payloads)
    assert kafka.visible(topic) == ["old 1", "new 2", "old 2"]


@pytest.mark.parametrize("is_exactly_once", [False, True])
def test_a_record_that_the_topic_does_not_take_is_refused_when_it_is_written(
    kafka: Broker, is_exactly_once: bool
) -> None:
    topic = kafka.new_topic(max_message_bytes="5000")
    sink: Any = sinks.Kafka(kafka.bootstrap, topic, exactly_once=is_exactly_once)
    writer = sink.open(worker_of()) if is_exactly_once else sink.build(worker_of())
    writer.write(Batch(["fits" * 1000] * 50))
    with pytest.raises(SinkError, match="takes 5000 bytes") as raised:
        writer.write(Batch(["secret" * 1000]))
    writer.close()
    assert raised.value.lasting
    assert "secret" not in str(raised.value)


def test_a_marker_that_kafka_has_forgotten_is_noticed(kafka: Broker) -> None:
    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    first, payload = context_of(1, final=False), staged(sink, [1])
    sink.commit(first, [payload])
    kafka.forget("malstrom.contract.out")
    other = exactly_once(kafka, topic)
    other.recover(context_of(2, incarnation=2), [first.snapshot])
    with pytest.raises(SinkError, match=r"unknown whether snapshot .* has been committed.*offset of partition 0"):
        other.commit(first, [payload])
    other.commit(context_of(2), [staged(other, [2], 2)])
    assert kafka.visible(topic) == [1, 2]


def test_a_start_before_the_last_commit_is_refused_and_loses_no_row(kafka: Broker) -> None:
    topic = kafka.new_topic()
    earlier = exactly_once(kafka, topic)
    earlier.recover(context_of(4), [])
    earlier.commit(context_of(5), [staged(earlier, [1], 5)])
    set_back = exactly_once(kafka, topic)
    with pytest.raises(SinkError, match=r"clock here was set back.*correct the clock") as raised:
        set_back.recover(context_of(2), [])
    assert raised.value.lasting
    exactly_once(kafka, topic).recover(context_of(4, incarnation=2), [context_of(5).snapshot])  # it was fenced off
    set_back.recover(context_of(6), [])
    set_back.commit(context_of(7), [staged(set_back, [2], 7)])
    assert kafka.visible(topic) == [1, 2]


def test_commits_without_rows_renew_the_marker_before_kafka_forgets_it(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    sink.commit(context_of(1, final=False), [staged(sink, [1])])
    before = marker(kafka, topic)
    sink.commit(context_of(2, final=False), [])
    assert marker(kafka, topic) == before
    monkeypatch.setattr("malstrom_py.connectors.kafka.sink._MARKER_S", 0.0)
    sink.commit(context_of(3, final=False), [])
    assert marker(kafka, topic) > before
    resumed = exactly_once(kafka, topic)
    kafka.forget("malstrom.contract.out")
    resumed.recover(context_of(4, incarnation=2), [context_of(3).snapshot])
    resumed.commit(context_of(3), [])
    assert marker(kafka, topic) < 0, "a snapshot in doubt writes none"
    resumed.commit(context_of(5, final=False), [])
    assert marker(kafka, topic) >= 0, "the first commit of a start writes the marker that was forgotten"
    assert kafka.visible(topic) == [1]


def test_staged_rows_that_do_not_arrive_in_time_are_tried_again(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    payload = staged(sink, [1])
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_READ_S", -1.0)
        patch.setattr(publishing, "_PAUSE_S", 0.0)
        with pytest.raises(SinkError, match="were not read: nothing came") as raised:
            sink.commit(context_of(1), [payload])
    assert not raised.value.lasting, "a broker that is away comes back"
    sink.commit(context_of(1), [payload])
    assert kafka.visible(topic) == [1]


def test_staged_rows_that_are_gone_are_an_error(kafka: Broker) -> None:
    topic = kafka.new_topic()
    sink = exactly_once(kafka, topic)
    sink.recover(context_of(1), [])
    payload = staged(sink, [1])
    kafka.delete_before(f"{topic}.malstrom-staging")
    with pytest.raises(SinkError, match="cannot be read any more"):
        sink.commit(context_of(1), [payload])
    assert kafka.visible(topic) == []


def test_keys_values_and_tombstones(kafka: Broker) -> None:
    topic = kafka.new_topic()
    sink = sinks.Kafka(kafka.bootstrap, topic, key=lambda row: row[0], value=lambda row: row[1])
    writer = sink.build(worker_of())
    writer.write(Batch([("a", b"1"), ("b", None), (None, "2")]))
    writer.close()
    plain = sinks.Kafka(kafka.bootstrap, topic).build(worker_of())
    plain.write(batch_of([{"n": 1}]))
    with pytest.raises(SinkError, match="value=") as raised:
        plain.write(Batch([object()]))
    plain.close()
    assert raised.value.lasting
    assert kafka.records(topic) == [(b"a", b"1"), (b"b", None), (None, b"2"), (b"0", b'{"n":1}')]


def test_a_topic_that_is_missing_is_an_error(kafka: Broker) -> None:
    with pytest.raises(SinkError, match="topic 'no-such-topic' does not exist"):
        sinks.Kafka(kafka.bootstrap, "no-such-topic").build(worker_of())


@pytest.mark.parametrize("exactly", [False, True], ids=["at-least-once", "exactly-once"])
def test_event_times_and_headers_are_written(kafka: Broker, exactly: bool) -> None:
    topic = kafka.new_topic()
    sink = sinks.Kafka(
        kafka.bootstrap,
        topic,
        headers=lambda row: {"kind": "sum", "id": b"%d" % row["n"], "none": None},
        event_time=True,
        exactly_once=exactly,
    )
    job = mp.Job("times")
    rows = job.source("in", sources.Memory([{"n": n, "at": 1_700_000_000 + n} for n in range(3)]))
    rows.assign_timestamps("at", lambda row: row["at"], unit="s").sink("out", sink)
    mp.run(job)
    read = mp.collect(mp.Job("read").source("in", sources.Kafka(kafka.bootstrap, topic, records=True, follow=False)))
    assert [record.timestamp_ms for record in read] == [1_700_000_000_000 + 1000 * n for n in range(3)]
    assert [record.headers for record in read] == [
        (("kind", b"sum"), ("id", b"%d" % n), ("none", None)) for n in range(3)
    ]
    assert [record.value["n"] for record in read] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "time", "message"),
    [
        ({"event_time": True}, None, "has none: use assign_timestamps"),
        ({"event_time": True}, 0, "event time in or before 1970"),
        ({"headers": lambda row: ["x"]}, 1, "headers= returned list: it returns a dict"),
        ({"headers": lambda row: {"x": 1}}, 1, "headers= returned int"),
    ],
)
def test_what_cannot_be_a_time_or_header_is_an_error(
    kafka: Broker, options: dict[str, Any], time: int | None, message: str
) -> None:
    stream = mp.Job("wrong").source("in", sources.Memory([1]))
    timed = stream if time is None else stream.assign_timestamps("at", lambda row: time)
    timed.sink("out", sinks.Kafka(kafka.bootstrap, kafka.new_topic(), **options))
    with pytest.raises(SinkError, match=message):
        mp.run(stream.job)
