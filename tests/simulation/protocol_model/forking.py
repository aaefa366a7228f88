"""Worlds that can be forked: what an action changes is copied first, all else is shared; and their states as keys."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine, ReceivingPhase, _Side
from malstrom_py.rescale.moves.sending_machine import SendingMachine, SendingPhase
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase
from tests.simulation.protocol_model.channel import Channel
from tests.simulation.protocol_model.counting import Counting, KeyState
from tests.simulation.protocol_model.oracle import Oracle
from tests.simulation.protocol_model.reading import Reading
from tests.simulation.protocol_model.records import ChannelKey, Part
from tests.simulation.protocol_model.setups import Setup
from tests.simulation.protocol_model.worker import ModelWorker
from tests.simulation.protocol_model.world import Action, World

SHARED = {"net", "shape", "_shape", "machines", "_topology", "_plan_moves", "_parts", "_late"}
"""What no action changes; the net is set by who forks."""

INTERNED = "interned"

ATOMS = {int, str, bool, bytes, tuple, frozenset, type(None), ReceivingPhase, SendingPhase, CoordinatorPhase}
"""Never copied, like all types without a copier."""


def _copied_values(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if type(value) in ATOMS or name in SHARED else cloned(value)
        for name, value in values.items()
        if name != INTERNED
    }


def _copied_object(thing: Any) -> Any:
    copy = object.__new__(type(thing))
    vars(copy).update(_copied_values(vars(thing)))
    return copy


def _copied_side(thing: Any) -> Any:
    copy = object.__new__(type(thing))
    for name in thing.__slots__:
        setattr(copy, name, cloned(getattr(thing, name)))
    return copy


def _copied_dict(thing: Any) -> Any:
    return {key: value if type(value) in ATOMS else cloned(value) for key, value in thing.items()}


def _copied_list(thing: Any) -> Any:
    return [cloned(item) for item in thing]


OBJECTS = (
    ReceivingMachine,
    SendingMachine,
    CoordinatorMachine,
    Counting,
    KeyState,
    Reading,
    Part,
    ModelWorker,
    Channel,
    Oracle,
)
COPIERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(OBJECTS, _copied_object),
    _Side: _copied_side,
    dict: _copied_dict,
    list: _copied_list,
    set: set.copy,
    deque: deque.copy,
    Counter: Counter.copy,
}


def cloned(thing: Any) -> Any:
    """A copy that shares only what never changes."""
    copier = COPIERS.get(type(thing))
    return thing if copier is None else copier(thing)


def _channel_state(channel: Any) -> Any:
    # Numbers of frames only grow, and are without gaps here.
    return (channel.untaken, tuple([f.item for f in channel.sent]), tuple([f.item for f in channel.backlog]))


def _key_state(state: Any) -> Any:
    windows = frozenset([(window, frozenset(content)) for window, content in state.windows.items()])
    return (state.count, windows, state.epoch)


def _oracle_state(oracle: Any) -> Any:
    return (frozenset(oracle._seen), frozenset(oracle._windows.items()), frozenset(oracle._read.items()))


def _object_state(thing: Any) -> Any:
    return tuple(
        [
            value if type(value) in ATOMS else canonical(value)
            for name, value in vars(thing).items()
            if name not in SHARED and name != INTERNED
        ]
    )


def _side_state(side: Any) -> Any:
    return tuple([canonical(getattr(side, name)) for name in side.__slots__])


def _dict_state(thing: Any) -> Any:
    return frozenset([(key, value if type(value) in ATOMS else canonical(value)) for key, value in thing.items()])


def _list_state(thing: Any) -> Any:
    return tuple([canonical(item) for item in thing])


STATES: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(OBJECTS, _object_state),
    _Side: _side_state,
    Channel: _channel_state,
    KeyState: _key_state,
    Oracle: _oracle_state,
    dict: _dict_state,
    list: _list_state,
    deque: _list_state,
    set: frozenset,
}


def canonical(thing: Any) -> Any:
    """Its state as something hashable; equal states behave alike."""
    state = STATES.get(type(thing))
    return thing if state is None else state(thing)


class ForkingWorld(World):
    """A world that a search forks; a request for ``wanted`` members may come at any moment, once."""

    def __init__(self, setup: Setup, wanted: tuple[int, ...], ids: dict[Any, int]) -> None:
        self._ids = ids
        self._owned: set[Any] = set()
        self.asked = False
        self.request_for = wanted
        super().__init__(setup)

    def fork(self) -> ForkingWorld:
        """Another one in the same state."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self))
        copy.channels, copy.letters, copy.workers = dict(self.channels), dict(self.letters), dict(self.workers)
        copy._owned = set()
        return copy

    def _own(self, thing: Any, name: object) -> Any:
        if name in self._owned:
            return thing
        self._owned.add(name)
        return cloned(thing)

    def channel_for(self, key: ChannelKey) -> Channel:
        """Return a separate copy."""
        channel: Channel = self._own(self.channels[key], key)
        self.channels[key] = channel
        return channel

    def worker_for(self, worker: int) -> ModelWorker:
        """Return a separate copy."""
        copy: ModelWorker = self._own(self.workers[worker], worker)
        self.workers[worker] = copy
        copy.net = self
        return copy

    def coordinator_for(self) -> CoordinatorMachine:
        """Return a separate copy."""
        self.coordinator = self._own(self.coordinator, "coordinator")
        return self.coordinator

    def act(self, action: Action) -> None:
        """What happens may be the request."""
        self.oracle = self._own(self.oracle, "oracle")
        if action[0] == "request":
            self.asked = True
            self.request(self.request_for)
        else:
            super().act(action)

    def actions(self) -> list[Action]:
        """And the request."""
        found = super().actions()
        return found if self.asked else [*found, ("request", -1)]

    def _interned(self, thing: Any) -> int:
        kept = vars(thing)
        if INTERNED not in kept:
            kept[INTERNED] = self._ids.setdefault(canonical(thing), len(self._ids))
        number: int = kept[INTERNED]
        return number

    def key(self) -> tuple[Any, ...]:
        """The state of all of it."""
        channels = [(k, self._interned(c)) for k, c in self.channels.items() if c.sent or c.backlog or c.untaken]
        letters = [(pair, queue) for pair, queue in self.letters.items() if queue]
        return (
            self.asked,
            self._interned(self.oracle),
            self._interned(self.coordinator),
            frozenset((worker, self._interned(state)) for worker, state in self.workers.items()),
            frozenset(channels),
            self._ids.setdefault(frozenset(letters), len(self._ids)),
        )
