"""Worlds that can be forked: what an action changes is copied first, all else is shared; and their states as keys."""

from __future__ import annotations

from collections import deque
from typing import Any

from malstrom_py.rescale.region_machine import RegionMachine
from malstrom_py.rescale.switch_machine import SwitchMachine
from malstrom_py.workers.coordinator_machine import CoordinatorMachine
from tests.sim.channel import Channel
from tests.sim.counting import Counting, KeyState
from tests.sim.oracle import Oracle
from tests.sim.reading import Reading
from tests.sim.records import ChannelKey, Part
from tests.sim.setups import Setup
from tests.sim.worker import ModelWorker
from tests.sim.world import Action, World

MUTABLE = (
    RegionMachine,
    SwitchMachine,
    CoordinatorMachine,
    Counting,
    KeyState,
    Reading,
    Part,
    ModelWorker,
    Channel,
    Oracle,
)
SHARED = {"net", "shape", "_shape", "machines", "_topology", "_plan_moves", "_parts", "_late"}
"""What no action changes; the net is set by who forks."""

INTERNED = "interned"


def attributes(thing: Any) -> dict[str, Any]:
    """What an object holds, slots or not."""
    slots = getattr(type(thing), "__slots__", None)
    return {name: getattr(thing, name) for name in slots} if slots else vars(thing)


def is_mutable(thing: Any) -> bool:
    """Whether it is copied attribute by attribute; `_Side` is the one class without a public name."""
    return isinstance(thing, MUTABLE) or type(thing).__name__ == "_Side"


def cloned(thing: Any) -> Any:
    """A copy that shares only what never changes."""
    if isinstance(thing, dict):
        copy: Any = type(thing)()
        copy.update({key: cloned(value) for key, value in thing.items()})
        return copy
    if isinstance(thing, list | set | deque):
        return type(thing)([cloned(item) for item in thing])
    if not is_mutable(thing):
        return thing
    copy = object.__new__(type(thing))
    for name, value in attributes(thing).items():
        if name != INTERNED:
            object.__setattr__(copy, name, value if name in SHARED else cloned(value))
    return copy


def canonical(thing: Any) -> Any:
    """Its state as something hashable; equal states behave alike."""
    if isinstance(thing, Channel):
        # Numbers of frames only grow, and are without gaps here.
        return (thing.untaken, tuple(f.item for f in thing.sent), tuple(f.item for f in thing.backlog))
    if isinstance(thing, KeyState):
        windows = frozenset((window, frozenset(content)) for window, content in thing.windows.items())
        return (thing.count, windows, thing.epoch)
    if isinstance(thing, Oracle):
        return canonical({name: value for name, value in vars(thing).items() if name in ("_seen", "_windows", "_read")})
    if isinstance(thing, dict):
        return frozenset((key, canonical(value)) for key, value in thing.items())
    if isinstance(thing, set):
        return frozenset(thing)
    if isinstance(thing, list | deque):
        return tuple(canonical(item) for item in thing)
    if not is_mutable(thing):
        return thing
    return tuple(canonical(value) for name, value in attributes(thing).items() if name not in SHARED | {INTERNED})


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
        """A copy of its own."""
        channel: Channel = self._own(self.channels[key], key)
        self.channels[key] = channel
        return channel

    def worker_for(self, worker: int) -> ModelWorker:
        """A copy of its own."""
        copy: ModelWorker = self._own(self.workers[worker], worker)
        self.workers[worker] = copy
        copy.net = self
        return copy

    def coordinator_for(self) -> CoordinatorMachine:
        """A copy of its own."""
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
