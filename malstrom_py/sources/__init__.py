"""Sources of records. `base` holds the contracts for your own sources."""

from typing import TYPE_CHECKING, NoReturn

from malstrom_py.connectors.kafka.source import Kafka
from malstrom_py.connectors.lake.delta_source import Delta
from malstrom_py.connectors.lake.iceberg_source import Iceberg
from malstrom_py.connectors.nats import JetStream
from malstrom_py.connectors.postgres.changes import PostgresChanges
from malstrom_py.connectors.postgres.source import Postgres
from malstrom_py.connectors.ray_data.source import RayDataset
from malstrom_py.connectors.redis.source import RedisStream
from malstrom_py.errors.unknown_names import SOURCES, unknown_name
from malstrom_py.sources.base import (
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
from malstrom_py.sources.replay import Replay
from malstrom_py.sources.spark import Spark

__all__ = [
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
    "Postgres",
    "PostgresChanges",
    "RayDataset",
    "RedisStream",
    "Replay",
    "SourcePart",
    "Spark",
    "StatelessSource",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        """Raise the error for a name that this module lacks."""
        raise unknown_name(__name__, name, SOURCES)
