"""The keyed state of one step on one worker: values and timers by key, and what control messages do to them.

Rule: everything a step keeps per key is in here, so that moving a key, persisting it and dropping it is done in
one place. Values change by assignment only. A key whose value is None has no state.

Whoever changes values says so by `KeyedState.note`, before or after: once the state is tracked, a barrier writes what
was noted (S2). Timers, and what control messages do, are noted here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress, repeat
from operator import is_, is_not
from typing import Any

from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, Acquire, AnyOf, Collect, Interrogate, StateMessage, every_key
from malstrom_py.errors import InternalError, SnapshotError, shown
from malstrom_py.state.artefact import Opened, SlotImage, artefact, by_slot, encoded_entries, slots_in
from malstrom_py.state.change_log import Changes, SlotsOf

Migrate = Callable[[Any, Any], Any]
"""Key and state -> the state by which the job goes on; None drops the key."""


class Timers:
    """Times at which keys want to be woken. Two timers of a key at one time are one.

    >>> timers = Timers()
    >>> for time, key in [(5, "b"), (3, "a"), (5, "b"), (9, "a")]:
    ...     timers.set(key, time)
    >>> list(timers.due(5)), timers.times("a")
    ([('a', 3), ('b', 5)], [9])
    """

    __slots__ = ("_by_key", "_count", "_order", "_queue", "noted")

    def __init__(self) -> None:
        self.noted: set[Any] | None = None
        """Takes the keys whose timers change, where there is one."""
        # key -> time -> the number of the timer that stands: entries of the queue with other numbers count no more.
        self._by_key: dict[Any, dict[int, int]] = {}
        self._queue: list[tuple[int, int, Any]] = []
        self._order = 0
        self._count = 0

    def set(self, key: Any, time: int) -> None:
        """Wake ``key`` once the step's frontier has reached ``time``."""
        times = self._by_key.setdefault(key, {})
        if time not in times:
            self._order += 1
            self._count += 1
            times[time] = self._order
            heappush(self._queue, (time, self._order, key))
            if self.noted is not None:
                self.noted.add(key)

    def due(self, frontier: int) -> Iterator[tuple[Any, int]]:
        """Take out the (key, time) pairs up to ``frontier``, by time, then in the order they were set."""
        while self._queue and self._queue[0][0] <= frontier:
            entry = heappop(self._queue)
            if self._stands(entry):
                time, _, key = entry
                self._forget(key, time)
                yield key, time

    def times(self, key: Any) -> list[int]:
        """The times at which ``key`` will be woken."""
        return sorted(self._by_key.get(key, ()))

    def take(self, key: Any) -> list[int]:
        """The same, and take them out."""
        times = sorted(self._by_key.pop(key, ()))
        self._count -= len(times)
        if times and self.noted is not None:
            self.noted.add(key)
        if len(self._queue) > 64 and len(self._queue) > 4 * self._count:
            # Only those that stand are left, so this pays off four times before it is done again.
            self._queue = list(filter(self._stands, self._queue))
            heapify(self._queue)
        return times

    def keys(self) -> Collection[Any]:
        """The keys that have timers."""
        return self._by_key.keys()

    def __len__(self) -> int:
        return self._count

    def _stands(self, entry: tuple[int, int, Any]) -> bool:
        time, order, key = entry
        return self._by_key.get(key, {}).get(time) == order

    def _forget(self, key: Any, time: int) -> None:
        if self.noted is not None:
            self.noted.add(key)
        times = self._by_key[key]
        del times[time]
        self._count -= 1
        if not times:
            del self._by_key[key]


class Defaulting(dict[Any, Any]):
    """Values by key for logics that take whole batches: ``values[key]`` of a key without state is ``default()``.

    Nothing is kept by looking it up.

    >>> values = Defaulting(list)
    >>> values["a"], len(values)
    ([], 0)
    """

    __slots__ = ("_default",)

    def __init__(self, default: Callable[[], Any]) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, key: Any) -> Any:
        return self._default()


class KeyedState:
    """``values``: key -> state, a plain dict that the loops of the steps work on; ``timers``: when keys wake.

    ``untried``: no state has been tried yet on the form in which a snapshot stores it (`try_first`).
    """

    __slots__ = ("_changes", "_codec", "_step", "timers", "untried", "values")

    def __init__(self, step: str, codec: Codec) -> None:
        self._step = step
        self._codec = codec
        self._changes: Changes | None = None
        self.values: dict[Any, Any] = {}
        self.timers = Timers()
        self.untried = False

    def keys(self) -> set[Any]:
        """The keys with state: a value that is not None, or a timer."""
        return {key for key, value in self.values.items() if value is not None} | set(self.timers.keys())

    @property
    def tracked(self) -> bool:
        """Whether it is noted which keys change."""
        return self._changes is not None

    def track(self, slots_of: SlotsOf) -> None:
        """From now on persist keyed artefacts, by the slots that ``slots_of`` gives, and note which keys change."""
        self._changes = Changes(slots_of)
        self.untried = True

    def try_first(self) -> None:
        """Encode a state as a snapshot would, once: the oldest and the newest, as soon as there are any.

        Raises:
            CodecError: it cannot be stored; names step, key and type. Otherwise the first snapshot would say so, when
                a minute of work or an hour is lost.
        """
        values = self.values
        if values:
            self.untried = False
            for key in dict.fromkeys((next(iter(values)), next(reversed(values)))):
                self._codec.encode_rows_at_rest([[key, values[key], []]], step=self._step)

    def note(self, keys: Iterable[Any]) -> None:
        """The values of ``keys`` may change, or have changed. Costs nothing as long as nothing is tracked."""
        changes = self._changes
        if changes is not None and changes.noted is not None:
            changes.note(keys, len(self.values))
            self.timers.noted = changes.noted

    def handle(self, message: StateMessage, *, remark: bytes = b"") -> None:
        """Do what a control message asks of this step's state. ``remark``: what `install` is to give back."""
        match message:
            case Interrogate():
                self.interrogate(message.predicate, message.keys)
            case Collect():
                taken = self.collect(message.keys)
                if taken is not None:
                    message.states[self._step] = taken
            case Acquire():
                if self._step in message.states:
                    self.acquire(message.states[self._step])
            case AbsBarrier():
                made = self.artefact(message, remark=remark) if self._changes is not None else self.snapshot()
                message.backend.persist(self._step, made)
            case _:
                """`Rescale` and `SuspendMarker` change no state."""

    def interrogate(self, predicate: Callable[[Any], bool], found: set[Any]) -> None:
        """Add the keys with state that pass ``predicate`` to ``found``."""
        if isinstance(predicate, AnyOf):
            values, timers = self.values, self.timers.keys()
            found.update(key for key in predicate.keys if values.get(key) is not None or key in timers)
        elif predicate is every_key:
            # It is asked of all keys while records wait: so nothing is done for each of them in Python.
            values = self.values
            none = any(map(is_, values.values(), repeat(None)))
            found.update(compress(values, map(is_not, values.values(), repeat(None))) if none else values)
            found.update(self.timers.keys())
        else:
            found.update(filter(predicate, self.keys()))

    def collect(self, keys: Iterable[Any]) -> bytes | None:
        """Take out the state of ``keys``, in their order, encoded for another worker; None if none of them has any.

        Costs by ``keys``, not by all that is held: a move takes many small bites.
        """
        taken = list(keys)
        values = list(map(self.values.pop, taken, repeat(None)))
        times = {key: woken for key in taken if (woken := self.timers.take(key))} if len(self.timers) else {}
        if any(map(is_, values, repeat(None))):
            held = [value is not None or key in times for key, value in zip(taken, values, strict=True)]
            taken, values = list(compress(taken, held)), list(compress(values, held))
        self.note(taken)
        return self._codec.encode_states_in_flight(taken, values, times, step=self._step) if taken else None

    def acquire(self, states: bytes) -> None:
        """Install what `collect` gave on another worker. `InternalError` if a key has state here already (R5)."""
        keys, values, times = self._codec.decode_in_flight(states, step=self._step)
        self._take_in(keys, values, times, "acquired onto state of its own (R5)")

    def artefact(self, barrier: AbsBarrier, *, remark: bytes = b"") -> bytes:
        """What changed since the barrier's parent, or all there is, as a keyed artefact (S2). Only if it is tracked."""
        changes = self._changes
        if changes is None:
            raise InternalError(f"step {self._step!r}: its state is not tracked")
        due = changes.due(barrier.parent)
        made = None if due is None else self._written(changes, list(due), full=False, remark=remark)
        if made is None:
            due = None
            made = self._written(changes, self._held(), full=True, remark=remark)
        if made is None:
            raise InternalError(f"step {self._step!r}: its keys have no names in a chain that begins anew")
        changes.written(barrier.snapshot, barrier.parent, due)
        self.timers.noted = changes.noted
        return made

    def install(
        self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None
    ) -> tuple[list[Any], bytes]:
        """Take over the keys of ``slots`` from what one worker wrote, a full artefact and deltas behind it (S5).

        Returns these keys, and what was last remarked. ``migrate`` is called for each that has a value.

        Raises:
            SnapshotError, CodecError: the artefacts are damaged, or hold what is not registered.
            InternalError: another worker has given a state for one of these keys.
        """
        installed: list[Any] = []
        for image in slots_in(chain, self._codec, slots=slots, step=self._step):
            if len(set(image.keys)) != len(image.keys):
                raise SnapshotError(f"step {self._step!r}: what is to be restored holds a key twice: it is damaged")
            taken = image if migrate is None else _migrated(image, migrate)
            self._take_in(taken.keys, taken.values, taken.times, "restored from two workers")
            installed += taken.keys
        return installed, Opened(chain[-1]).note

    def start_with(self, states: Mapping[Any, Any]) -> None:
        """Begin with ``states``, by key. `CodecError` if one cannot be stored, where state is stored."""
        if self.tracked:
            rows = [[key, value, []] for key, value in states.items()]
            self._codec.encode_rows_at_rest(rows, step=self._step)
        self._take_in(list(states), list(states.values()), {}, "there before it was given its first state")

    def snapshot(self) -> bytes:
        """All state, encoded at rest."""
        # In the order in which keys got their state, not in that of a set, which differs from process to process.
        held = {key: value for key, value in self.values.items() if value is not None}
        woken = self.timers.keys()
        held |= {key: None for key in woken if key not in held}
        rows = [[key, value, self.timers.times(key)] for key, value in held.items()]
        return self._codec.encode_rows_at_rest(rows, step=self._step)

    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Install what `snapshot` gave, as far as the keys are ``owned`` here (S5: any N restores on any M)."""
        for key, value, times in self._codec.decode_at_rest(state, step=self._step):
            if owned(key):
                self._install(key, value, times)

    def _install(self, key: Any, value: Any, times: Iterable[int]) -> None:
        if value is not None:
            self.values[key] = value
        for time in times:
            self.timers.set(key, time)

    def _held(self) -> list[Any]:
        """The keys with state, in the order in which they got it, not in that of a set, which differs by process."""
        woken = self.timers.keys()
        values = self.values
        held = [key for key, value in values.items() if value is not None]
        return [*held, *(key for key in woken if values.get(key) is None)]

    def _written(self, changes: Changes, keys: list[Any], *, full: bool, remark: bytes) -> bytes | None:
        """``keys`` as an artefact; None if it has to be a full one (`Changes.names`)."""
        codec, step = self._codec, self._step
        woken = self.timers.keys()
        times = {key: self.timers.times(key) for key in keys if key in woken} if woken else {}
        gone: list[Any] = []
        values = list(map(self.values.get, keys))
        if any(map(is_, values, repeat(None))):
            there = [value is not None or key in times for key, value in zip(keys, values, strict=True)]
            gone = [key for key, stays in zip(keys, there, strict=True) if not stays]
            keys, values = list(compress(keys, there)), list(compress(values, there))
        names = changes.names([*keys, *gone], len(self.values), full=full)
        if names is None:
            return None
        entries = encoded_entries(codec, keys, values, times, step=step)
        entries += repeat(b"", len(gone))
        forms = codec.encode_each_at_rest(names, step=step, keys=names)
        return artefact(by_slot(changes.slots_of(names), forms, entries), delta=not full, note=remark)

    def _take_in(self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Any], how: str) -> None:
        held: set[Any] = set()
        self.interrogate(AnyOf(set(keys)), held)
        for key in held:
            raise InternalError(f"step {self._step!r}: state of key {shown(key)} was {how}")
        self.note(keys)
        self.values.update(zip(keys, values, strict=True))
        for key, woken in times.items():
            for time in woken:
                self.timers.set(key, time)


def _migrated(image: SlotImage, migrate: Migrate) -> SlotImage:
    """What goes on of ``image``. A key that has timers and no value has nothing to be migrated."""
    slot, keys, values, times = image
    states = [None if value is None else migrate(key, value) for key, value in zip(keys, values, strict=True)]
    kept = [new is not None or old is None for new, old in zip(states, values, strict=True)]
    left = list(compress(keys, kept))
    stay = set(left)
    return SlotImage(slot, left, list(compress(states, kept)), {key: at for key, at in times.items() if key in stay})
