"""The contracts of sources, for users to implement: partitions that can be listed, read, rewound and moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NewType, Protocol, TypeVar, runtime_checkable

from malstrom_py.worker_context import WorkerInfo

Part = NewType("Part", str)
"""The stable name of one partition of a source, for instance a file's path."""

V_co = TypeVar("V_co", covariant=True)

WAIT_MAX_S: Final = 0.5
"""The longest pause between two polls of a partition without records."""


class ArrowColumns(Protocol):
    """The attributes of an Arrow ``RecordBatch``: Arrow has no type hints, and Any here would hide the type of rows."""

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        ...

    @property
    def columns(self) -> Any:
        """The columns, as Arrow arrays."""
        ...


class SourcePart(Protocol[V_co]):
    """One partition while it is read. Its methods are called from one thread at a time.

    Optional: ``wait_max_s``, the longest pause between two polls without records, in seconds; by default half a second.
    ``lag_rows()`` and ``lag_bytes()``, for metrics: how much could be read and was not yet, None if that is unknown;
    called about once a second, between two polls, they must not block.
    """

    def poll(self, rows_max: int) -> Sequence[V_co] | ArrowColumns | None:
        """Return about ``rows_max`` next rows at most; None if there are none right now. Must not block.

        The caller owns a returned list: do not change it afterwards. After None (or no rows) the next poll comes after
        the runtime's ``linger_s``, with backoff. For one record that cannot be read raise `MalformedRecord`, with
        the position already after it; any other exception fails the job. A poll that raises returns no rows: return
        the rows before the bad record first, and raise at the next poll.
        """
        ...

    def is_finished(self) -> bool:
        """Return whether no more rows will follow. Called after each poll."""
        ...

    def snapshot(self) -> Any:
        """Return the position after the last polled row, in plain types (numbers, str, bytes, list, dict, None)."""
        ...

    def close(self) -> None:
        """Close files and connections. Called once, finished or not."""
        ...


def lag_of(part: object, name: Literal["lag_rows", "lag_bytes"]) -> int | None:
    """Return the lag of ``part`` by its method ``name``; None if it has none, does not know it or fails."""
    try:
        found = getattr(part, name)()
    except Exception:  # counts for people: no job fails because of them
        return None
    return found if type(found) is int and 0 <= found < 1 << 63 else None


@runtime_checkable
class PartitionedSource(Protocol[V_co]):
    """A source whose partitions are read, moved between workers and rewound one by one.

    A worker reads up to 256 partitions in turn. A source whose partitions take much memory sets a smaller number with
    the attribute ``parts_open_max``, one whose partitions never end a larger one: a partition is opened when another
    has ended. Event time does not advance before the last partition has been opened.

    Optional: ``lists_again_every_s``, a number of seconds. `list_parts` is then called again that often while the job
    runs, in the process that coordinates it, and new partitions are added (R13). It may block for a while; an error is
    logged, and the next call is the next try. Partitions that are no longer listed are kept. A method
    ``new_part_position(part)`` returns the position at which such a new partition begins, None for its start; it is
    also asked for partitions that have appeared between a snapshot and the run that resumes from it. Both are called in
    a separate thread, while other threads may call the other methods. The job runs until it is stopped, even when all
    its partitions are finished.
    """

    def list_parts(self) -> Sequence[Part]:
        """Return the stable names of the partitions. Called when a job starts and when it is resumed."""
        ...

    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        """Open ``part`` at the position ``state`` (from `SourcePart.snapshot`); at its start if None."""
        ...


@runtime_checkable
class NarrowingSource(Protocol[V_co]):
    """The additional methods of a source that can leave out columns which a plan does not read."""

    @property
    def is_narrowing(self) -> bool:
        """Whether it can, with its options."""
        ...

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> SourcePart[V_co]:
        """Open ``part`` as ``build_part`` does; only the items called ``columns`` of its dicts are read."""
        ...


@runtime_checkable
class StatelessSource(Protocol[V_co]):
    """A source without partitions or positions: each worker builds its own, and no position is restored."""

    def build(self, worker: WorkerInfo) -> SourcePart[V_co]:
        """Return what one worker reads. Its ``snapshot`` is not called."""
        ...


@runtime_checkable
class PinnedSource(Protocol):
    """The additional methods of a source whose rows could change, or be computed differently, while a job reads it.

    The program that starts the job pins the source before copying it to workers; copies keep the pin. Snapshots store
    the pin in their manifests, so that a restarted job reads the same rows.
    """

    def pin(self, job: str, record: Any = None) -> None:
        """Determine and record the rows that ``job`` reads. Rows that are not pinned are not read.

        ``record``: the `pin_record` of the run that this run resumes: pin the same rows, or raise a `SourceError` that
        says what to do if they no longer exist. None: the job starts from the beginning.

        Each call is followed by one of `unpin`. A source that two jobs read at the same time is pinned twice. If the
        job is coordinated in another process, the copy there is pinned and unpinned too; it keeps the pin it has.
        """
        ...

    def pin_record(self) -> Any:
        """Return what is pinned, in plain types (numbers, str, bytes, list, dict, None). Called after `pin`."""
        ...

    def unpin(self, *, keep: bool = False) -> None:
        """Release the pin of a job that has ended, and delete what was kept for it alone.

        ``keep``: delete nothing, because a resumed job will pin the same rows by their record.
        """
        ...


@runtime_checkable
class AcknowledgingSource(Protocol):
    """The additional method of a `PartitionedSource` whose system keeps rows until they are acknowledged."""

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Release what is before ``positions``: a durable snapshot contains them, and all sinks have committed it.

        Called in the process that coordinates the job, in a thread for it, after the commit of each snapshot and at the
        end of the job; never twice at the same time. It may be called again with the same positions, and positions may
        be left out between two calls. Partitions that have not begun are left out. An error is logged as a warning, and
        the next snapshot is the next try. The end of a job waits for it at most ten seconds. A job without snapshots
        calls it once, at its end. It is not called if two steps read the same object, which are at different positions.
        """
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """The additional methods of a `PartitionedSource` from which a finished job can read new partitions.

    If ``reads_new`` is true, starting a finished job does not return the stored result: the job reads the partitions
    that its last snapshot does not contain. A pinned source also has `pin_next` (`PinnedGrowingSource`).

    Optional: ``has_more(part, position)``, whether a partition that an earlier run has read up to ``position``
    continues in this run, called after the source was pinned; without it, a partition that was read is never opened
    again. ``reads_new_with``, the argument with which the source reads new data, such as ``"new_files=True"``, for
    messages; None if a run without snapshots, which reads all data, needs no warning.
    """

    @property
    def reads_new(self) -> bool:
        """Whether a finished job, started again, reads new partitions."""
        ...

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """Return the partitions of a job that resumes from a snapshot; called instead of `list_parts`.

        ``known``: the partitions in that snapshot with their positions. Return the known partitions to keep or
        continue, and the new partitions. A known partition that is left out is forgotten: a new partition of that name
        is read from its start.
        """
        ...

    def has_read(self, position: Any) -> bool:
        """Return whether a partition at ``position`` is read to its end.

        False after a job was drained in the middle of the partition: the next run reads the rest.
        """
        ...


@runtime_checkable
class PinnedGrowingSource(Protocol):
    """A source that is both a `PinnedSource` and a `GrowingSource`."""

    def pin_next(self, job: str, record: Any) -> None:
        """Pin the rows that are new since ``record``, which an earlier run has read; called instead of `pin`."""
        ...


Source = PartitionedSource[V_co] | StatelessSource[V_co]
