"""The contracts of sources, for users to implement: partitions that can be listed, read, rewound and moved.

`PartitionedSource` and `SourcePart` are what a source must have. `BaseSource` and `BasePart` add what it may have, each
with its default; a source that inherits them is checked by a type checker. A plain class with the same members does
the same: `as_source` and `as_part` complete it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, Final, NamedTuple, NewType, Protocol, TypeVar, runtime_checkable

from malstrom_py.data.batch import Batch
from malstrom_py.defaults import check_members, plain, refuse_misspelt
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.errors.text import missing_methods
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


class PolledRows(NamedTuple):
    """What a poll returns that has met records that cannot be read (see `BasePart.set_polls`).

    ``rows``: the others, None if there are none; ``bad``: how many could not be read; ``errors``: one for each of
    these, made when it is asked for.
    """

    rows: Sequence[Any] | ArrowColumns | Batch | None
    bad: int
    errors: Iterator[MalformedRecord]


class SourcePart(Protocol[V_co]):
    """One partition while it is read. Its methods are called from one thread at a time.

    `BasePart` adds what it may have besides.
    """

    @abstractmethod
    def poll(self, rows_max: int) -> Sequence[V_co] | ArrowColumns | PolledRows | None:
        """Return about ``rows_max`` next rows at most; None if there are none right now. Must not block.

        The caller owns a returned list: do not change it afterwards. After None (or no rows) the next poll comes after
        the runtime's ``linger_s``, with backoff. For one record that cannot be read raise `MalformedRecord`, with
        the position already after it; any other exception fails the job. A poll that raises returns no rows: return
        the rows before the bad record first, and raise at the next poll.
        """
        ...

    @abstractmethod
    def is_finished(self) -> bool:
        """Return whether no more rows will follow. Called after each poll."""
        ...

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the position after the last polled row, in plain types (numbers, str, bytes, list, dict, None)."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. Called once, finished or not."""
        ...


class BasePart(SourcePart[V_co]):
    """A `SourcePart` with the defaults of what it may have besides."""

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        """Choose what `poll` returns from now on, where a part has a choice; called between two polls.

        ``frames``: columns, as Polars frames, because a later step takes these. ``bad_rows``: records that cannot be
        read fail no job, so that a poll may return them as `PolledRows` together with the rows between them.
        """

    wait_max_s: float = WAIT_MAX_S
    """The longest pause between two polls without records, in seconds."""

    def lag_rows(self) -> int | None:
        """Return how many rows could be read and were not yet, for metrics; None if that is unknown.

        Called about once a second, between two polls. Must not block.
        """
        return None

    def lag_bytes(self) -> int | None:
        """Return how many bytes could be read and were not yet; see `lag_rows`."""
        return None


def lag_of(lag: Callable[[], int | None]) -> int | None:
    """Return a ``lag`` of a part; None if it is unknown or the call fails."""
    try:
        found = lag()
    except Exception:  # counts for people: no job fails because of them
        return None
    return found if type(found) is int and 0 <= found < 1 << 63 else None


@runtime_checkable
class PartitionedSource(Protocol[V_co]):
    """A source whose partitions are read, moved between workers and rewound one by one.

    `BaseSource` adds what it may have besides.
    """

    @abstractmethod
    def list_parts(self) -> Sequence[Part]:
        """Return the stable names of the partitions. Called when a job starts and when it is resumed."""
        ...

    @abstractmethod
    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        """Open ``part`` at the position ``state`` (from `SourcePart.snapshot`); at its start if None."""
        ...


@runtime_checkable
class StatelessSource(Protocol[V_co]):
    """A source without partitions or positions: each worker builds its own, and no position is restored."""

    @abstractmethod
    def build(self, worker: WorkerInfo) -> SourcePart[V_co]:
        """Return what one worker reads. Its ``snapshot`` is not called."""
        ...


@runtime_checkable
class PinnedSource(Protocol):
    """The methods of a plain class that pins its rows, all of them; see `BaseSource`."""

    def pin(self, job: str, record: Any = None) -> None:
        """See `BaseSource.pin`."""
        ...

    def pin_record(self) -> Any:
        """See `BaseSource.pin_record`."""
        ...

    def unpin(self, *, keep: bool = False) -> None:
        """See `BaseSource.unpin`."""
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """The members of a plain class of which a finished job reads new data, all of them; see `BaseSource`."""

    @property
    def reads_new(self) -> bool:
        """See `BaseSource.reads_new`."""
        ...

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """See `BaseSource.list_parts_after`."""
        ...

    def has_read(self, position: Any) -> bool:
        """See `BaseSource.has_read`."""
        ...


@runtime_checkable
class PinnedGrowingSource(Protocol):
    """The additional method of a plain class that is a `PinnedSource` and a `GrowingSource`; see `BaseSource`."""

    def pin_next(self, job: str, record: Any) -> None:
        """See `BaseSource.pin_next`."""
        ...


class BaseSource(PartitionedSource[V_co]):
    """A `PartitionedSource` with the defaults of what it may have besides.

    - Partitions: ``parts_open_max``. With ``lists_again_every_s`` new ones are looked for while the job runs (R13), and
      ``new_part_position`` says where they begin.
    - Rows that could change, or be computed differently, while a job reads them are pinned: ``pin``, ``pin_record``,
      ``unpin``. The program that starts the job pins the source before copying it to workers; copies keep the pin.
      Snapshots store the pin in their manifests, so that a restarted job reads the same rows.
    - A finished job, started again, reads what is new if ``reads_new`` is true: ``list_parts_after``, ``has_read``,
      ``has_more``, and ``pin_next`` of a pinned source.
    - A system that keeps rows until they are read to the end of the job gets ``acknowledge``.
    - Columns that the plan does not read are left out by ``build_narrow_part``, if ``is_narrowing`` is true.
    """

    parts_open_max: int = 256
    """How many partitions a worker reads in turn: fewer if they take much memory, more if they never end.

    A partition is opened when another has ended. Event time does not advance before the last one has been opened.
    """

    rows: type[Any] | None = None
    """The class of the rows, if a snapshot may have to store them; None for plain types."""

    ends_with_program: bool = False
    """Whether the rows end with the program that starts the job, so that no job can outlive it."""

    lists_again_every_s: float | None = None
    """How often `list_parts` is called while the job runs, in seconds; None for never.

    It is called in the process that coordinates the job, and may block for a while; an error is logged, and the
    next call is the next try. Partitions that are no longer listed are kept. The job runs until it is stopped, even
    when all its partitions are finished.
    """

    def new_part_position(self, part: Part) -> Any:
        """Return the position at which ``part``, which has appeared while the job runs, begins; None for its start.

        It is also asked for partitions that have appeared between a snapshot and the run that resumes from it. Called
        in a separate thread, as `list_parts` is, while other threads may call the other methods.
        """
        return None

    def pin(self, job: str, record: Any = None) -> None:
        """Determine and record the rows that ``job`` reads. Rows that are not pinned are not read.

        ``record``: the `pin_record` of the run that this run resumes: pin the same rows, or raise a `SourceError` that
        says what to do if they no longer exist. None: the job starts from the beginning.

        Each call is followed by one of `unpin`. A source that two jobs read at the same time is pinned twice. If the
        job is coordinated in another process, the copy there is pinned and unpinned too; it keeps the pin it has.
        """

    def pin_next(self, job: str, record: Any) -> None:
        """Pin the rows that are new since ``record``, which an earlier run has read; called instead of `pin`."""
        self.pin(job, record)

    def pin_record(self) -> Any:
        """Return what is pinned, in plain types (numbers, str, bytes, list, dict, None). Called after `pin`."""
        return None

    def unpin(self, *, keep: bool = False) -> None:
        """Release the pin of a job that has ended, and delete what was kept for it alone.

        ``keep``: delete nothing, because a resumed job will pin the same rows by their record.
        """

    reads_new: bool = False
    """Whether a finished job, started again, reads the partitions that its last snapshot does not contain.

    Otherwise it returns the stored result.
    """

    reads_new_with: str | None = ""
    """The argument with which the source reads new data, such as ``"new_files=True"``, for messages; empty if none.

    None: a run without snapshots, which reads all data, needs no warning.
    """

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """Return the partitions of a job that resumes from a snapshot; called instead of `list_parts`.

        ``known``: the partitions in that snapshot with their positions. Return the known partitions to keep or
        continue, and the new partitions. A known partition that is left out is forgotten: a new partition of that name
        is read from its start.
        """
        return self.list_parts()

    def has_read(self, position: Any) -> bool:
        """Return whether a partition at ``position`` is read to its end.

        False after a job was drained in the middle of the partition: the next run reads the rest.
        """
        return True

    def has_more(self, part: Part, position: Any) -> bool:
        """Return whether ``part``, which an earlier run has read up to ``position``, continues in this run.

        Called after the source was pinned. False: the partition is never opened again.
        """
        return False

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Release what is before ``positions``: a durable snapshot contains them, and all sinks have committed it.

        Called in the process that coordinates the job, in a thread for it, after the commit of each snapshot and at the
        end of the job; never twice at the same time. It may be called again with the same positions, and positions may
        be left out between two calls. Partitions that have not begun are left out. An error is logged as a warning, and
        the next snapshot is the next try. The end of a job waits for it at most ten seconds. A job without snapshots
        calls it once, at its end. It is not called if two steps read the same object, which are at different positions.
        """

    is_acknowledging: bool = True
    """Whether `acknowledge` is to be called, with the options of the source."""

    is_narrowing: bool = False
    """Whether the source, with its options, can leave out columns which a plan does not read."""

    is_decoding: bool = False
    """Whether ``build_narrow_part`` decodes records into columns: it is called only if that pays."""

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> SourcePart[V_co]:
        """Open ``part`` as `build_part` does; only the items called ``columns`` of its dicts are read."""
        return self.build_part(part, state)


def pins(source: BaseSource[Any]) -> bool:
    """Return whether ``source`` overrides `BaseSource.pin`."""
    return source.pin != MethodType(BaseSource.pin, source)


def acknowledges(source: BaseSource[Any]) -> bool:
    """Return whether ``source`` overrides `BaseSource.acknowledge`, and is to be called."""
    return source.is_acknowledging and source.acknowledge != MethodType(BaseSource.acknowledge, source)


class PartPerWorker(BaseSource[V_co]):
    """A `StatelessSource` as the engine reads it: one part per worker, without positions."""

    @abstractmethod
    def build(self, worker: WorkerInfo) -> SourcePart[V_co]:
        """See `StatelessSource`."""

    def list_parts(self) -> Sequence[Part]:
        return ()

    def build_part(self, part: Part, state: Any) -> SourcePart[V_co]:
        raise NotImplementedError


Source = PartitionedSource[V_co] | StatelessSource[V_co]


_PLAIN_SOURCE: Final = plain(BaseSource)
_PLAIN_PART_PER_WORKER: Final = plain(PartPerWorker)
_PLAIN_PART: Final = plain(BasePart)

_TOGETHER: Final = (
    (PinnedSource, ("pin", "pin_record", "unpin")),
    (GrowingSource, ("reads_new", "list_parts_after", "has_read")),
)
_NARROWING: Final = ("is_narrowing", "build_narrow_part")
_OF_PARTS: Final = frozenset(
    ("lists_again_every_s", "reads_new", "acknowledge", "is_acknowledging", "is_narrowing", "is_decoding")
)
_METHODS: Final = ("poll(rows_max)", "is_finished", "close", "snapshot")
"""The methods of a part. The last one is not called on a part of a `StatelessSource`."""


def as_source(source: Source[V_co]) -> BaseSource[V_co]:
    """Return ``source`` with all members of the contract: itself, if it inherits them."""
    if isinstance(source, BaseSource):
        return source
    without = {name for kind, names in _TOGETHER if not isinstance(source, kind) for name in names}
    if not all(hasattr(source, name) for name in _NARROWING):
        without.update(_NARROWING)
    completed: BaseSource[V_co]
    if isinstance(source, PartitionedSource):
        completed = _PLAIN_SOURCE(source, without)
    else:
        completed = _PLAIN_PART_PER_WORKER(source, without | _OF_PARTS)
    return completed


def check_source(source: Source[Any], step: str) -> None:
    """Raise `PlanError` if a member that ``source`` may have is of another type, or misspelt."""
    check_members(source, BaseSource, f"source {step!r}")
    refuse_misspelt(source, BaseSource, f"source {step!r}")


def as_part(part: SourcePart[V_co], built_by: object, step: str, *, positions: bool) -> BasePart[V_co]:
    """Return ``part``, which ``built_by`` has returned, with all members of the contract; `SourceError` if it is none.

    ``positions``: whether its position is read.
    """
    if isinstance(part, BasePart):
        return part
    if wrong := missing_methods(part, built_by, _METHODS if positions else _METHODS[:-1]):
        raise SourceError(wrong)
    check_members(part, BasePart, f"source {step!r}")
    completed: BasePart[V_co] = _PLAIN_PART(part)
    return completed
