"""Where records go to. `base` holds the contracts for your own sinks."""

from malstrom_py.sinks.base import (
    CommitContext,
    SinkWriter,
    SnapshotId,
    StatelessSink,
    TransactionalSink,
    TransactionalWriter,
    WorkerInfo,
)
from malstrom_py.sinks.memory import Memory

__all__ = [
    "CommitContext",
    "Memory",
    "SinkWriter",
    "SnapshotId",
    "StatelessSink",
    "TransactionalSink",
    "TransactionalWriter",
    "WorkerInfo",
]
