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
from malstrom_py.sinks.callable import Callable
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.memory import Memory
from malstrom_py.sinks.stdout import Stdout

__all__ = [
    "Callable",
    "CommitContext",
    "Files",
    "Memory",
    "SinkWriter",
    "SnapshotId",
    "StatelessSink",
    "Stdout",
    "TransactionalSink",
    "TransactionalWriter",
    "WorkerInfo",
]
