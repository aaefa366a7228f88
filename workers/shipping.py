"""Takes the state of slots out of a region's steps, parcel by parcel, and puts in what has come (R4, R5).

Rule: step by step in the order of the graph, so that what a step lets go of is in the state of those behind it before
theirs is taken. `Interrogate` finds the keys, `Collect` takes them, `Acquire` brings them. Between two parcels the
region goes on with the keys that it keeps. What is sent is the same in every run: slots in order, keys by their bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from malstrom_py.batches import Batch
from malstrom_py.errors import InternalError
from malstrom_py.messages import Acquire, Collect, Control, Epoch, Interrogate, StateMessage
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.rescale.key_hash import encode_key
from malstrom_py.rescale.protocol import Parcel
from malstrom_py.rescale.region_events import Ship

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 20
"""About how large a parcel becomes. A larger key travels with few others."""

_KEYS_FIRST: Final = 256


class Steps(Protocol):
    """The executor, as far as state is moved."""

    def operator(self, node: int) -> Operator | None: ...

    def call(self, node: int, function: Callable[[Outlet], T]) -> T: ...

    def run(self) -> None: ...


class Keyed(NamedTuple):
    """Steps of a region whose keys go to slots in one way: their nodes, in the order of the graph."""

    nodes: Sequence[int]
    slots_of: Callable[[Sequence[Any]], list[int]]


class Shipping:
    """Moves the state of region ``region`` of ``worker``, whose steps with keys are ``keyed``."""

    def __init__(
        self,
        region: str,
        worker: int,
        steps: Steps,
        keyed: Sequence[Keyed],
        *,
        chunk_bytes: int = CHUNK_BYTES,
        keys_first: int | None = None,
    ) -> None:
        self._region = region
        self._worker = worker
        self._steps = steps
        self._keyed = keyed
        self._chunk_bytes = chunk_bytes
        self._keys_max = keys_first or _KEYS_FIRST
        self._version = 0
        self._left: deque[tuple[int, int]] = deque()
        self._keys: dict[int, deque[tuple[int, Any]]] = {}
        self.keys_moved = 0
        self.bytes_moved = 0

    @property
    def under_way(self) -> bool:
        """Whether there is a parcel to be sent."""
        return bool(self._left)

    def start(self, ship: Ship) -> None:
        """Find the keys of the slots that are to leave."""
        owners = dict(ship.slots)
        self._version = ship.version
        self._left = deque(sorted((owner, slot) for slot, owner in ship.slots))
        self._keys = {}
        for number, keyed in enumerate(self._keyed):
            message = Interrogate()
            self._tell(keyed.nodes, message)
            keys = list(message.keys)
            slots = keyed.slots_of(keys)
            # Of all the keys that are here only a few leave, and only these cost anything in Python.
            leaving = compress(zip(slots, keys, strict=True), map(owners.__contains__, slots))
            for slot, _, key in sorted(((slot, encode_key(key), key) for slot, key in leaving), key=_slot_and_bytes):
                self._keys.setdefault(slot, deque()).append((number, key))

    def next(self) -> tuple[int, Parcel]:
        """The next parcel, and whose it is: as many slots of one owner as fit in, without keys too."""
        owner = self._left[0][0]
        slots: list[int] = []
        taken: dict[int, dict[Any, None]] = {}
        room = self._keys_max
        while self._left and self._left[0][0] == owner and room > 0:
            slot = self._left[0][1]
            keys = self._keys.get(slot, deque())
            while keys and room > 0:
                number, key = keys.popleft()
                taken.setdefault(number, {})[key] = None
                room -= 1
            if not keys:
                slots.append(slot)
                self._left.popleft()
        states: dict[str, bytes] = {}
        for number, chunk in taken.items():
            message = Collect(chunk.keys(), states)
            self._tell(self._keyed[number].nodes, message)
        self._adapt(sum(map(len, taken.values())), sum(map(len, states.values())))
        return owner, Parcel(self._region, self._version, self._worker, tuple(slots), states)

    def install(self, parcel: Parcel) -> None:
        """Put the state of ``parcel`` in. Steps without any are told as well: what they hold back goes first."""
        message = Acquire(parcel.states)
        for keyed in self._keyed:
            self._tell(keyed.nodes, message)

    def _adapt(self, keys: int, size: int) -> None:
        self.keys_moved += keys
        self.bytes_moved += size
        if size:
            self._keys_max = max(1, min(self._chunk_bytes * keys // size, 4 * self._keys_max))

    def _tell(self, nodes: Iterable[int], message: StateMessage) -> None:
        for node in nodes:
            operator = self._steps.operator(node)
            if operator is None:
                raise InternalError(f"region {self._region!r} has no step at node {node}")
            self._steps.call(node, partial(_told, operator, message))
            self._steps.run()


def _told(operator: Operator, message: StateMessage, out: Outlet) -> None:
    operator.on_control(message, _Here(out))


def _slot_and_bytes(leaving: tuple[int, bytes, Any]) -> tuple[int, bytes]:
    return leaving[:2]


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
