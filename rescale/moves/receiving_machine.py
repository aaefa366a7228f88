"""Rescale machine of one region on one worker: the receiving side of all exchanges that feed the region.

Implements rules R3 to R6, and the receiver's part of R8. Every state change is in TRANSITIONS; nothing here does I/O
or looks at a row. After a marker only two things wait: rows of slots that have not arrived (R5), and epochs (R3). The
effects pass rows to the data plane, hold them there, and release them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    InBand,
    Marker,
    MarkersIn,
    OpenSlots,
    RegionDone,
    RescaleMove,
    SendReport,
    Shipped,
    ShippedIn,
    StateChunk,
    Table,
)

# Events.


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """Rows have arrived, routed by the table of ``version``."""

    exchange: str
    sender: int
    version: int
    rows: Any


@dataclass(frozen=True, slots=True)
class EpochTaken:
    """An epoch has arrived. ``idle``: its sender has nothing to read now, and follows the others (T2)."""

    exchange: str
    sender: int
    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class InBandTaken:
    """A marker, Shipped or Bye has arrived."""

    exchange: str
    sender: int
    message: InBand


@dataclass(frozen=True, slots=True)
class StateTaken:
    """State has arrived from another worker."""

    parcel: StateChunk


@dataclass(frozen=True, slots=True)
class OpenTaken:
    """The coordinator allows gained slots to be opened."""

    order: OpenSlots


@dataclass(frozen=True, slots=True)
class ShippingEnded:
    """The state that `Ship` named has been taken out and sent."""

    version: int


Event = RowsTaken | EpochTaken | InBandTaken | StateTaken | OpenTaken | ShippingEnded


# Effects.


@dataclass(frozen=True, slots=True)
class Pass:
    """Pass rows into the region at ``exchange``, except rows of the slots in ``held``.

    The data plane keeps the excepted rows, in order, until `Release`.
    """

    exchange: str
    rows: Any
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Advance:
    """Pass an epoch into the region at ``exchange``."""

    exchange: str
    time: int


@dataclass(frozen=True, slots=True)
class Ship:
    """Take out the state of ``slots`` (slot -> new owner) and send it in chunks; `ShippingEnded` follows."""

    version: int
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Install the state of a chunk in the region."""

    parcel: StateChunk


@dataclass(frozen=True, slots=True)
class KeepAside:
    """R12: keep the state of a chunk that came ahead, outside the region's state."""

    parcel: StateChunk


@dataclass(frozen=True, slots=True)
class Release:
    """Pass all held rows into the region, in order."""


@dataclass(frozen=True, slots=True)
class SendShipped:
    """Send Shipped on every channel of every exchange that the region feeds."""

    version: int


Effect = Pass | Advance | Ship | Install | KeepAside | Release | SendShipped | SendReport


class ReceivingPhase(StrEnum):
    """The phase of a move in one region."""

    STEADY = "steady"
    MARKING = "marking"
    MOVING = "moving"


TRANSITIONS: Final = {
    (ReceivingPhase.STEADY, "first marker"): ReceivingPhase.MARKING,
    (ReceivingPhase.MARKING, "last marker"): ReceivingPhase.MOVING,
    (ReceivingPhase.MOVING, "shipped and open"): ReceivingPhase.STEADY,
}
"""All changes of phase. One marker may be both first and last."""


class _Side:
    """One exchange that feeds the region: the frontier of each sender, and which senders have marked and shipped."""

    __slots__ = ("after", "before", "emitted", "ended", "frontier", "idle", "later", "shipped")

    def __init__(self, members: Sequence[int]) -> None:
        self.frontier: dict[int, int] = dict.fromkeys(members, MIN_EPOCH)
        self.emitted = MIN_EPOCH
        self.idle: set[int] = set()
        self.before: dict[int, int] = {}
        self.after: dict[int, tuple[int, bool]] = {}
        self.later: dict[int, tuple[int, bool]] = {}
        self.shipped: set[int] = set()
        self.ended: dict[int, int] = {}
        """The last frontier of a sender before the maximum, if it has had a record."""

    def merged(self) -> int:
        return max(self.emitted, min(self.frontier.values(), default=MIN_EPOCH))

    def promise(self, sender: int, time: int, idle: bool) -> None:
        """Advance the frontier of ``sender``. Within a version a frontier never decreases."""
        before = self.frontier[sender]
        if time == MAX_EPOCH and MIN_EPOCH < before < MAX_EPOCH:
            self.ended[sender] = before
        self.frontier[sender] = max(time, before)
        (self.idle.add if idle else self.idle.discard)(sender)


class ReceivingMachine:
    """The machine of ``region`` on ``worker``, fed by ``exchanges``; ``feeds_exchanges``: the region feeds others (R6).

    A joiner is built with ``version`` and ``table`` from before its first move and is not in ``members`` (R1).
    """

    def __init__(
        self,
        region: str,
        worker: int,
        *,
        exchanges: Sequence[str],
        feeds_exchanges: bool,
        members: Sequence[int],
        table: Table,
        version: int = 0,
    ) -> None:
        self.region = region
        self.worker = worker
        self.phase = ReceivingPhase.STEADY
        self.version = version
        self._members = tuple(members)
        self._table = table
        self._feeds_exchanges = feeds_exchanges
        self._sides = {exchange: _Side(members) for exchange in exchanges}
        self._everyone: frozenset[int] = frozenset()
        self._leavers: frozenset[int] = frozenset()
        self._move: RescaleMove | None = None
        self.last_move: RescaleMove | None = None
        self._lost: tuple[tuple[int, int], ...] = ()
        self._pending: frozenset[int] = frozenset()
        self._awaited: set[int] = set()
        self._parcels: list[StateChunk] = []
        self._allowed = False
        self._shipping = False

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and return the effects, in order."""
        match event:
            case RowsTaken():
                return self._rows(event)
            case EpochTaken():
                return self._epoch(event)
            case InBandTaken():
                return self._in_band(event.exchange, event.sender, event.message)
            case StateTaken():
                return self._parcel(event.parcel)
            case OpenTaken():
                return self._open(event.order)
            case ShippingEnded():
                return self._shipping_ended(event.version)

    def _in_band(self, exchange: str, sender: int, message: InBand) -> list[Effect]:
        match message:
            case Marker():
                return self._marker(exchange, sender, message)
            case Shipped():
                return self._shipped(exchange, sender, message)
            case Bye():
                return self._bye(exchange, sender)

    def frontier(self, exchange: str) -> int:
        """Return the epoch that the region has passed at ``exchange``."""
        return self._sides[exchange].emitted

    def continue_at(self, exchange: str, time: int) -> None:
        """Set the frontiers of ``exchange`` to ``time``, the epoch that it had passed at the restored snapshot (S1)."""
        side = self._sides[exchange]
        side.emitted = time
        side.frontier = dict.fromkeys(side.frontier, time)

    def active(self, exchange: str) -> int | None:
        """T2: return the smallest frontier of the senders that are neither idle nor finished; None without any."""
        side = self._sides[exchange]
        times = [time for sender, time in side.frontier.items() if sender not in side.idle and time != MAX_EPOCH]
        return min(times, default=None)

    def silent(self, exchange: str) -> int | None:
        """T7: return the smallest frontier of the idle senders that have had records; None without any."""
        side = self._sides[exchange]
        times = [side.frontier[sender] for sender in side.idle]
        return min((time for time in times if MIN_EPOCH < time < MAX_EPOCH), default=None)

    def ended(self, exchange: str) -> int | None:
        """T7: return the largest frontier that a finished sender had before its end; None without any."""
        return max(self._sides[exchange].ended.values(), default=None)

    @property
    def moving_version(self) -> int:
        """The version that the current move leads to, or else the current version."""
        return self.version if self._move is None else self._move.version

    def loses(self, move: RescaleMove) -> bool:
        """Return whether this worker loses slots in ``move``, the current or the next one."""
        return bool(self.lost_in(move))

    def lost_in(self, move: RescaleMove) -> tuple[tuple[int, int], ...]:
        """Return the slots that this worker loses in ``move``, the current or the next one, with their new owners."""
        pairs = enumerate(zip(self._table, move.table, strict=True))
        return tuple((slot, now) for slot, (was, now) in pairs if was == self.worker != now)

    @property
    def holds_epochs(self) -> bool:
        """Whether epochs that arrived after a marker wait (R3)."""
        return any(side.later for side in self._sides.values())

    def check(self) -> None:
        """Raise `InternalError` if an invariant is broken."""
        steady = self.phase is ReceivingPhase.STEADY
        self._require(steady == (self._move is None), "a move without its phase")
        self._require(not steady or not (self._pending or self._lost or self._awaited), "a steady region awaits slots")
        self._require(self._awaited <= self._pending, "state is awaited of a slot that is open")
        for side in self._sides.values():
            self._require(not steady or not (side.before or side.later), "a steady region holds epochs")

    def _rows(self, event: RowsTaken) -> list[Effect]:
        marked = event.sender in self._sides[event.exchange].before
        expected = self._move.version if marked and self._move is not None else self.version
        self._require(event.version == expected, f"rows of version {event.version}, expected {expected} (F1)")
        return [Pass(event.exchange, event.rows, self._pending)]

    def _epoch(self, event: EpochTaken) -> list[Effect]:
        return self.epoch(event.exchange, event.sender, event.time, event.idle)

    def epoch(self, exchange: str, sender: int, time: int, idle: bool = False) -> list[Effect]:
        """Handle an epoch, as `handle` does for `EpochTaken`, without making the event: epochs are frequent."""
        side = self._sides[exchange]
        if sender in side.before:
            # R3: the epoch waits until all markers are in and every gained slot is open.
            side.later[sender] = (time, idle)
            return []
        if sender not in side.frontier:
            # R2, R8: a joiner sends its marker first, a leaver sends Bye last.
            raise InternalError(
                f"region {self.region!r} on worker {self.worker}: an epoch of worker {sender}, which is not a member"
            )
        side.promise(sender, time, idle)
        return self._advanced(exchange)

    def _advanced(self, exchange: str) -> list[Effect]:
        side = self._sides[exchange]
        merged = side.merged()
        # R3: a joiner's region emits nothing before its own cut.
        if merged <= side.emitted or self.worker not in self._members:
            return []
        side.emitted = merged
        return [Advance(exchange, merged)]

    def _marker(self, exchange: str, sender: int, marker: Marker) -> list[Effect]:
        move = marker.move
        if self._move is None:
            self._require(move.version == self.version + 1, f"a marker of version {move.version} at {self.version}")
            self._begin(move)
        self._require(move == self._move, "a marker of another move during a move (R7)")
        side = self._sides[exchange]
        self._require(sender not in side.before, f"a second marker of worker {sender}")
        side.before[sender], side.after[sender] = marker.before, (marker.after, marker.idle)
        effects: list[Effect] = []
        if side.before.keys() >= self._everyone:
            effects.append(SendReport(MarkersIn(move.version, self.worker, exchange)))
            if all(other.before.keys() >= self._everyone for other in self._sides.values()):
                effects += self._cut(move)
        return effects

    def _begin(self, move: RescaleMove) -> None:
        self._move, self._everyone = move, frozenset(move.everyone)
        self.last_move = move
        self._to("first marker")
        me, pairs = self.worker, enumerate(zip(self._table, move.table, strict=True))
        changed = [(slot, was, now) for slot, (was, now) in pairs if was != now]
        self._lost = self.lost_in(move)
        # R5: a chunk may arrive before any marker; its slots are pending like the others.
        self._pending = frozenset(slot for slot, _, now in changed if now == me)
        self._awaited = set(self._pending)
        for side in self._sides.values():
            side.shipped.clear()

    def _cut(self, move: RescaleMove) -> list[Effect]:
        """R3, R4: pass F(v), the same on every worker, then freeze and ship the moved slots. All markers are in."""
        self._to("last marker")
        effects: list[Effect] = []
        for exchange, side in self._sides.items():
            cut = max(side.emitted, min((side.before[sender] for sender in move.old), default=MIN_EPOCH))
            if cut > side.emitted:
                side.emitted = cut
                effects.append(Advance(exchange, cut))
            # R8: a leaver counts until its Bye, because its regions still send results from before the cut.
            side.frontier = {sender: side.after[sender][0] for sender in move.everyone}
            side.idle = {sender for sender in move.everyone if side.after[sender][1]}
        for parcel in self._parcels:
            effects += self._installed(parcel)
        self._parcels = []
        self._shipping = bool(self._lost)
        if self._shipping:
            return [*effects, Ship(move.version, self._lost)]
        return effects + self._after_shipping(move)

    def _shipping_ended(self, version: int) -> list[Effect]:
        self._require(self._shipping and self._move is not None and self._move.version == version, "nothing is shipped")
        self._shipping, self._lost = False, ()
        assert self._move is not None
        return self._after_shipping(self._move)

    def _after_shipping(self, move: RescaleMove) -> list[Effect]:
        effects: list[Effect] = [SendShipped(move.version)] if self._feeds_exchanges else []
        return effects + self._maybe_done()

    def _parcel(self, parcel: StateChunk) -> list[Effect]:
        if parcel.ahead:
            # R12: it arrives before its sender's chunks of the cut, so before the move has ended here.
            self._require(parcel.version == self.version + 1, "state came ahead of another move")
            return [KeepAside(parcel)]
        if self.phase is not ReceivingPhase.MOVING:
            # R5: F(v) has not been passed here; keys installed now would see that epoch twice.
            self._parcels.append(parcel)
            return []
        return self._installed(parcel) + self._maybe_done()

    def _installed(self, parcel: StateChunk) -> list[Effect]:
        self._require(self._move is not None and parcel.version == self._move.version, "a parcel of another move")
        slots = set(parcel.slots)
        self._require(slots <= self._awaited, "state came for slots that are not awaited (R5)")
        self._awaited -= slots
        return [Install(parcel)]

    def _open(self, order: OpenSlots) -> list[Effect]:
        if order.version <= self.version:
            return []  # the region gained nothing and did not wait
        self._require(self._move is not None and order.version == self._move.version, "slots of another move opened")
        self._allowed = True
        return self._maybe_done()

    def _maybe_done(self) -> list[Effect]:
        """R3, R6, R7: end the move when all lost slots are shipped and all gained slots are here and may be opened."""
        move = self._move
        # R6: a region that feeds only sinks, or gains nothing, does not wait for `OpenSlots`.
        waits = self._feeds_exchanges and bool(self._pending) and not self._allowed
        if move is None or self.phase is not ReceivingPhase.MOVING or self._shipping or self._awaited or waits:
            return []
        effects: list[Effect] = [Release()] if self._pending else []
        self._to("shipped and open")
        self.version, self._table, self._members = move.version, move.table, move.new
        self._leavers = self._everyone.difference(move.new)
        self._move, self._pending, self._allowed = None, frozenset(), False
        for exchange, side in self._sides.items():
            for sender, (time, idle) in side.later.items():
                if sender in side.frontier:  # a leaver may have sent Bye since
                    side.promise(sender, time, idle)
            side.before, side.after, side.later = {}, {}, {}
            effects += self._advanced(exchange)
        return [*effects, SendReport(RegionDone(move.version, self.worker, self.region))]

    def _shipped(self, exchange: str, sender: int, message: Shipped) -> list[Effect]:
        move = self._move
        version = self.version if move is None else move.version
        self._require(message.version == version, f"Shipped of version {message.version} at {version}")
        side = self._sides[exchange]
        side.shipped.add(sender)
        return [SendReport(ShippedIn(version, self.worker, exchange))] if side.shipped >= self._everyone else []

    def _bye(self, exchange: str, sender: int) -> list[Effect]:
        side = self._sides[exchange]
        side.frontier.pop(sender, None)
        side.idle.discard(sender)
        effects: list[Effect] = [*self._advanced(exchange)]
        if side.frontier.keys().isdisjoint(self._leavers):
            effects.append(SendReport(ByesTaken(self.version, self.worker, exchange)))
        return effects

    def _to(self, what: str) -> None:
        key = (self.phase, what)
        self._require(key in TRANSITIONS, f"{what} is not expected")
        self.phase = TRANSITIONS[key]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"region {self.region!r} on worker {self.worker}, {self.phase}: {what}")
