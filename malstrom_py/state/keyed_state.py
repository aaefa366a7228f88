"""The keyed state of one step on one worker: values and timers by key, moved and persisted by control messages.

Rules. All that a step stores per key is here, so that a key is moved, persisted and dropped in one place. Values change
by assignment only. A key whose value is None has no state. Code that changes values calls `KeyedState.note`, before or
after: once the state is tracked, a barrier writes the noted keys (S2). Changes of timers and by control messages are
noted here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, islice, repeat
from operator import is_, is_not, not_
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from malstrom_py.codec import Codec
from malstrom_py.data.messages import (
    AbsBarrier,
    Acquire,
    AnyInMemory,
    AnyOf,
    Collect,
    InMemory,
    Interrogate,
    StateMessage,
    every_key,
)
from malstrom_py.errors import CodecError, InternalError, SnapshotError, shown
from malstrom_py.state.ahead import KeptAside, SentKeys
from malstrom_py.state.artefact import (
    NamedRows,
    Opened,
    artefact,
    by_slot,
    column_artefact,
    columns_in,
    entries_in,
    laid_over,
    opened_chain,
    runs_in,
    with_state,
    without,
)
from malstrom_py.state.change_log import Changes, MovedSlot, SlotsOf, alike
from malstrom_py.state.column_image import ColumnImage, states_of, storable
from malstrom_py.state.entries import Times, encoded_entries, is_timed
from malstrom_py.state.group_index import NotColumnar, keys_as_column, listed_keys
from malstrom_py.state.many_values import ManyValues
from malstrom_py.state.timed_values import TimedValues

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, PackedPart
    from malstrom_py.state.artefact_parts import BlockFile
    from malstrom_py.state.cold import SlotRows
    from malstrom_py.state.group_index import Keys

Migrate = Callable[[Any, Any], Any]
"""Key and state -> the state with which the job resumes; None drops the key."""


class KeyedState(TimedValues):
    """The state of ``step``: its values, and the times of keys.

    ``untried``: whether `try_first` has yet to check that a state can be stored in a snapshot.
    """

    __slots__ = (
        *("_ahead", "_aside", "_changes", "_packed", "_sent"),
        *("codec", "untried"),
        "__weakref__",
    )

    def __init__(self, step: str, codec: Codec) -> None:
        super().__init__(step)
        self.codec = codec
        self._changes: Changes | None = None
        self._ahead: AheadOfBarrier | None = None
        self._packed: Sequence[PackedPart] = ()
        self._sent: SentKeys | None = None
        self._aside = KeptAside()
        self.untried = False

    def keys(self) -> set[Any]:
        """Return the keys with state: a value that is not None, or a timer."""
        return {*self.with_values(), *self.timed_keys()}

    @property
    def tracked(self) -> bool:
        """Whether changed keys are tracked."""
        return self._changes is not None

    def track(self, slots_of: SlotsOf) -> None:
        """Track which keys change, and persist keyed artefacts, by the slots that ``slots_of`` returns."""
        if self.memory is not None:
            self.memory.cold.slots_of = slots_of
        self._changes = Changes(slots_of)
        self.untried = True

    @property
    def changes(self) -> Changes:
        """The log of changes. `InternalError` unless they are tracked."""
        if self._changes is None:
            raise InternalError(f"step {self.step!r}: its state is not tracked")
        return self._changes

    def try_first(self) -> None:
        """Encode the oldest and the newest state as a snapshot does, once, as soon as a key has state.

        Raises:
            CodecError: a state cannot be stored; names step, key and type. The job then fails immediately rather than
                at its first snapshot.
        """
        values = self.values
        if values:
            self.untried = False
            for key in dict.fromkeys((next(iter(values)), next(reversed(values)))):
                self.codec.encode_rows_at_rest([[key, values[key], []]], step=self.step)

    def note(self, keys: Iterable[Any]) -> None:
        """Note that the values of ``keys`` may change, or have changed. Costs nothing unless changes are tracked."""
        changes = self._changes
        if self._sent is not None:
            keys = list(keys)
            self._sent.changed.update(keys)
        if changes is not None:
            changes.note(keys, lambda: self.count)
            self._note_timers(changes)

    @property
    def is_tracked(self) -> bool:
        """Whether `note` and `note_column` have an effect."""
        return self._changes is not None or self._sent is not None

    def note_column(self, keys: Keys) -> None:
        """Do as `note`, for a column of keys."""
        if hasattr(keys, "schema"):  # tuples, which no column of changed keys holds
            self.note(listed_keys(keys))
            return
        changes = self._changes
        if self._sent is not None:
            self._sent.changed.update(keys.to_pylist())
        if changes is not None:
            changes.note_column(keys, lambda: self.count)
            self._note_timers(changes)

    def handle(self, message: StateMessage, *, remark: bytes = b"") -> None:
        """Apply a control message to this step's state. ``remark``: stored with an artefact, returned by `install`."""
        match message:
            case Interrogate():
                self.interrogate(message.predicate, message.keys)
            case Collect():
                same = [] if self._sent is None else self._sent.same(message.keys, self.values)
                if same:
                    message.confirmed[self.step] = self._confirm(same)
                taken = self.collect(without(message.keys, same) if same else message.keys)
                if taken is not None:
                    message.states[self.step] = taken
            case Acquire():
                if self.step in message.confirmed:
                    self._acquire_aside(message.confirmed[self.step])
                if self.step in message.states:
                    self.acquire(message.states[self.step])
            case AbsBarrier():
                made = self.artefact(message, remark=remark) if self._changes is not None else self.snapshot()
                message.backend.persist(self.step, made)
            case _:
                """`Rescale` and `SuspendMarker` change no state."""

    def interrogate(self, predicate: Callable[[Any], bool], found: set[Any]) -> None:
        """Add the keys with state that pass ``predicate`` to ``found``."""
        # Records wait while the keys that leave are looked up, or all are listed: avoid Python code per key.
        if isinstance(predicate, AnyOf):
            keys = list(predicate.keys)
            if isinstance(predicate, AnyInMemory):
                found.update(set(keys).difference(self.missing(keys)))
            else:
                found.update(compress(keys, map(is_not, self.values_of(keys), repeat(None))))
            for timers in filter(len, (self.timers, self.clock_timers)):
                found.update(filter(timers.keys().__contains__, keys))
        elif predicate is every_key:
            found.update(self.with_values())
            found.update(self.timed_keys())
        elif isinstance(predicate, InMemory):
            found.update(self._in_memory())
            found.update(self.timed_keys())
            if self.memory is not None:
                self.memory.seen_by(predicate)
        else:
            found.update(filter(predicate, self.keys()))

    def collect(self, keys: Iterable[Any]) -> bytes | None:
        """Remove the state of ``keys`` and return it encoded for another worker, in order; None if no key has state.

        The cost depends on ``keys``, not on all state: a move collects many small groups of keys.
        """
        taken = list(keys)
        if self.by_slot:
            with suppress(NotColumnar):
                return self._collect_column(keys_as_column(taken))
        return self._collect_rows(taken)

    def collect_column(self, keys: pa.Array) -> bytes | None:
        """Do as `collect`, for a column of keys that differ."""
        try:
            return self._collect_column(keys)
        except NotColumnar:
            return self._collect_rows(keys.to_pylist())

    def _collect_column(self, keys: pa.Array) -> bytes | None:
        values = self.columns()
        if values is None:
            raise NotColumnar("states that are in a dict")
        image = values.take_image(keys)
        self.note_column(image.keys if image.panes is None else image.keys.unique())
        if not len(image.keys):
            return None
        return self.codec.encode_in_flight(column_artefact(image, delta=False), step=self.step)

    def _collect_rows(self, keys: list[Any]) -> bytes | None:
        taken, values, times = self._taken_out(keys)
        return self.codec.encode_states_in_flight(taken, values, times, step=self.step) if taken else None

    def _taken_out(self, taken: list[Any]) -> tuple[Sequence[Any], list[Any], dict[Any, Times]]:
        """Remove the state of these keys, and return the keys that have some, their values and their times."""
        values = self.take_values(taken)
        times = self._times_of(taken, values)
        for timers in (self.timers, self.clock_timers):
            if len(timers):
                for key in taken:
                    timers.take(key)
        if self.expiry is not None:
            self.expiry.forget(taken)
        held, values = with_state(taken, values, times)
        self.note(held)
        return held, values, times

    @property
    def goes_ahead(self) -> bool:
        """Whether `send_ahead` may be called: changes are tracked, and values are in a dict, all in memory."""
        return self.tracked and self.cold is None and not isinstance(self.values, ManyValues)

    def send_ahead(self, keys: Sequence[Any]) -> bytes | None:
        """R12: return the state of ``keys``, encoded as by `collect`, and keep it. Requires `goes_ahead`.

        Until `forget_ahead`, `Collect` names the keys that have not changed since, and sends no state of theirs.
        """
        if self._sent is None or not self._sent.is_of(self.values):
            self._sent = SentKeys(self.values)
            self.timers.stirred = self.clock_timers.stirred = self._sent.changed
        values, times = self.states_of(keys)
        keys, values = with_state(keys, values, times)
        self._sent.sent(keys)
        return self.codec.encode_states_in_flight(keys, values, times, step=self.step) if keys else None

    def is_ahead(self, key: Any) -> bool:
        """R12: whether the state of ``key`` has been sent ahead and has not changed since, or there is none."""
        if self._sent is not None and self._sent.has(key, self.values):
            return True
        return self.values_of([key])[0] is None and not (self.timers.times(key) or self.clock_timers.times(key))

    @property
    def counted_ahead(self) -> tuple[int, int]:
        """R12: how many keys have been sent ahead, and how many of them have changed after that."""
        return (0, 0) if self._sent is None else self._sent.counted

    def put_aside(self, states: bytes) -> None:
        """R12: keep the result of `send_ahead` of another worker beside the state, until `Acquire` confirms it."""
        self._aside.put(*self.codec.decode_in_flight(states, step=self.step))

    def forget_ahead(self) -> None:
        """R12: forget what was sent ahead, and drop what came ahead and was not confirmed: the move is over."""
        self._sent = self.timers.stirred = self.clock_timers.stirred = None
        self._aside = KeptAside()

    def _confirm(self, keys: list[Any]) -> bytes:
        """Remove the state of ``keys``, which is ahead, and return the keys, encoded."""
        return self.codec.encode_in_flight(self._taken_out(keys)[0], step=self.step)

    def _acquire_aside(self, confirmed: bytes) -> None:
        keys = self.codec.decode_in_flight(confirmed, step=self.step)
        values, times = self._aside.take(keys, self.step)
        self._take_in(keys, values, times, "acquired, but the key already has state here")

    def acquire(self, states: bytes) -> None:
        """Install the result of `collect` from another worker. `InternalError` if a key already has state here (R5)."""
        how = "acquired, but the key already has state here"
        sent = self.codec.decode_in_flight(states, step=self.step)
        if type(sent) is bytes:
            image = columns_in(opened_chain([sent]))
            if image is not None and not self._take_in_columns(image, how):
                self._take_in(*states_of(image), {}, how)
        else:
            keys, values, times = sent
            self._take_in(keys, values, times, how)

    def pack_ahead(self, snapshot: str, parent: str | None, *, keys_max: int | None = None) -> AheadOfBarrier:
        """S2: return what packs state ahead of the next barrier, that of ``snapshot``. Requires `track`."""
        from malstrom_py.state.ahead_of_barrier import AheadOfBarrier  # a job is defined without it

        self._ahead = AheadOfBarrier(self, snapshot, parent, keys_max=keys_max)
        return self._ahead

    def take_packed(self) -> Sequence[PackedPart]:
        """S2: return, once, what was packed ahead of the last barrier; the `artefact` of that is relative to it."""
        packed, self._packed = self._packed, ()
        return packed

    def artefact(self, barrier: AbsBarrier, *, remark: bytes = b"") -> bytes:
        """Return a keyed artefact of the changes since the barrier's parent, or of all state (S2). Requires `track`.

        If state was packed ahead, the changes are those since then, and `take_packed` returns the rest.
        """
        ahead, self._ahead = self._ahead, None
        parent = barrier.parent if ahead is None else ahead.finish()
        (keys, is_full), moved = self.due(parent), self.changes.due_slots(parent)
        image = None if isinstance(keys, list) else self.image_of(None if is_full else keys, is_full=is_full)
        made = None if image is None else column_artefact(image, delta=not is_full, note=remark)
        if made is None:
            listed = keys if isinstance(keys, list) else keys.to_pylist()
            made = self._written(listed, moved, is_full=is_full, remark=remark)
        if made is None:
            is_full = True
            made = self._written(self._held(), {}, is_full=True, remark=remark)
        if made is None:
            raise InternalError(f"step {self.step!r}: its keys have no names in a new chain")
        self._packed = () if is_full or ahead is None else ahead.parts
        written = None if is_full or self._packed else set(keys) if isinstance(keys, list) else keys
        self.changes.written(barrier.snapshot, parent, written, moved)
        self._note_timers(self.changes)
        return made

    @property
    def size(self) -> int:
        """About how many keys have state."""
        return max(self.count, len(self.timers.keys()), len(self.clock_timers.keys()))

    def due(self, parent: str | None, *, listed: bool = True) -> tuple[list[Any] | pa.Array, bool]:
        """Do as `Packable.due`: to list all takes several times as long as to list the keys of values in memory."""
        self.note_flagged()
        changes = self.changes
        values = None if changes.due_slots(parent) else self.columns()
        with suppress(NotColumnar):
            of_column = None if values is None else changes.due_column(parent)
            if values is not None and changes.as_columns(full=of_column is None):
                return values.key_column() if of_column is None else of_column, of_column is None
        due = changes.due(parent)
        if due is not None:
            return list(due), False
        return self._held() if listed else list(self._in_memory()), True

    def on_disk(self, slots: Iterable[int] | None = None) -> Iterator[SlotRows]:
        """Do as `Packable.on_disk`."""
        return iter(()) if self.cold is None or slots == [] else self.cold.rows(slots)

    def file(self, *, delta: bool) -> BlockFile | None:
        """Do as `Packable.file`."""
        return None if self.memory is None else self.memory.file(delta=delta)

    def named(self, rows: dict[bytes, bytes]) -> dict[bytes, bytes] | None:
        """Return rows of an artefact with the keys as the chain names them; None: it does not (`Changes.names`)."""
        codec, step = self.codec, self.step
        names = self.changes.names(codec.decode_each_at_rest(list(rows), step=step), self.count, full=False)
        return (
            None
            if names is None
            else dict(zip(codec.encode_each_at_rest(names, step=step, keys=names), rows.values(), strict=True))
        )

    def without_values(self, keys: list[Any]) -> list[Any]:
        """Return those of ``keys`` that have no value."""
        return list(compress(keys, map(is_, self.values_of(keys), repeat(None))))

    def note_flagged(self) -> None:
        """Note the changes that values have flagged, and that were not noted."""
        values = self.columns()
        for column in () if values is None else values.changed_columns():
            self.note_column(column)
        if values is None and isinstance(self.values, ManyValues):
            self.changes.note(self.values.changed_keys(), lambda: self.count)

    def round_begun(self, name: str) -> None:
        """Note what changes from now on as changed since ``name``."""
        self.changes.written(name, None, None)
        self._note_timers(self.changes)

    def install(
        self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None
    ) -> tuple[list[Any], bytes]:
        """Install the keys of ``slots`` from the artefacts of one worker: a full one, then its deltas (S5).

        Returns these keys, unless they may go to disk or into arrays, and the last remark. ``migrate`` is called for
        each key with a value.

        Raises:
            SnapshotError, CodecError: the artefacts are damaged, or hold a class that is not registered.
            InternalError: another worker's artefacts had a state for one of these keys.
        """
        installed: list[Any] = []
        if migrate is None and self._open_arrays() is not None:
            opened = opened_chain(chain)
            columns = columns_in(opened, slots)
            if columns is not None and self._take_in_columns(columns, "restored from two workers"):
                return installed, opened[-1].note

        def put_on_disk(keys: Sequence[Any], entries: Sequence[bytes]) -> Sequence[bool]:
            if len(set(keys)) != len(keys):
                raise SnapshotError(f"step {self.step!r}: the state to restore is damaged: it has a key twice")
            return self._put_on_disk(keys, entries) if migrate is None else [True] * len(keys)

        for _, image in runs_in(chain, self.codec, slots=slots, step=self.step, take=put_on_disk):
            taken = image if migrate is None else image.migrated(migrate)
            self._take_in(taken.keys, taken.values, taken.times, "restored from two workers")
            if self.memory is None:
                installed += taken.keys
        return installed, Opened(chain[-1]).note

    def _put_on_disk(self, keys: Sequence[Any], entries: Sequence[bytes]) -> list[bool]:
        """Put entries on disk that can be there in their stored form, once memory is full. Return which are left."""
        cold = self.cold
        if cold is None or self.expiry is not None or self.due_at is not None:
            return [True] * len(keys)
        from malstrom_py.state.cold import can_be_cold  # a job is defined without it

        left = [is_timed(entry) or not can_be_cold(key) for key, entry in zip(keys, entries, strict=True)]
        gone = list(map(not_, left))
        put = list(compress(keys, gone))
        for key in compress(put, map(is_not, self.values_of(put), repeat(None))):
            raise InternalError(f"step {self.step!r}: state of key {shown(key)} was restored from two workers")
        cold.put_entries(put, list(compress(entries, gone)))
        return left

    def continue_chain(self, snapshot: str) -> None:
        """Write the next artefact as changes since ``snapshot``, whose state is the installed one. Requires `track`."""
        changes, columns = self.changes, self.columns()
        keys = [] if columns is not None else [*self._in_memory(), *self.timed_keys()]
        if self.cold is not None and not alike(keys):  # those on disk are
            keys += self.cold.keys()
        changes.continued(snapshot, keys)
        if columns is not None:
            columns.changed_columns()
        elif isinstance(self.values, ManyValues):
            self.values.changed_keys()
        self._note_timers(changes)

    def start_with(self, states: Mapping[Any, Any]) -> None:
        """Set the initial ``states``, by key. `CodecError` if the state is tracked and one cannot be stored."""
        if self.tracked:
            rows = [[key, value, []] for key, value in states.items()]
            self.codec.encode_rows_at_rest(rows, step=self.step)
        self._take_in(list(states), list(states.values()), {}, "present before its initial state was set")

    def snapshot(self) -> bytes:
        """Return all state as a full artefact of one slot, for a step whose keys are on no other worker."""
        keys = self._held()
        (values, times), codec, step = self.states_of(keys), self.codec, self.step
        entries = encoded_entries(codec, keys, values, times, step=step)
        rows = (codec.encode_each_at_rest(keys, step=step, keys=keys), entries)
        return artefact({0: rows} if keys else {}, delta=False)

    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Install the result of `snapshot`, for the keys that are ``owned`` here (S5: any N restores on any M)."""
        for _, key, value, times in entries_in([state], self.codec, step=self.step):
            if owned(key):
                self._take_times([key], [value], {key: times})
                if value is not None:
                    self.set_values([key], [value])

    def sampled_bytes(self, keys_max: int, bytes_max: int) -> tuple[int, int]:
        """Encode the states of some keys; return of how many, and how many bytes they took.

        ``keys_max``: at most so many; none is added after ``bytes_max``. States that cannot be measured count as none.
        """
        keys, sampled, size = list(islice(self.values, keys_max)), 0, 0
        while sampled < len(keys) and size < bytes_max:
            some_keys = keys[sampled : 2 * sampled + 1]  # of arrays a state is made only if it is measured
            some = [[key, value, []] for key, value in zip(some_keys, self.values_of(some_keys), strict=True)]
            try:
                size += self._size_of(some)
            except Exception:  # by the user's own types: no job fails because of figures for people
                return 0, 0
            sampled += len(some)
        return sampled, size

    def _size_of(self, rows: list[list[Any]]) -> int:
        try:
            return len(self.codec.encode_rows_at_rest(rows, step=self.step))
        except CodecError:  # without snapshots states need no stored form
            return sum(getsizeof(value) for _, value, _ in rows)

    @property
    def by_slot(self) -> bool:
        """Whether state is taken by slot, with `in_slots` and `collect_column`: without an object per key."""
        return self.columns() is not None

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        """Return the keys with state in ``wanted`` slots, and a vector of their slots. `NotColumnar` unless `by_slot`.

        ``slots_of`` is the one of `track`, or equals it.
        """
        values = self.columns()
        if values is None:
            raise NotColumnar("states that are in a dict")
        return values.in_slots(wanted, slots_of)

    def columns(self) -> ManyValues | None:
        """Return the values if they are in arrays, and there are no times of keys."""
        values = self.values
        if self.has_times or self.cold is not None:
            return None
        return values if isinstance(values, ManyValues) and values.in_arrays else None

    def _open_arrays(self) -> ManyValues | None:
        """Return the arrays that take an image; None if values are rows."""
        values = self.columns()
        fixed = values is not None or self.count or self.expiry is not None
        return values if fixed or self.arrays is None else self.arrays()

    def image_of(self, keys: pa.Array | None, *, is_full: bool) -> ColumnImage | None:
        """Return a `storable` image of ``keys``, None: of all; None if rows must be written."""
        values = self.columns()
        if values is None:
            return None
        try:
            image = storable(values.image(keys, self.changes.slots_of))
        except NotColumnar:
            return None
        return image._replace(gone=None, gone_slots=None) if is_full and image is not None else image

    def _take_in_columns(self, image: ColumnImage, how: str) -> bool:
        """Install an image into arrays; False if they do not hold it."""
        values = self._open_arrays()
        if values is None:
            return False
        try:
            held = values.put_image(image)
        except NotColumnar:
            return False
        if len(held):
            raise InternalError(f"step {self.step!r}: state of key {shown(held[0].as_py())} was {how}")
        self.values = values
        self.arrived(len(image.keys))
        return True

    def _held(self) -> list[Any]:
        """Return the keys with state, in the order in which they got it (that of a set differs by process)."""
        held = list(self.with_values())
        woken = list(dict.fromkeys(self.timed_keys()))
        return [*held, *self.without_values(woken)]

    def _note_timers(self, changes: Changes) -> None:
        self.timers.noted = self.clock_timers.noted = changes.noted

    def _written(
        self, keys: list[Any], moved: Mapping[int, MovedSlot], *, is_full: bool, remark: bytes
    ) -> bytes | None:
        """Return an artefact of ``keys`` and of ``moved`` slots, as of `Changes.due_slots`; None if it must be a full
        one (`Changes.names`).
        """
        rows = self.rows_of(keys, is_full=is_full, is_first=is_full)
        if rows is None:
            return None
        names, forms, entries = rows
        dealt = by_slot(self.changes.slots_of(names), forms, entries)
        if moved and not self.changes.as_columns(full=False):
            return None
        there, replaced = [slot for slot in moved if moved[slot].on_disk], {slot for slot in moved if moved[slot].left}
        dealt |= laid_over(self.on_disk(there), dealt)
        return artefact(dealt, delta=not is_full, note=remark, replaced=replaced)

    def rows_of(self, keys: list[Any], *, is_full: bool, is_first: bool) -> NamedRows | None:
        """Return ``keys`` as the chain names them, their stored forms and entries; None: it does not (`Changes.names`).

        ``is_full``: those without state are left out. ``is_first``: a chain begins with these keys.
        """
        codec, step = self.codec, self.step
        values, times = self.states_of(keys)
        held, values = with_state(keys, values, times)
        gone = without(keys, held) if len(held) < len(keys) and not is_full else []
        names = self.changes.names([*held, *gone], self.count, full=is_first)
        if names is None:
            return None
        entries = encoded_entries(codec, held, values, times, step=step)
        entries += repeat(b"", len(gone))
        return names, codec.encode_each_at_rest(names, step=step, keys=names), entries

    def _take_in(self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Times], how: str) -> None:
        held: set[Any] = set()
        if self.count or self.has_times:
            self.interrogate(AnyOf(set(keys)), held)
        for key in held:
            raise InternalError(f"step {self.step!r}: state of key {shown(key)} was {how}")
        self.note(keys)
        self._take_times(keys, values, times)  # first: a state that enters without timers may set some
        self.set_values(*with_state(keys, list(values), {}))  # a None among the values would be counted
        self.arrived(len(keys))
        self.settle()
