"""The points of the clients of servers: their requests, by which a server hears of a life.

Rule: a dead life asks nothing any more, not even to be forgotten: what it left open is open until its server ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.connectors.postgres import staging
from tests.simulation.commits.lives import at, life_here, on_disk

_REQUESTS: Final = (
    "abort_transaction",
    "begin_transaction",
    "commit_transaction",
    "committed",
    "create_topics",
    "init_transactions",
    "produce",
    "send_offsets_to_transaction",
)
"""The requests of Kafka that change something, and the one that reads the marker."""


class KafkaClient:
    """``client`` of librdkafka, whose requests are points."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        life = life_here()
        if life is not None and life.is_dead:
            at(name, "before")
        found = getattr(self._client, name)
        return on_disk(found) if name in _REQUESTS else found


@contextmanager
def watched_kafka() -> Iterator[None]:
    """Make points of the requests to Kafka."""
    made: Callable[..., Any] = Cluster.made

    def watched(*arguments: Any) -> KafkaClient:
        return KafkaClient(made(*arguments))

    with mock.patch.object(Cluster, "made", watched):
        yield


_IDLE_S: Final = 2.0
"""How long a zombie keeps its locks in PostgreSQL: a life that waits for them takes as long. A life that is not paused
is never idle for so long."""


@contextmanager
def watched_postgres() -> Iterator[None]:
    """Make points of the exchanges with PostgreSQL in a transaction, from the first statement in it to its end."""
    import psycopg
    from psycopg.pq import TransactionStatus

    wait: Callable[..., Any] = psycopg.Connection.wait
    point = on_disk(wait)

    def watched(connection: psycopg.Connection[Any], *arguments: Any, **options: Any) -> Any:
        is_outside = connection.info.transaction_status == TransactionStatus.IDLE
        return (wait if is_outside else point)(connection, *arguments, **options)

    with mock.patch.object(psycopg.Connection, "wait", watched), mock.patch.object(staging, "IDLE_S", _IDLE_S):
        yield
