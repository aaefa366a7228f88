"""Takes the state of slots out of a region's steps, chunk by chunk, and installs what arrives (R4, R5).

The keys of steps by slot, for as long as a rescale goes on: so that each move costs by the keys that leave.

Rule: it has every key that may have state, and may have others. A key gets state by a record of its own or by a parcel
alone, so the keys that were found once and those of all records since are enough.

Takes the state of slots out of a region's steps, parcel by parcel, and puts in what has come (R4, R5).

Rule: step by step in the order of the graph, so that what a step lets go of is in the state of those behind it before
theirs is taken. `Interrogate` finds the keys, `Collect` takes them, `Acquire` brings them. Between two parcels the
region goes on with the keys that it keeps. What is sent is the same in every run: slots in order, keys by their bytes.
All keys are asked for once in a rescale, and put into an index ahead of the cut, in portions; later moves ask about
those alone that may leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Acquire, AnyOf, Collect, Control, Epoch, Interrogate, StateMessage
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship


class KeyIndex:
    """The keys ``found``, which are put in little by little, and those that are seen; ``slots_of`` says where they go.

    >>> index = KeyIndex(lambda keys: [key % 4 for key in keys], {1, 2, 5})
    >>> index.put(2)
    >>> index.saw([5, 9, 1])
    >>> index.put(2)
    >>> index.left, sorted(index.of(1)), index.of(3)
    (0, [1, 5, 9], [])
    """

    def __init__(self, slots_of: Callable[[Sequence[Any]], list[int]], found: set[Any]) -> None:
        self._slots_of = slots_of
        # It knows those that it has not put in yet as well: seen again, they are not new.
        self._known = found
        self._waiting = list(found)
        self._by_slot: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def left(self) -> int:
        """How many of those that were found have not been put in."""
        return len(self._waiting)

    def put(self, count: int) -> None:
        """Put in the next ``count`` of those that were found."""
        keys = self._waiting[-count:]
        del self._waiting[-count:]
        self._put(keys)

    def saw(self, keys: Collection[Any]) -> None:
        """Put in those of ``keys`` that are new."""
        # Mostly none is, and to find that out costs one look per record.
        fresh = list(set(keys).difference(self._known))
        if fresh:
            self._known.update(fresh)
            self._put(fresh)

    def of(self, slot: int) -> list[Any]:
        """The keys of ``slot``, in no order, as far as they have been put in."""
        return self._by_slot.get(slot, [])

    def _put(self, keys: Sequence[Any]) -> None:
        by_slot = self._by_slot
        for slot, key in zip(self._slots_of(keys), keys, strict=True):
            if slot in by_slot:
                by_slot[slot].append(key)
            else:
                by_slot[slot] = [key]


T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 19
"""About how large a parcel becomes. A larger key travels with few others."""

_KEYS_FIRST: Final = 256

KEYS_MAX: Final = 1024
"""No parcel has more keys, however small they are: what each costs by itself adds up to some milliseconds."""

KEYS_INDEXED: Final = 512
"""So many keys are put into an index between two steps: some milliseconds' worth, though all have to be hashed."""

_INDEX_SPARE: Final = 100_000
"""An index may hold so many keys more than twice those it was made of: keys whose state has gone stay in it."""


class Steps(Protocol):
    """The executor, as far as state is moved."""

    def operator(self, node: int) -> Operator | None: ...

    def call(self, node: int, function: Callable[[Outlet], T]) -> T: ...

    def run(self) -> None: ...


class KeyedSteps(NamedTuple):
    """Steps of a region whose keys go to slots in one way: their nodes, in the order of the graph.

    ``exchanges``: those that their records come by.
    """

    nodes: Sequence[int]
    slots_of: Callable[[Sequence[Any]], list[int]]
    exchanges: Collection[str] = ()


class StateTransfer:
    """Moves the state of region ``region`` of ``worker``, whose steps with keys are ``keyed``."""

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
        self._keys_indexed = keys_indexed or KEYS_INDEXED
        self._indexes: list[KeyIndex] = []
        self._found = 0
        self._gained: set[int] = set()
        self.watching = False
        self.indexing = False
        self._version = 0
        self._left: deque[tuple[int, int]] = deque()
        self._keys: dict[int, deque[tuple[int, Any]]] = {}
        self.keys_moved = 0
        self.bytes_moved = 0

    @property
    def under_way(self) -> bool:
        """Whether there is a parcel to be sent."""
        return bool(self._left)

    def prepare(self) -> None:
        """Slots are going to leave: find all keys, and see from now on which come."""
        if self.watching and sum(map(len, self._indexes)) <= 2 * self._found + _INDEX_SPARE:
            return
        self._indexes = []
        for keyed in self._keyed:
            message = Interrogate()
            self._tell(keyed.nodes, message)
            self._indexes.append(KeyIndex(keyed.slots_of, message.keys))
        self._found = sum(index.left for index in self._indexes)
        self.indexing = self._found > 0
        self.watching = any(keyed.nodes for keyed in self._keyed)
        self._gained.clear()

    def index(self) -> None:
        """Put the next portion of keys into the indexes."""
        filling = [index for index in self._indexes if index.left]
        if filling:
            filling[0].put(self._keys_indexed)
        self.indexing = any(index.left for index in filling)

    def saw(self, exchange: str, batch: Batch) -> None:
        """Records have come by ``exchange``, and may have left state."""
        for keyed, index in zip(self._keyed, self._indexes, strict=True):
            if keyed.nodes and exchange in keyed.exchanges:
                index.saw(batch.keys or ())

    def forget(self) -> None:
        """The last move of a rescale is over."""
        self._indexes = []
        self.watching = self.indexing = False

    def start(self, ship: Ship) -> None:
        """Find the keys of the slots that are to leave."""
        owners = dict(ship.slots)
        self._version = ship.version
        self._left = deque(sorted((owner, slot) for slot, owner in ship.slots))
        self._keys = {}
        if self._gained & owners.keys():
            # What came by parcel was not seen.
            self.watching = False
        self._asks = self.watching
        if not self.watching:
            self.prepare()
        self.index()

    def next(self) -> tuple[int, StateChunk]:
        """The next parcel, and whose it is: as many slots of one owner as fit in, without keys too."""
        while self.indexing:
            self.index()
        owner = self._left[0][0]
        slots: list[int] = []
        taken: dict[int, dict[Any, None]] = {}
        room = self._keys_max
        while self._left and self._left[0][0] == owner and room > 0:
            slot = self._left[0][1]
            keys = self._keys_of(slot)
            while keys and room > 0:
                number, key = keys.popleft()
                taken.setdefault(number, {})[key] = None
                room -= 1
            if not keys:
                slots.append(slot)
                self._left.popleft()
                del self._keys[slot]
        states: dict[str, bytes] = {}
        for number, chunk in taken.items():
            message = Collect(chunk.keys(), states)
            self._tell(self._keyed[number].nodes, message)
        self._adapt(sum(map(len, taken.values())), sum(map(len, states.values())))
        return owner, StateChunk(self._region, self._version, self._worker, tuple(slots), states)

    def install(self, parcel: StateChunk) -> None:
        """Put the state of ``parcel`` in. Steps without any are told as well: what they hold back goes first."""
        self._gained.update(parcel.slots)
        message = Acquire(parcel.states)
        for keyed in self._keyed:
            self._tell(keyed.nodes, message)

    def _keys_of(self, slot: int) -> deque[tuple[int, Any]]:
        """The keys with state of ``slot``, which leaves, as far as they have not left."""
        if slot not in self._keys:
            keys = self._keys[slot] = deque()
            for number, (keyed, index) in enumerate(zip(self._keyed, self._indexes, strict=True)):
                found = index.of(slot)
                if self._asks and found:
                    # The index is older than the cut, and has keys whose state is gone since.
                    message = Interrogate(AnyOf(set(found)))
                    self._tell(keyed.nodes, message)
                    found = [key for key in found if key in message.keys]
                keys += [(number, key) for key in _in_order(found)]
        return self._keys[slot]

    def _adapt(self, keys: int, size: int) -> None:
        self.keys_moved += keys
        self.bytes_moved += size
        if size:
            self._keys_max = max(1, min(self._chunk_bytes * keys // size, 4 * self._keys_max, KEYS_MAX))

    def _tell(self, nodes: Iterable[int], message: StateMessage) -> None:
        for node in nodes:
            operator = self._steps.operator(node)
            if operator is None:
                raise InternalError(f"region {self._region!r} has no step at node {node}")
            self._steps.call(node, partial(_told, operator, message))
            self._steps.run()


def _told(operator: Operator, message: StateMessage, out: Outlet) -> None:
    operator.on_control(message, _Here(out))


def _in_order(keys: list[Any]) -> list[Any]:
    """The same order for the same keys, in every process."""
    plain = set(map(type, keys)) <= {str} or set(map(type, keys)) <= {int}
    return sorted(keys) if plain else sorted(keys, key=encode_key)


class _Here:
    """An outlet that keeps a message from the steps behind: they are told one by one."""

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
