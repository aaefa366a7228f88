"""The messages that move through operators beside batches.

`Epoch` promises that no later record has a timestamp at or below it (other systems: watermark). `PartOpened` and
`PartFinished` travel inside a source region only, so that event time is tracked per part (T2). The others act on keyed
state and pass every operator of a region: a step with several inputs handles one once it has arrived on all of them.
`DataMessage` is one record as `StatefulLogic.on_data` gets it.

Rule: a message is a value: one that came from another worker equals the one that was sent.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_EPOCH: Final = 2**63 - 1
"""The last watermark of a finished bounded job, on untimed streams too (T5)."""

MIN_EPOCH: Final = -(2**63)
"""The frontier of an operator, and the watermark of an `EpochTracker`, before the first record."""


@dataclass(slots=True, unsafe_hash=True)
class DataMessage(Generic[K, V]):
    """One record; do not change it. ``timestamp`` is an int64 in the stream's unit, None on an untimed stream."""

    # Not frozen: a frozen dataclass takes three times as long to create, and one is created for every record.

    key: K
    value: V
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """A watermark: no record at or below ``time`` follows. `MAX_EPOCH`: no record follows at all.

    ``idle``: the sender has no records right now and does not hold back event time (T2); used in source regions and
    on their exchanges.
    """

    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class PartOpened:
    """This worker starts to read a part. ``state`` is what `PartReleased` gathered on its former worker.

    ``is_empty``: it has no records. It is idle and holds the place of the parts that may still be found (R13).
    """

    part: str
    state: Mapping[str, Any] | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class PartReleased:
    """A part moves to another worker: each operator adds what it keeps for the part under its own id (R2).

    ``state`` is then the state of the `PartOpened` on the worker that takes the part.
    """

    part: str
    state: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PartFinished:
    """A part has no more records: it no longer holds back event time."""

    part: str


@dataclass(frozen=True, slots=True)
class PartEpoch:
    """The source itself says that a part has no more records at or below ``time``."""

    part: str
    time: int


@dataclass(frozen=True, slots=True)
class PartQuiet:
    """A part that was polled has had no records for ``quiet_s`` seconds of the runtime's clock."""

    part: str
    quiet_s: float


def every_key(key: object) -> bool:
    """Return True: the predicate that every key passes."""
    return True


class InMemory:
    """The predicate that all keys pass whose states are in memory.

    ``has_others``: whether there may be some on disk. ``brought``: the keys that come into memory from there later, as
    long as this lives.
    """

    __slots__ = ("__weakref__", "brought", "has_others")

    def __init__(self) -> None:
        self.has_others = False
        self.brought: set[Any] = set()

    def __call__(self, key: object) -> bool:
        return True


class AnyOf:
    """The predicate that only ``keys`` pass, so that operators look up these instead of testing all keys they hold."""

    __slots__ = ("keys",)

    def __init__(self, keys: Set[Any]) -> None:
        self.keys = keys

    def __call__(self, key: object) -> bool:
        return key in self.keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyOf) and self.keys == other.keys

    def __hash__(self) -> int:
        return hash(AnyOf)


class AnyInMemory(AnyOf):
    """The predicate that only those of ``keys`` pass whose states are in memory."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Interrogate:
    """Collects the keys that have state and pass ``predicate``: each operator adds its own to ``keys``."""

    predicate: Callable[[Any], bool] = every_key
    keys: set[Any] = field(default_factory=set, hash=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Takes the state of ``keys``: each operator removes it and adds it, encoded, under its own id.

    ``confirmed``: by operator the keys whose state has been sent ahead and has not changed since, encoded (R12). It is
    removed too, and not sent again.

    State is in the order of ``keys``. The order of a set of str differs between processes; that of a dict's keys does
    not, and pickling keeps it.

    >>> import pickle
    >>> message = Collect(dict.fromkeys(["anna", "ben"]).keys())
    >>> list(pickle.loads(pickle.dumps(message)).keys)
    ['anna', 'ben']
    """

    keys: Set[Any] = field(hash=False)
    states: dict[str, bytes] = field(default_factory=dict, hash=False)
    confirmed: dict[str, bytes] = field(default_factory=dict, hash=False)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.keys, KeysView):  # keys of a dict cannot be pickled
            return _collect_in_order, (tuple(self.keys), self.states, self.confirmed)
        return Collect, (self.keys, self.states, self.confirmed)


def _collect_in_order(keys: tuple[Any, ...], states: dict[str, bytes], confirmed: dict[str, bytes]) -> Collect:
    return Collect(dict.fromkeys(keys).keys(), states, confirmed)


@dataclass(frozen=True, slots=True)
class Acquire:
    """Brings state: each operator installs the state under its own id.

    ``states`` has the form of `Collect.states`, and ``confirmed`` of `Collect.confirmed`: keys whose state is here.
    """

    states: Mapping[str, bytes] = field(hash=False)
    confirmed: Mapping[str, bytes] = field(default_factory=dict, hash=False)


class PersistenceBackend(Protocol):
    """The store for the encoded state of operators at a barrier, by operator id."""

    def persist(self, operator: str, state: bytes) -> None:
        """Store the state of one operator."""
        ...


@dataclass(frozen=True, slots=True)
class AbsBarrier:
    """A cut through the stream (asynchronous barrier snapshot): each operator persists its state as it passes.

    ``snapshot`` is its id. ``parent``: the last snapshot that this start of the job committed, to which the persisted
    state may be relative (S2); None: it must be complete. ``incarnation`` counts the starts of the job. Equality
    ignores ``backend``, which differs between workers.
    """

    snapshot: str
    backend: PersistenceBackend = field(compare=False)
    parent: str | None = None
    incarnation: int = 1


@dataclass(frozen=True, slots=True)
class Rescale:
    """Puts the routing table of ``version`` into effect: ``owners[slot]`` is the worker that owns a slot."""

    version: int
    owners: Sequence[int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class SuspendMarker:
    """The job is being suspended: nothing follows on this channel, not even the maximum watermark."""


StateMessage = Interrogate | Collect | Acquire | AbsBarrier | Rescale | SuspendMarker
"""Messages that pass every operator of a region, once."""

PartMessage = PartOpened | PartReleased | PartFinished | PartEpoch | PartQuiet
"""Messages about source parts: opened, moved, finished or quiet. Sent in source regions only."""

Control = Epoch | PartMessage | StateMessage


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a step could not take, on the stream of ``job.dead_letters(step)``.

    ``error`` is the text of the exception; ``key`` and ``timestamp`` are None where the stream had none.
    """

    step: str
    key: Any
    value: Any
    timestamp: int | None
    error: str
