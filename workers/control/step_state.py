"""The state of a step of a running job, read from a committed snapshot: one cut on all workers.

Rule: a query asks the job only where its snapshots are. No worker waits for it, and what it returns is the state at one
barrier, through rescales and recoveries, in memory or on disk. Blocks of state are verified where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from malstrom_py.codec import Codec, TypeTable, can_register
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.data.equality import first_reading
from malstrom_py.data.time import from_time
from malstrom_py.errors import CodecError, PlanError, SnapshotError, shown
from malstrom_py.rescale.partitioners import Index, Partitioner, StableHash
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.log import history, joined_faults
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.typed_columns import row_table
from malstrom_py.snapshot.verification import stored
from malstrom_py.state.artefact import Opened, StoredArtefact, columns_in, entries_in, newest, opened_chain
from malstrom_py.state.artefact_parts import PART_BYTES, in_parts
from malstrom_py.state.column_image import states_of
from malstrom_py.state.entries import decoded_entries
from malstrom_py.workers.reports.commands import Command, SnapshotCommand, StateCommand
from malstrom_py.workers.reports.job_state import JobState, StateShape

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
D = TypeVar("D")

_PARTITIONERS: Final[Mapping[str, Partitioner]] = {"StableHash": StableHash(), "Index": Index()}
"""Those by which the slot of a key is known here; a function of the user's is not."""

_ABSENT: Final[Any] = object()


class SnapshotReader:
    """Reads the state of a job from one of its snapshots, and later ones: ``manifest`` is that of the snapshot."""

    def __init__(self, state: JobState, least: SnapshotId | None = None) -> None:
        self.job = state
        self._checkpointer: Checkpointer = state.place().checkpointer(state.job)
        if least is not None and not any(one.id >= least for one in self.manifests()):
            raise SnapshotError(
                f"job {self.job.job!r} has made snapshot {least}, which is not in {self._checkpointer} here: give the "
                f"job a place that this program can read, such as a folder that all machines share"
            )
        self.manifest = self.newest()

    @classmethod
    def of_job(cls, ask: Callable[[Command], Any], *, fresh: bool = False, timeout_s: float) -> SnapshotReader:
        """Return what reads the last snapshot of the job that ``ask`` asks, or a ``fresh`` one."""
        state: JobState = ask(StateCommand(timeout_s))
        state.place()  # before a snapshot is asked for
        return cls(state, ask(SnapshotCommand(None, timeout_s)) if fresh else None)

    def read(self, reading: Callable[[Manifest], T]) -> T:
        """Return what ``reading`` makes of the snapshot: of the newest one if this one has been pruned."""
        while True:
            try:
                return reading(self.manifest)
            except SnapshotError:
                newest = self.newest()
                if newest.id == self.manifest.id:
                    raise
                self.manifest = newest

    def step(self, name: str, manifest: Manifest) -> StepReader:
        """Return what reads the state of step ``name``. `PlanError` if it has none that can be shown."""
        shape = self.job.shape_of(name)
        if name not in manifest.plan.steps:
            raise SnapshotError(
                f"job {self.job.job!r}: snapshot {manifest.id} was made before the job had step {name!r}: ask with "
                f"fresh=True, or once the next one is committed"
            )
        return StepReader(self._checkpointer, manifest, name, shape)

    def manifests(self) -> list[Manifest]:
        """Return the snapshots that are there, oldest first."""
        return [entry.manifest for entry in self._checkpointer.entries() if entry.manifest is not None]

    def newest(self) -> Manifest:
        """Return the last committed snapshot. `SnapshotError` if there is none."""
        entries = self._checkpointer.entries()
        for entry in history(entries):
            if entry.manifest is not None:
                return entry.manifest
        raise SnapshotError(
            f"job {self.job.job!r} has no snapshot yet in {self._checkpointer}{joined_faults(entries)}: ask with "
            f"fresh=True, which makes one"
        )


@dataclass(frozen=True)
class StepReader:
    """Reads the state of ``step``, of ``shape``, from the snapshot of ``manifest``."""

    checkpointer: Checkpointer
    manifest: Manifest
    step: str
    shape: StateShape
    _codec: Any = field(default_factory=without_classes, repr=False)

    @cached_property
    def _chains(self) -> list[list[tuple[str, StoredArtefact]]]:
        """The artefacts of each worker and their paths; only the indexes have been read."""
        return [
            [(artefact.path, stored(self.checkpointer, artefact)) for artefact in artefacts]
            for (step, _), artefacts in self.manifest.chains().items()
            if step == self.step
        ]

    def slots_of(self, keys: Sequence[Any]) -> Collection[int] | None:
        """Return the slots of ``keys``; None if they may be in any."""
        found = _PARTITIONERS.get(self.manifest.plan.steps[self.step].partitioner or "")
        return None if found is None else set(found.bind(self.manifest.plan.slots, step=self.step).slots_of(keys))

    def of_key(self, key: Any) -> Any:
        """Return the state of ``key``, of which only the slot is read, or `_ABSENT`."""
        slots, key = self.slots_of([key]), _as_stored(key)
        for slot in sorted(self.artefacts if slots is None else slots):
            entry = self.entries(slot).get(key)
            if entry is not None:
                (value,) = self.values([key], [entry])
                return _ABSENT if value is None else self.shape.shown(value)
        return _ABSENT

    @cached_property
    def artefacts(self) -> Mapping[int, Collection[str]]:
        """Slot -> the paths of the artefacts that have it, as far as any has."""
        found: dict[int, list[str]] = {}
        for path, one in chain(*self._chains):
            for slot in one.blocks:
                found.setdefault(slot, []).append(path)
        return found

    def entries(self, slot: int) -> dict[Any, bytes]:
        """Return key -> entry of a slot: the stored state."""
        found: dict[Any, bytes] = {}
        for artefacts in self._chains:
            if any(slot in one.blocks for _, one in artefacts):
                entries = newest([Opened(one.part({slot})) for _, one in artefacts], slot)
                keys = self._codec.decode_each_at_rest(list(entries), step=self.step)
                found.update(zip(map(first_reading, keys), entries.values(), strict=True))
        return found

    def values(self, keys: Sequence[Any], entries: Sequence[bytes]) -> list[Any]:
        """Return the stored values in ``entries`` of ``keys``; None of a key that only has timers."""
        return decoded_entries(self._codec, keys, entries, step=self.step)[0]

    def items(self, slots: Collection[int] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield each key and its state, of about `PART_BYTES` together; only of ``slots``, if given."""
        shown = self.shape.shown
        for artefacts in self._chains:
            for part in in_parts([one for _, one in artefacts], slots, PART_BYTES):
                image = columns_in(opened_chain(part))
                if image is not None:  # without the stored form of each key and state
                    keys, states = states_of(image)
                    yield from zip(map(first_reading, keys), map(shown, states), strict=True)
                    continue
                for entry in entries_in(part, self._codec, step=self.step):
                    if entry.value is not None:
                        yield entry.key, shown(entry.value)

    def table(self, keys: Sequence[Any] | None, slots: Iterable[int] | None) -> pa.Table:
        """Return the state of all keys, or of these ``keys`` or ``slots``, as columns."""
        wanted: Collection[Any] | None = None
        some: Collection[int] | None = None if slots is None else frozenset(slots)
        if keys is not None:
            some, wanted = self.slots_of(keys), set(map(_as_stored, keys))

        def states() -> Iterator[tuple[Any, Any]]:
            return (item for item in self.items(some) if wanted is None or item[0] in wanted)

        return self.as_table(states)

    def as_table(self, states: Callable[[], Iterable[tuple[Any, Any]]]) -> pa.Table:
        """Return keys and their ``states`` as columns. These may be iterated twice."""
        return row_table(
            lambda: chain.from_iterable(self._rows(key, state) for key, state in states()), self.shape.keys
        )

    def _rows(self, key: Any, state: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a key: one, or one for each window. A field takes the place of a column of that name."""
        names, unit = self.shape.keys, self.shape.unit
        named = {names[0]: key} if len(names) == 1 else dict(zip(names, key, strict=True))
        if self.shape.form not in ("tumbling", "session", "count"):
            yield {**named, **_fields(state)}
            return
        for start, end, value, _ in state:
            times = {} if unit is None else {"window_start": from_time(start, unit), "window_end": from_time(end, unit)}
            yield {**named, **times, **_fields(value)}


def _as_stored(key: Any) -> Any:
    """Return ``key`` as `without_classes` reads it: objects of the user's classes are what is stored of them."""
    types = TypeTable()
    for kind in set(_classes_in(key)):
        types.register(kind)
    with suppress(CodecError):  # of a kind that no state has
        key = without_classes().decode_at_rest(Codec(types).encode_at_rest(key, step=""))
    return first_reading(key)


def _classes_in(key: Any) -> Iterator[type]:
    """Yield the classes of which ``key`` is and that it has within."""
    if can_register(type(key)):
        yield type(key)
    parts = [getattr(key, one.name) for one in fields(key)] if is_dataclass(key) else key
    for part in parts if isinstance(parts, list | tuple) else ():
        yield from _classes_in(part)


def _fields(value: Any) -> Mapping[str, Any]:
    is_row = isinstance(value, Mapping) and value and all(type(name) is str for name in value)
    return value if is_row else {"value": value}


class StepState:
    """The state of a step as of one snapshot of the job, from `JobHandle.state`. It is read when it is asked for.

    ``snapshot``: the id of that snapshot. If it is pruned before it has been read, the newest one takes its place.

    The state of a key is what the step would show: the value of ``stateful_map``, ``reduce`` and the like, the figures
    of aggregates (a dict of several), the list of the largest values of ``top_n``, and of windows the list of those
    that are open, as `WindowResult` with what they have so far. Objects of your own classes are dicts of their fields.
    """

    def __init__(self, reader: SnapshotReader, step: str) -> None:
        self._reader, self.step = reader, step
        self._read = reader.step(step, reader.manifest)

    def __repr__(self) -> str:
        return f"StepState({self.step!r}, snapshot={self.snapshot!r})"

    @property
    def snapshot(self) -> SnapshotId:
        """The id of the snapshot."""
        return self._read.manifest.id

    def _do(self, reading: Callable[[StepReader], T]) -> T:
        def read(manifest: Manifest) -> T:
            if manifest.id != self._read.manifest.id:
                self._read = self._reader.step(self.step, manifest)
            return reading(self._read)

        return self._reader.read(read)

    def __getitem__(self, key: Any) -> Any:
        """Return the state of ``key``. KeyError if it has none."""
        found = self.get(key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: D | None = None) -> Any | D | None:
        """Return the state of ``key``, else ``default``."""
        found = self._do(lambda reader: reader.of_key(key))
        return default if found is _ABSENT else found

    def __contains__(self, key: object) -> bool:
        return self._do(lambda reader: reader.of_key(key)) is not _ABSENT

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over all keys with state and their states, a part of them in memory at a time.

        Raises:
            SnapshotError: the snapshot was pruned during that.
        """
        return self._do(lambda reader: reader.items())

    def to_arrow(self, *, keys: Iterable[Any] | None = None, slots: Iterable[int] | None = None) -> pa.Table:
        """Return the state of all keys, of these ``keys``, or of these ``slots`` (key groups), as a table.

        A row has the key, by the names of its columns (``key`` if a function made it), then the fields of a state that
        is a dict, else ``value``; of a window a row for each that is open, with ``window_start`` and ``window_end`` in
        UTC. A field takes the place of a column of its name. Columns of several types, and of others than numbers,
        texts, bytes, dates and datetimes, are JSON.
        """
        if keys is not None and slots is not None:
            raise PlanError("to_arrow takes keys= or slots=, not both")
        for name, given in (("keys", keys), ("slots", slots)):
            if given is not None and (isinstance(given, str | bytes) or not isinstance(given, Iterable)):
                raise PlanError(f"to_arrow: {name} must be a list of {name}, got {shown(given)}")
        wanted = None if keys is None else list(keys)
        some = None if slots is None else list(slots)
        return self._do(lambda reader: reader.table(wanted, some))
