"""Contracts of sinks, for users who write their own: one writer per worker, and for transactional sinks a commit.

`StatelessSink`, `TransactionalSink` and `SinkWriter` are what sinks must have. `BaseStatelessSink`,
`BaseTransactionalSink`, `BaseWriter` and `BaseTransactionalWriter` add what they may have, each with its default; a
sink that inherits them is checked by a type checker. A plain class with the same members does the same: `as_sink` and
`as_writer` complete it.

A transactional sink makes no row visible before its commit. Each writer pre-commits its rows at each snapshot and at
the end of a job. One committer then publishes all payloads of a snapshot together.

Rule (S3, S7): a snapshot is committed after its manifest is durable. The commit is then retried, in any process, until
it succeeds. Rows that belong to no manifest are discarded and read again from the sources.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NewType, Protocol, runtime_checkable

from malstrom_py.codec import TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.defaults import check_members, plain, refuse_misspelt
from malstrom_py.errors import SinkError
from malstrom_py.errors.text import missing_methods
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


@dataclass(frozen=True, slots=True)
class Target:
    """A folder or a table. ``replaces``: whether the sink replaces the target, or requires that it is empty."""

    place: Path | str
    replaces: bool

    def meets(self, other: Target) -> bool:
        """Return whether both are the same, or one folder contains the other."""
        if isinstance(self.place, Path) and isinstance(other.place, Path):
            mine, theirs = Path(os.path.realpath(self.place)), Path(os.path.realpath(other.place))
            return mine == theirs or mine in theirs.parents or theirs in mine.parents
        if isinstance(self.place, str) and isinstance(other.place, str):
            return _table_name(self.place) == _table_name(other.place)
        return False

    def may_show_rows(self) -> bool:
        """Return whether the target may hold earlier rows that stay visible: true unless it is an empty folder.

        Entries of a folder that begin with a dot or ``_`` are not rows.
        """
        if self.replaces or isinstance(self.place, str):
            return not self.replaces
        try:
            return any(not entry.name.startswith((".", "_")) for entry in Path(self.place).iterdir())
        except FileNotFoundError:
            return False
        except OSError:
            return True


def _table_name(table: str) -> str:
    """Normalize the name of a table as Spark does: without case, quotes and the default catalog."""
    return table.replace("`", "").lower().removeprefix("spark_catalog.").removeprefix("default.")


class SinkWriter(Protocol):
    """Writes the batches of one worker. Single-threaded. `BaseWriter` adds what it may have besides."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Write one batch. Never change its lists."""
        ...

    def close(self) -> None:
        """Release files and connections. Called once, after success and after failure."""
        ...


class TransactionalWriter(SinkWriter, Protocol):
    """A writer whose rows stay invisible until they are committed."""

    @abstractmethod
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

    @abstractmethod
    def build(self, worker: WorkerInfo) -> SinkWriter:
        """Open the writer of one worker."""
        ...


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink that publishes rows at commits, exactly once.

    It is copied (by cloudpickle) to every worker in another process, and to the process that commits.

    `BaseTransactionalSink` adds what it may have besides.
    """

    @abstractmethod
    def open(self, worker: WorkerInfo) -> TransactionalWriter:
        """Open the writer of one worker."""
        ...

    @abstractmethod
    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Publish the rows that the payloads name, all pre-committed under ``context.snapshot``.

        Snapshots are committed in order, each after its manifest is durable, while writers continue. Idempotent: it may
        be called again with the same context, in any process, also after a partial commit and after the commit of later
        snapshots. A sink that replaces its target as a whole collects the payloads and publishes all of them at the
        commit with ``context.final``.
        """
        ...

    @abstractmethod
    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Discard the rows that the payloads name, and no others: the next snapshot may still be committed.

        Never called for a snapshot whose manifest is durable.
        """
        ...

    @abstractmethod
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


class BaseSink:
    """The defaults of what every sink may have besides the methods of its kind."""

    takes_columns: bool = False
    """Whether the writers use ``batch.columns``, an Arrow ``RecordBatch`` (None for a batch of rows).

    They get larger batches.
    """

    target: Target | None = None
    """What the sink writes to, which is checked against the other sinks of its job; None: nothing is checked."""

    ends_with_program: bool = False
    """Whether the output ends with the program that starts the job, so that no job can outlive it."""

    commits_in_driver: bool = False
    """Whether the program that started the job commits, with the object that was given to ``sink``.

    If another program coordinates the job, the copy there gets the `hold` and, after a failure of the job, the
    `abort`.
    """

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether the writer of ``worker`` gets results of windows as the flat rows that ``flat`` makes.

        Called when the writer is opened. Flat rows have no keys.
        """
        return False

    def use_types(self, types: TypeTable) -> None:
        """Use the classes that are registered with the job, for a `Codec` of payloads.

        Called before a writer is opened, and before a commit.
        """


class BaseStatelessSink(BaseSink, StatelessSink):
    """A `StatelessSink` with the defaults of what it may have besides."""


class BaseTransactionalSink(BaseSink, TransactionalSink):
    """A `TransactionalSink` with the defaults of what it may have besides."""

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """Protect what ``payloads`` name from the `recover` of other runs, until the returned function is called.

        A worker that leaves a running job closes its writer long before the commit; the committer calls this before.
        """
        return _release_nothing


def _release_nothing() -> None:
    """Release nothing: nothing was held."""


class BaseWriter(SinkWriter):
    """A `SinkWriter` with the defaults of what it may have besides."""

    def close(self) -> None:
        """Release nothing."""

    def moved(self, version: int) -> None:
        """Note that keys have moved, on any worker; ``version`` is the new one of the routing table.

        Versions only grow: what a key wrote under a lower version, on any worker, precedes what it wrote under a
        higher one.
        """

    def advanced(self, epoch: int) -> None:
        """Note that event time has advanced: no record at or below ``epoch`` follows.

        Also called right after `moved`, with an epoch that may be lower: of a partition that has arrived.
        """


class BaseTransactionalWriter(BaseWriter, TransactionalWriter):
    """A `TransactionalWriter` with the defaults of what it may have besides."""


_PLAIN_SINK: Final = plain(BaseSink)
_PLAIN_STATELESS_SINK: Final = plain(BaseStatelessSink)
_PLAIN_TRANSACTIONAL_SINK: Final = plain(BaseTransactionalSink)
_PLAIN_WRITER: Final = plain(BaseWriter)
_PLAIN_TRANSACTIONAL_WRITER: Final = plain(BaseTransactionalWriter)


def as_sink(sink: StatelessSink | TransactionalSink) -> BaseStatelessSink | BaseTransactionalSink:
    """Return ``sink`` with all members of the contract: itself, if it inherits them."""
    if isinstance(sink, BaseTransactionalSink | BaseStatelessSink):
        return sink
    plain_of = _PLAIN_TRANSACTIONAL_SINK if isinstance(sink, TransactionalSink) else _PLAIN_STATELESS_SINK
    completed: BaseStatelessSink | BaseTransactionalSink = plain_of(sink)
    return completed


def target_of(sink: object) -> Target | None:
    """Return the target of a sink of any kind."""
    completed: BaseSink = sink if isinstance(sink, BaseSink) else _PLAIN_SINK(sink)
    target = completed.target
    return target if isinstance(target, Target) else None  # another value is not meant for this contract


def check_sink(sink: Sink, step: str) -> None:
    """Raise `PlanError` if a member that ``sink`` may have is of another type, or misspelt."""
    check_members(sink, BaseTransactionalSink, f"sink {step!r}")
    refuse_misspelt(sink, BaseTransactionalSink, f"sink {step!r}")


_METHODS: Final = ("write(batch)", "pre_commit(context)", "close")


def as_writer(writer: SinkWriter, opened_by: object, step: str, *, transactional: bool) -> BaseWriter:
    """Return ``writer``, which ``opened_by`` has returned, with all members of the contract; `SinkError` if it is none.

    ``transactional``: it must be a `TransactionalWriter`, and the result is a `BaseTransactionalWriter`.
    """
    if isinstance(writer, BaseTransactionalWriter if transactional else BaseWriter):
        return writer
    if wrong := missing_methods(writer, opened_by, _METHODS if transactional else _METHODS[::2]):
        raise SinkError(f"sink {step!r}: {wrong}")
    completed: BaseWriter = (_PLAIN_TRANSACTIONAL_WRITER if transactional else _PLAIN_WRITER)(writer)
    return completed
