"""What the tests of Kafka do with a broker: write to topics, and read what a sink has made visible."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from tests.kafka_broker.server import ModelBroker

_NUMBERS: Final = count()


def new_topic(broker: ModelBroker, partitions: int = 1, **settings: str) -> str:
    """Create a topic that no other test has."""
    name = f"topic-{os.getpid()}-{next(_NUMBERS)}"
    broker.state.create(name, partitions, {key.replace("_", "."): value for key, value in settings.items()})
    return name


def send(broker: ModelBroker, topic: str, values: Sequence[Any], *, partition: int = 0, raw: bool = False) -> None:
    """Write values, as JSON unless ``raw``, to one partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, value if raw else json.dumps(value).encode(), partition=partition)
    assert producer.flush(20) == 0


@contextmanager
def transactions(bootstrap: str, name: str) -> Iterator[Any]:
    """Yield a producer of transactions, of librdkafka."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    yield producer


def visible(broker: ModelBroker, topic: str) -> list[Any]:
    """Return the values of all partitions that a reader of committed transactions sees, decoded from JSON."""
    partitions = range(len(broker.state.topics[topic].logs))
    return [
        None if record.value is None else json.loads(record.value)
        for partition in partitions
        for record in broker.state.committed(topic, partition)
    ]
