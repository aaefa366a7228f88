"""Sinks, the destinations of records. `base` holds the contracts for custom sinks."""

from typing import TYPE_CHECKING

from malstrom_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from malstrom_py.connectors.kafka.sink import Kafka
    from malstrom_py.connectors.lake.delta_sink import Delta
    from malstrom_py.connectors.lake.iceberg_sink import Iceberg
    from malstrom_py.connectors.nats_sink import JetStream
    from malstrom_py.connectors.postgres.sink import Postgres
    from malstrom_py.connectors.ray_data.sink import RayDataset
    from malstrom_py.connectors.redis.sink import RedisStream
    from malstrom_py.sinks.base import (
        BaseStatelessSink,
        BaseTransactionalSink,
        BaseTransactionalWriter,
        BaseWriter,
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "malstrom_py.connectors.kafka.sink": "Kafka",
            "malstrom_py.connectors.lake.delta_sink": "Delta",
            "malstrom_py.connectors.lake.iceberg_sink": "Iceberg",
            "malstrom_py.connectors.nats_sink": "JetStream",
            "malstrom_py.connectors.postgres.sink": "Postgres",
            "malstrom_py.connectors.ray_data.sink": "RayDataset",
            "malstrom_py.connectors.redis.sink": "RedisStream",
            "malstrom_py.sinks.base": (
                "BaseStatelessSink BaseTransactionalSink BaseTransactionalWriter BaseWriter "
                "CommitContext PartitionedSink SinkPart SinkWriter SnapshotId StatelessSink TransactionalSink "
                "TransactionalWriter"
            ),
            "malstrom_py.sinks.callable": "Callable",
            "malstrom_py.sinks.files": "Files",
            "malstrom_py.sinks.memory": "Memory",
            "malstrom_py.sinks.spark": "Spark",
            "malstrom_py.sinks.stdout": "Stdout",
            "malstrom_py.worker_context": "WorkerId WorkerInfo",
        },
        "SINKS",
    )

__all__ = [
    "BaseStatelessSink",
    "BaseTransactionalSink",
    "BaseTransactionalWriter",
    "BaseWriter",
    "Callable",
    "CommitContext",
    "Delta",
    "Files",
    "Iceberg",
    "JetStream",
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
