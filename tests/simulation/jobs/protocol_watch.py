"""Watches what the workers of a simulated job send, take and are ordered: clauses of the rules that no output shows.

It looks at channels, state transfer and orders from outside, and knows the rules (docs/architecture.md), not the
machines. What it finds goes where a run notes what is wrong, so that the oracle reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from malstrom_py.data.messages import Epoch
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.channels.channel import (
    MOVING,
    ChannelId,
    Credit,
    Frame,
    Grant,
    Loopback,
    RemoteInbound,
    RemoteOutbound,
    Share,
)
from malstrom_py.rescale.moves.protocol import (
    Bye,
    InjectBarrier,
    Leave,
    Marker,
    OpenSlots,
    PollParts,
    StartMove,
)
from malstrom_py.rescale.moves.sending_machine import PollGained, SendingPhase
from malstrom_py.workers.coordinator.job_machine import topology_of
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.region_input import RegionInput
from malstrom_py.workers.engine.routing_switch import RoutingSwitch
from malstrom_py.workers.engine.source_driver import SourceDriver
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.simulator.simulated_workers import SimulatedWorkers

Watch = Callable[..., Any]

_DECISIONS = (StartMove, InjectBarrier, Leave, PollParts, OpenSlots)


@dataclass
class Line:
    """What has been put on one channel. ``joins``: one of its ends has yet to join, so a marker comes first (R1, R2).

    ``epochs``: those since the last marker; ``closed``: those of each version before it. ``silent``: parts are handed
    over, and the marker has not been sent (R2). ``owed``: rows and bytes that were sent and not granted back (F2).
    """

    name: str
    version: int
    joins: bool = False
    epochs: list[tuple[int, bool]] = field(default_factory=list)
    closed: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    silent: bool = False
    is_over: bool = False
    credit: Credit = field(default_factory=Credit)
    owed_rows: int = 0
    owed_size: int = 0

    @property
    def last(self) -> tuple[int, bool] | None:
        """The last epoch; None before the first."""
        return self.epochs[-1] if self.epochs else None


class ProtocolWatch:
    """Notes in ``broken`` what is against the rules."""

    def __init__(self, broken: list[str]) -> None:
        self._broken = broken
        self._lines: dict[object, Line] = {}
        self._exchanges: dict[int, list[Exchange]] = {}
        self._inputs: dict[ReadSource, RegionInput] = {}
        self._taken: dict[RemoteInbound, int] = {}
        self._allowed: set[tuple[int, str]] = set()

    def require(self, holds: bool, what: str) -> None:
        """Note ``what``, if something does not hold."""
        if not holds and what not in self._broken:
            self._broken.append(what)

    def watches(self) -> Iterator[tuple[Any, str, Watch]]:
        """What is watched: a method of a class, and what takes its place."""
        yield LocalWorkers, "__init__", self.begun
        yield Exchange, "__init__", self.exchange_made
        yield Exchange, "connect", self.connected
        yield Exchange, "switch", self.switched
        for kind in (Loopback, RemoteOutbound):
            yield kind, "put", self.put
            yield kind, "put_epoch", self.put_epoch
            yield kind, "put_control", self.put_control
        yield RemoteOutbound, "flush", self.framed
        yield RemoteOutbound, "take", self.sent
        yield RemoteOutbound, "grant", self.granted
        yield RoutingSwitch, "_hand_over", self.handed_over
        yield RoutingSwitch, "receive", self.switches
        yield RegionInput, "_take_in", self.taken_in
        yield RegionInput, "take", self.held_back
        yield RegionInput, "_release", self.released
        yield RoutingSwitch, "_do", self.does
        yield RemoteInbound, "receive", self.received
        yield RemoteInbound, "give_back", self.given_back
        yield SourceDriver, "__init__", self.sources_made
        yield ReadSource, "poll", self.polled
        yield LocalWorkers, "send", self.ordered
        yield LocalWorkers, "remove", self.removed

    def begun(self, right: Watch, coordinator: LocalWorkers, *given: Any, **named: Any) -> None:
        """The job starts, perhaps after a loss: what was in flight does not matter any more."""
        for record in (self._lines, self._exchanges, self._inputs, self._taken, self._allowed):
            record.clear()
        right(coordinator, *given, **named)

    # -- channels --

    def exchange_made(self, right: Watch, exchange: Exchange, *given: Any, **named: Any) -> None:
        """A worker has an exchange."""
        right(exchange, *given, **named)
        worker = exchange._worker
        name = f"{exchange.name} from {worker} to {worker}"
        self._lines[exchange.loopback] = Line(name, exchange.version, joins=worker not in exchange._members)
        self._exchanges.setdefault(worker, []).append(exchange)

    def connected(self, right: Watch, exchange: Exchange, member: int) -> None:
        """It has a channel to another one."""
        right(exchange, member)
        name, members = f"{exchange.name} from {exchange._worker} to {member}", exchange._members
        joins = exchange._worker not in members or member not in members
        credit = exchange._batching.credit
        self._lines[exchange.remote[member]] = Line(name, exchange.version, joins=joins, credit=credit)

    def put(self, right: Watch, channel: Any, *given: Any) -> None:
        """Rows go to a worker, in the order in which they are put."""
        line = self._lines.get(channel)
        if line is not None:
            self._rows(line)
        right(channel, *given)

    def put_epoch(self, right: Watch, channel: Any, epoch: Epoch) -> None:
        """An epoch goes there."""
        line = self._lines.get(channel)
        if line is not None:
            self._put(line, epoch)
        right(channel, epoch)

    def put_control(self, right: Watch, channel: Any, message: Any) -> None:
        """A barrier, or a message of a move, goes there."""
        line = self._lines.get(channel)
        if line is not None:
            channel.flush()
            self._put(line, message)
        right(channel, message)

    def framed(self, right: Watch, channel: RemoteOutbound) -> None:
        """Rows are sent by the version of the last marker."""
        before, line = len(channel._backlog), self._lines.get(channel)
        right(channel)
        if line is None:
            return
        for frame in list(channel._backlog)[before:]:
            where = f"channel {line.name}: rows by version {frame.version} after the marker of"
            self.require(frame.version == line.version, f"{where} {line.version} (R2)")

    def _put(self, line: Line, item: Any) -> None:
        if isinstance(item, Marker):
            self._marker(line, item)
            return
        self._rows(line)
        if isinstance(item, Bye):
            line.is_over = True
        elif isinstance(item, Epoch):
            where, last, now = f"channel {line.name}: epoch {item.time}", line.last, (item.time, item.idle)
            self.require(not line.silent, f"{where} after a part was handed over, before the marker (R2)")
            self.require(last is None or now[0] >= last[0], f"{where} after {last} (T3)")
            line.epochs.append(now)

    def _rows(self, line: Line) -> None:
        self.require(not line.is_over, f"channel {line.name}: something follows Bye (R8)")
        self.require(not line.joins, f"channel {line.name}: something comes before the first marker (R2)")

    def _marker(self, line: Line, marker: Marker) -> None:
        where, last = f"channel {line.name}: the marker of {marker.move.version}", line.last
        self.require(not line.is_over, f"{where} follows Bye (R8)")
        self.require(marker.move.version == line.version + 1, f"{where} follows version {line.version} (R2)")
        self.require(last is None or last[0] == marker.before, f"{where} says {marker.before}, after {last} (R2)")
        line.closed[line.version] = line.epochs
        line.epochs, line.version, line.joins = [(marker.after, marker.idle)], marker.move.version, False
        line.silent = False

    def switched(self, right: Watch, exchange: Exchange, *given: Any, **named: Any) -> None:
        """T3: until its marker a worker has sent the same epochs to all members."""
        members, version = exchange._members, exchange.version
        right(exchange, *given, **named)
        lines = [self._lines[channel] for member, channel in exchange.outbound.items() if member in members]
        said = [line.closed.get(version) for line in lines]
        self.require(all(one == said[0] for one in said), f"exchange {exchange.name}: not the same to all (T3)")

    def handed_over(self, right: Watch, switch: RoutingSwitch, effect: Any) -> None:
        """R2: from here to the marker nothing is promised on what sources feed."""
        self._silence(switch)
        right(switch, effect)

    def switches(self, right: Watch, switch: RoutingSwitch, letter: Any) -> None:
        """R2: nor is it while parts are awaited."""
        right(switch, letter)
        if switch._machine.phase is SendingPhase.AWAITING:
            self._silence(switch)

    def _silence(self, switch: RoutingSwitch) -> None:
        sources = [node for node, _ in switch._sources.values()]
        fed = set[int]().union(*map(switch._executor.behind, sources))
        for exchange, node in switch._sending:
            for channel in exchange.outbound.values() if node in fed else ():
                self._lines[channel].silent = True

    # -- credit --

    def sent(self, right: Watch, channel: RemoteOutbound) -> list[Frame]:
        """F2: what is data is sent only while there is credit in rows and in bytes."""
        frames: list[Frame] = right(channel)
        line = self._lines[channel]
        for frame in frames:
            if frame.control is None:
                within = line.owed_rows < line.credit.rows and line.owed_size < line.credit.size
                self.require(within, f"channel {line.name}: {line.owed_rows} rows are in flight, and more follow (F2)")
            line.owed_rows += frame.cost
            line.owed_size += frame.size
        return frames

    def granted(self, right: Watch, channel: RemoteOutbound, grant: Grant) -> None:
        """Credit has come back."""
        line = self._lines[channel]
        if grant.incarnation == channel._incarnation:
            line.owed_rows -= grant.rows
            line.owed_size -= grant.size
            owed = (line.owed_rows, line.owed_size)
            self.require(min(owed) >= 0, f"channel {line.name}: more credit comes back than was taken (F2)")
        right(channel, grant)

    def received(self, right: Watch, channel: RemoteInbound, frame: Frame) -> None:
        """A frame has come."""
        right(channel, frame)
        if frame.incarnation == channel._incarnation:
            self._taken[channel] = self._taken.get(channel, 0) + frame.cost

    def given_back(self, right: Watch, channel: RemoteInbound, share: Share, *given: Any) -> Grant:
        """Its credit goes back."""
        grant: Grant = right(channel, share, *given)
        self._taken[channel] = self._taken.get(channel, 0) - grant.rows
        return grant

    def held_back(self, right: Watch, region_input: RegionInput) -> Any:
        """R5: the rows that are held keep their credit."""
        taken = right(region_input)
        held: dict[RemoteInbound, int] = {}
        for rows in region_input._held:
            if isinstance(rows.lane, RemoteInbound):
                held[rows.lane] = held.get(rows.lane, 0) + len(rows.rows)
        for channel, count in held.items():
            where = f"channel {channel.channel}"
            self.require(self._taken[channel] >= count, f"{where}: {count} rows are held, with less credit (R5)")
        return taken

    def taken_in(self, right: Watch, region_input: RegionInput, entry: Any, sender: int, lane: Any, item: Any) -> None:
        """F2: a region takes nothing but messages of a move while its outputs are full."""
        full = not isinstance(item, MOVING) and any(exchange.backlogged for exchange in region_input.exits)
        self.require(not full, f"a region takes {type(item).__name__} of {sender} while its output is full (F2)")
        right(region_input, entry, sender, lane, item)

    def sources_made(self, right: Watch, driver: SourceDriver, *given: Any, **named: Any) -> None:
        """A worker has sources."""
        right(driver, *given, **named)
        self._inputs |= {source: region_input for source, _, region_input, _ in driver._polls}

    def polled(self, right: Watch, source: ReadSource, *given: Any, **named: Any) -> int:
        """F2: nor is a source read then."""
        full = any(exchange.backlogged for exchange in self._inputs[source].exits)
        self.require(not full, f"source {source.context.step} is read while its output is full (F2)")
        read: int = right(source, *given, **named)
        return read

    def released(self, right: Watch, region_input: RegionInput) -> None:
        """R6: gained slots of a region that feeds others are opened by order only."""
        is_allowed = (
            not region_input.exits or (region_input.machine.version, region_input.machine.region) in self._allowed
        )
        self.require(is_allowed, f"region {region_input.machine.region} opens its slots without an order (R6)")
        right(region_input)

    def does(self, right: Watch, switch: RoutingSwitch, effect: Any) -> None:
        """R6: and so are gained parts read."""
        if isinstance(effect, PollGained):
            is_allowed = (switch.version, effect.source) in self._allowed
            self.require(is_allowed, f"parts of {effect.source} are read without an order (R6)")
        right(switch, effect)

    # -- orders --

    def ordered(self, right: Watch, group: LocalWorkers, worker: int, order: Any) -> None:
        """The coordinator has decided: has what must be, been?"""
        workers = group.hosted if isinstance(order, _DECISIONS) else []
        topology = topology_of(group.hosted[0]._plan)
        match order:
            case StartMove():
                self._all_steady(workers, order.move.version - 1, "a move begins (R7)")
            case InjectBarrier():
                self._all_steady(workers, workers[0].version, "a barrier is ordered (R7)")
            case Leave():
                self._all_steady(workers, workers[0].version, "workers leave (R8)")
            case PollParts():
                self._allowed.add((order.version, order.source))
                fed = topology.sources[order.source]
                self._all_in(workers, order.version, fed, "before", f"parts of {order.source} are polled (R6)")
            case OpenSlots():
                self._allowed.add((order.version, order.region))
                fed = topology.regions[order.region]
                self._all_in(workers, order.version, fed, "shipped", f"slots of {order.region} are opened (R6)")
        right(group, worker, order)

    def _all_steady(self, workers: Iterable[Any], version: int, when: str) -> None:
        for worker in workers:
            for region_input in worker.inputs:
                if not region_input._entries:
                    continue  # no exchange leads there
                is_done = region_input.steady and region_input.machine.version == version and not region_input.held_rows
                self.require(is_done, f"{when}, and worker {worker.id} is still in the move before")
            self.require(worker._switching._machine.may_poll, f"{when}, and worker {worker.id} has not switched")

    def _all_in(self, workers: Iterable[Any], version: int, exchanges: Iterable[str], what: str, when: str) -> None:
        wanted = set(exchanges)
        for worker in workers:
            for region_input in worker.inputs:
                for exchange in wanted & region_input.machine._sides.keys():
                    side, everyone = region_input.machine._sides[exchange], region_input.machine._everyone
                    is_in = region_input.machine.moving_version == version and set(getattr(side, what)) >= everyone
                    is_in = (
                        region_input.machine.version == version and region_input.steady
                        if what == "before" and not is_in
                        else is_in
                    )
                    self.require(is_in, f"{when}, and worker {worker.id} waits for others on {exchange}")

    def removed(self, right: Watch, group: LocalWorkers, leavers: Sequence[int]) -> None:
        """R8: what a leaver has sent has been taken."""
        if isinstance(group, SimulatedWorkers):
            for queue in group._queues.values():
                for sent in queue:
                    late = isinstance(sent.content, Frame) and sent.content.channel.sender in leavers
                    self.require(not late, "a leaver is dropped while its frames are in flight (R8)")
        right(group, leavers)
        for leaver in leavers:
            for exchange in self._exchanges.pop(leaver):
                for channel in exchange.outbound.values():
                    self._lines.pop(channel, None)
        for channel in [c for c in self._lines if isinstance(c, RemoteOutbound) and c.channel.receiver in leavers]:
            del self._lines[channel]

    def ended(self) -> None:
        """F2: at the end of a run all credit has come back, but for a little that the receiver has gathered."""
        for channel, line in self._lines.items():
            if isinstance(channel, RemoteOutbound):
                owed, gathered = (line.owed_rows, line.owed_size), self._gathered(channel.channel)
                self.require(owed == gathered, f"channel {line.name}: credit of {owed} has not come back (F2)")
                self.require(
                    gathered[0] < max(1, line.credit.rows / 4), f"channel {line.name}: gathers {gathered} (F2)"
                )

    def _gathered(self, channel: ChannelId) -> tuple[int, int]:
        for exchange in self._exchanges[channel.receiver]:
            inbound = exchange.inbound.get(channel.sender)
            if exchange.name == channel.exchange and isinstance(inbound, RemoteInbound):
                return inbound.gathered
        return 0, 0


@contextmanager
def protocol_watched(broken: list[str]) -> Iterator[None]:
    """As long as this lasts everything is watched; what is against the rules goes to ``broken``."""
    watch = ProtocolWatch(broken)
    with ExitStack() as stack:
        for place, name, watching in watch.watches():
            stack.enter_context(patch.object(place, name, _around(getattr(place, name), watching)))
        yield
        watch.ended()


def _around(right: Watch, watching: Watch) -> Watch:
    return lambda self, *given, **named: watching(right, self, *given, **named)
