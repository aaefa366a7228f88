"""What moves through operators besides batches.

`Epoch` is a promise in event time: nothing with a timestamp at or below it follows (other systems call it a
watermark). `PartOpened` and `PartFinished` travel inside a source region only, so that event time is tracked
per part (T2). The others act on keyed state and pass every operator of a region: a step with several inputs
handles one when it has come on all of them. `DataMessage` is how `StatefulLogic.on_data` sees one record.

Rule: a message is a value: one that came from another worker equals the one that was sent.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_EPOCH: Final = 2**63 - 1
"""What a finished bounded job emits last, on untimed streams too (T5)."""

MIN_EPOCH: Final = -(2**63)
"""The frontier of an operator that has seen no epoch yet."""


@dataclass(slots=True, unsafe_hash=True)
class DataMessage(Generic[K, V]):
    """One record, never to be changed. ``timestamp`` is an int64 in the stream's unit, None on an untimed stream."""

    # Not a frozen dataclass, for those take three times as long to make, and this is made for every record.

    key: K
    value: V
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Nothing with a timestamp at or below ``time`` follows. `MAX_EPOCH`: nothing follows at all.

    ``idle``: whoever sends it has nothing right now and is not to be waited for (T2). In source regions, and to their
    exchanges.
    """

    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class PartOpened:
    """A part of a source is about to be read here. ``state`` is what `PartReleased` gathered on its former worker."""

    part: str
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PartReleased:
    """A part is given to another worker: each operator that keeps something for it adds it under its own id (R2).

    ``state`` then goes into the `PartOpened` on the worker that takes the part.
    """

    part: str
    state: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PartFinished:
    """A part has no more records: it no longer holds back event time."""

    part: str


@dataclass(frozen=True, slots=True)
class PartQuiet:
    """A part has had no records for ``quiet_s`` seconds of the runtime's clock, though it was asked."""

    part: str
    quiet_s: float


def every_key(key: object) -> bool:
    """The predicate that every key passes."""
    return True


class AnyOf:
    """The predicate that just ``keys`` pass: to be asked about them need not cost by all the keys that are held."""

    __slots__ = ("keys",)

    def __init__(self, keys: Set[Any]) -> None:
        self.keys = keys

    def __call__(self, key: object) -> bool:
        return key in self.keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyOf) and self.keys == other.keys

    def __hash__(self) -> int:
        return hash(AnyOf)


@dataclass(frozen=True, slots=True)
class Interrogate:
    """Asks for the keys that have state and pass ``predicate``: each operator adds its own to ``keys``."""

    predicate: Callable[[Any], bool] = every_key
    keys: set[Any] = field(default_factory=set, hash=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Takes the state of ``keys``: each operator removes it and adds it, encoded, under its own id.

    State comes in the order of ``keys``. That of a set of str differs from process to process; that of the keys of a
    dict does not, and it is kept when a message is pickled.

    >>> import pickle
    >>> message = Collect(dict.fromkeys(["anna", "ben"]).keys())
    >>> list(pickle.loads(pickle.dumps(message)).keys)
    ['anna', 'ben']
    """

    keys: Set[Any] = field(hash=False)
    states: dict[str, bytes] = field(default_factory=dict, hash=False)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.keys, KeysView):  # of a dict, which cannot be pickled
            return _collect_in_order, (tuple(self.keys), self.states)
        return Collect, (self.keys, self.states)


def _collect_in_order(keys: tuple[Any, ...], states: dict[str, bytes]) -> Collect:
    return Collect(dict.fromkeys(keys).keys(), states)


@dataclass(frozen=True, slots=True)
class Acquire:
    """Brings state: each operator installs what stands under its own id. ``states`` is of the form of `Collect`'s."""

    states: Mapping[str, bytes] = field(hash=False)


class PersistenceBackend(Protocol):
    """Where operators put their state at a barrier, encoded, under their own ids."""

    def persist(self, operator: str, state: bytes) -> None:
        """Take the state of one operator."""
        ...


@dataclass(frozen=True, slots=True)
class AbsBarrier:
    """A cut through the stream (asynchronous barrier snapshot): each operator persists its state as it passes.

    ``snapshot`` is its id. ``parent``: the last snapshot that was committed by this start of the job, to which what is
    persisted may be relative (S2); None: it has to be complete. ``incarnation`` counts the starts of the job. Two are
    equal if they cut for the same snapshot, wherever each persists: another worker has another ``backend``.
    """

    snapshot: str
    backend: PersistenceBackend = field(compare=False)
    parent: str | None = None
    incarnation: int = 1


@dataclass(frozen=True, slots=True)
class Rescale:
    """From here on the routing table of ``version`` holds: ``owners[slot]`` is the worker that owns a slot."""

    version: int
    owners: Sequence[int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class SuspendMarker:
    """The job is being suspended: nothing follows on this channel, and the maximum epoch does not come."""


StateMessage = Interrogate | Collect | Acquire | AbsBarrier | Rescale | SuspendMarker
"""What passes every operator of a region, once."""

PartMessage = PartOpened | PartReleased | PartFinished | PartQuiet
"""What says that a part of a source came, went or has nothing. Seen in source regions only."""

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
