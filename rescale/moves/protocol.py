"""The messages of a rescale between workers and their coordinator.

A rescale is a sequence of moves (rules R1 to R12). All messages are immutable. The machines that send and
handle them are `receiving_machine`, `sending_machine` and `workers.coordinator.machine`.
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args

Table = tuple[int, ...]
"""slot -> worker."""


@dataclass(frozen=True, slots=True)
class PartMove:
    """The move of one source part from one worker to another."""

    source: str
    part: str
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class RescaleMove:
    """One move of a rescale: from version - 1 to ``version``. ``old`` and ``new``: the members before and after it.

    ``more``: another move of the same rescale follows; it moves none of the slots of this move. ``losing``: the workers
    that lose slots in the moves that follow. Pickled it is compressed, once for all who get it, and read once of all
    who send it: the marker of each channel has the whole table.

    >>> move = RescaleMove(1, (0,), (0, 1), (0, 1) * 512)
    >>> len(pickle.dumps(move)) < 200, pickle.loads(pickle.dumps(move)) == move
    (True, True)
    """

    version: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    table: Table
    parts: tuple[PartMove, ...] = ()
    more: bool = False
    losing: tuple[int, ...] = ()
    _packed: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Return the packed form, which is made at the first call."""
        if not self._packed:
            parts = tuple((part.source, part.part, part.giver, part.taker) for part in self.parts)
            fields = (self.version, self.old, self.new, self.table, parts, self.more, self.losing)
            self._packed.append(zlib.compress(pickle.dumps(fields, 5), 1))
        return _unpacked, (self._packed[0],)

    @property
    def everyone(self) -> tuple[int, ...]:
        """The workers that take part: members before or after the move."""
        return tuple(sorted({*self.old, *self.new}))


@lru_cache(maxsize=4)
def _unpacked(packed: bytes) -> RescaleMove:
    """Return the move. The markers of one move have the same one."""
    version, old, new, table, parts, more, losing = pickle.loads(zlib.decompress(packed))
    return RescaleMove(version, old, new, table, tuple(PartMove(*part) for part in parts), more, losing)


@dataclass(frozen=True, slots=True)
class Marker:
    """R2: after the marker, the sender's channel carries version ``move.version``.

    ``before``: the last epoch that the sender broadcast before the marker; ``after``: the sender's frontier after it.
    """

    move: RescaleMove
    before: int
    after: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Shipped:
    """R6: the sender's region has passed F(v) and has shipped all slots that it lost."""

    version: int


@dataclass(frozen=True, slots=True)
class Bye:
    """R8: the sender leaves. This is the last message on its channel."""


InBand = Marker | Shipped | Bye
"""The messages in a channel beside rows and epochs."""


@dataclass(frozen=True, slots=True)
class StateChunk:
    """R4: the state of some slots of a region, sent to their new owner outside the channels (an `Acquire`).

    ``slots``: the slots that are complete with this chunk. Slots without state are sent too. ``confirmed``: by step,
    the keys whose state has come ahead and has not changed since; ``stored``: states in their form on disk, in pieces.

    R12: with ``ahead``, the state is a copy that the new owner keeps aside: the old owner still works with it.
    """

    region: str
    version: int
    sender: int
    slots: tuple[int, ...]
    states: dict[str, bytes] = field(default_factory=dict, hash=False)
    confirmed: dict[str, bytes] = field(default_factory=dict, hash=False)
    ahead: bool = False
    stored: dict[str, list[bytes]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PartHandedOver:
    """R2: a source part with its position and the operators' state for the part (for example its epoch)."""

    version: int
    move: PartMove
    position: Any = field(hash=False)
    state: Any = field(default=None, hash=False)


# From the coordinator to workers.


@dataclass(frozen=True, slots=True)
class FindKeys:
    """Orders a worker that will lose slots to list its keys while others join."""


@dataclass(frozen=True, slots=True)
class ForgetKeys:
    """Orders a worker to forget the keys that it has listed: the rescale is called off."""


@dataclass(frozen=True, slots=True)
class SendAhead:
    """R12: orders a worker to send the state ahead that leaves in ``move``. ``least``: the bytes worth a copy."""

    move: RescaleMove
    least: int = 0


@dataclass(frozen=True, slots=True)
class StartMove:
    """Orders the worker to start ``move``."""

    move: RescaleMove


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """R6: allows ``region`` to open its gained slots: all receivers downstream have taken Shipped from all senders."""

    version: int
    region: str


@dataclass(frozen=True, slots=True)
class PollParts:
    """R6: allows polling of the gained parts of ``source``: all markers are in on all exchanges that it feeds."""

    version: int
    source: str


@dataclass(frozen=True, slots=True)
class Leave:
    """R8: orders a worker to send Bye on every channel and to stop, after its last move."""


@dataclass(frozen=True, slots=True)
class PackAhead:
    """S2: orders a worker to pack its state ahead of the barrier of ``snapshot``, between batches.

    ``parent``: as of `InjectBarrier`.
    """

    snapshot: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class InjectBarrier:
    """S1: orders a worker to inject the barrier of ``snapshot`` at its sources.

    ``parent``: the snapshot that deltas are relative to (S2). ``last``: each region is suspended after the barrier.
    """

    snapshot: str
    parent: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class AddParts:
    """R13: orders a worker to read new parts of ``source``, each from its position. Sent when nothing moves."""

    source: str
    parts: tuple[tuple[str, Any], ...] = field(hash=False)


Order = (
    FindKeys | ForgetKeys | SendAhead | StartMove | OpenSlots | PollParts | Leave | PackAhead | InjectBarrier | AddParts
)

# From workers to the coordinator.


@dataclass(frozen=True, slots=True)
class MarkersIn:
    """All markers of ``version`` have arrived on ``exchange`` at ``worker``."""

    version: int
    worker: int
    exchange: str


@dataclass(frozen=True, slots=True)
class ShippedIn:
    """``worker`` has taken Shipped of ``version`` from all senders of ``exchange``."""

    version: int
    worker: int
    exchange: str


@dataclass(frozen=True, slots=True)
class RegionDone:
    """R7: ``region`` has all markers, has passed F(v), has shipped its lost slots, and has no pending slot.

    ``paused_s``: the time to ship the lost slots, from the cut, plus the time to install the gained ones, from the
    first chunk. That time grows with the move; waiting in queues is not part of it. ``keys`` and ``bytes``: the amount
    that the region has shipped; ``ahead``: the bytes that it has sent before, at work (R12).
    """

    version: int
    worker: int
    region: str
    paused_s: float = field(default=0.0, compare=False)
    keys: int = field(default=0, compare=False)
    bytes: int = field(default=0, compare=False)
    ahead: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Moved:
    """The state that has moved: ``keys``, their ``bytes``, and those of them that went ahead of their move (R12)."""

    keys: int = 0
    bytes: int = 0
    ahead: int = 0

    def plus(self, done: RegionDone) -> Moved:
        """Return what has moved with what ``done`` reports."""
        return Moved(self.keys + done.keys, self.bytes + done.bytes, self.ahead + done.ahead)

    def since(self, before: Moved) -> Moved:
        """Return what has moved since."""
        return Moved(self.keys - before.keys, self.bytes - before.bytes, self.ahead - before.ahead)


@dataclass(frozen=True, slots=True)
class SentAhead:
    """R12: ``worker`` has sent ahead what it sends ahead of the move to ``version``."""

    version: int
    worker: int


@dataclass(frozen=True, slots=True)
class Switched:
    """``worker`` has sent its markers and awaits no part."""

    version: int
    worker: int


@dataclass(frozen=True, slots=True)
class PartsPolled:
    """``worker`` polls all parts of ``source`` that it gained."""

    version: int
    worker: int
    source: str


@dataclass(frozen=True, slots=True)
class ByesTaken:
    """R8: ``worker`` has taken Bye of all leavers from ``exchange``. ``version``: of the table without them."""

    version: int
    worker: int
    exchange: str


@dataclass(frozen=True, slots=True)
class PackedAhead:
    """S2: ``worker`` has little left to pack at the barrier of ``snapshot``."""

    snapshot: str
    worker: int


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """S1: the barrier of ``snapshot`` has passed all regions of ``worker``; the captured state is being saved.

    ``paused_s``: how long the worker stopped processing to capture its state.
    """

    snapshot: str
    worker: int
    paused_s: float = field(default=0.0, compare=False)


Report = (
    PackedAhead | BarrierPassed | SentAhead | Switched | MarkersIn | ShippedIn | RegionDone | PartsPolled | ByesTaken
)
"""In causal order."""


def in_order(report: Report) -> tuple[int, int, str]:
    """Return the sort key of a missing report: the reports that others wait for come first."""
    return get_args(Report).index(type(report)), report.worker, as_awaited(report)


def as_awaited(report: Report) -> str:
    """Return a description of the missing ``report``."""
    match report:
        case PackedAhead():
            return f"worker {report.worker} to pack state ahead of snapshot {report.snapshot}"
        case BarrierPassed():
            return f"the barrier of snapshot {report.snapshot} to pass worker {report.worker}"
        case SentAhead():
            return f"worker {report.worker} to send state ahead of version {report.version}"
        case Switched():
            return f"worker {report.worker} to switch to version {report.version}"
        case MarkersIn():
            return f"all markers on exchange {report.exchange!r} at worker {report.worker}"
        case ShippedIn():
            return f"Shipped of all workers on exchange {report.exchange!r} at worker {report.worker}"
        case RegionDone():
            return f"region {report.region!r} on worker {report.worker}"
        case PartsPolled():
            return f"worker {report.worker} to read the partitions of {report.source!r} that it gains"
        case ByesTaken():
            return f"Bye of all leavers on exchange {report.exchange!r} at worker {report.worker}"


@dataclass(frozen=True, slots=True)
class SendReport:
    """Effect of both machines of a worker: send ``report`` to the coordinator."""

    report: Report
