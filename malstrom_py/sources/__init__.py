"""Sources of records. `base` holds the contracts for your own sources."""

from typing import TYPE_CHECKING

from malstrom_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from malstrom_py.connectors.kafka.source import Kafka
    from malstrom_py.connectors.lake.delta_source import Delta
    from malstrom_py.connectors.lake.iceberg_source import Iceberg
    from malstrom_py.connectors.nats import JetStream
    from malstrom_py.connectors.postgres.changes import PostgresChanges
    from malstrom_py.connectors.postgres.source import Postgres
    from malstrom_py.connectors.ray_data.source import RayDataset
    from malstrom_py.connectors.redis.source import RedisStream
    from malstrom_py.sources.base import (
        BasePart,
        BaseSource,
        GrowingSource,
        Part,
        PartitionedSource,
        PinnedGrowingSource,
        PinnedSource,
        SourcePart,
        StatelessSource,
    )
    from malstrom_py.sources.files import Files
    from malstrom_py.sources.generator import Generator
    from malstrom_py.sources.memory import Memory
    from malstrom_py.sources.polled import PolledChunk, PolledReader, PolledSource
    from malstrom_py.sources.replay import Replay
    from malstrom_py.sources.spark import Spark
    from malstrom_py.sources.spark.checkpoint import SparkCheckpoint
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "malstrom_py.connectors.kafka.source": "Kafka",
            "malstrom_py.connectors.lake.delta_source": "Delta",
            "malstrom_py.connectors.lake.iceberg_source": "Iceberg",
            "malstrom_py.connectors.nats": "JetStream",
            "malstrom_py.connectors.postgres.changes": "PostgresChanges",
            "malstrom_py.connectors.postgres.source": "Postgres",
            "malstrom_py.connectors.ray_data.source": "RayDataset",
            "malstrom_py.connectors.redis.source": "RedisStream",
            "malstrom_py.sources.base": (
                "BasePart BaseSource GrowingSource Part PartitionedSource PinnedGrowingSource PinnedSource SourcePart "
                "StatelessSource"
            ),
            "malstrom_py.sources.files": "Files",
            "malstrom_py.sources.generator": "Generator",
            "malstrom_py.sources.memory": "Memory",
            "malstrom_py.sources.polled": "PolledChunk PolledReader PolledSource",
            "malstrom_py.sources.replay": "Replay",
            "malstrom_py.sources.spark": "Spark",
            "malstrom_py.sources.spark.checkpoint": "SparkCheckpoint",
        },
        "SOURCES",
    )

__all__ = [
    "BasePart",
    "BaseSource",
    "Delta",
    "Files",
    "Generator",
    "GrowingSource",
    "Iceberg",
    "JetStream",
    "Kafka",
    "Memory",
    "Part",
    "PartitionedSource",
    "PinnedGrowingSource",
    "PinnedSource",
    "PolledChunk",
    "PolledReader",
    "PolledSource",
    "Postgres",
    "PostgresChanges",
    "RayDataset",
    "RedisStream",
    "Replay",
    "SourcePart",
    "Spark",
    "SparkCheckpoint",
    "StatelessSource",
]
