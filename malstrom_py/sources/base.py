"""What a source is: parts that can be listed, read, rewound and moved. Contracts for users to implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NewType, Protocol, TypeVar, runtime_checkable

from malstrom_py.worker_context import WorkerInfo

Part = NewType("Part", str)
"""The stable name of one part of a source, for instance a file's path."""

V_co = TypeVar("V_co", covariant=True)


class ArrowColumns(Protocol):
    """An Arrow ``RecordBatch``, by its shape: Arrow brings no types, and an Any here would swallow those of rows."""

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        ...

    @property
    def columns(self) -> Any:
        """The columns, as Arrow arrays."""
        ...


class SourcePart(Protocol[V_co]):
    """One part while it is read. Single-threaded: nothing here is called twice at once."""

    def poll(self, rows_max: int) -> Sequence[V_co] | ArrowColumns | None:
        """At most about ``rows_max`` next rows; None when there is nothing right now. Must not block.

        A list is taken over: never change it afterwards. None (or nothing) is asked again after the
        runtime's ``linger_s``, backing off. For one record that cannot be read raise `MalformedRecord`, with
        the position already past it; any other exception fails the job. A poll that raises gives no rows: return those
        before the bad record first, and raise at the next poll.
        """
        ...

    def is_finished(self) -> bool:
        """Whether nothing will ever follow. Asked after each poll."""
        ...

    def snapshot(self) -> Any:
        """The position after the last polled row, in plain types (numbers, str, bytes, list, dict, None)."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Called once, whether finished or not."""
        ...


@runtime_checkable
class PartitionedSource(Protocol[V_co]):
    """A source whose parts are read, moved between workers and rewound one by one.

    A worker reads up to 256 of them by turns. A source with an attribute ``parts_open_max`` says how many it may be,
    where each takes much memory; event time does not go on before the last part has been opened.
    """

    def list_parts(self) -> Sequence[Part]:
        """The parts by stable names; asked when a job starts and when it is resumed."""
        ...

    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        """Open ``part`` where ``state`` (what `SourcePart.snapshot` gave) says; at its start if None."""
        ...


@runtime_checkable
class StatelessSource(Protocol[V_co]):
    """A source without parts or positions: each worker reads one of its own, and nothing of it is restored."""

    def build(self, worker: WorkerInfo) -> SourcePart[V_co]:
        """What one worker reads. Its ``snapshot`` is not asked for."""
        ...


@runtime_checkable
class PinnedSource(Protocol):
    """What a source has besides, if what it reads could change, or be computed otherwise, while a job reads it.

    The program that starts the job pins it, before anything is copied to workers; copies of it bring the pin along.
    With snapshots the pin stands in their manifests, so that a job that is started again reads the same rows.
    """

    def pin(self, job: str, record: Any = None) -> None:
        """Find out, and write down or keep, what ``job`` is to read. What is not pinned by then is not read.

        ``record``: what `pin_record` gave in the run that is gone on from: pin just that, or raise a `SourceError` that
        says what to do where it is not there any more. None: the job begins anew.

        Each call is followed by one of `unpin`. A source that two jobs read at a time is pinned twice. Where the job is
        coordinated in another process, the copy there is pinned and unpinned too: it has a pin already, which it keeps.
        """
        ...

    def pin_record(self) -> Any:
        """What is pinned, in plain types (numbers, str, bytes, list, dict, None). Asked for behind `pin`."""
        ...

    def unpin(self, *, keep: bool = False) -> None:
        """The job has ended, in whichever way: clear away what was kept for it alone, unless ``keep``: then it is to be
        pinned again by its record, when the job goes on.
        """
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """What a `PartitionedSource` has besides, if a job that has finished can go on with what is new in the source.

    Where ``reads_new`` is true, a start of a finished job does not return the stored result: it reads the parts that
    its last snapshot does not know. A source that is pinned has `pin_next` besides (`PinnedGrowingSource`).
    """

    @property
    def reads_new(self) -> bool:
        """Whether a finished job goes on with what is new."""
        ...

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """The parts of a job that goes on from a snapshot, asked in place of `list_parts`.

        ``known``: the parts in that snapshot, each with its position. Return those of them that are still to be
        remembered, or to be read on, and the new ones: a part that is left out is forgotten, and a new part of
        that name is read from its start.
        """
        ...

    def has_read(self, position: Any) -> bool:
        """Whether nothing is left of a part at ``position``. False where a job was drained in the middle of the part:
        the next run reads the rest.
        """
        ...


@runtime_checkable
class PinnedGrowingSource(Protocol):
    """A `PinnedSource` that is a `GrowingSource`, too."""

    def pin_next(self, job: str, record: Any) -> None:
        """In place of `PinnedSource.pin`: pin what is new since ``record``, all of which an earlier run has read."""
        ...


Source = PartitionedSource[V_co] | StatelessSource[V_co]
