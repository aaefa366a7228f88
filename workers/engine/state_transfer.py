"""Takes the state of slots out of a region's steps, chunk by chunk, and installs arriving chunks (R4, R5).

Rule: steps are processed in the order of the graph, so that records released by a step are in the state of later steps
before that state is taken. `Interrogate` finds the keys, `Collect` takes their state, `Acquire` installs it. Every few
milliseconds the region continues with its other keys. Chunks have slots in order, and keys by their bytes. Each rescale
finds all keys in memory once, before the cut and in portions, and puts them into an index, so that the cost of a move
depends on the keys that leave. The index has every key that may have state, and maybe others: a key gets state only by
a record or by a chunk, so the keys found at first, those of later records and those from disk are enough. What is on
disk of a slot leaves after its keys in memory, in its stored form.

If all steps of a region with state keep it in arrays, no keys are listed: each move looks for the keys of its slots in
the arrays, and takes them by column. The keys of a step that goes back to rows during the rescale are listed then.

R12: before the cut, state may be copied ahead (`AheadCopy`). At the cut a key that has not changed since is confirmed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    Acquire,
    AnyInMemory,
    AnyOf,
    Collect,
    Control,
    Epoch,
    InMemory,
    Interrogate,
    StateMessage,
)
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.moves.pre_copy import CopyRounds
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.engine.ahead_copy import AheadCopy, KeyGroup, in_order
from malstrom_py.workers.engine.garbage import make_old

if TYPE_CHECKING:
    from malstrom_py.state.memory import StepMemory


class KeyIndex:
    """An index of keys by slot: the keys ``found``, added in portions, and the keys of later records.

    >>> index = KeyIndex(lambda keys: [key % 4 for key in keys], {1, 2, 5})
    >>> index.put(2)
    >>> index.saw([5, 9, 1])
    >>> index.put(2)
    >>> index.left, sorted(index.of(1)), index.of(3)
    (0, [1, 5, 9], [])
    """

    def __init__(
        self, slots_of: Callable[[Sequence[Any]], list[int]], found: set[Any], listed: InMemory | None = None
    ) -> None:
        self._slots_of = slots_of
        self.listed = InMemory() if listed is None else listed
        self._found = found  # never changed, so that it can be gone through without a copy
        self._waiting = iter(found)
        self.left = len(found)
        """The number of found keys that are not in the index yet."""
        self._later: set[Any] = set()
        self._by_slot: defaultdict[int, list[Any]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._found) + len(self._later) + len(self.listed.brought)

    def put(self, count: int) -> None:
        """Add the next ``count`` of the found keys."""
        keys = list(islice(self._waiting, count))
        self.left -= len(keys)
        self._put(keys)

    def saw(self, keys: Collection[Any]) -> None:
        """Add the new ones of ``keys``."""
        # Usually none is new, and that check costs one look-up per record.
        fresh = list(set(keys).difference(self._found, self._later))
        if fresh:
            self._later.update(fresh)
            self._put(fresh)

    def of(self, slot: int) -> list[Any]:
        """Return the indexed keys of ``slot``, in no order."""
        if self.listed.brought:
            self.saw(self.listed.brought)
            self.listed.brought.clear()
        return self._by_slot.get(slot, [])

    def pop(self, slot: int) -> list[Any]:
        """Return the indexed keys of ``slot`` for the last time: it leaves."""
        found = self.of(slot)
        self._by_slot.pop(slot, None)
        return found

    def _put(self, keys: Sequence[Any]) -> None:
        by_slot = self._by_slot
        for slot, key in zip(self._slots_of(keys), keys, strict=True):
            by_slot[slot].append(key)


T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 19
"""The approximate size of a chunk. A larger key is sent with few others."""

_KEYS_FIRST: Final = 256

KEYS_MAX: Final = 1024
"""The largest number of keys in a chunk: even small keys together take some milliseconds."""

KEYS_INDEXED: Final = 2048
"""The number of keys that are added to an index together: one to three milliseconds, most of it hashing."""

COLUMN_KEYS_MAX: Final = 1 << 14
"""The largest number of keys in a chunk of columns: some milliseconds to take."""

STORED_CHUNKS: Final = 2
"""What is on disk takes less time than as many bytes in memory, so so many chunks of it are sent together."""

SHIPS_S: Final = 0.004
"""How long a region ships chunks before it continues with its other keys. The keys that leave wait for the last one,
and between two chunks a busy worker has rows to do, which take several times as long as a chunk."""

_MANY_KEYS: Final = 20_000
"""From so many keys on a new set of them is kept from the garbage collector."""

_INDEX_SPARE: Final = 100_000
"""The number of keys above twice the found ones at which an index is rebuilt: it keeps keys whose state is gone."""


class Steps(Protocol):
    """The interface of the executor for state transfer."""

    def operator(self, node: int) -> Operator | None: ...

    def call(self, node: int, function: Callable[[Outlet], T]) -> T: ...

    def run(self) -> None: ...


class KeyedSteps(NamedTuple):
    """The steps of a region with one mapping of keys to slots: their nodes, in the order of the graph.

    ``exchanges``: the exchanges that feed them.
    """

    nodes: Sequence[int]
    slots_of: Callable[[Sequence[Any]], list[int]]
    exchanges: Collection[str] = ()


class ColumnShare:
    """The keys of one step that leave in a move, as a column in the order of ``slots``, and where each slot begins."""

    def __init__(self, state: KeyedState, slots: Sequence[int], slots_of: Callable[[Sequence[Any]], list[int]]) -> None:
        import numpy as np
        import pyarrow as pa

        keys, of_keys = state.in_slots(slots, slots_of)
        place = np.zeros(max(slots) + 1, np.int64)
        place[list(slots)] = np.arange(len(slots))
        order = np.argsort(place[of_keys], kind="stable")
        counts = np.bincount(place[of_keys], minlength=len(slots)).tolist()
        self._state = state
        self._keys = keys.take(pa.array(order))
        self._counts: dict[int, int] = dict(zip(slots, counts, strict=True))
        self._at = self._to = 0

    def count(self, slot: int) -> int:
        """Return the number of keys of ``slot`` that are left: the first slot with any, or one after it."""
        return self._counts[slot]

    def choose(self, slot: int, count: int) -> int:
        """Choose up to ``count`` keys of ``slot`` for the next `take`; return their number."""
        chosen = min(count, self._counts[slot])
        self._counts[slot] -= chosen
        self._to += chosen
        return chosen

    def take(self) -> bytes | None:
        """Take the state of the chosen keys; None if there is none."""
        keys = self._keys.slice(self._at, self._to - self._at)
        self._at = self._to
        return self._state.collect_column(keys) if len(keys) else None


class StateTransfer:
    """The state transfer of ``region`` on ``worker``; ``keyed``: its steps with keys."""

    def __init__(
        self,
        region: str,
        worker: int,
        steps: Steps,
        keyed: Sequence[KeyedSteps],
        *,
        chunk_bytes: int = CHUNK_BYTES,
        keys_first: int | None = None,
        keys_indexed: int | None = None,
    ) -> None:
        self._region = region
        self._worker = worker
        self._steps = steps
        self._keyed = keyed
        self._chunk_bytes = chunk_bytes
        self._keys_max = keys_first or _KEYS_FIRST
        self.ships_s = 0.0 if keys_first else SHIPS_S
        self._keys_indexed = keys_indexed or KEYS_INDEXED
        self._indexes: list[KeyIndex] = []
        self._found = 0
        self._gained: set[int] = set()
        self.watching = False
        self.indexing = False
        self._version = 0
        self._left: deque[tuple[int, int]] = deque()
        self._keys: dict[int, deque[tuple[int, list[Any]]]] = {}
        # By step, if this move takes state by column; and whether the rest of the rescale must list keys.
        self._shares: dict[str, ColumnShare] | None = None
        self._lists = False
        self._ahead: tuple[int, tuple[tuple[int, int], ...], int] | None = None
        self._copy: AheadCopy | None = None
        self._groups: list[KeyGroup] = []
        self.keys_moved = 0
        self.bytes_moved = 0
        self.bytes_ahead = 0

    @property
    def under_way(self) -> bool:
        """Whether a chunk remains to be sent."""
        return bool(self._left)

    @property
    def is_overgrown(self) -> bool:
        """Whether the index has so many keys that most of them may have no state any more."""
        return sum(map(len, self._indexes)) > 2 * self._found + _INDEX_SPARE

    def prepare(self) -> None:
        """Find all keys, and watch for new ones from now on: slots will leave."""
        if self.watching and not self.is_overgrown:
            return
        self._indexes = []
        if self._by_column() is not None:
            self.watching = self.indexing = False
            return
        for keyed in self._keyed:
            listed = InMemory()
            message = Interrogate(listed)
            self._send(keyed.nodes, message)
            self._indexes.append(KeyIndex(keyed.slots_of, message.keys, listed))
        self._found = sum(index.left for index in self._indexes)
        if self._found >= _MANY_KEYS:
            make_old()
        self.indexing = self._found > 0
        self.watching = any(keyed.nodes for keyed in self._keyed)
        self._gained.clear()

    def index(self) -> None:
        """Add the next portion of keys to the indexes."""
        filling = [index for index in self._indexes if index.left]
        if filling:
            filling[0].put(self._keys_indexed)
        self.indexing = any(index.left for index in filling)

    def saw(self, exchange: str, batch: Batch) -> None:
        """Add the keys of ``batch``, which arrived on ``exchange`` and may create state."""
        for keyed, index in zip(self._keyed, self._indexes, strict=True):
            if keyed.nodes and exchange in keyed.exchanges:
                index.saw(batch.keys or ())

    def forget(self) -> None:
        """Drop the indexes after the last move of a rescale."""
        self._indexes = []
        self.watching = self.indexing = self._lists = False

    @property
    def copying(self) -> bool:
        """Whether state has yet to be copied ahead."""
        return self._ahead is not None or (self._copy is not None and self._copy.under_way)

    def send_ahead(self, version: int, slots: tuple[tuple[int, int], ...], *, least: int) -> None:
        """R12: start to copy the state of ``slots`` (slot, new owner), which will leave. ``least``: see `AheadCopy`."""
        self.prepare()
        if self.watching:
            self._ahead = (version, slots, least)

    def copy(self) -> list[tuple[int, StateChunk]]:
        """Return the next chunk that goes ahead, and its owner; nothing if that was all."""
        if self._ahead is not None:
            (version, slots, least), self._ahead = self._ahead, None
            indexed = zip(self._keyed, self._indexes, strict=True)
            self._groups = [KeyGroup.of(self._operators(keyed), index.of) for keyed, index in indexed]
            bounds, rounds = (self._chunk_bytes, self._keys_max), CopyRounds(slots, again_at=max(1, least))
            self._copy = AheadCopy(version, self._groups, rounds, least=least, bounds=bounds)
        copy = self._copy
        if copy is None or not copy.under_way:
            return []
        owner, states = copy.next()
        size = sum(map(len, states.values()))
        self.bytes_moved += size
        self.bytes_ahead += size
        return [(owner, StateChunk(self._region, copy.version, self._worker, (), states, ahead=True))] if states else []

    def keep_aside(self, parcel: StateChunk) -> None:
        """R12: keep what came ahead beside the state, until the move's own chunks confirm it."""
        for state in self._states():
            if state.step in parcel.states:
                state.put_aside(parcel.states[state.step])

    def move_over(self) -> None:
        """R12: forget what went and what came ahead."""
        self._copy, self._groups = None, []
        for state in self._states():
            state.forget_ahead()

    def _states(self) -> list[KeyedState]:
        operators = [operator for keyed in self._keyed for operator in self._operators(keyed)]
        return [state for operator in operators if (state := operator.state_ahead) is not None]

    def _operators(self, keyed: KeyedSteps) -> list[Operator]:
        return [operator for node in keyed.nodes if (operator := self._steps.operator(node)) is not None]

    def _fitting(self, number: int, keys: Sequence[Any], room: int, confirmable: int) -> tuple[int, int]:
        """Return how many of the first ``keys`` fit into a chunk, mixed: to be confirmed, and to be sent."""
        if not (self._groups and self._groups[number].is_whole):
            return 0, min(room, len(keys))
        ahead = sent = 0
        for key in keys:
            if sent == room or ahead == confirmable:
                break
            if self._groups[number].is_ahead(key):
                ahead += 1
            else:
                sent += 1
        return ahead, sent

    def start(self, ship: Ship) -> None:
        """Start to send the state of the slots of ``ship``."""
        owners = dict(ship.slots)
        self._version = ship.version
        self._left = deque(sorted((owner, slot) for slot, owner in ship.slots))
        self._keys = {}
        self._shares = None
        states = self._by_column()
        if states is not None:
            slots = [slot for _, slot in self._left]
            try:
                self._shares = {state.step: ColumnShare(state, slots, slots_of) for state, slots_of in states}
            except NotColumnar:  # a step has keys of several types
                self._lists = True
            else:
                return
        if self._gained & owners.keys():
            # Keys that arrived in chunks are not in the index.
            self.watching = False
        self._asks = self.watching
        if not self.watching:
            self.prepare()
        self.index()

    def next(self) -> tuple[int, StateChunk]:
        """Return the next chunk and its owner: as many slots of one owner as fit, including slots without keys."""
        if self._shares is not None:
            if self._by_column() is not None:
                return self._next_columns(self._shares)
            self._shares = None
            self._lists, self._asks = True, False
            self.prepare()
        while self.indexing:
            self.index()
        owner = self._left[0][0]
        listed: list[int] = []
        taken: dict[int, list[Any]] = {}
        room, confirmable = self._keys_max, KEYS_MAX
        for new_owner, slot in self._left:
            if new_owner != owner or room <= 0 or confirmable <= 0:
                break
            groups = self._keys_of(slot)
            while groups and room > 0 and confirmable > 0:
                number, keys = groups.popleft()
                ahead, sent = self._fitting(number, keys, room, confirmable)
                room, confirmable = room - sent, confirmable - ahead
                taken.setdefault(number, []).extend(keys[: ahead + sent])
                if ahead + sent < len(keys):
                    groups.appendleft((number, keys[ahead + sent :]))
            if not groups:
                listed.append(slot)
        states: dict[str, bytes] = {}
        confirmed: dict[str, bytes] = {}
        for number, chunk in taken.items():
            message = Collect(dict.fromkeys(chunk).keys(), states, confirmed)
            self._send(self._keyed[number].nodes, message)
        self.keys_moved += KEYS_MAX - confirmable
        self.bytes_moved += sum(map(len, confirmed.values()))
        self._adapt(self._keys_max - room, sum(map(len, states.values())))
        slots, stored = self._from_disk(listed)
        made = StateChunk(self._region, self._version, self._worker, slots, states, confirmed, stored=stored)
        return owner, made

    def _from_disk(self, listed: Sequence[int]) -> tuple[tuple[int, ...], dict[str, list[bytes]]]:
        """Take what is on disk of ``listed`` slots, whose keys in memory have left. Return those that are complete."""
        slots: list[int] = []
        stored: dict[str, list[bytes]] = {}
        room, memories = STORED_CHUNKS * self._chunk_bytes, self._memories()
        if listed and any(len(memory.cold) for memory in memories):
            for keyed in self._keyed:  # an epoch that waits in a step reaches what is on disk before that leaves
                self._send(keyed.nodes, Collect({}.keys(), {}, {}))
        for slot in listed:
            for memory in memories:
                while room > 0:
                    count, piece = memory.collect_stored(slot, room)
                    if not count:
                        break
                    stored.setdefault(memory.step, []).append(piece)
                    self.keys_moved += count
                    self.bytes_moved += len(piece)
                    room -= len(piece)
            if room <= 0 or self._keys_of(slot):
                break
            slots.append(slot)
            self._left.popleft()
            del self._keys[slot]
        return tuple(slots), stored

    def _memories(self) -> list[StepMemory]:
        """Return what puts state on disk."""
        operators = [operator for keyed in self._keyed for operator in self._operators(keyed)]
        return [memory for operator in operators if (memory := operator.memory) is not None]

    def _next_columns(self, shares: Mapping[str, ColumnShare]) -> tuple[int, StateChunk]:
        owner = self._left[0][0]
        slots: list[int] = []
        room = COLUMN_KEYS_MAX
        while self._left and self._left[0][0] == owner and room > 0:
            slot = self._left[0][1]
            for share in shares.values():
                room -= share.choose(slot, room)
            if not any(share.count(slot) for share in shares.values()):
                slots.append(slot)
                self._left.popleft()
        states = {step: taken for step, share in shares.items() if (taken := share.take()) is not None}
        self.keys_moved += COLUMN_KEYS_MAX - room
        self.bytes_moved += sum(map(len, states.values()))
        return owner, StateChunk(self._region, self._version, self._worker, tuple(slots), states)

    def _by_column(self) -> list[tuple[KeyedState, Callable[[Sequence[Any]], list[int]]]] | None:
        """Return the state of each step with some, and its mapping of keys to slots; None unless all are in arrays."""
        found: list[tuple[KeyedState, Callable[[Sequence[Any]], list[int]]]] = []
        if self._lists:
            return None
        for keyed in self._keyed:
            for node in keyed.nodes:
                operator = self._steps.operator(node)
                if isinstance(operator, StatefulOperator) and operator.by_slot:
                    found.append((operator.state, keyed.slots_of))
                elif operator is None or type(operator).on_control is not Operator.on_control:
                    return None
        return found or None

    def install(self, parcel: StateChunk) -> None:
        """Install the state of ``parcel``. Steps without state get the message too: they release held records first."""
        self._gained.update(parcel.slots)
        message = Acquire(parcel.states, parcel.confirmed)
        for keyed in self._keyed:
            self._send(keyed.nodes, message)
        memories = {memory.step: memory for memory in self._memories()} if parcel.stored else {}
        for step, pieces in parcel.stored.items():
            for piece in pieces:
                memories[step].acquire_stored(piece)

    def _keys_of(self, slot: int) -> deque[tuple[int, list[Any]]]:
        """Return the keys of the leaving ``slot`` in memory that have not left yet, by number in `keyed`."""
        keys = self._keys.setdefault(slot, deque())
        for number, (keyed, index) in enumerate(zip(self._keyed, self._indexes, strict=True)):
            found = index.pop(slot)
            if self._asks and found:
                # The index is older than the cut, and may have keys whose state is gone.
                message = Interrogate((AnyInMemory if index.listed.has_others else AnyOf)(set(found)))
                self._send(keyed.nodes, message)
                if not message.keys.issuperset(found):
                    found = [key for key in found if key in message.keys]
            if found:
                keys.append((number, in_order(found)))
        return keys

    def _adapt(self, keys: int, size: int) -> None:
        self.keys_moved += keys
        self.bytes_moved += size
        if keys and size:
            self._keys_max = max(1, min(self._chunk_bytes * keys // size, 4 * self._keys_max, KEYS_MAX))

    def _send(self, nodes: Iterable[int], message: StateMessage) -> None:
        for node in nodes:
            operator = self._steps.operator(node)
            if operator is None:
                raise InternalError(f"region {self._region!r} has no step at node {node}")
            self._steps.call(node, partial(_deliver, operator, message))
            self._steps.run()


def _deliver(operator: Operator, message: StateMessage, out: Outlet) -> None:
    operator.on_control(message, _Here(out))


class _Here:
    """An outlet that does not forward control messages: `StateTransfer` sends them to each step."""

    def __init__(self, out: Outlet) -> None:
        self._out = out

    def send(self, message: Batch | Control, port: int = 0) -> None:
        if isinstance(message, Batch | Epoch):
            self._out.send(message, port)

    def forward(self, message: Control) -> None:
        if isinstance(message, Epoch):
            self._out.forward(message)

    def drain(self) -> None:
        self._out.drain()

    def passed(self) -> int:
        return self._out.passed()
