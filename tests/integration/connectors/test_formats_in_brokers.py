"""Values of `formats` through each broker: written by a job where there is a sink, and read by another."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import formats, sinks, sources
from malstrom_py.errors import SourceError
from tests.integration.connectors.streams import NatsStream
from tests.kafka_broker import Broker
from tests.registry import Registry, running
from tests.servers import Server

ROWS = [{"item": "lamp", "pieces": 2}, {"item": "desk", "pieces": 1}]
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "pieces", "type": "int"}],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.fixture
def avro(registry: Registry) -> formats.Avro:
    return formats.Avro(SCHEMA, registry=registry.url, subject="orders-value")


def written(sink: Any) -> None:
    job = mp.Job("write")
    job.source("rows", sources.Memory(ROWS)).sink("out", sink)
    mp.run(job)


def rows_of(source: Any, **options: Any) -> list[Any]:
    job, out = mp.Job("read"), sinks.Memory()
    job.source("rows", source, **options).sink("out", out)
    mp.run(job, workers=2)
    return out.items


@pytest.mark.parametrize("exactly_once", [False, True])
def test_kafka(kafka: Broker, registry: Registry, avro: formats.Avro, exactly_once: bool) -> None:
    topic = kafka.new_topic()
    written(sinks.Kafka(kafka.bootstrap, topic, value=avro, exactly_once=exactly_once))
    assert rows_of(sources.Kafka(kafka.bootstrap, topic, value=avro, follow=False)) == ROWS
    assert registry.asked.count("GET /schemas/ids/1") == 1


def test_a_record_of_no_schema_is_malformed_and_a_registry_that_is_gone_is_not(
    kafka: Broker, registry: Registry, avro: formats.Avro, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    written(sinks.Kafka(kafka.bootstrap, topic))
    written(sinks.Kafka(kafka.bootstrap, topic, value=avro))
    assert rows_of(sources.Kafka(kafka.bootstrap, topic, value=avro, follow=False), on_error="skip") == ROWS
    monkeypatch.setattr("malstrom_py.formats._PAUSE_S", 0.0)
    registry.failures = 1_000
    with pytest.raises(SourceError, match=r"the schema registry .* cannot be used"):
        rows_of(sources.Kafka(kafka.bootstrap, topic, value=formats.Avro(registry=registry.url)), on_error="skip")


@pytest.mark.needs_redis
def test_redis(redis: Server, avro: formats.Avro) -> None:
    url, name = f"redis://127.0.0.1:{redis.port}/0", f"orders-{uuid.uuid4().hex[:8]}"
    written(sinks.RedisStream(url, name, fields=avro))
    assert rows_of(sources.RedisStream(url, name, value=avro, follow=False)) == ROWS


@pytest.mark.needs_nats
def test_nats(nats_stream: NatsStream, avro: formats.Avro) -> None:
    nats_stream.create()

    async def publish(js: Any) -> None:
        for row in ROWS:
            await js.publish(f"{nats_stream.name}.a", avro.encode(row))

    nats_stream.call(publish)
    assert rows_of(nats_stream.source(value=avro, follow=False)) == ROWS
