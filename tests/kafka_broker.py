"""A broker of Kafka and what tests do with it. ``make test-kafka KAFKA_BOOTSTRAP=localhost:9092`` tries any other.

The program creates topics whose names begin with ``malstrom-check-``, runs the contracts of the source and of the
exactly-once sink, and leaves the topics there. The tests run noida-db, which keeps to the rules of transactions.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any

from malstrom_py import sinks, sources
from malstrom_py.testing.contracts import check_sink, check_source
from malstrom_py.testing.contracts.sinks import batch_of, worker_of
from tests.servers import kafka_server

_PATIENCE_S = 20.0


class Broker:
    """A broker at ``bootstrap``. New topics are named ``prefix`` and a number."""

    def __init__(self, bootstrap: str, prefix: str = "") -> None:
        self.bootstrap = bootstrap
        self._prefix = prefix or f"topic-{os.getpid()}"
        self._numbers = count()

    def client(self, kind: str, **settings: Any) -> Any:
        """Return a client of librdkafka: a Producer, a Consumer or an AdminClient."""
        options = {key.replace("_", "."): value for key, value in settings.items()}
        return _client(kind)({"bootstrap.servers": self.bootstrap, "log_level": 0, **options})

    @cached_property
    def _admin(self) -> Any:
        return self.client("AdminClient")

    @cached_property
    def _reader(self) -> Any:
        options = {"isolation_level": "read_committed", "enable_partition_eof": True, "fetch_wait_max_ms": 10}
        return self.client("Consumer", group_id="reader", enable_auto_commit=False, **options)

    def new_topic(self, partitions: int = 1, **settings: str) -> str:
        """Create a topic that no other test has."""
        name = f"{self._prefix}-{next(self._numbers)}"
        # The default deletes what is older than a week: records of tests have the times that they say.
        config = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in settings.items()}}
        _done(self._admin.create_topics([_client("NewTopic")(name, partitions, 1, config=config)]))
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        _done(self._admin.create_partitions([_client("NewPartitions")(topic, partitions)]))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        _done(self._admin.delete_topics([topic]))

    def delete_before(self, topic: str, offset: int | None = None) -> None:
        """Delete records of the first partition, as retention does: those before ``offset``, or all."""
        from confluent_kafka import OFFSET_END, TopicPartition

        _done(self._admin.delete_records([TopicPartition(topic, 0, OFFSET_END if offset is None else offset)]))

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return what a group has committed: topic and partition -> offset."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        (found,) = _done(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, None)]))
        return {(place.topic, place.partition): place.offset for place in found.topic_partitions if place.offset >= 0}

    def forget(self, group: str) -> None:
        """Delete the offsets of a group, as Kafka does after a while."""
        _done(self._admin.delete_consumer_groups([group]))

    def send(self, topic: str, values: Sequence[Any], *, partition: int = 0, raw: bool = False) -> None:
        """Write values, as JSON unless ``raw``, to one partition."""
        producer = self.client("Producer", linger_ms=0)
        for value in values:
            producer.produce(topic, value if raw else json.dumps(value).encode(), partition=partition)
        assert producer.flush(_PATIENCE_S) == 0

    def transactions(self, name: str) -> Any:
        """Return a producer of transactions."""
        producer = self.client("Producer", transactional_id=name)
        producer.init_transactions(_PATIENCE_S)
        return producer

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return key and value of what a reader of committed transactions sees, partition by partition."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        partitions = range(len(self._reader.list_topics(topic, _PATIENCE_S).topics[topic].partitions))
        self._reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: dict[int, list[tuple[bytes | None, bytes | None]]] = {number: [] for number in partitions}
        left = set(partitions)
        while left:
            message = self._reader.poll(_PATIENCE_S)
            assert message is not None, f"topic {topic} has no end after {_PATIENCE_S} s"
            if (error := message.error()) is None:
                found[message.partition()].append((message.key(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        self._reader.unassign()
        return [record for number in partitions for record in found[number]]

    def visible(self, topic: str) -> list[Any]:
        """Return the values of `records`, decoded from JSON."""
        return [None if value is None else json.loads(value) for _, value in self.records(topic)]


def _client(name: str) -> Any:
    """Return a class of librdkafka, which is not loaded before it is needed."""
    import confluent_kafka.admin

    return getattr(confluent_kafka, name, None) or getattr(confluent_kafka.admin, name)


def _done(asked: Mapping[Any, Any]) -> list[Any]:
    """Return the answers to what an administrator has asked."""
    return [future.result(_PATIENCE_S) for future in asked.values()]


@contextmanager
def running() -> Iterator[Broker]:
    """Run a broker without topics."""
    with kafka_server() as server:
        yield Broker(f"127.0.0.1:{server.port}")


def check(broker: Broker, *, cuts_max: int = 10) -> None:
    """Run the contracts; `MalstromError` or `LawError` if the broker or a connector is wrong."""
    check_sink(
        lambda: sinks.Kafka(broker.bootstrap, broker.new_topic(), exactly_once=True),
        lambda sink: broker.visible(sink._topic),
    )
    print("sinks.Kafka keeps the contract, exactly once")
    topic = broker.new_topic()
    writer = sinks.Kafka(broker.bootstrap, topic).build(worker_of())
    writer.write(batch_of(list(range(100))))
    writer.close()
    check_source(sources.Kafka(broker.bootstrap, topic, follow=False), cuts_max=cuts_max)
    assert broker.visible(topic) == list(range(100))
    print("sources.Kafka keeps the contract")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("Name the brokers: make test-kafka KAFKA_BOOTSTRAP=localhost:9092")
    try:
        check(Broker(sys.argv[1], f"malstrom-check-{secrets.token_hex(4)}"))
    except Exception as error:  # ours, or of librdkafka, with which topics are created
        sys.exit(f"{type(error).__name__}: {error}")
