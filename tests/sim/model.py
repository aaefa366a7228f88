"""A model of a job that rescales: the real machines, with records, state and channels cut down to the bare minimum.

A seed (or a search) decides which of the things that can happen next does. A record is (part, number, key, time), a
slot is a key, a region counts per key and fires windows at epochs; so the oracle can say of every record and window
what must become of it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.rescale import region_machine as rm
from malstrom_py.rescale import switch_machine as sm
from malstrom_py.rescale.placement import first_table, plan_moves
from malstrom_py.rescale.protocol import (
    Bye,
    Leave,
    Marker,
    Move,
    OpenSlots,
    Parcel,
    PartHandedOver,
    PollParts,
    Rescale,
    Shipped,
)
from malstrom_py.workers import coordinator_machine as cm

WINDOW = 4


class Rec(NamedTuple):
    """A record: where it was read, its number there, its key, its time; ``path`` are the keys it had before."""

    part: str
    number: int
    key: int
    time: int
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shape:
    """A job. ``exchanges``: name -> who feeds it; ``regions``: name -> the exchanges that feed it."""

    name: str
    exchanges: dict[str, str]
    regions: dict[str, tuple[str, ...]]
    sources: tuple[str, ...]

    def fed_by(self, feeder: str) -> tuple[str, ...]:
        return tuple(name for name, other in self.exchanges.items() if other == feeder)


SHAPES = {
    "chain": Shape("chain", {"A": "S"}, {"R": ("A",)}, ("S",)),
    "two stages": Shape("two stages", {"A": "S", "B": "R"}, {"R": ("A",), "Q": ("B",)}, ("S",)),
    "three stages": Shape(
        "three stages", {"A": "S", "B": "R", "C": "Q"}, {"R": ("A",), "Q": ("B",), "P": ("C",)}, ("S",)
    ),
    "join": Shape("join", {"A": "S", "B": "T"}, {"R": ("A", "B")}, ("S", "T")),
    "diamond": Shape("diamond", {"A": "S", "B": "S", "C": "R"}, {"R": ("A",), "Q": ("B", "C")}, ("S",)),
    "split": Shape("split", {"A": "S", "B": "S"}, {"R": ("A",), "Q": ("B",)}, ("S",)),
}


@dataclass
class Part:
    """A part of a source: ``position`` of ``length`` records read, its epoch, and whether it may be polled."""

    length: int
    position: int = 0
    epoch: int = MIN_EPOCH
    polled: bool = True

    @property
    def frontier(self) -> int:
        return MAX_EPOCH if self.position == self.length else self.epoch


class Violation(AssertionError):
    """What the oracle found."""


@dataclass
class RegionState:
    """What a region holds: per key a list of (exchange, record), and the windows that have not fired."""

    counts: dict[int, list[Any]] = field(default_factory=dict)
    windows: dict[int, dict[int, list[Any]]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    epoch: int = MIN_EPOCH
    held: list[tuple[str, Rec]] = field(default_factory=list)


class Worker:
    """One worker of the model: its machines and what they act on."""

    def __init__(
        self, world: World, worker: int, members: tuple[int, ...], table: tuple[int, ...], version: int
    ) -> None:
        shape = world.shape
        self.world = world
        self.id = worker
        self.members = members
        self.table = table
        self.switch = world.switch_machine(worker, version=version)
        self.regions = {
            name: world.region_machine(
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
        self.state = {name: RegionState(epochs=dict.fromkeys(exs, MIN_EPOCH)) for name, exs in shape.regions.items()}
        self.parts: dict[tuple[str, str], Part] = {}
        self.sent: dict[str, int] = dict.fromkeys(shape.exchanges, MIN_EPOCH)
        self.shipping: dict[str, list[tuple[int, int]]] = {}
        self.gone = False

    def source_frontier(self, source: str) -> int:
        return min((part.frontier for (other, _), part in self.parts.items() if other == source), default=MAX_EPOCH)

    # -- what a worker may do of itself --

    def can_poll(self) -> list[tuple[str, str]]:
        if self.gone or not self.switch.may_poll:
            return []
        return [name for name, part in self.parts.items() if part.polled and part.position < part.length]

    def poll(self, name: tuple[str, str]) -> None:
        part = self.parts[name]
        time = part.position + 1
        record = Rec("/".join(name), part.position, self.world.key_of(name, part.position), time)
        part.position += 1
        part.epoch = time - 1
        for exchange in self.world.shape.fed_by(name[0]):
            self.send_record(exchange, record)

    def due_epochs(self) -> list[str]:
        if self.gone or not self.switch.may_poll:
            return []
        shape = self.world.shape
        return [s for s in shape.sources if any(self.source_frontier(s) > self.sent[e] for e in shape.fed_by(s))]

    def broadcast(self, source: str) -> None:
        time = self.source_frontier(source)
        for exchange in self.world.shape.fed_by(source):
            self.send_epoch(exchange, time)

    def ship(self, region: str) -> None:
        """One parcel: the next slot on its way."""
        slot, owner = self.shipping[region].pop(0)
        state = self.state[region]
        content = (state.counts.pop(slot, None), state.windows.pop(slot, None))
        version = self.regions[region].moving_version
        self.world.mail(self.id, owner, Parcel(region, version, self.id, (slot,), {"state": content}))  # type: ignore[dict-item]
        if not self.shipping[region]:
            del self.shipping[region]
            self.apply(region, self.regions[region].handle(rm.ShippingEnded(version)))

    # -- sending --

    def send_record(self, exchange: str, record: Rec) -> None:
        if record.time <= self.sent[exchange]:
            raise Violation(
                f"worker {self.id} sends {record} on {exchange} at or below its epoch {self.sent[exchange]}"
            )
        self.world.put(exchange, self.id, self.table[record.key], ("rows", self.switch.version, record))

    def send_epoch(self, exchange: str, time: int) -> None:
        if time > self.sent[exchange] and not self.gone:
            self.sent[exchange] = time
            for member in self.members:
                self.world.put(exchange, self.id, member, ("epoch", time))

    # -- receiving --

    def take(self, exchange: str, sender: int, item: tuple[Any, ...]) -> None:
        region = next(name for name, exchanges in self.world.shape.regions.items() if exchange in exchanges)
        event: rm.Event
        if item[0] == "rows":
            event = rm.RowsTaken(exchange, sender, item[1], item[2])
        elif item[0] == "epoch":
            event = rm.EpochTaken(exchange, sender, item[1])
        else:
            event = rm.InBandTaken(exchange, sender, item[1])
        self.apply(region, self.regions[region].handle(event))

    def take_mail(self, message: Any) -> None:
        if isinstance(message, Parcel):
            self.apply(message.region, self.regions[message.region].handle(rm.ParcelTaken(message)))
        elif isinstance(message, PartHandedOver):
            self.switched(self.switch.handle(sm.PartCame(message)))
        elif isinstance(message, OpenSlots):
            self.apply(message.region, self.regions[message.region].handle(rm.OpenTaken(message)))
        elif isinstance(message, Rescale):
            self.switched(self.switch.handle(sm.RescaleOrdered(message)))
        elif isinstance(message, PollParts):
            self.switched(self.switch.handle(sm.PollOrdered(message)))
        elif isinstance(message, Leave):
            self.switched(self.switch.handle(sm.LeaveOrdered(message)))

    def switched(self, effects: list[sm.Effect]) -> None:
        for effect in effects:
            match effect:
                case sm.HandOver():
                    key = (effect.move.source, effect.move.part)
                    part = self.parts.pop(key)
                    self.world.hit("part moved")
                    self.world.mail(self.id, effect.move.taker, PartHandedOver(effect.version, effect.move, part))
                case sm.TakePart():
                    moved = effect.part
                    part = moved.position
                    self.parts[moved.move.source, moved.move.part] = Part(part.length, part.position, part.epoch, False)
                case sm.SwitchExchanges():
                    self.mark(effect.move)
                case sm.PollGained():
                    for (source, _), part in self.parts.items():
                        if source == effect.source:
                            part.polled = True
                case sm.SayBye():
                    for exchange in self.world.shape.exchanges:
                        for member in self.world.coordinator.members:
                            self.world.put(exchange, self.id, member, ("in band", Bye()))
                    self.gone = True
                case sm.Tell():
                    self.world.report(self.id, effect.report)
                case sm.FlushOutgoing():
                    """The model gathers nothing."""

    def mark(self, move: Move) -> None:
        shape = self.world.shape
        self.members, self.table = move.new, move.table
        for exchange, feeder in shape.exchanges.items():
            before = self.sent[exchange]
            after = self.source_frontier(feeder) if feeder in shape.sources else before
            if self.id in move.new:
                # What a sender promises from here on; it may be lower than before, by a part that it gained.
                self.sent[exchange] = after
            for member in move.everyone:
                self.world.put(exchange, self.id, member, ("in band", Marker(move, before, after)))

    def apply(self, region: str, effects: list[rm.Effect]) -> None:
        state = self.state[region]
        for effect in effects:
            match effect:
                case rm.Pass():
                    if effect.rows.key in effect.held:
                        self.world.hit("row held")
                        state.held.append((effect.exchange, effect.rows))
                    else:
                        self.process(region, effect.exchange, effect.rows)
                case rm.Release():
                    held, state.held = state.held, []
                    for exchange, record in held:
                        self.process(region, exchange, record)
                case rm.Advance():
                    state.epochs[effect.exchange] = effect.time
                    self.advance(region, min(state.epochs.values()))
                case rm.Ship():
                    self.shipping[region] = list(effect.slots)
                case rm.Install():
                    counts, windows = effect.parcel.states["state"]
                    (slot,) = effect.parcel.slots
                    if slot in state.counts or slot in state.windows:
                        raise Violation(f"state of slot {slot} is installed onto state (R5)")
                    if counts is not None:
                        state.counts[slot] = counts
                    if windows is not None:
                        state.windows[slot] = windows
                case rm.SendShipped():
                    move = self.regions[region].last_move
                    for exchange in self.world.shape.fed_by(region):
                        for member in move.everyone:
                            self.world.put(exchange, self.id, member, ("in band", Shipped(effect.version)))
                case rm.Tell():
                    self.world.report(self.id, effect.report)

    # -- the region's operator: counts and windows --

    def process(self, region: str, exchange: str, record: Rec) -> None:
        state = self.state[region]
        if record.time <= state.epochs[exchange]:
            raise Violation(f"{record} came to {region} on worker {self.id} behind epoch {state.epochs[exchange]}")
        state.counts.setdefault(record.key, []).append((exchange, record))
        window = record.time // WINDOW
        state.windows.setdefault(record.key, {}).setdefault(window, []).append((exchange, record))
        self.world.processed(region, exchange, record, self.id)
        for other in self.world.shape.fed_by(region):
            key = (record.key + record.number) % self.world.keys
            self.send_record(other, record._replace(key=key, path=(*record.path, record.key)))

    def advance(self, region: str, epoch: int) -> None:
        state = self.state[region]
        if epoch <= state.epoch:
            return
        for key in list(state.windows):
            for window in [w for w in state.windows[key] if (w + 1) * WINDOW - 1 <= epoch]:
                self.world.fired(region, key, window, state.windows[key].pop(window), self.id)
            if not state.windows[key]:
                del state.windows[key]
        state.epoch = epoch
        for exchange in self.world.shape.fed_by(region):
            self.send_epoch(exchange, epoch)


class World:
    """The whole of it: workers, coordinator, channels, mail. ``actions`` are what can happen next."""

    switch_machine: Any = staticmethod(sm.SwitchMachine)
    region_machine: Any = staticmethod(rm.RegionMachine)
    coordinator_machine: Any = staticmethod(cm.CoordinatorMachine)

    def __init__(self, shape: Shape, *, workers: int, keys: int, parts: int, records: int, slots_max: int = 2) -> None:
        self.shape = shape
        self.keys = keys
        members = tuple(range(workers))
        table = first_table(keys, members)
        self.hits: Counter[str] = Counter()
        self.log: list[str] = []
        self.channels: dict[tuple[str, int, int], deque[Any]] = {}
        self.letters: dict[tuple[int, int], deque[Any]] = {}
        self.order: dict[tuple[Any, ...], int] = {}
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.windows: dict[tuple[Any, ...], list[Any]] = {}
        self.workers = {worker: Worker(self, worker, members, table, 0) for worker in members}
        owners: dict[tuple[str, str], int] = {}
        self.total = 0
        for source in shape.sources:
            for number in range(parts):
                owner = number % workers
                owners[source, str(number)] = owner
                self.workers[owner].parts[source, str(number)] = Part(records)
                self.total += records
        topology = cm.Topology(
            tuple(shape.exchanges),
            {name: shape.fed_by(name) for name in shape.regions},
            {name: shape.fed_by(name) for name in shape.sources},
        )
        self.coordinator = self.coordinator_machine(
            topology, members=members, table=table, parts=owners, plan_moves=partial(plan_moves, slots_max=slots_max)
        )
        self.ended = 0

    def key_of(self, name: tuple[str, str], number: int) -> int:
        return (number * 7 + int(name[1]) * 3 + len(name[0])) % self.keys

    def hit(self, what: str) -> None:
        self.hits[what] += 1

    def put(self, exchange: str, sender: int, receiver: int, item: Any) -> None:
        self.channels.setdefault((exchange, sender, receiver), deque()).append(item)

    def mail(self, sender: int, receiver: int, message: Any) -> None:
        self.letters.setdefault((sender, receiver), deque()).append(message)

    def report(self, worker: int, report: Any) -> None:
        self.mail(worker, -1, report)

    # -- the oracle --

    def processed(self, region: str, exchange: str, record: Rec, worker: int) -> None:
        self.seen[region, exchange, record] += 1
        if self.seen[region, exchange, record] > 1:
            raise Violation(f"{record} was processed twice by {region}")
        path = (region, exchange, record.part, record.path, record.key)
        if self.order.get(path, -1) > record.number:
            raise Violation(f"{record} was processed behind number {self.order[path]} by {region}: reordered")
        self.order[path] = record.number

    def fired(self, region: str, key: int, window: int, content: list[Any], worker: int) -> None:
        if (region, key, window) in self.windows:
            raise Violation(f"window {window} of key {key} fired twice in {region}")
        self.windows[region, key, window] = content

    def check_end(self) -> None:
        """Everything has ended: what must have become of it."""
        for worker in self.workers.values():
            if worker.gone:
                continue
            for name, machine in worker.regions.items():
                if machine.phase is not rm.Phase.STEADY:
                    raise Violation(f"region {name} on worker {worker.id} is still {machine.phase}: nothing goes on")
                if worker.state[name].epoch != MAX_EPOCH:
                    raise Violation(
                        f"region {name} on worker {worker.id} never saw the end: {worker.state[name].epoch}"
                    )
                if worker.state[name].held:
                    raise Violation(f"region {name} on worker {worker.id} still holds rows")
        if self.coordinator.phase is not cm.Phase.STEADY:
            raise Violation(f"the coordinator is still {self.coordinator.phase}: nothing goes on")
        expected = sum(self.total_of(exchange) for exchange in self.shape.exchanges)
        if sum(self.seen.values()) != expected:
            raise Violation(f"{sum(self.seen.values())} records were processed, {expected} should have been: lost")
        for region in self.shape.regions:
            found = Counter(
                item for (other, key, _), content in self.windows.items() if other == region for item in content
            )
            wanted = Counter({(e, r): n for (other, e, r), n in self.seen.items() if other == region})
            if found != wanted:
                raise Violation(f"windows of {region} have other records than came: {found - wanted} {wanted - found}")

    def total_of(self, exchange: str) -> int:
        feeder = self.shape.exchanges[exchange]
        if feeder in self.shape.sources:
            return self.total // len(self.shape.sources)
        return sum(self.total_of(other) for other in self.shape.regions[feeder])

    # -- what can happen --

    def actions(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for name, channel in self.channels.items():
            if channel and name[2] in self.workers and not self.workers[name[2]].gone:
                found.append(("deliver", *name))
        for pair, letters in self.letters.items():
            if letters and (pair[1] < 0 or pair[1] in self.workers):
                found.append(("mail", *pair))
        for worker in self.workers.values():
            found += [("poll", worker.id, *name) for name in worker.can_poll()]
            found += [("epoch", worker.id, source) for source in worker.due_epochs()]
            found += [("ship", worker.id, region) for region in worker.shipping]
        return found

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("deliver", exchange, sender, receiver):
                item = self.channels[exchange, sender, receiver].popleft()
                self.workers[receiver].take(exchange, sender, item)
            case ("mail", sender, receiver):
                message = self.letters[sender, receiver].popleft()
                if receiver >= 0:
                    self.workers[receiver].take_mail(message)
                elif isinstance(message, cm.Connected):
                    self.coordinate(message)
                else:
                    self.coordinate(cm.Reported(message))
            case ("poll", worker, source, part):
                self.workers[worker].poll((source, part))
            case ("epoch", worker, source):
                self.workers[worker].broadcast(source)
            case ("ship", worker, region):
                self.workers[worker].ship(region)
        for one in self.workers.values():
            one.switch.check()
            for machine in one.regions.values():
                machine.check()
        self.coordinator.check()

    def request(self, members: tuple[int, ...]) -> None:
        if self.coordinator.phase is not cm.Phase.STEADY:
            self.hit("rescale coalesced")
        self.coordinate(cm.Requested(members))

    def coordinate(self, event: cm.Event) -> None:
        for effect in self.coordinator.handle(event):
            match effect:
                case cm.StartWorkers():
                    for worker in effect.workers:
                        self.workers[worker] = Worker(self, worker, effect.members, effect.table, effect.version)
                        self.mail(worker, -1, cm.Connected(worker))
                case cm.Send():
                    self.mail(-1, effect.worker, effect.order)
                case cm.Ended():
                    self.ended += 1
                    for worker in [w for w in self.workers if w not in effect.members]:
                        for name, channel in self.channels.items():
                            if name[1] == worker and channel and name[2] in effect.members:
                                raise Violation(f"a channel of leaver {worker} is dropped before its end (R8)")
                        del self.workers[worker]


def run(seed: int, *, world_class: type[World] = World, steps_max: int = 200_000) -> World:
    """One random run to its end; `Violation` or `InternalError` if anything is wrong."""
    rng = random.Random(seed)
    shape = SHAPES[rng.choice(sorted(SHAPES))]
    workers = rng.randint(1, 4)
    world = world_class(
        shape,
        workers=workers,
        keys=rng.randint(1, 6),
        parts=rng.randint(1, 4),
        records=rng.randint(0, 12),
        slots_max=rng.randint(1, 6),
    )
    requests = sorted(rng.randint(0, 400) for _ in range(rng.randint(0, 3)))
    ids = workers
    slow = {worker: rng.choice([1, 1, 1, 0.1, 0.01]) for worker in range(-1, 20)}
    for step in range(steps_max):
        actions = world.actions()
        if requests and (step >= requests[0] or not actions):
            requests.pop(0)
            here = [w for w in world.coordinator.members]
            size = rng.randint(1, 5)
            keep = rng.sample(here, min(size, len(here)))
            while len(keep) < size:
                keep.append(ids)
                ids += 1
            world.request(tuple(sorted(keep)))
            continue
        if not actions:
            world.check_end()
            return world
        weights = [slow[action[-1] if action[0] in ("deliver", "mail") else action[1]] for action in actions]
        world.act(rng.choices(actions, weights)[0])
    raise Violation("it goes on and on: livelock")
