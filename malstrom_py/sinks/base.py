"""Contracts of sinks, for users who write their own: one writer per worker, and for transactional sinks a commit.

A transactional sink makes no row visible before its commit. Each writer pre-commits its rows at each snapshot and at
the end of a job. One committer then publishes all payloads of a snapshot together.

Rule (S3, S7): a snapshot is committed after its manifest is durable. The commit is then retried, in any process, until
it succeeds. Rows that belong to no manifest are discarded and read again from the sources.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol, runtime_checkable

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.windows import WINDOW_START
from malstrom_py.worker_context import WorkerInfo

SnapshotId = NewType("SnapshotId", str)
"""The id of a snapshot: sorts by time, is never reused, matches ``[A-Za-z0-9_-]{1,64}``."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The identity of a commit; it never contains a worker.

    - ``snapshot``: the snapshot's id, or at the end of a job without snapshots a new id of the same form. Later ids
      are larger as text, also across starts of the job.
    - ``incarnation``: the number of starts of the job, from 1; always 1 without snapshots.
    - ``result``: at a commit, the `RunResult` of the run so far in plain types (``job``, ``duration_s``, ``steps``:
      name -> counts); None in other calls, or if it is unknown.
    - ``final``: whether this is the last commit of the job, after all input has been read. It is False if the job
      continues or will be resumed, and never changes for one snapshot.
    - ``stored``: whether the payloads may be, or have been, in a store, which others may be able to write: never
      unpickle them then. False: they go from worker to committer only.
    """

    job: str
    step: str
    snapshot: SnapshotId
    incarnation: int
    result: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    final: bool = True
    stored: bool = field(default=True, repr=False, compare=False)


def has_no_results(names: Iterable[str] | None) -> bool:
    """Return whether a target with columns ``names`` takes results of windows as flat rows (``takes_flat``).

    It does, unless it has the columns of the results themselves. None: its columns are not known yet.

    >>> has_no_results(None), has_no_results(["key", "start", "end", "value"]), has_no_results(["window_start", "end"])
    (True, False, True)
    """
    return names is None or not {"start", "end"} <= (known := {name.lower() for name in names}) or WINDOW_START in known


def is_left_over(snapshot: str, context: CommitContext, committed: Collection[str]) -> bool:
    """Return whether `TransactionalSink.recover` discards the rows of ``snapshot``: an earlier start has left them.

    >>> context = CommitContext("docs", "out", SnapshotId("3"), 2)
    >>> [is_left_over(snapshot, context, ["1"]) for snapshot in ("1", "2", "4")]
    [False, True, False]
    """
    return snapshot < context.snapshot and snapshot not in committed


class SinkWriter(Protocol):
    """Writes the batches of one worker. Single-threaded.

    Optional: a sink with an attribute ``takes_columns = True`` has writers that use ``batch.columns`` (an Arrow
    ``RecordBatch``, None for a batch of rows); they get larger batches. A writer with a method ``moved(version)`` is
    called on every worker after keys have moved, with the new version of the routing table. Versions only grow:
    what a key wrote under a lower version, on any worker, precedes what it wrote under a higher one. A writer with a
    method ``advanced(epoch)`` is called when event time advances: no record at or below ``epoch`` follows.
    A sink with a method ``takes_flat(worker)`` is asked when a writer opens; if the answer is true, the writer gets
    results of windows as the flat rows that ``flat`` makes, without keys.
    """

    def write(self, batch: Batch) -> None:
        """Write one batch. Never change its lists."""
        ...

    def close(self) -> None:
        """Release files and connections. Called once, after success and after failure."""
        ...


class TransactionalWriter(SinkWriter, Protocol):
    """A writer whose rows stay invisible until they are committed."""

    def pre_commit(self, context: CommitContext) -> bytes:
        """Make the rows written since the last call durable but not visible, under ``context.snapshot``.

        Called at each snapshot; writing continues afterwards, while earlier pre-committed rows may still wait for their
        commit. Returns a payload, such as file names, with which any process can publish or discard the rows under this
        snapshot. `close` discards rows that were never pre-committed.
        """
        ...


@runtime_checkable
class StatelessSink(Protocol):
    """A sink without transactions: each batch is visible after its write, and cannot be undone."""

    def build(self, worker: WorkerInfo) -> SinkWriter:
        """Open the writer of one worker."""
        ...


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink that publishes rows at commits, exactly once.

    It is copied (by cloudpickle) to every worker in another process, and to the process that commits.

    Optional: a sink with an attribute ``commits_in_driver = True`` is committed by the program that started the job,
    with the object that was given to ``sink``. If another program coordinates the job, the copy there gets the `hold`
    and, after a failure of the job, the `abort`.

    Optional: a sink with a method ``hold(context, payloads)``. A worker that leaves a running job closes its writer
    long before the commit; before that, the committer calls `hold`, which protects what the payloads name from the
    `recover` of other runs until the function that it returns is called.

    Optional: a sink with a method ``use_types(types)`` gets the classes that are registered with the job, for a `Codec`
    of its payloads: before it opens a writer, and before it commits.
    """

    def open(self, worker: WorkerInfo) -> TransactionalWriter:
        """Open the writer of one worker."""
        ...

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Publish the rows that the payloads name, all pre-committed under ``context.snapshot``.

        Snapshots are committed in order, each after its manifest is durable, while writers continue. Idempotent: it may
        be called again with the same context, in any process, also after a partial commit and after the commit of later
        snapshots. A sink that replaces its target as a whole collects the payloads and publishes all of them at the
        commit with ``context.final``.
        """
        ...

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Discard the rows that the payloads name, and no others: the next snapshot may still be committed.

        Never called for a snapshot whose manifest is durable.
        """
        ...

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Finish or discard what an interrupted run left; called before writers are opened, at starts and at restores.

        ``committed``: the snapshots that have a manifest, the oldest first; older ones may have been deleted and are
        committed completely. Keep what belongs to them: if their commit may be incomplete, `commit` is called again
        right afterwards, with the payloads from the manifest. Discard rows of all other snapshots before
        ``context.snapshot``, and rows that were never pre-committed. Keep the rows of later snapshots: another start of
        the job has written them, if this call was delayed. ``committed`` is empty if the job starts from the beginning;
        rows that earlier runs have committed stay then too.
        Idempotent: it is called in the process that commits, and before that in the program that starts the job, if
        input is pinned there.
        """
        ...


class SinkPart(Protocol):
    """The writer of one partition of a `PartitionedSink`."""

    def write(self, batch: Batch) -> None:
        """Write rows of this partition, in order. Never change the batch's lists."""
        ...

    def snapshot(self) -> Any:
        """Return the current position in plain types, from which `build_part` resumes."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...


@runtime_checkable
class PartitionedSink(Protocol):
    """A sink of partitions: one worker writes each partition, rows are routed by partition, and partitions move between
    workers."""

    def assign_part(self, message: DataMessage[Any, Any]) -> str:
        """Return the stable name of the partition that a record belongs to."""
        ...

    def build_part(self, part: str, state: Any) -> SinkPart:
        """Open ``part`` at the position ``state`` (from `SinkPart.snapshot`); None means from the beginning."""
        ...


Sink = StatelessSink | TransactionalSink | PartitionedSink
