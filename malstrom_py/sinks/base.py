"""What a sink is: writers, one per worker, and for transactional sinks a commit. Contracts for users.

A transactional sink shows nothing before its commit: each writer pre-commits what it has written, at each snapshot and
at the end of a job; one committer then publishes all payloads of a snapshot together.

Rule (S3, S7): a snapshot is committed once its manifest stands, and then for certain: again and again if need be, by
whatever process, until it is done. What belongs to no manifest is discarded, and comes again from the sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol, runtime_checkable

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.worker_context import WorkerInfo

SnapshotId = NewType("SnapshotId", str)
"""Time-sortable, never reused, matches ``[A-Za-z0-9_-]{1,64}``."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """What a commit is keyed by: never by worker.

    ``snapshot`` is the snapshot's id, or at the end of a job without snapshots a fresh id of the same form. Later ids
    are larger as text, also those of later starts. ``incarnation`` counts the starts of a job, from 1; without
    snapshots it stays 1. ``result``: at a commit, what the run has done so far, a `RunResult` in plain types (``job``,
    ``duration_s``, ``steps``: by name, their counts); None elsewhere, or where nobody knows it. ``final``: whether this
    is the last commit of the job, which has read all there is. It is False for a snapshot of a job that goes on, or
    that is to be resumed; the same snapshot is never once final and once not.
    """

    job: str
    step: str
    snapshot: SnapshotId
    incarnation: int
    result: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    final: bool = True


class SinkWriter(Protocol):
    """Takes batches. Single-threaded.

    A sink with an attribute ``takes_columns = True`` says that its writers look at ``batch.columns`` (an Arrow
    ``RecordBatch``, None for a batch of rows) first; they are then sent larger batches. A writer with a method
    ``moved(version)`` is told when keys have left its worker or come to it: the version of the routing table, which
    only grows. What a key wrote under a lower version, anywhere, comes before what it wrote under a higher one.
    """

    def write(self, batch: Batch) -> None:
        """Take one batch. Never change its lists."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Called once, whether the job succeeded or not."""
        ...


class TransactionalWriter(SinkWriter, Protocol):
    """A writer whose rows stay invisible until they are committed."""

    def pre_commit(self, context: CommitContext) -> bytes:
        """Make all that was written since the last call durable but not visible, under ``context.snapshot``.

        Called at each snapshot, and writing goes on behind it, while what was pre-committed before may still wait for
        its commit. Returns a payload that suffices to publish it (file names, say) or to discard it, in any process,
        under this snapshot. What was written but never pre-committed is discarded by `close`.
        """
        ...


@runtime_checkable
class StatelessSink(Protocol):
    """A sink that shows each batch as it is written: no transaction, nothing to undo."""

    def build(self, worker: WorkerInfo) -> SinkWriter:
        """A writer for one worker."""
        ...


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink that publishes per commit, exactly once.

    It is copied to every worker (by cloudpickle where workers are other processes), and to where the commit is made. A
    sink with an attribute ``commits_in_driver = True`` is committed in the program that started the job instead, with
    the object that was given to ``sink``; where that is another program than the one that coordinates the job, the
    copy there is told to `hold` and, if the job fails, to abort what waits for it.

    A worker that leaves while the job goes on closes its writer long before the commit. A sink with a method
    ``hold(context, payloads)`` is called by whoever will commit, before that writer is closed: it keeps what the
    payloads name from the `recover` of other runs, until the function that it returns is called.
    """

    def open(self, worker: WorkerInfo) -> TransactionalWriter:
        """A writer for one worker."""
        ...

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Publish what the payloads name, which all were pre-committed under ``context.snapshot``.

        Snapshots are committed in their order, each once its manifest is durable, while writers go on. Idempotent: it
        may be called again with the same context, also when half of it was done, also later snapshots were committed
        meanwhile, also in another process. A sink that replaces its target as a whole keeps what it is given, and
        shows all of it at the commit with ``context.final``.
        """
        ...

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Discard what the payloads name, and nothing else: the next snapshot may be committed all the same.

        Never called for a snapshot whose manifest stands.
        """
        ...

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Called at each start, and each time the job goes back to a snapshot, before writers are opened: clear, or
        finish, what was left half done.

        ``committed``: the snapshots whose manifests stand, the oldest first; older ones may be gone, and are all
        committed. What belongs to them stays, and the `commit` of those that may not be done yet is called again right
        after, with the payloads from the manifest. What belongs to any other snapshot, or was never pre-committed, is
        discarded. It is empty where the job begins from nothing; what earlier runs have committed stays there too.
        Idempotent: it is called where the commit is made, and before that in the program that starts the job, if what
        a source is to read is pinned there.
        """
        ...


class SinkPart(Protocol):
    """The writer of one part of a `PartitionedSink`."""

    def write(self, batch: Batch) -> None:
        """Take rows of this part, in order. Never change the batch's lists."""
        ...

    def snapshot(self) -> Any:
        """The position after what has been written, in plain types; what `build_part` needs to go on."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


@runtime_checkable
class PartitionedSink(Protocol):
    """A sink of parts, each written in one place: rows are distributed by part, and parts move between workers."""

    def assign_part(self, message: DataMessage[Any, Any]) -> str:
        """The stable name of the part that a record belongs to."""
        ...

    def build_part(self, part: str, state: Any) -> SinkPart:
        """Open ``part`` where ``state`` (what `SinkPart.snapshot` gave) says; anew if None."""
        ...


Sink = StatelessSink | TransactionalSink | PartitionedSink
