"""`sources.Kafka` on a broker: positions, transactions, starts, losses, and partitions that come later."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.columns_read import columns_of
from malstrom_py.connectors.kafka.reader import SharedReader
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.testing.contracts import check_source
from tests.kafka_broker import Broker
from tests.servers import wait_until


def read(part: Any, rows: int, deadline_s: float = 60.0) -> list[Any]:
    """Poll until there are so many rows; a record that cannot be read is its error."""
    found: list[Any] = []
    ends_s = time.monotonic() + deadline_s
    while len(found) < rows and time.monotonic() < ends_s:
        try:
            found += part.poll(1000) or []
        except MalformedRecord as error:
            found.append(error)
        time.sleep(0.002)
    return found


def poll_until_error(part: Any, deadline_s: float = 60.0) -> SourceError:
    ends_s = time.monotonic() + deadline_s
    while time.monotonic() < ends_s:
        try:
            part.poll(1000)
        except SourceError as error:
            return error
        time.sleep(0.002)
    raise TimeoutError("the part raises no error")


def test_a_topic_of_transactions_with_gaps_tombstones_and_bad_records_keeps_the_contract(kafka: Broker) -> None:
    topic = kafka.new_topic(2)
    producer = kafka.transactions(topic)
    for is_commit in (True, False, True):
        producer.begin_transaction()
        for number in range(12):
            value = {5: b"{bad", 8: None}.get(number, b"%d" % number)
            producer.produce(topic, value, key=b"k", partition=number % 2)
        producer.flush(20)
        (producer.commit_transaction if is_commit else producer.abort_transaction)(20)
    source = sources.Kafka(kafka.bootstrap, topic, follow=False)
    check_source(source, cuts_max=3)
    part = source.build_part(Part(f"{topic}/0"), None)
    assert read(part, 12) == [0, 2, 4, 6, None, 10] * 2
    wait_until(lambda: part.poll(1) is None and part.is_finished(), "the part ends after the last transaction")
    assert part.snapshot() == {"offset": 21, "finished": True}
    part.close()
    odd = source.build_part(Part(f"{topic}/1"), {"offset": 1})
    assert [type(row) for row in read(odd, 3)[:3]] == [int, MalformedRecord, int], "rows before a bad record come first"
    odd.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "malstrom-kafka"], "all are closed"


def test_records_have_all_that_kafka_has_about_them(kafka: Broker) -> None:
    from confluent_kafka import Producer

    topic = kafka.new_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"1", b"k1", headers={"h": b"x"}, timestamp=1_700_000_000_123)
    producer.produce(topic, None, None)
    assert producer.flush(20) == 0
    source = sources.Kafka(kafka.bootstrap, topic, records=True, value=int, key=bytes.decode, follow=False)
    part = source.build_part(Part(f"{topic}/0"), None)
    first, second = read(part, 2)
    part.close()
    assert first == (1, "k1", 1_700_000_000_123, (("h", b"x"),), topic, 0, 0)
    assert (second.value, second.key, second.headers, second.offset) == (None, None, (), 1)


def test_where_a_job_begins_is_determined_once_and_later_partitions_from_their_beginning(kafka: Broker) -> None:
    topic = kafka.new_topic()
    kafka.send(topic, ["before"])
    source = sources.Kafka(kafka.bootstrap, topic, start="latest", new_partitions_every_s=5)
    source.pin("docs")
    assert source.lists_again_every_s == 5
    kafka.send(topic, ["after"])
    kafka.grow(topic, 2)
    kafka.send(topic, ["new"], partition=1)
    resumed = sources.Kafka(kafka.bootstrap, topic, start="latest")
    resumed.pin("docs", source.pin_record())
    for each in (source, resumed):
        parts = each.list_parts()
        assert parts == [f"{topic}/0", f"{topic}/1"]
        opened = [each.build_part(part, None) for part in parts]
        assert [opened[0].snapshot(), opened[1].snapshot()] == [{"offset": 1}, None]
        assert [read(part, 1) for part in opened] == [["after"], ["new"]]
        for part in opened:
            part.close()
        each.unpin()


def test_a_job_begins_at_a_time(kafka: Broker) -> None:
    from confluent_kafka import Producer

    topic = kafka.new_topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for number in range(4):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1_700_000_000_000 + number)
        assert producer.flush(20) == 0
    start = datetime.fromtimestamp(1_700_000_000.002, UTC)
    source = sources.Kafka(kafka.bootstrap, topic, start=start, follow=False)
    assert mp.collect(mp.Job("docs").source("in", source)) == [2, 3]
    later = sources.Kafka(kafka.bootstrap, topic, start=datetime.fromtimestamp(1_800_000_000, UTC), follow=False)
    assert mp.collect(mp.Job("docs").source("in", later)) == []


@pytest.mark.parametrize("on_lost", ["fail", "earliest"])
def test_records_that_were_deleted_before_they_were_read(kafka: Broker, on_lost: Any) -> None:
    topic = kafka.new_topic()
    for number in range(6):
        kafka.send(topic, [number])
    kafka.delete_before(topic, 4)
    source = sources.Kafka(kafka.bootstrap, topic, on_lost=on_lost, follow=False)
    fresh = source.build_part(Part(f"{topic}/0"), None)
    assert read(fresh, 2) == [4, 5], "a job that begins has lost nothing"
    fresh.close()
    part = source.build_part(Part(f"{topic}/0"), {"offset": 2})
    if on_lost == "fail":
        assert f"{topic}/0: the record at offset 2 does not exist any more" in str(poll_until_error(part))
    else:
        assert read(part, 2) == [4, 5]
    part.close()


def test_a_topic_that_is_deleted_or_missing_is_an_error(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.kafka.reader._LOOK_S", 0.1)
    topic = kafka.new_topic()
    kafka.send(topic, [1])
    source = sources.Kafka(kafka.bootstrap, topic)
    part = source.build_part(Part(f"{topic}/0"), None)
    assert read(part, 1) == [1]
    kafka.delete(topic)
    assert "does not exist any more" in str(poll_until_error(part))
    part.close()
    with pytest.raises(SourceError, match="topic 'no-such-topic' does not exist"):
        sources.Kafka(kafka.bootstrap, "no-such-topic").list_parts()


def test_lag_is_the_distance_to_the_end(kafka: Broker) -> None:
    topic = kafka.new_topic()
    kafka.send(topic, list(range(10)))
    part = sources.Kafka(kafka.bootstrap, topic).build_part(Part(f"{topic}/0"), None)
    wait_until(lambda: len(part.poll(4) or ()) == 4, "four rows")
    wait_until(lambda: bool(part.lag_rows() == 6), "the consumer knows where the partition ends")
    part.close()
    assert part.lag_rows() is None


def test_brokers_that_do_not_answer_are_an_error_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.kafka.source.ANSWER_S", 1.0)
    monkeypatch.setattr("malstrom_py.connectors.kafka.client.ANSWER_S", 1.0)
    options = {"sasl.mechanism": "PLAIN", "sasl.username": "user-7", "sasl.password": "secret-8"}
    source = sources.Kafka("127.0.0.1:1", "orders", options={**options, "security.protocol": "SASL_PLAINTEXT"})
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:1 does not answer.*Check that the brokers run") as raised:
        source.list_parts()
    assert not {"user-7", "secret-8"} & set(f"{raised.value} {source!r}".replace("'", " ").split())


def test_a_part_of_brokers_that_stay_away_fails(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.kafka.reader._SILENT_S", 0.5)
    monkeypatch.setattr("malstrom_py.connectors.kafka.reader._PROBE_S", 0.2)
    source = sources.Kafka("127.0.0.1:1", "orders")
    part = source.build_part(Part("orders/0"), {"offset": 3})
    assert "no broker of 127.0.0.1:1 has answered" in str(poll_until_error(part))
    assert part.snapshot() == {"offset": 3}
    part.close()


def test_a_consumer_gets_each_partition_once(kafka: Broker) -> None:
    """A part that is opened again gets another consumer: no message of before can be taken for one of now."""
    topic = kafka.new_topic(3)
    source = sources.Kafka(kafka.bootstrap, topic)
    first, second = (source.build_part(Part(f"{topic}/{number}"), None) for number in (0, 1))
    readers: list[SharedReader] = source._shared().open.__self__._readers  # type: ignore[attr-defined]
    assert len(readers) == 1
    first.close()
    again, third = (source.build_part(Part(f"{topic}/{number}"), None) for number in (0, 2))
    assert [sorted(reader._had) for reader in readers] == [[(topic, 0), (topic, 1), (topic, 2)], [(topic, 0)]]
    for part in (second, again, third):
        part.close()
    assert all(reader.is_closed for reader in readers)


def test_more_partitions_than_parts_are_open_elsewhere_are_all_read_by_one_worker(kafka: Broker) -> None:
    topic = kafka.new_topic(300)
    for partition in (0, 150, 299):
        kafka.send(topic, [partition], partition=partition)
    job = mp.Job("wide")
    stream = job.source("in", sources.Kafka(kafka.bootstrap, topic))
    assert sorted(mp.collect(stream, count=3, timeout_s=60)) == [0, 150, 299]


def test_a_job_reads_each_record_once_over_failures_and_its_group_shows_where_it_is(
    kafka: Broker, tmp_path: Path
) -> None:
    topic, group = kafka.new_topic(3), "lag-tools"
    for partition in range(3):
        kafka.send(topic, [partition * 100 + number for number in range(100)], partition=partition)
    failures: list[int] = []

    def fail_twice(number: int) -> int:
        if number % 100 == 60 and len(failures) < 2:
            failures.append(number)
            raise ValueError("a worker dies")
        return number

    out = sinks.Memory()
    source = sources.Kafka(kafka.bootstrap, topic, follow=False, group=group)
    job = mp.Job("once")
    job.source("in", source).map("fail", fail_twice).sink("out", out)
    mp.run(
        job,
        workers=2,
        snapshots=mp.Snapshots(f"{tmp_path}/snapshots", interval_s=0.05),
        restart=mp.Restart(backoff_s=0.01),
        batch=mp.Batching(rows_max=10),
    )
    assert sorted(out.items) == list(range(300))
    assert len(failures) == 2
    assert kafka.offsets(group) == {(topic, partition): 100 for partition in range(3)}


def test_partitions_that_appear_are_read_while_the_job_runs_and_while_it_is_down(kafka: Broker, tmp_path: Path) -> None:
    topic, seen = kafka.new_topic(), list[Any]()

    def begun() -> mp.JobHandle:
        job = mp.Job("grows")
        source = sources.Kafka(kafka.bootstrap, topic, start="latest", new_partitions_every_s=0.1, group="grows")
        job.source("in", source).sink("out", sinks.Callable(seen.append))
        return mp.InProcess(snapshots=mp.Snapshots(f"{tmp_path}/snapshots", interval_s=0.1)).start(job)

    kafka.send(topic, ["never"])
    handle = begun()
    wait_until(lambda: kafka.offsets("grows") == {(topic, 0): 1}, "the job has a snapshot")
    kafka.send(topic, ["first"])
    kafka.grow(topic, 2)
    kafka.send(topic, ["new"], partition=1)
    wait_until(lambda: len(seen) == 2, "the new partition is read")
    wait_until(lambda: kafka.offsets("grows") == {(topic, 0): 2, (topic, 1): 1}, "its group has the offsets")
    handle.stop()
    kafka.grow(topic, 3)
    kafka.send(topic, ["down"], partition=2)
    handle = begun()
    wait_until(lambda: len(seen) == 3, "the partition that appeared while the job was down is read")
    handle.stop()
    assert sorted(seen) == ["down", "first", "new"]


def test_a_finished_job_that_is_run_again_reads_what_is_new(kafka: Broker, tmp_path: Path) -> None:
    topic, out = kafka.new_topic(2), sinks.Memory()

    def read_again(**options: Any) -> mp.RunResult:
        job = mp.Job("again")
        source = sources.Kafka(kafka.bootstrap, topic, follow=False, **options)
        job.source("in", source).key_by("all", lambda n: "all").count("n").sink("out", out)
        return mp.run(job, snapshots=mp.Snapshots(f"{tmp_path}/snapshots"))

    kafka.send(topic, [1, 2])
    assert read_again().read == 2
    kafka.send(topic, [3], partition=1)
    kafka.send(topic, [4])
    kafka.grow(topic, 3)
    kafka.send(topic, [5], partition=2)
    again = read_again(start="latest")
    assert (again.read, again.resumed_finished) == (3, False), "also of a partition that is new, with any start="
    assert read_again().read == 0
    assert out.items == [1, 2, 3, 4, 5], "the state continues"


def test_json_is_decoded_into_columns_for_steps_that_take_them(kafka: Broker) -> None:
    topic = kafka.new_topic(2)
    rows = [{"id": n, "price": n * 7 % 5, "name": f"n{n}"} for n in range(300)]
    kafka.send(topic, [*rows[:200], {"id": 200, "price": 0.5, "name": "a float"}, None, *rows[200:]])
    found = []
    for compile in (True, False):
        job = mp.Job("docs", compile=compile)
        read = job.source("in", sources.Kafka(kafka.bootstrap, topic, follow=False))
        priced = read.map("m", lambda row: {"id": row["id"], "price": row["price"] * 2}, on_error="skip")
        sums = (
            priced.filter("f", lambda row: row["price"] > 0).key_by("k", lambda row: row["id"] % 7).sum("s", by="price")
        )
        columns = columns_of(job.plan_to(sums, sinks.Memory()).steps[0])
        assert columns == (["id", "price"] if compile else None)
        found.append(sorted(mp.collect(sums.final().map_with_key("row", lambda key, n: (key, n)))))
    assert found[0] == found[1]
    assert len(found[0]) == 7
