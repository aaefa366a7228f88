"""What kafka-python, a client that shares no code with librdkafka, finds on a broker: printed as JSON.

It is a program, because kafka-python leaves sockets open. ``python -m tests.kafka_broker.second_client BROKER TOPIC
TOPIC``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":  # a run of the tests, which looks for examples here, loads no client
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors  # type: ignore[import-untyped]
    from kafka.structs import OffsetAndMetadata  # type: ignore[import-untyped]


def producer_of(bootstrap: str, name: str) -> Any:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    return producer


def read(bootstrap: str, topic: str, end: int, isolation: str = "read_committed") -> list[str]:
    """Return the values up to offset ``end``."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, group_id=None)
    place, values = TopicPartition(topic, 0), []
    consumer.assign([place])
    consumer.seek(place, 0)
    for _ in range(200):
        if consumer.position(place) >= end:
            break
        for records in consumer.poll(timeout_ms=100).values():
            values += [record.value.decode() for record in records]
    consumer.close()
    return values


def aborted_and_committed(bootstrap: str, topic: str) -> dict[str, Any]:
    """Run four transactions, each with a row and an offset; the second and the last are aborted."""
    producer = producer_of(bootstrap, f"rules-{topic}")
    for value, is_commit, offset in (("1", True, 11), ("2", False, 22), ("3", True, 33), ("4", False, 44)):
        producer.begin_transaction()
        producer.send(topic, value.encode(), partition=0).get(10)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, topic)
        (producer.commit_transaction if is_commit else producer.abort_transaction)()
    producer.close(timeout=2)
    group = KafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
    found = {
        "committed": read(bootstrap, topic, 8),
        "all": read(bootstrap, topic, 8, "read_uncommitted"),
        "offset": group.committed(TopicPartition(topic, 0)),
    }
    group.close()
    return found


def fenced(bootstrap: str, topic: str) -> dict[str, Any]:
    """Leave a transaction open, begin a new epoch, and write as the old one."""
    old = producer_of(bootstrap, f"epochs-{topic}")
    old.begin_transaction()
    old.send(topic, b"old", partition=0).get(10)
    plain = KafkaProducer(bootstrap_servers=bootstrap)
    plain.send(topic, b"between", partition=0).get(10)
    waiting = read(bootstrap, topic, 0)
    new = producer_of(bootstrap, f"epochs-{topic}")
    after = read(bootstrap, topic, 3)
    try:
        old.send(topic, b"zombie", partition=0).get(10)
        refused = ""
    except errors.KafkaError as error:
        refused = type(error).__name__
    new.begin_transaction()
    new.send(topic, b"new", partition=0).get(10)
    new.commit_transaction()
    found = {"waiting": waiting, "after": after, "refused": refused, "end": read(bootstrap, topic, 5)}
    for producer in (plain, new, old):
        producer.close(timeout=1)
    return found


if __name__ == "__main__":
    _, BOOTSTRAP, FIRST, SECOND = sys.argv
    print(json.dumps([aborted_and_committed(BOOTSTRAP, FIRST), fenced(BOOTSTRAP, SECOND)]))
