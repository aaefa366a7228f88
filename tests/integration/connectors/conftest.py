"""One server of each kind for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_broker.server import ModelBroker, model_broker
from tests.servers import Server, nats_server, postgres_server, redis_server, s3_server


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
def s3() -> Iterator[str]:
    """Return the address of an S3."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="session")
def kafka() -> Iterator[ModelBroker]:
    """Return a small broker that heeds the rules of transactions."""
    with model_broker() as broker:
        yield broker
