"""Both ends of Kafka against any broker: ``make test-kafka KAFKA_BOOTSTRAP=localhost:9092``.

It creates topics whose names begin with ``malstrom-check-``, runs the contracts of the source and of the exactly-once
sink, and leaves the topics there.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from malstrom_py import sinks, sources
from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.connectors.kafka.producing import create_topic
from malstrom_py.errors import MalstromError
from malstrom_py.sources.base import Part
from malstrom_py.testing.contracts import check_sink, check_source
from malstrom_py.testing.contracts.sinks import batch_of, worker_of


def main(bootstrap: str, *, cuts_max: int = 10) -> None:
    """Run the contracts; `MalstromError` or `LawError` if the broker or a connector is wrong."""
    run = f"malstrom-check-{secrets.token_hex(4)}"
    numbers = iter(range(1000))

    def new_topic() -> str:
        topic = f"{run}-{next(numbers)}"
        create_topic(Cluster("test-kafka", bootstrap, {}), topic, 1, {})
        return topic

    check_sink(
        lambda: sinks.Kafka(bootstrap, new_topic(), exactly_once=True), lambda sink: visible(bootstrap, sink._topic)
    )
    print("sinks.Kafka keeps the contract, exactly once")
    topic = new_topic()
    writer = sinks.Kafka(bootstrap, topic).build(worker_of())
    writer.write(batch_of(list(range(100))))
    writer.close()
    check_source(sources.Kafka(bootstrap, topic, follow=False), cuts_max=cuts_max)
    assert visible(bootstrap, topic) == list(range(100))
    print("sources.Kafka keeps the contract")


def visible(bootstrap: str, topic: str) -> list[Any]:
    """Return the values that a reader of committed transactions sees."""
    source = sources.Kafka(bootstrap, topic, follow=False, options={"fetch.wait.max.ms": 10})
    part = source.build_part(Part(f"{topic}/0"), None)
    found: list[Any] = []
    ends_s = time.monotonic() + 60
    while not part.is_finished():
        found += part.poll(1000) or []
        if time.monotonic() > ends_s:
            raise TimeoutError(f"topic {topic} has no end after 60 s")
        time.sleep(0.002)
    part.close()
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("Name the brokers: make test-kafka KAFKA_BOOTSTRAP=localhost:9092")
    try:
        main(sys.argv[1])
    except MalstromError as error:
        sys.exit(str(error))
