"""The whole of a model: workers, coordinator, channels, mail, and what can happen next."""

from __future__ import annotations

from collections import Counter
from typing import Any

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import PeerError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import Bye, FindKeys, ForgetKeys, InBand, Marker, Report, StartMove
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from malstrom_py.rescale.moves.sending_machine import SendingPhase
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import machine as cm
from malstrom_py.workers.transport.messages import Connected
from tests.simulation.protocol_model.channel import Channel, Frame
from tests.simulation.protocol_model.oracle import Oracle, Violation
from tests.simulation.protocol_model.records import ChannelKey, EpochItem, Item, Part, Rows
from tests.simulation.protocol_model.setups import Machines, Setup
from tests.simulation.protocol_model.worker import ModelWorker

Action = tuple[Any, ...]

COORDINATOR = -1
"""The coordinator, as a sender and receiver of letters."""

Letters = dict[tuple[int, int], tuple[tuple[int, object], ...]]
"""(sender, receiver) -> letters, each with its incarnation."""

Stale = tuple[ChannelKey, Frame] | tuple[tuple[int, int], tuple[int, object]]
"""A frame or letter of an old incarnation, that a zombie still sends."""


class World:
    """One incarnation of a job."""

    def __init__(
        self, setup: Setup, machines: Machines | None = None, *, incarnation: int = 0, stale: tuple[Stale, ...] = ()
    ) -> None:
        self.setup, self.shape, self.machines = setup, setup.shape, machines or Machines()
        self.incarnation = incarnation
        self.stale = stale
        self.naps = setup.naps
        self.hits: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.oracle = Oracle(setup.shape, setup.parts)
        self.channels: dict[ChannelKey, Channel] = {}
        self.letters: Letters = {}
        members = tuple(range(setup.workers))
        table = first_table(setup.keys, members)
        self.workers = {worker: self.new_worker(worker, members, table, 0) for worker in members}
        for name, rows in setup.parts.items():
            self.workers[setup.owner(name)].reading.parts[name] = Part(rows)
            if not rows:
                self.hit("empty part")
        self.coordinator: cm.CoordinatorMachine = self.machines.coordinator(
            setup.shape.topology(),
            members=members,
            table=table,
            parts={name: setup.owner(name) for name in setup.parts},
            pacing=Pacing.fixed(setup.slots_max),
            plan_moves=self.machines.plan,
            ahead_least=0 if setup.ahead else None,
        )
        self.wanted = members
        self.before = (table, 0)

    def new_worker(self, worker: int, members: tuple[int, ...], table: tuple[int, ...], version: int) -> ModelWorker:
        """Build a worker."""
        made: ModelWorker = self.machines.worker(
            self,
            worker,
            self.shape,
            self.machines,
            members=members,
            table=table,
            version=version,
            batch_rows=self.setup.batch_rows,
            chunk=self.setup.chunk,
        )
        return made

    # -- what workers do --

    def hit(self, case: str) -> None:
        """A hard case was met."""
        self.hits[case] += 1

    def put(self, key: ChannelKey, item: Item) -> None:
        """Put an item into a channel."""
        if key not in self.channels:
            self.channels[key] = self.machines.channel(key, self.incarnation, self.setup.credit)
        if isinstance(item, InBand):
            self.messages[type(item).__name__] += 1
        channel = self.channel_for(key)
        first = key.sender >= self.setup.workers and not channel.numbered
        self.oracle.require(not first or isinstance(item, Marker), f"joiner {key.sender} begins with {item} (R2)")
        self._check_promises(channel, item)
        waits = channel.put(item)
        if waits:
            self.hit("marker in a backlog" if isinstance(item, Marker) else "credit at zero")
            if channel.untaken > channel.credit:
                self.hit("spill")
        elif key.sender != key.receiver:
            cost = len(item.records) if isinstance(item, Rows) else int(isinstance(item, EpochItem))
            most = max(channel.credit - 1 + cost, channel.untaken * (not cost))
            self.oracle.require(channel.untaken <= most, f"{channel.untaken} untaken on {key}, at most {most} (F2)")

    def _check_promises(self, channel: Channel, item: Item) -> None:
        """T3, R2, R8: epochs rise until a marker, none is sent between hand-over and marker, nothing follows Bye."""
        key, require = channel.key, self.oracle.require
        require(not channel.is_over, f"{item} follows Bye on {key} (R8)")
        channel.is_over = isinstance(item, Bye)
        if isinstance(item, Marker):
            is_last = channel.promised in (None, item.before)
            require(is_last, f"the marker on {key} says {item.before} after {channel.promised} (R2)")
            channel.promised = item.after
        elif isinstance(item, EpochItem):
            require(channel.promised is None or item.time >= channel.promised, f"{key} goes back to {item} (T3)")
            awaiting = key.sender in self.workers and self.workers[key.sender].switch.phase is SendingPhase.AWAITING
            fed = any(feeder in self.shape.sources for feeder in self.shape.exchanges[key.exchange])
            require(not (awaiting and fed), f"{item} on {key} between hand-over and marker (R2)")
            channel.promised = item.time

    def mail(self, sender: int, receiver: int, message: object) -> None:
        """Send a letter, outside the channels; letters between two keep their order."""
        self.messages[type(message).__name__] += 1
        self.letters[sender, receiver] = (*self.letters.get((sender, receiver), ()), (self.incarnation, message))

    def report(self, worker: int, report: Report) -> None:
        """Send a message to the coordinator."""
        self.mail(worker, COORDINATOR, report)

    def free(self, key: ChannelKey, cost: int) -> None:
        """Give back credit of a channel."""
        if cost:
            self.channel_for(key).free(cost)

    # -- who is about to be changed: a search copies it first --

    def channel_for(self, key: ChannelKey) -> Channel:
        """The channel, to change it."""
        return self.channels[key]

    def worker_for(self, worker: int) -> ModelWorker:
        """The worker, to change it."""
        return self.workers[worker]

    def coordinator_for(self) -> cm.CoordinatorMachine:
        """The coordinator as a receiver."""
        return self.coordinator

    # -- what can happen --

    def backlogs(self) -> set[tuple[str, int]]:
        """(exchange, sender) where something waits for credit."""
        return {(key.exchange, key.sender) for key, channel in self.channels.items() if channel.backlogged}

    def may_feed(self, feeder: str, worker: int, full: set[tuple[str, int]]) -> bool:
        """F2: data and epochs are taken into a region only while its outputs have no backlog."""
        return not any((exchange, worker) in full for exchange in self.shape.fed_by(feeder)) if full else True

    def actions(self) -> list[Action]:
        """Everything that can happen next."""
        full = self.backlogs()
        found = self._deliveries(full)
        for pair, letters in self.letters.items():
            if letters and (pair[1] == COORDINATOR or pair[1] in self.workers):
                found.append(("mail", *pair))
        for worker in self.workers.values():
            if not worker.gone:
                found += self._of_worker(worker, full)
        if self.stale:
            found.append(("stale", self.stale[0][0][1]))
        return found

    def _deliveries(self, full: set[tuple[str, int]]) -> list[Action]:
        found: list[Action] = []
        for key, channel in self.channels.items():
            if channel.may_push:
                found.append(("push", key.sender, key))
            if channel.sent and key.receiver in self.workers and not self.workers[key.receiver].gone:
                control = isinstance(channel.sent[0].item, InBand)
                if control or self.may_feed(self.shape.region_of(key.exchange), key.receiver, full):
                    found.append(("deliver", key.receiver, key))
        return found

    def _of_worker(self, worker: ModelWorker, full: set[tuple[str, int]]) -> list[Action]:
        me = worker.id
        found: list[Action] = [("ship", me, region) for region in worker.shipping]
        found += [("copy", me, region) for region in worker.copying]
        found += [("flush", me, key) for key in worker.outgoing]
        if not worker.may_read:
            return found
        for name in worker.reading.pollable():
            if self.may_feed(name[0], me, full):
                found.append(("poll", me, name))
            if self.naps:
                found.append(("nap", me, name))
        found += [("wake", me, name) for name, part in worker.reading.parts.items() if part.idle and part.polled]
        found += [("epoch", me, source) for source in worker.due_epochs() if self.may_feed(source, me, full)]
        for source in self.shape.sources:
            if self.may_feed(source, me, full) and worker.reached(source) is not None:
                found.append(("follow", me, source))
        return found

    # -- what happens --

    def act(self, action: Action) -> None:
        """Let one thing happen."""
        kind, actor, *rest = action
        if kind == "mail":
            self._mail(actor, rest[0])
        elif kind == "deliver":
            self._deliver(rest[0])
        elif kind == "push":
            self.channel_for(rest[0]).push()
        elif kind == "stale":
            self._stale()
        else:
            self._work(kind, self.worker_for(actor), rest[0])

    def _work(self, kind: str, worker: ModelWorker, what: Any) -> None:
        match kind:
            case "poll":
                self._check_open(what[0], worker.id)
                worker.poll(what, self.setup.poll_rows)
            case "nap":
                self.naps -= 1
                self.oracle.napped(what)
                worker.reading.nap(what)
                if worker.in_move():
                    self.hit("part idle in a move")
            case "wake":
                worker.reading.wake(what)
                if worker.in_move():
                    self.hit("part woken in a move")
            case "epoch":
                worker.broadcast(what)
            case "follow":
                worker.follow(what)
            case "flush":
                worker.flush_one(what)
            case "copy" | "ship":
                getattr(worker, kind)(what)
        self._checked(worker)

    def _deliver(self, key: ChannelKey) -> None:
        frame = self.channel_for(key).take()
        if frame is None:
            self.hit("stale frame dropped")
            return
        if not isinstance(frame.item, InBand):
            self._check_open(self.shape.region_of(key.exchange), key.receiver)
        worker = self.worker_for(key.receiver)
        worker.take(key, frame.item)
        self._checked(worker)

    def _check_open(self, feeder: str, worker: int) -> None:
        full = any((e, worker) in self.backlogs() for e in self.shape.fed_by(feeder))
        self.oracle.require(not full, f"{feeder} on worker {worker} takes data while its output has a backlog (F2)")

    def _checked(self, worker: ModelWorker) -> None:
        worker.switch.check()
        for machine in worker.regions.values():
            machine.check()

    def _mail(self, sender: int, receiver: int) -> None:
        (incarnation, message), *rest = self.letters[sender, receiver]
        self.letters[sender, receiver] = tuple(rest)
        if not self.is_current(incarnation, receiver):
            self.hit("stale letter dropped")
        elif receiver == COORDINATOR:
            self.coordinate(message if isinstance(message, Connected) else ce.ReportReceived(message))  # type: ignore[arg-type]
        else:
            worker = self.worker_for(receiver)
            worker.take_mail(message)
            self._checked(worker)

    def is_current(self, incarnation: int, receiver: int) -> bool:
        """S6: what an old incarnation sends is dropped."""
        return incarnation == self.incarnation

    def _stale(self) -> None:
        (where, what), *rest = self.stale
        self.stale = tuple(rest)
        if isinstance(where, ChannelKey) and isinstance(what, Frame):
            if where in self.channels:
                self.channels[where].sent.append(what)
        else:
            pair: Any = where
            letter: Any = what
            self.letters[pair] = (*self.letters.get(pair, ()), letter)

    # -- the coordinator --

    def request(self, members: tuple[int, ...]) -> None:
        """Ask for a rescale."""
        if self.coordinator.phase is not cm.CoordinatorPhase.STEADY:
            self.hit("rescale coalesced")
        self.wanted = members
        self.coordinate(ce.RescaleRequested(members))

    def coordinate(self, event: ce.Event) -> None:
        """Let the coordinator take an event, and do what it asks for."""
        coordinator = self.coordinator_for()
        for effect in coordinator.handle(event):
            match effect:
                case ce.StartWorkers():
                    for worker in effect.workers:
                        self.workers[worker] = self.new_worker(worker, effect.members, effect.table, effect.version)
                        self.mail(worker, COORDINATOR, Connected(worker))
                case ce.Send(order=FindKeys() | ForgetKeys()):
                    """Workers of the model have no index of their keys."""
                case ce.Send():
                    if isinstance(effect.order, StartMove):
                        ways = {(part.giver, part.taker) for part in effect.order.move.parts}
                        if any((taker, giver) in ways for giver, taker in ways):
                            self.hit("parts handed over both ways")
                    self.mail(COORDINATOR, effect.worker, effect.order)
                case ce.Ended():
                    self._ended(effect)
        coordinator.check()

    def _ended(self, ended: ce.Ended) -> None:
        """R8, R10: what must hold when a rescale has ended."""
        for worker in [w for w in self.workers if w not in ended.members]:
            for key in [key for key in self.channels if worker in (key.sender, key.receiver)]:
                channel = self.channels.pop(key)
                whole = (
                    key.sender != worker
                    or key.receiver not in ended.members
                    or not (channel.current_frames() or channel.backlog)
                )
                self.oracle.require(whole, f"a channel of leaver {worker} is dropped before its end (R8)")
            del self.workers[worker]
        table, version = self.before
        if ended.version > version + 1:
            self.hit("several moves")
        if ended.version:
            moved = sum(was != now for was, now in zip(table, self.coordinator.table, strict=True))
            self.oracle.rebalanced(table, self.coordinator.table, ended.members, moved)
        self.before = (self.coordinator.table, ended.version)

    # -- the end --

    def fail(self, what: str) -> PeerError:
        """S6: the error of a job without snapshots that has lost a worker or the coordinator."""
        return PeerError(f"{what} was lost, and the job has no snapshots. Start it again.")

    def zombies(self) -> tuple[Stale, ...]:
        """The items in flight at the end of a job."""
        frames: list[Stale] = [(key, frame) for key, channel in self.channels.items() for frame in channel.sent]
        letters: list[Stale] = [(pair, letter) for pair, queue in self.letters.items() for letter in queue]
        return (*frames, *letters)

    def check_end(self) -> None:
        """Nothing can happen any more: everything must have ended."""
        counts: dict[tuple[str, int], int] = {}
        table = self.coordinator.table
        for worker in self.workers.values():
            for name, state in worker.state.items():
                self._check_region(worker, name)
                for key, kept in state.keys.items():
                    if table[key] != worker.id or (name, key) in counts:
                        raise Violation(f"worker {worker.id} holds slot {key} of {name}, which is {table[key]}'s")
                    counts[name, key] = kept.count
        if self.coordinator.phase is not cm.CoordinatorPhase.STEADY:
            raise Violation(f"the coordinator is still {self.coordinator.phase}: no progress (P8)")
        self.oracle.require(self.coordinator.members == self.wanted, f"{self.wanted} were asked for (R9)")
        self.oracle.require(
            tuple(sorted(self.workers)) == self.wanted, f"{[*self.workers]} are there, not {self.wanted}"
        )
        left = [key for key, channel in self.channels.items() if channel.sent or channel.backlog]
        self.oracle.require(not left, f"never taken: {left}")
        self.oracle.at_end(counts)

    def _check_region(self, worker: ModelWorker, name: str) -> None:
        where = f"region {name} on worker {worker.id}"
        phase, state = worker.regions[name].phase, worker.state[name]
        self.oracle.require(phase is ReceivingPhase.STEADY, f"{where} is still {phase}: no progress (P8)")
        self.oracle.require(state.epoch == MAX_EPOCH, f"{where} never saw the end, but {state.epoch} (T5)")
        self.oracle.require(not state.held, f"{where} still holds rows")

    def quiet(self) -> bool:
        """Whether nothing is in flight and nothing can be read."""
        if any(isinstance(f.item, Rows | EpochItem) for channel in self.channels.values() for f in channel.sent):
            return False
        return not any(worker.reading.pollable() for worker in self.workers.values())
