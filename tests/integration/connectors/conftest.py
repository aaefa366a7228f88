"""One server of each kind for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.integration.connectors.buckets import TestBucket, new_bucket, options_of
from tests.integration.connectors.lakes import Lake
from tests.integration.connectors.streams import KafkaStream, ModelStream, NatsStream, RedisStream
from tests.kafka_broker import Broker, running
from tests.servers import (
    WAREHOUSE,
    Seaweed,
    Server,
    nats_server,
    postgres_server,
    redis_server,
    s3_server,
    seaweed_server,
)

_NUMBERS = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Return a running PostgreSQL. A test that kills it starts another."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    """Return a running Redis."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Server]:
    """Return a running NATS with JetStream."""
    with nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """Return the address of an S3 in memory."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="session")
def seaweed() -> Iterator[Seaweed]:
    """Return a running SeaweedFS."""
    with seaweed_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(seaweed: Seaweed) -> str:
    """Return the address of the S3 of SeaweedFS."""
    return seaweed.s3


@pytest.fixture(scope="session", params=["moto", pytest.param("seaweedfs", marks=pytest.mark.long)])
def s3(request: pytest.FixtureRequest) -> str:
    """Return the address of an S3."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Return a running broker of Kafka."""
    with running() as broker:
        yield broker


@pytest.fixture
def bucket(s3: str) -> TestBucket:
    """Return a new bucket of the S3."""
    return new_bucket(s3)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is closed waits for the call that its thread is in."""
    monkeypatch.setattr("malstrom_py.connectors.redis.source._BLOCK_MS", 10)
    monkeypatch.setattr("malstrom_py.connectors.nats._FETCH_S", 0.03)


@pytest.fixture
def redis_stream(redis: Server, short_waits: None) -> RedisStream:
    """Return a stream that does not exist yet."""
    return RedisStream(redis, f"stream{next(_NUMBERS)}")


@pytest.fixture
def nats_stream(nats: Server, short_waits: None) -> NatsStream:
    """Return a stream that does not exist yet."""
    return NatsStream(nats, f"stream{next(_NUMBERS)}")


@pytest.fixture
def kafka_stream(kafka: Broker) -> KafkaStream:
    """Return an empty topic."""
    return KafkaStream(kafka)


@pytest.fixture
def model_stream() -> ModelStream:
    """Return an empty stream of the model broker."""
    return ModelStream()


@pytest.fixture
def planned_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Polars read tables of Iceberg as PyIceberg does."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, planned_by_pyiceberg: None) -> Lake:
    """Return a table that does not exist yet, in a folder."""
    return Lake(request.param, tmp_path)


@pytest.fixture(
    params=[
        *("delta", "iceberg"),
        *(pytest.param(f"{kind}-moto", id=f"{kind}-s3") for kind in ("delta", "iceberg")),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("delta-seaweedfs", "iceberg-seaweedfs", "iceberg-rest")
        ),
    ]
)
def lake_anywhere(request: pytest.FixtureRequest, tmp_path: Path, planned_by_pyiceberg: None) -> Lake:
    """Return one of either kind, or in a REST catalog of Iceberg."""
    form, _, store = request.param.partition("-")
    if store == "rest":
        server: Seaweed = request.getfixturevalue("seaweed")
        return Lake(form, tmp_path, TestBucket(WAREHOUSE, options_of(server.s3)), server.catalog)
    return Lake(form, tmp_path, new_bucket(request.getfixturevalue(store)) if store else None)
