"""How much keyed state a worker keeps in memory; the states that were not used for longest go to disk.

Rules. A batch's keys are brought into memory before the step takes the batch, all with one look-up, so a step works as
if all state were in memory. Between two batches states are in memory for as many bytes as allowed. First those go whose
keys came and were in no later batch. Of the rest a state that was used since the hand of the clock last passed it stays
for one more round (CLOCK; Corbató, 1968).
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from sys import getsizeof
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from malstrom_py.data.messages import AnyInMemory, InMemory
from malstrom_py.errors import InternalError, PlanError, shown
from malstrom_py.state.artefact_parts import PART_BYTES, BlockFile
from malstrom_py.state.cold import ColdStates, KeyForm, can_be_cold
from malstrom_py.state.disk import PER_KEY, Disk, Failing, RocksDisk, require_rocksdb
from malstrom_py.state.entries import Held
from malstrom_py.state.group_index import listed_keys
from malstrom_py.state.many_values import ManyValues, Values

if TYPE_CHECKING:
    from malstrom_py.state.keyed_state import KeyedState

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

LEAST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class State:
    """How much keyed state each worker keeps in memory: ``memory``, bytes or a text such as "4GB"; the rest is on disk.

    The bytes are those of the states and keys as Python objects, estimated by samples. ``folder``: where, on a disk of
    the worker's machine; None: the folder for temporary files. It is empty after the job. The package ``rocksdict`` is
    needed: the extra ``state``.

    Raises:
        PlanError: an option is wrong, or the package is missing.

    >>> State("1.5GB").memory_bytes, State(1 << 20).memory_bytes
    (1610612736, 1048576)
    """

    memory: int | str
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes < LEAST:
            raise PlanError(f"mp.State(memory={self.memory!r}): a worker needs 1 MB at least")
        if self.folder is not None and not isinstance(self.folder, str | Path):
            raise PlanError(f"mp.State(folder=…) must be a path, got {shown(self.folder)}")
        require_rocksdb()

    @property
    def memory_bytes(self) -> int:
        """``memory`` in bytes; a kB has 1,024."""
        if type(self.memory) is int:
            return self.memory
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)i?b?", str(self.memory).strip().lower())
        if found is None or not isinstance(self.memory, str):
            raise PlanError(f'mp.State(memory=…) must be bytes, or a text such as "4GB", got {shown(self.memory)}')
        return int(float(found[1]) * _UNITS[found[2]])

    def opened(self, form: KeyForm) -> StateMemory:
        """Return the memory of one worker. ``form``: see `ColdStates`."""
        folder = Path(gettempdir() if self.folder is None else self.folder)
        return StateMemory(self.memory_bytes, lambda: RocksDisk(folder), form, folder)


class StateMemory:
    """The memory of the states of one worker: ``limit`` bytes; more are on ``disk``, which is opened when needed.
    ``folder``: for temporary files.
    """

    def __init__(self, limit: int, disk: Callable[[], Disk], form: KeyForm, folder: Path | None = None) -> None:
        self.limit = limit
        self._folder = folder
        self._open = disk
        self._disk: Disk | None = None
        self._form = form
        self._parts: list[StepMemory] = []
        self._in_use = False
        self.found_on_disk = self.not_on_disk = 0

    def _opened(self) -> Disk:
        if self._disk is None:
            self._disk = self._open()
        return self._disk

    def keep(self, state: KeyedState) -> StepMemory:
        """Let the state of a step be part of this memory."""
        prefix = len(self._parts).to_bytes(2, "big")
        cold = ColdStates(self._opened, prefix, state.codec, state.step, self._form)
        if state.tracked:
            cold.slots_of = state.changes.slots_of
        part = StepMemory(self, state, cold)
        self._parts.append(part)
        return part

    def settle(self) -> None:
        """Put states on disk until the rest has room, unless a batch is under way."""
        if self._in_use:
            return
        for part in self._parts:
            if part.is_unsure:
                part.measured()
        if self.bytes_in_memory <= self.limit:
            return
        excess = sum(part.measured() for part in self._parts) - self.limit
        for part in sorted(self._parts, key=attrgetter("bytes_most"), reverse=True):
            if excess <= 0:
                return
            excess -= part.put_away(excess + min(self.limit // _SPARE, _SPARE_MAX))

    def during(self, batch: Callable[[], None]) -> None:
        """Process a batch, whose states are in memory until it ends."""
        before, self._in_use = self._in_use, True  # a step may let later ones take what it has sent so far
        try:
            batch()
        finally:
            self._in_use = before

    @property
    def figures(self) -> dict[str, int]:
        """What `WorkerMetrics` say of this memory."""
        return {
            "state_in_memory": self.bytes_in_memory,
            "state_on_disk": sum(part.cold.bytes for part in self._parts),
            "found_on_disk": self.found_on_disk,
            "not_on_disk": self.not_on_disk,
        }

    @property
    def bytes_in_memory(self) -> int:
        """About how many bytes the states in memory take, with what is needed beside them."""
        return sum(part.bytes_most for part in self._parts)

    @property
    def beside_most(self) -> int:
        """How many bytes of the limit a step may need beside its states: they have half of it at least."""
        return self.limit // (2 * len(self._parts))

    @property
    def installs_bytes(self) -> int:
        """How many bytes of an artefact a restore puts into memory together."""
        return min(PART_BYTES, self.limit)

    def file(self, *, delta: bool) -> BlockFile:
        """Return a file for blocks of an artefact."""
        if self._folder is not None:
            with Failing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
        return BlockFile(delta=delta, folder=None if self._folder is None else str(self._folder))

    def close(self) -> None:
        """Forget what is on disk."""
        if self._disk is not None:
            self._disk.close()


_SPARE: Final = 64
_SPARE_MAX: Final = 1 << 20
"""Such a part of memory, or so many bytes, are made free together with what is needed: more would be a pause."""

_SURE_ROWS: Final = 1 << 20
"""After so many rows states are measured again; at first after few."""

_SAMPLE: Final = 8
_SAMPLED_BYTES: Final = 1 << 16
_PIECE: Final = 1024
_PIECES_MAX: Final = 64

_NEW: Final = 4
"""Such a part of the keys in memory came last; the others were used again after they had come."""

_OF_KEY: Final = 100
"""About so many bytes the dict needs for an entry; arrays need less."""

_OF_CHANGED: Final = 130
"""About so many bytes a changed key takes until it is in a snapshot, if it has gone to disk by then."""


class StepMemory:
    """The states of one step that are in memory, of which `put_away` puts some among those on disk, ``cold``."""

    def __init__(self, all_steps: StateMemory, state: KeyedState, cold: ColdStates) -> None:
        self.settle, self.during, self.file = all_steps.settle, all_steps.during, all_steps.file
        self._all_steps = all_steps
        self._state = state
        self.step = state.step
        self.cold = cold
        self._used: set[Any] = set()  # since the hand has passed them
        self._new: deque[list[Any]] = deque()  # keys in the order in which they came, in pieces
        self._new_count = 0
        self._hand: Iterator[Sequence[Any]] = iter(())
        self._measured = 0  # states
        self._beside = 0  # bytes
        self._each = 0  # bytes
        self._came = 0  # rows, since
        self._again = 1
        self._watch: Callable[[], InMemory | None] = _no_watch
        self._stuck = 0  # states when the last were found that cannot be put on disk

    @property
    def bytes_most(self) -> int:
        """How many bytes the states take at most, if each row adds as much as one state has."""
        return (self._measured + self._came) * self._each + self._beside

    def _bytes_beside(self) -> int:
        """Return about how many bytes are needed beside the states, once some are on disk."""
        if not len(self.cold):
            return 0
        changed = self._state.changes.kept * _OF_CHANGED if self._state.tracked else 0
        clock = getsizeof(self._used) + 8 * (self._measured + self._new_count)  # the hand passes the rest of all keys
        return min(changed + clock + len(self.cold) * PER_KEY, self._all_steps.beside_most)

    @property
    def is_unsure(self) -> bool:
        """Whether so many rows have come that states may be larger than they were."""
        return self._came >= self._again

    def measured(self) -> int:
        """Count the states, measure some of them, and return their bytes."""
        self._again = min(2 * self._again, _SURE_ROWS)
        values = self._state.values
        self._came = 0
        if isinstance(values, ManyValues):
            self._measured = values.keys_about
            some = list(islice(values, 2 * _SAMPLE))
            objects = values.objects(some)
            if objects is None:
                keys, size = self._state.sampled_bytes(2 * _SAMPLE, _SAMPLED_BYTES)
            else:
                more = max(0, len(objects) - len(some)) * _OF_KEY
                keys, size = len(some), more + sum(map(footprint, chain(some, objects)))
        else:
            self._measured = len(values)
            some = list(islice(values, _SAMPLE))
            some += islice(reversed(values), min(_SAMPLE, len(values) - len(some)))
            keys, size = len(some), sum(map(footprint, chain(some, map(values.get, some))))
        if keys:
            self._each = _OF_KEY + size // keys + self._state.bytes_of_times // max(1, self._measured)
        self._beside = self._bytes_beside()
        return self.bytes_most

    def came(self, rows: int) -> None:
        """Note that the step gets ``rows``, of keys whose states are all in memory."""
        self._came += rows

    def bring(self, keys: Iterable[Any]) -> None:
        """Bring the states of ``keys`` into memory."""
        wanted = set(keys)
        self._came += len(wanted)
        if len(self.cold):
            missing = self._state.missing(wanted)
            self._used |= wanted
            if not isinstance(self._state.values, ManyValues):  # of arrays many go together
                self._used.difference_update(missing)
                self._note_new(missing)
            held = self.cold.take(missing)
            self._all_steps.found_on_disk += len(held.keys)
            self._all_steps.not_on_disk += len(wanted) - len(held.keys)
            self._put_back(held)

    def _note_new(self, keys: list[Any]) -> None:
        if self._new and len(self._new[-1]) < min(_PIECE, self._measured // _PIECES_MAX):
            self._new[-1] += keys
        else:
            self._new.append(keys)
        self._new_count += len(keys)
        while self._new_count > 2 * self._measured and len(self._new) > 1:  # a step has dropped states
            self._new_count -= len(self._new.popleft())

    def _put_back(self, held: Held) -> None:
        watch, state = self._watch(), self._state
        if watch is not None:
            watch.brought.update(held.keys)
        if state.tracked and (watch is not None or state.changes.has_slots):
            state.note(held.keys)
        state.put_back(held)

    def seen_by(self, watch: InMemory) -> None:
        """Let ``watch`` have the keys that come into memory from now on."""
        watch.has_others = True
        self._watch = ref(watch)

    def bring_due(self, kind: int, reached: int, since: bytes | None = None) -> tuple[Sequence[Any], bytes | None]:
        """Bring some states that are due into memory. Return their keys, and the rest as `ColdStates.take_due`."""
        held, rest = self.cold.take_due(kind, reached, since)
        self._came += len(held.keys)
        self._put_back(held)
        return held.keys, rest

    def collect_stored(self, slot: int, bytes_max: int) -> tuple[int, bytes]:
        """Do as `KeyedState.collect`, for keys of ``slot`` on disk, without decoding: some of ``bytes_max`` together.

        Returns how many; 0 if none is left there.
        """
        state, stored = self._state, self.cold.take_stored(slot, bytes_max) if len(self.cold) else None
        if state.tracked and (stored or slot in state.changes.moved_slots):
            state.changes.note_slot(slot, len(stored or ()), left=True, on_disk=bool(stored))
        if not stored:
            return 0, b""
        return len(stored), state.codec.encode_in_flight(stored, step=self.step)

    def acquire_stored(self, states: bytes) -> None:
        """Do as `KeyedState.acquire`, for the result of `collect_stored`. It stays on disk."""
        stored = self._state.codec.decode_in_flight(states, step=self.step)
        keys = self.cold.keys_of(stored)
        held: set[Any] = set(self.cold.here_too(stored))
        self._state.interrogate(AnyInMemory(set(keys)), held)
        for key in held:
            raise InternalError(f"step {self.step!r}: state of key {shown(key)} was acquired, but is already here")
        if self._state.tracked:
            for slot, moved in self.cold.slots_in(stored).items():
                self._state.changes.note_slot(slot, moved, left=False)
        self.cold.put_stored(stored)

    def put_away(self, size: int) -> int:
        """Put states of about ``size`` bytes on disk, and return how many bytes they had."""
        if not self._each or self._measured < 2 * self._stuck:  # to look for others costs a look at each key
            return 0
        if self._state.tracked:
            self._state.note_flagged()
        values, chosen, put = self._state.values, list[Any](), 0
        whole = isinstance(values, ManyValues) and values.leaves_whole
        count = sys.maxsize if whole else -(-size // self._each)
        if isinstance(values, ManyValues):
            self._new, self._new_count = deque(), 0
        elif not len(self.cold):  # no key is known to be used again
            self._new, self._new_count = deque(map(list, _in_pieces(values))), len(values)
        for chosen in self._unused(count):
            held = self._state.put_away(chosen)
            if held.keys:
                self.cold.put(held, needed=self._state.due_at, expires=self._state.expiry is not None)
            put += len(held.keys)
        self._stuck = 0 if chosen else self._measured
        self._measured = max(self._measured - put, 0)
        return put * self._each

    def _unused(self, count: int) -> Iterator[list[Any]]:
        """Yield ``count`` keys, in pieces, that were not used since they came or the hand passed them; fewer if no more
        can go.
        """
        rounds = 0
        while count > 0:
            # The last to come stay until the next batch, or none would be used again.
            is_new = len(self._new) > 1 and self._new_count > self._measured // _NEW
            piece = self._new.popleft() if is_new else next(self._hand, None)
            if piece is None:
                if rounds == 2:  # all others cannot be put on disk
                    return
                rounds += 1
                self._used.difference_update(self._state.missing(self._used))
                self._hand = _in_pieces(self._state.values)
                continue
            chosen = [key for key in piece if key not in self._used and can_be_cold(key)]
            self._used.difference_update(piece)
            self._new_count -= len(piece) if is_new else 0
            if len(chosen) > count:
                chosen, rest = chosen[:count], chosen[count:]
                if is_new:
                    self._new.appendleft(rest)
                    self._new_count += len(rest)
                else:
                    self._hand = chain([rest], self._hand)
            count -= len(chosen)
            if chosen:
                yield chosen


def _no_watch() -> None:
    """Return nothing, as a reference does whose object is gone."""


def _in_pieces(values: Values) -> Iterator[Sequence[Any]]:
    """Yield the keys that have a value now."""
    size = _PIECE
    if isinstance(values, ManyValues) and values.leaves_whole:  # to take a piece costs a look at all rows
        size = max(size, len(values) // _PIECES_MAX)
    if isinstance(values, ManyValues) and values.in_arrays:
        column = values.key_column()
        yield from (listed_keys(column.slice(start, size)) for start in range(0, len(column), size))
    else:
        keys = list(values)
        yield from (keys[start : start + size] for start in range(0, len(keys), size))


def footprint(value: Any, depth: int = 4) -> int:
    """Return about how many bytes of memory ``value`` takes with all that it holds: of long ones from some items.

    >>> footprint([1.5] * 1000) > footprint([1.5] * 10) > footprint(1.5)
    True
    """
    size = getsizeof(value, 64)
    if depth == 0:
        return size
    if isinstance(value, Mapping):
        # Names of fields are the same objects in all states.
        names = 0 if all(type(name) is str for name in islice(value, 4)) else _held(value.keys(), depth)
        return size + names + _held(value.values(), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return size + _held(value, depth)
    fields = getattr(value, "__dict__", None)
    return size if fields is None else size + footprint(fields, depth - 1)


def _held(values: Collection[Any], depth: int) -> int:
    some = [footprint(one, depth - 1) for one in islice(values, _SAMPLE)]
    return sum(some) * len(values) // len(some) if some else 0
