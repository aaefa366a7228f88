"""The words of a rescale: what workers and their coordinator tell each other while slots and parts move.

A rescale is a sequence of moves (rules R1 to R12). Everything here is immutable; the machines that speak are
`region_machine` (the receiving side), `switch_machine` (the sending side) and the coordinator's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Table = tuple[int, ...]
"""slot -> worker."""


@dataclass(frozen=True, slots=True)
class PartMove:
    """A part of a source goes from one worker to another."""

    source: str
    part: str
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class Move:
    """One move: from version - 1 to ``version``. ``old`` and ``new`` are the members before and after it.

    ``more``: another move of the same rescale follows, and no slot that this one moves moves again in it. ``losing``:
    the workers that will lose slots by those that follow.
    """

    version: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    table: Table
    parts: tuple[PartMove, ...] = ()
    more: bool = False
    losing: tuple[int, ...] = ()

    @property
    def everyone(self) -> tuple[int, ...]:
        """Who takes part: members before or after it."""
        return tuple(sorted({*self.old, *self.new}))


@dataclass(frozen=True, slots=True)
class Marker:
    """R2: behind it the sender's channel carries version ``move.version``.

    ``before`` is the last epoch that the sender broadcast before it, ``after`` its frontier from here on.
    """

    move: Move
    before: int
    after: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Shipped:
    """R6: the sender's region has passed F(v) and shipped all that it lost, before anything behind this."""

    version: int


@dataclass(frozen=True, slots=True)
class Bye:
    """R8: the sender leaves; nothing follows on this channel."""


InBand = Marker | Shipped | Bye
"""What stands in a channel among rows and epochs."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """R4: the state of some slots of a region, on its way to their new owner: an `Acquire` outside the channels.

    ``slots`` are complete with this parcel; slots without any state come too.
    """

    region: str
    version: int
    sender: int
    slots: tuple[int, ...]
    states: dict[str, bytes] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PartHandedOver:
    """R2: a part with its position and what operators keep for it (its epoch among that), outside the channels."""

    version: int
    move: PartMove
    position: Any = field(hash=False)
    state: Any = field(default=None, hash=False)


# From the coordinator to workers.


@dataclass(frozen=True, slots=True)
class Rescale:
    """Begin ``move``."""

    move: Move


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """R6: all receivers of what ``region`` feeds have taken Shipped of everyone: it may open the slots it gained."""

    version: int
    region: str


@dataclass(frozen=True, slots=True)
class PollParts:
    """R6: all workers have the markers of everyone on all exchanges that ``source`` feeds: poll its gained parts."""

    version: int
    source: str


@dataclass(frozen=True, slots=True)
class Leave:
    """R8: the last move has ended for you: say Bye on every channel and stop."""


@dataclass(frozen=True, slots=True)
class InjectBarrier:
    """S1: the barrier of ``snapshot`` goes in at your sources. ``parent``: the snapshot that deltas go by (S2).

    ``last``: nothing follows; each region is suspended where it has passed.
    """

    snapshot: str
    parent: str | None = None
    last: bool = False


Order = Rescale | OpenSlots | PollParts | Leave | InjectBarrier

# From workers to the coordinator.


@dataclass(frozen=True, slots=True)
class MarkersIn:
    """All markers of ``version`` have come on ``exchange`` here."""

    version: int
    worker: int
    exchange: str


@dataclass(frozen=True, slots=True)
class ShippedIn:
    """Shipped of ``version`` has been taken from all senders of ``exchange`` here."""

    version: int
    worker: int
    exchange: str


@dataclass(frozen=True, slots=True)
class RegionDone:
    """R7: ``region`` has its markers, has passed F(v), has shipped what it lost, and nothing in it is pending.

    ``paused_s``: how long it took to ship what it lost, from its cut on, and to put in what it gained, from the first
    parcel on: that grows with the move, and what was waited for in queues does not. ``keys`` and ``bytes``: what it
    has shipped.
    """

    version: int
    worker: int
    region: str
    paused_s: float = field(default=0.0, compare=False)
    keys: int = field(default=0, compare=False)
    bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Switched:
    """The worker has put its markers: no part is awaited here."""

    version: int
    worker: int


@dataclass(frozen=True, slots=True)
class PartsPolled:
    """The worker polls all parts of ``source`` that it gained."""

    version: int
    worker: int
    source: str


@dataclass(frozen=True, slots=True)
class ByeTaken:
    """R8: Bye of ``leaver`` has been taken from ``exchange`` here."""

    worker: int
    exchange: str
    leaver: int


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """S1: the barrier of ``snapshot`` has gone through all regions of the worker; what it holds is being saved.

    ``paused_s``: for how long the worker did nothing else but make an image of what it holds.
    """

    snapshot: str
    worker: int
    paused_s: float = field(default=0.0, compare=False)


Report = MarkersIn | ShippedIn | RegionDone | Switched | PartsPolled | ByeTaken | BarrierPassed
