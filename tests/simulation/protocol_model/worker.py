"""One worker of the model: the real machines, and the little that they act on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.rescale.moves import receiving_machine as re
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import (
    Bye,
    InBand,
    Leave,
    Marker,
    OpenSlots,
    PartHandedOver,
    PollParts,
    RegionDone,
    Report,
    RescaleMove,
    SendAhead,
    SendReport,
    SentAhead,
    Shipped,
    StartMove,
    StateChunk,
    Table,
)
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from tests.simulation.protocol_model.counting import HeldRows
from tests.simulation.protocol_model.promising import Net, Promising
from tests.simulation.protocol_model.records import ChannelKey, EpochItem, Item, Part, PartName, Record, Rows
from tests.simulation.protocol_model.shapes import Shape


class Machines(Protocol):
    """Which classes a worker is made of."""

    region: Any
    switch: Any
    reading: Any
    counting: Any


class ModelWorker(Promising):
    """Worker ``worker``, built with the ``members``, ``table`` and ``version`` of now; a joiner is not a member yet."""

    def __init__(
        self,
        net: Net,
        worker: int,
        shape: Shape,
        machines: Machines,
        *,
        members: tuple[int, ...],
        table: Table,
        version: int = 0,
        batch_rows: int = 1,
        chunk: int = 1,
    ) -> None:
        self.net = net
        self.id = worker
        self.shape = shape
        self.members = members
        self.table = table
        self.version = version
        self.batch_rows = batch_rows
        self.chunk = chunk
        self.started = worker in members
        self.gone = False
        self.switch: sm.SendingMachine = machines.switch(worker, version=version)
        self.regions = {
            name: machines.region(
                name,
                worker,
                exchanges=exchanges,
                feeds_exchanges=bool(shape.fed_by(name)),
                members=members,
                table=table,
                version=version,
            )
            for name, exchanges in shape.regions.items()
        }
        self.state = {name: machines.counting(name, exs) for name, exs in shape.regions.items()}
        self.reading = machines.reading(shape.sources)
        self.gained: dict[PartName, Part] = {}
        self.sent = dict.fromkeys(shape.exchanges, MIN_EPOCH)
        self.idle = dict.fromkeys(shape.exchanges, False)
        self.outgoing: dict[ChannelKey, list[Record]] = {}
        self.shipping: dict[str, tuple[tuple[int, int], ...]] = {}
        self.copying: dict[str, tuple[tuple[int, int], ...]] = {}
        self.ahead: int | None = None

    # -- scheduled actions --

    @property
    def may_read(self) -> bool:
        """R2: a joiner sends nothing before its marker; no worker sends between hand-over and marker."""
        return self.started and self.switch.may_poll

    def poll(self, name: PartName, rows: int) -> None:
        """Read some rows of a part, and send them on every exchange that its source feeds."""
        records, special = self.reading.poll(name, rows, self.net.oracle)
        for case in special:
            self.net.hit(case)
        if self.reading.parts[name].finished and self.in_move():
            self.net.hit("part finished in a move")
        for record in records:
            for exchange in self.shape.fed_by(name[0]):
                self.gather(exchange, record)

    def in_move(self) -> bool:
        """Whether a region here is in the middle of a move."""
        return any(machine.phase is not ReceivingPhase.STEADY for machine in self.regions.values())

    def send_ahead(self, move: RescaleMove) -> None:
        """R12: copy what leaves, twice."""
        for region, machine in self.regions.items():
            if machine.loses(move):
                self.copying[region] = 2 * machine.lost_in(move)
        self.ahead = move.version

    def copy(self, region: str) -> None:
        """R12: send a copy of the next leaving slot."""
        assert self.ahead is not None
        (slot, owner), *left = self.copying.pop(region)
        states = self.state[region].copied(slot)
        if states:
            self.net.hit("state sent ahead")
            self.net.mail(self.id, owner, StateChunk(region, self.ahead, self.id, (), states, ahead=True))
        if left:
            self.copying[region] = tuple(left)
        elif not self.copying:
            self.net.report(self.id, SentAhead(self.ahead, self.id))
            self.ahead = None

    def ship(self, region: str) -> None:
        """Send one chunk: the next leaving slots of one owner."""
        (_, owner), *_ = slots = self.shipping[region]
        chunk = tuple(slot for slot, other in slots[: self.chunk] if other == owner)
        confirmed = self.state[region].confirmed(chunk)
        states = self.state[region].taken_out(chunk)
        version = self.regions[region].moving_version
        if len(states) + len(confirmed) < len(chunk):
            self.net.hit("empty slot shipped")
        if confirmed:
            self.net.hit("key confirmed at the cut")
        self.net.mail(self.id, owner, StateChunk(region, version, self.id, chunk, states, confirmed))
        self.shipping[region] = tuple(pair for pair in slots if pair[0] not in chunk)
        if self.shipping[region]:
            self.net.hit("slots shipped in chunks")
            return
        del self.shipping[region]
        self.apply(region, self.regions[region].handle(re.ShippingEnded(version)))

    # -- sending --

    def gather(self, exchange: str, record: Record) -> None:
        """Add a record to the batch for its owner; a full one leaves."""
        self.net.oracle.require(
            record.time > self.sent[exchange],
            f"worker {self.id} sends {record} on {exchange} at or below its epoch {self.sent[exchange]}",
        )
        key = ChannelKey(exchange, self.id, self.table[record.key])
        batch = self.outgoing.setdefault(key, [])
        batch.append(record)
        if len(batch) >= self.batch_rows:
            self.flush_one(key)

    def flush_one(self, key: ChannelKey) -> None:
        """Send a batch."""
        self.net.put(key, Rows(self.version, tuple(self.outgoing.pop(key))))

    def flush(self, exchange: str | None = None) -> None:
        """Send all that has been gathered, for one exchange or all."""
        for key in [key for key in self.outgoing if exchange in (None, key.exchange)]:
            self.flush_one(key)

    def send_epoch(self, exchange: str, time: int, *, idle: bool = False) -> None:
        """T3: the same to all receivers; nothing after Bye (R8)."""
        if self.gone:
            return
        if self.id not in self.members:
            self.net.hit("leaver's epoch after its marker")
        self.sent[exchange], self.idle[exchange] = max(time, self.sent[exchange]), idle
        self.note_sent(exchange)
        self.flush(exchange)
        for member in self.members:
            self.net.put(ChannelKey(exchange, self.id, member), EpochItem(time, idle))

    def send_in_band(self, exchange: str, members: tuple[int, ...], message: InBand) -> None:
        """Send a control message after all buffered rows."""
        self.flush(exchange)
        for member in members:
            self.net.put(ChannelKey(exchange, self.id, member), message)

    # -- receiving --

    def take(self, key: ChannelKey, item: Item) -> None:
        """Take one item from a channel."""
        region = self.shape.region_of(key.exchange)
        machine = self.regions[region]
        match item:
            case Rows():
                effects = machine.handle(re.RowsTaken(key.exchange, key.sender, item.version, item.records))
            case EpochItem():
                self.net.free(key, 1)
                effects = machine.handle(re.EpochTaken(key.exchange, key.sender, item.time, item.idle))
                if not effects and machine.phase is not ReceivingPhase.STEADY:
                    self.net.hit("epoch held")
            case _:
                effects = machine.handle(re.InBandTaken(key.exchange, key.sender, item))
        self.apply(region, effects, key)

    def take_mail(self, message: object) -> None:
        """Take what comes outside the channels."""
        match message:
            case SendAhead():
                self.send_ahead(message.move)
            case StateChunk():
                machine = self.regions[message.region]
                if machine.phase is ReceivingPhase.STEADY and not message.ahead:
                    self.net.hit("parcel before a marker")
                self.apply(message.region, machine.handle(re.StateTaken(message)))
            case OpenSlots():
                effects = self.regions[message.region].handle(re.OpenTaken(message))
                if any(isinstance(effect, re.Release) for effect in effects):
                    self.net.hit("Shipped waited for")
                self.apply(message.region, effects)
            case PartHandedOver():
                self.switched(self.switch.handle(sm.PartCame(message)))
            case StartMove():
                self.switched(self.switch.handle(sm.RescaleOrdered(message)))
            case PollParts():
                self.switched(self.switch.handle(sm.PollOrdered(message)))
            case Leave():
                self.switched(self.switch.handle(sm.LeaveOrdered(message)))

    # -- effects of the sending side --

    def switched(self, effects: list[sm.Effect]) -> None:
        """Do what the switch machine asks for."""
        for effect in effects:
            match effect:
                case sm.FlushOutgoing():
                    self.flush()
                case sm.HandOver():
                    self.hand_over(effect)
                case sm.TakePart():
                    self.take_part(effect.part)
                case sm.SwitchExchanges():
                    self.switch_exchanges(effect.move)
                case sm.PollGained():
                    for part in self.reading.of(effect.source):
                        part.polled = True
                case sm.SayBye():
                    self.say_bye()
                case SendReport():
                    self.net.report(self.id, effect.report)

    def hand_over(self, effect: sm.HandOver) -> None:
        """Give a part away."""
        part = self.reading.give((effect.move.source, effect.move.part))
        self.net.hit("part moved")
        if part.idle and not part.finished:
            self.net.hit("idle part moved")
        self.net.mail(self.id, effect.move.taker, PartHandedOver(effect.version, effect.move, replace(part)))

    def take_part(self, came: PartHandedOver) -> None:
        """R6: the part counts from the switch on, and is polled on the coordinator's order."""
        part: Part = came.position
        if not part.finished:
            self.net.hit("part waiting for release")
        self.gained[came.move.source, came.move.part] = replace(part, polled=False)

    def switch_exchanges(self, move: RescaleMove) -> None:
        """R2: switch all exchanges together, and send a marker on every channel."""
        if not self.started and not self.gained:
            self.net.hit("joiner without part")
        self.started = True
        self.take_in_parts()
        self.members, self.table, self.version = move.new, move.table, move.version
        for exchange in self.shape.exchanges:
            self.mark(exchange, move)

    def mark(self, exchange: str, move: RescaleMove) -> None:
        """Promise on one exchange what is promised from here on, in a marker."""
        before, after, idle = self.promise_anew(exchange)
        self.send_in_band(exchange, move.everyone, Marker(move, before, after, idle))

    def say_bye(self) -> None:
        """R8: the last on every channel."""
        for exchange in self.shape.exchanges:
            self.send_in_band(exchange, self.members, Bye())
        self.gone = True

    # -- effects of the receiving side --

    def apply(self, region: str, effects: list[re.Effect], key: ChannelKey | None = None) -> None:
        """Do what a region machine asks for."""
        state = self.state[region]
        for effect in effects:
            match effect:
                case re.Pass():
                    assert key is not None
                    self.let_in(region, key, effect.rows, effect.held)
                case re.Release():
                    self.release(region)
                case re.Advance():
                    self.advanced(region, state.advance(self.net.oracle, effect.exchange, effect.time))
                case re.Ship():
                    self.shipping[region] = tuple(sorted(effect.slots, key=lambda pair: (pair[1], pair[0])))
                case re.Install():
                    state.put_in(self.net.oracle, effect.parcel.states)
                    state.put_confirmed(self.net.oracle, effect.parcel.confirmed)
                case re.KeepAside():
                    state.keep_aside(effect.parcel.states)
                case re.SendShipped():
                    self.send_shipped(region, effect.version)
                case SendReport():
                    self.reported(state, effect.report)

    def send_shipped(self, region: str, version: int) -> None:
        """R6: to everyone of the move."""
        move = self.regions[region].last_move
        assert move is not None
        for exchange in self.shape.fed_by(region):
            self.send_in_band(exchange, move.everyone, Shipped(version))

    def reported(self, state: Any, report: Report) -> None:
        """A region reports; at the end of a move it forgets what went and what came ahead."""
        if isinstance(report, RegionDone):
            state.move_over()
        self.net.report(self.id, report)

    def let_in(self, region: str, key: ChannelKey, records: tuple[Record, ...], held: frozenset[int]) -> None:
        """R5: rows of slots that are not here yet are kept, in order, and keep their credit."""
        passed = [record for record in records if record.key not in held]
        kept: list[HeldRows] = [(key, record) for record in records if record.key in held]
        if kept:
            self.net.hit("slot held")
            self.state[region].held += kept
        self.net.free(key, len(passed))
        for record in passed:
            self.process(region, key.exchange, record)

    def release(self, region: str) -> None:
        """Let in what was held."""
        held, self.state[region].held = self.state[region].held, []
        for key, record in held:
            self.net.free(key, 1)
            self.process(region, key.exchange, record)

    def process(self, region: str, exchange: str, record: Record) -> None:
        """One record through the region, and out of it under another key."""
        self.state[region].process(self.net.oracle, exchange, record)
        for other in self.shape.fed_by(region):
            key = (record.key + record.number) % len(self.table)
            self.gather(other, record._replace(key=key, path=(*record.path, record.key)))

    def advanced(self, region: str, epoch: int | None) -> None:
        """A region has got further."""
        if epoch is None:
            return
        for exchange in self.shape.fed_by(region):
            self.tell(exchange)
