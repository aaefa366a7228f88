"""Sinks, the destinations of records. `base` holds the contracts for custom sinks."""

from typing import TYPE_CHECKING, NoReturn

from malstrom_py.connectors.kafka.sink import Kafka
from malstrom_py.connectors.lake.delta_sink import Delta
from malstrom_py.connectors.lake.iceberg_sink import Iceberg
from malstrom_py.connectors.postgres.sink import Postgres
from malstrom_py.connectors.ray_data.sink import RayDataset
from malstrom_py.connectors.redis.sink import RedisStream
from malstrom_py.errors.unknown_names import SINKS, unknown_name
from malstrom_py.sinks.base import (
    CommitContext,
    PartitionedSink,
    SinkPart,
    SinkWriter,
    SnapshotId,
    StatelessSink,
    TransactionalSink,
    TransactionalWriter,
)
from malstrom_py.sinks.callable import Callable
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.memory import Memory
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.stdout import Stdout
from malstrom_py.worker_context import WorkerId, WorkerInfo

__all__ = [
    "Callable",
    "CommitContext",
    "Delta",
    "Files",
    "Iceberg",
    "Kafka",
    "Memory",
    "PartitionedSink",
    "Postgres",
    "RayDataset",
    "RedisStream",
    "SinkPart",
    "SinkWriter",
    "SnapshotId",
    "Spark",
    "StatelessSink",
    "Stdout",
    "TransactionalSink",
    "TransactionalWriter",
    "WorkerId",
    "WorkerInfo",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        """Raise the error for an unknown name, with a hint."""
        raise unknown_name(__name__, name, SINKS)
