"""Wrong receiving sides of a region, each with one clause broken. Their own checks are off: the oracle must see it."""

from __future__ import annotations

from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.rescale.moves.protocol import (
    Marker,
    RegionDone,
    RescaleMove,
    SendReport,
    Shipped,
    ShippedIn,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import (
    Advance,
    Effect,
    EpochTaken,
    Pass,
    ReceivingMachine,
    ReceivingPhase,
    RowsTaken,
    SendShipped,
    Ship,
)


class Region(ReceivingMachine):
    """A region that notices nothing."""

    def check(self) -> None:
        """Nothing is checked."""

    def _require(self, holds: bool, what: str) -> None:
        """Nothing is required."""

    def _let_in(self, event: EpochTaken) -> list[Effect]:
        side = self._sides[event.exchange]
        if event.sender not in side.frontier:
            return []
        side.promise(event.sender, event.time, event.idle)
        return self._advanced(event.exchange)


class EpochNotHeld(Region):
    """R3: an epoch after a marker is passed immediately."""

    def _epoch(self, event: EpochTaken) -> list[Effect]:
        return self._let_in(event)


class EpochHeldUntilMarkersOnly(Region):
    """R3: an epoch waits for all markers, not for gained slots."""

    def _epoch(self, event: EpochTaken) -> list[Effect]:
        waits = self.phase is ReceivingPhase.MOVING and self._pending
        return self._let_in(event) if waits else super()._epoch(event)


class MovedSlotsNotFrozen(Region):
    """R4: epochs reach slots that are being shipped."""

    def _epoch(self, event: EpochTaken) -> list[Effect]:
        return self._let_in(event) if self._shipping else super()._epoch(event)


class NoCut(Region):
    """R3: F(v) is not emitted."""

    def _cut(self, move: RescaleMove) -> list[Effect]:
        for side in self._sides.values():
            side.before = dict.fromkeys(side.before, MIN_EPOCH)
        return super()._cut(move)


class CutOfFrontiersAfter(Region):
    """R3: F(v) is the minimum of the frontiers after the markers."""

    def _cut(self, move: RescaleMove) -> list[Effect]:
        for side in self._sides.values():
            side.before = {sender: time for sender, (time, _) in side.after.items()}
        return super()._cut(move)


class CutIsTheMaximum(Region):
    """R3: F(v) is the largest epoch before a marker."""

    def _cut(self, move: RescaleMove) -> list[Effect]:
        for side in self._sides.values():
            side.before = dict.fromkeys(side.before, max(side.before[sender] for sender in move.old))
        return super()._cut(move)


class FrontierGoesBack(Region):
    """R3: from the cut on the frontier is what the frontiers after say, lower or not."""

    def _after_shipping(self, move: RescaleMove) -> list[Effect]:
        for side in self._sides.values():
            side.emitted = min(side.emitted, *side.frontier.values())
        return super()._after_shipping(move)


class JoinerEmitsBeforeItsCut(Region):
    """R3: a joiner's region lets in what it hears."""

    def _epoch(self, event: EpochTaken) -> list[Effect]:
        if self.worker in self._members:
            return super()._epoch(event)
        side = self._sides[event.exchange]
        if event.time <= side.emitted:
            return []
        side.emitted = event.time
        return [Advance(event.exchange, event.time)]


class JoinerOwnsAtOnce(Region):
    """R1: a joiner is built as if it had always owned its slots."""

    def _begin(self, move: RescaleMove) -> None:
        super()._begin(move)
        if self.worker not in move.old:
            self._pending, self._awaited = frozenset(), set()


class OneInputAligned(Region):
    """R4: the first exchange with all markers makes the cut for all."""

    def _marker(self, exchange: str, sender: int, marker: Marker) -> list[Effect]:
        effects = super()._marker(exchange, sender, marker)
        aligned = self._sides[exchange].before.keys() >= self._everyone
        if self.phase is not ReceivingPhase.MARKING or not aligned:
            return effects
        for side in self._sides.values():
            for worker in marker.move.everyone:
                time = side.frontier.get(worker, MIN_EPOCH)
                side.before.setdefault(worker, time)
                side.after.setdefault(worker, (time, False))
        return effects + self._cut(marker.move)


class ShipsBeforeDrained(Region):
    """R4: slots leave at the first marker, before the other senders' rows have come."""

    def _marker(self, exchange: str, sender: int, marker: Marker) -> list[Effect]:
        lost: tuple[tuple[int, int], ...] = ()
        if self.phase is ReceivingPhase.STEADY:
            self._begin(marker.move)
            lost, self._lost = self._lost, ()
        early: list[Effect] = [Ship(marker.move.version, lost)] if lost else []
        return early + super()._marker(exchange, sender, marker)

    def _shipping_ended(self, version: int) -> list[Effect]:
        return []


class RowsNotHeld(Region):
    """R5: rows of slots that are not here yet are let in."""

    def _rows(self, event: RowsTaken) -> list[Effect]:
        return [Pass(event.exchange, event.rows)]


class ParcelInstalledBeforeTheCut(Region):
    """R5: a parcel is installed before F(v) has been let in."""

    def _parcel(self, parcel: StateChunk) -> list[Effect]:
        return self._installed(parcel) if self.phase is ReceivingPhase.MARKING else super()._parcel(parcel)


class EarlyParcelLost(Region):
    """R5: a parcel before any marker is dropped."""

    def _parcel(self, parcel: StateChunk) -> list[Effect]:
        return [] if self.phase is ReceivingPhase.STEADY else super()._parcel(parcel)


class OpensBeforeStateIsHere(Region):
    """R5: gained slots are opened though their state has not come."""

    def _maybe_done(self) -> list[Effect]:
        self._awaited = set()
        return super()._maybe_done()


class NoWaitForShipped(Region):
    """R6: gained slots are opened without waiting for what was sent before them."""

    def _maybe_done(self) -> list[Effect]:
        self._allowed = True
        return super()._maybe_done()


class ShippedOfOneSender(Region):
    """R6: Shipped of the first sender counts for all."""

    def _shipped(self, exchange: str, sender: int, message: Shipped) -> list[Effect]:
        return [SendReport(ShippedIn(message.version, self.worker, exchange))]


class ShippedTooEarly(Region):
    """R6: Shipped is sent after the worker's own marker, before rows of others have arrived."""

    def _marker(self, exchange: str, sender: int, marker: Marker) -> list[Effect]:
        effects = super()._marker(exchange, sender, marker)
        mine = sender == self.worker and exchange == next(iter(self._sides))
        return [SendShipped(marker.move.version), *effects] if mine and self._feeds_exchanges else effects

    def _after_shipping(self, move: RescaleMove) -> list[Effect]:
        return self._maybe_done()


class DoneBeforeOpen(Region):
    """R7: the region is reported done at the cut, while slots are pending."""

    def _cut(self, move: RescaleMove) -> list[Effect]:
        done = SendReport(RegionDone(move.version, self.worker, self.region))
        return [done, *super()._cut(move)]

    def _maybe_done(self) -> list[Effect]:
        return [
            e for e in super()._maybe_done() if not (isinstance(e, SendReport) and isinstance(e.report, RegionDone))
        ]


class LeaverDroppedAtTheCut(Region):
    """R8: a leaver does not count from the cut on, though its regions have yet to send."""

    def _after_shipping(self, move: RescaleMove) -> list[Effect]:
        for side in self._sides.values():
            side.frontier = {sender: time for sender, time in side.frontier.items() if sender in move.new}
        return super()._after_shipping(move)


class LeaverNeverDropped(Region):
    """R8: a leaver counts for ever."""

    def _bye(self, exchange: str, sender: int) -> list[Effect]:
        kept = dict(self._sides[exchange].frontier)
        effects = super()._bye(exchange, sender)
        self._sides[exchange].frontier = kept
        return [effect for effect in effects if isinstance(effect, SendReport)]


class FrontierIsTheMaximum(Region):
    """T3: the frontier is the largest of the senders'."""

    def _advanced(self, exchange: str) -> list[Effect]:
        side = self._sides[exchange]
        furthest = max(side.frontier.values())
        if furthest <= side.emitted or self.worker not in self._members:
            return []
        side.emitted = furthest
        return [Advance(exchange, furthest)]


class IdleSendersLeftOut(Region):
    """T2: idle senders do not count in the minimum."""

    def _advanced(self, exchange: str) -> list[Effect]:
        side = self._sides[exchange]
        active = min((t for s, t in side.frontier.items() if s not in side.idle), default=side.emitted)
        if active <= side.emitted or self.worker not in self._members:
            return []
        side.emitted = active
        return [Advance(exchange, active)]


class ReleasedFirst(Region):
    """R3: epochs that waited are let in before the rows that were held."""

    def _maybe_done(self) -> list[Effect]:
        return sorted(super()._maybe_done(), key=lambda effect: not isinstance(effect, Advance))
