"""Wrong sending sides, each with one clause broken, and wrong channels."""

from __future__ import annotations

from dataclasses import replace

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.rescale.moves import receiving_machine as re
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import InBand, Marker, PartHandedOver, RescaleMove, Table
from tests.simulation.protocol_model.channel import Channel, Frame
from tests.simulation.protocol_model.counting import Counting
from tests.simulation.protocol_model.records import ChannelKey, EpochItem, Record
from tests.simulation.protocol_model.worker import ModelWorker
from tests.simulation.protocol_model.world import COORDINATOR, World


class Switch(sm.SendingMachine):
    """A sending side that notices nothing."""

    def check(self) -> None:
        """Nothing is checked."""

    def _require(self, holds: bool, what: str) -> None:
        """Nothing is required."""


class PollsWhileAwaiting(Switch):
    """R2: sources are read, and epochs broadcast, between handing over and marker."""

    @property
    def may_poll(self) -> bool:
        return self.phase is not sm.SendingPhase.GONE


class WaitsBeforeHandingOver(Switch):
    """R2: waits for the parts it gains, then hands over."""

    _kept: tuple[sm.Effect, ...] = ()

    def _rescale(self, move: RescaleMove) -> list[sm.Effect]:
        effects = super()._rescale(move)
        if self.phase is not sm.SendingPhase.AWAITING:
            return effects
        self._kept = tuple(effect for effect in effects if isinstance(effect, sm.HandOver))
        return [effect for effect in effects if not isinstance(effect, sm.HandOver)]

    def _switch(self, move: RescaleMove) -> list[sm.Effect]:
        kept, self._kept = self._kept, ()
        return [*kept, *super()._switch(move)]


class FlushesBehindTheMarker(ModelWorker):
    """R2: rows buffered by the old table are sent after the marker."""

    def send_in_band(self, exchange: str, members: tuple[int, ...], message: InBand) -> None:
        if not isinstance(message, Marker):
            super().send_in_band(exchange, members, message)
            return
        for member in members:
            self.net.put(ChannelKey(exchange, self.id, member), message)

    def switched(self, effects: list[sm.Effect]) -> None:
        super().switched([effect for effect in effects if not isinstance(effect, sm.FlushOutgoing)])


class NoMarkerOnLoopback(ModelWorker):
    """R2: no marker to itself."""

    def send_in_band(self, exchange: str, members: tuple[int, ...], message: InBand) -> None:
        if isinstance(message, Marker):
            members = tuple(member for member in members if member != self.id)
        super().send_in_band(exchange, members, message)


class LoopbackMarkerOvertakes(NoMarkerOnLoopback):
    """R2: a worker takes its own marker immediately, before the items in the loopback."""

    def send_in_band(self, exchange: str, members: tuple[int, ...], message: InBand) -> None:
        super().send_in_band(exchange, members, message)
        if isinstance(message, Marker):
            region = self.shape.region_of(exchange)
            effects = self.regions[region].handle(re.InBandTaken(exchange, self.id, message))
            self.apply(region, effects, ChannelKey(exchange, self.id, self.id))


class JoinerSpeaksFirst(ModelWorker):
    """R2: a joiner broadcasts before its marker."""

    @property
    def may_read(self) -> bool:
        return self.switch.may_poll


class ExchangesOneByOne(ModelWorker):
    """R2: one exchange switches first, each of the others some messages later."""

    late: tuple[str, ...] = ()
    waited: int = 0
    old: tuple[tuple[int, ...], Table, int] = ((), (), 0)
    move: RescaleMove | None = None

    def switch_exchanges(self, move: RescaleMove) -> None:
        self.started = True
        self.take_in_parts()
        first, *late = self.shape.exchanges
        self.old, self.late, self.move = (self.members, self.table, self.version), tuple(late), move
        self.members, self.table, self.version = move.new, move.table, move.version
        self.mark(first, move)

    def _in_old(self, exchange: str) -> bool:
        return exchange in self.late

    def gather(self, exchange: str, record: Record) -> None:
        new = (self.members, self.table, self.version)
        if self._in_old(exchange):
            self.members, self.table, self.version = self.old
        super().gather(exchange, record)
        self.members, self.table, self.version = new

    def flush_one(self, key: ChannelKey) -> None:
        new, self.version = self.version, self.old[2] if self._in_old(key.exchange) else self.version
        super().flush_one(key)
        self.version = new

    def send_epoch(self, exchange: str, time: int, *, idle: bool = False) -> None:
        new, self.members = self.members, self.old[0] if self._in_old(exchange) else self.members
        super().send_epoch(exchange, time, idle=idle)
        self.members = new

    def take(self, key: ChannelKey, item: object) -> None:
        super().take(key, item)  # type: ignore[arg-type]
        self.waited += 1
        if self.late and self.waited % 3 == 0:
            exchange, *late = self.late
            self.flush(exchange)
            self.late = tuple(late)
            assert self.move is not None
            self.mark(exchange, self.move)


class EmptySlotsNotShipped(ModelWorker):
    """R4: slots without state are not shipped."""

    def apply(self, region: str, effects: list[re.Effect], key: ChannelKey | None = None) -> None:
        kept: list[re.Effect] = []
        for effect in effects:
            if isinstance(effect, re.Ship):
                slots = tuple(pair for pair in effect.slots if pair[0] in self.state[region].keys)
                kept.append(re.Ship(effect.version, slots or effect.slots))
            else:
                kept.append(effect)
        super().apply(region, kept, key)


class ReleasedBackwards(ModelWorker):
    """R5: held rows are let in, the last first."""

    def release(self, region: str) -> None:
        self.state[region].held.reverse()
        super().release(region)


class PolledAtOnce(ModelWorker):
    """R6: a gained part is polled immediately."""

    def take_part(self, came: PartHandedOver) -> None:
        super().take_part(came)
        self.gained[came.move.source, came.move.part].polled = True


class PartWithoutItsFrontier(ModelWorker):
    """R2: a part comes without its epoch."""

    def take_part(self, came: PartHandedOver) -> None:
        super().take_part(came)
        self.gained[came.move.source, came.move.part].epoch = MIN_EPOCH


class ByeBehindTheMarker(ModelWorker):
    """R8: a leaver says Bye as soon as it has switched, and its regions continue."""

    def switch_exchanges(self, move: RescaleMove) -> None:
        super().switch_exchanges(move)
        if self.id not in move.new:
            self.say_bye()
            self.gone = False

    def say_bye(self) -> None:
        if self.id not in self.members and not hasattr(self, "said"):
            self.said = True
            super().say_bye()
        self.gone = True


class EpochsToOneOnly(ModelWorker):
    """T3: an epoch is sent to the first member only."""

    def send_epoch(self, exchange: str, time: int, *, idle: bool = False) -> None:
        everyone, self.members = self.members, self.members[:1]
        super().send_epoch(exchange, time, idle=idle)
        self.members = everyone


class FollowsTheMaximum(ModelWorker):
    """T2: an idle worker promises the maximum epoch."""

    def reached(self, source: str) -> int | None:
        time, idle = self.reading.last[source]
        return MAX_EPOCH if self.may_read and idle and time < MAX_EPOCH else None

    def due_epochs(self) -> list[str]:
        return [s for s in super().due_epochs() if self.reading.frontier(s)[0] >= self.reading.last[s][0]]


class RegionsSpeakBeforeTheMarker(ModelWorker):
    """R2: between hand-over and marker regions promise epochs where an idle source has a say too."""

    def is_silent(self, exchange: str) -> bool:
        return False


class MarkerOfTheRegion(ModelWorker):
    """R2: where a region and a source feed an exchange, its marker promises what the region has reached."""

    mine = "regions"

    def mark(self, exchange: str, move: RescaleMove) -> None:
        feeders = self.shape.exchanges[exchange]
        own = tuple(name for name in feeders if name in getattr(self.shape, self.mine))
        if not own or own == feeders:
            super().mark(exchange, move)
            return
        shape = self.shape
        self.shape = replace(shape, exchanges={**shape.exchanges, exchange: own})
        super().mark(exchange, move)
        self.shape = shape


class MarkerOfTheSource(MarkerOfTheRegion):
    """R2: where a region and a source feed an exchange, its marker promises what the source has reached."""

    mine = "sources"


class FiresOnTheFirstInput(Counting):
    """T6: windows fire at the furthest input's epoch."""

    def merged(self) -> int:
        return max(self.epochs.values())


class GapAccepted(Channel):
    """F1: numbers are not looked at."""

    def in_order(self, frame: Frame) -> bool:
        return True


class StaleAccepted(GapAccepted):
    """F1, S6: incarnations are not looked at."""

    def current(self, frame: Frame) -> bool:
        return True


class CreditIgnored(Channel):
    """F2: everything is sent immediately."""

    def may_go(self, frame: Frame) -> bool:
        return True


class EpochsNeedNoCredit(Channel):
    """F2: an epoch is sent immediately, before waiting rows."""

    def put(self, item: object) -> bool:
        if isinstance(item, EpochItem) and self.backlog:
            self.numbered += 1
            self.sent.append(Frame(self.incarnation, self.taken + len(self.sent) + 1, item))
            self.backlog = type(self.backlog)(f._replace(sequence=f.sequence + 1) for f in self.backlog)
            self.untaken += 1
            return False
        return super().put(item)  # type: ignore[arg-type]


class FedDespiteBacklog(World):
    """F2: data is taken into a region whose outputs are full."""

    def may_feed(self, feeder: str, worker: int, full: set[tuple[str, int]]) -> bool:
        return True


class StaleLettersAccepted(World):
    """S6: letters of an old incarnation are taken by workers."""

    def is_current(self, incarnation: int, receiver: int) -> bool:
        return receiver != COORDINATOR or super().is_current(incarnation, receiver)
