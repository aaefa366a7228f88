"""One region of one worker while it runs: what feeds it, when it may be fed, the alignment of barriers, moving state.

What a region's feed needs of others: of the executor, of outputs, and of steps that hold records back.

How long a region has held the keys of one move: what the size of the next one goes by.

Rule: only what grows with the move counts. How long markers stand in queues before the cut, and `Shipped` behind it,
has nothing to do with how many slots move.

F2: data and epochs are taken in only while none of the region's outputs has a backlog, nor a step that holds records
back; what moves slots is taken in always. S1: a barrier is let in when it has come on all channels of all the region's
exchanges and, where the region has sources, at these too. What a rescale asks of the region its machine decides
(R3 to R6); here it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch, StateMessage, SuspendMarker
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import MOVING, Barrier, Grant, Item, Loopback, Share, Suspend
from malstrom_py.rescale.channels.router import Router
from malstrom_py.rescale.moves import receiving_machine as events
from malstrom_py.rescale.moves.protocol import (
    InBand,
    Marker,
    OpenSlots,
    RegionDone,
    Report,
    RescaleMove,
    SendReport,
    Shipped,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine, ReceivingPhase
from malstrom_py.workers.engine.exchange import InputChannel, InputGate
from malstrom_py.workers.engine.flow_limits import IntakePace, TimeShare
from malstrom_py.workers.engine.state_transfer import StateTransfer
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing


class RegionGraph(Protocol):
    """The executor, as a region's feed needs it."""

    def push(self, node: int, message: Batch | Epoch | StateMessage, *, index: int = 0) -> None: ...

    def run(self) -> None: ...


class Backlog(Protocol):
    """What can be full: an output, or a step that holds records back."""

    @property
    def backlogged(self) -> bool: ...


class HoldingStep(Backlog, Protocol):
    """A step that holds records back, and the epochs between them."""

    @property
    def holds_epochs(self) -> bool: ...

    @property
    def load(self) -> float: ...


class MoveListener(Protocol):
    """What has to know when keys come and go."""

    def moved(self, version: int) -> None: ...


class MovePause:
    """Of one move after the other, by ``clock``.

    >>> from malstrom_py.testing import VirtualClock
    >>> clock = VirtualClock()
    >>> pause = MovePause(clock)
    >>> pause.marked()
    >>> clock.advance(2.0)
    >>> pause.shipped()
    >>> pause.taken(), pause.taken()
    (2.0, 0.0)
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cut_s = 0.0
        self._began_s: float | None = None
        self._longest_s = 0.0

    def marked(self) -> None:
        """A marker has come; the last one makes the cut."""
        self._cut_s = self._clock.monotonic_s()

    def shipped(self) -> None:
        """All that leaves has left: it was held from the cut on."""
        self._lasted(self._cut_s)

    def begins(self) -> None:
        """A parcel is about to be put in."""
        if self._began_s is None:
            self._began_s = self._clock.monotonic_s()

    def put_in(self) -> None:
        """It has been: what comes was held from the first one on."""
        if self._began_s is not None:
            self._lasted(self._began_s)

    def taken(self) -> float:
        """How long it was, in seconds; the next move begins."""
        longest_s, self._longest_s, self._began_s = self._longest_s, 0.0, None
        return longest_s

    def _lasted(self, since_s: float) -> None:
        self._longest_s = max(self._longest_s, self._clock.monotonic_s() - since_s)


PassBarrier = Callable[[Barrier, Mapping[str, int], Callable[[StateMessage], None]], None]
"""Makes an `AbsBarrier` of a barrier that has come on all channels, and passes it to the function that lets it in; is
told the epoch that each exchange of the region has let in."""


class ExchangeEntry(NamedTuple):
    """One exchange that feeds the region: its channels, the node they lead to, the slots of a batch's keys."""

    inbox: InputGate
    node: int
    slots_of: Callable[[Batch], Any]


class _HeldRows(NamedTuple):
    """R5: rows of slots that have not been opened here, in the order in which they came."""

    lane: InputChannel | Loopback
    node: int
    rows: Batch
    share: Share


class RegionInput:
    """Feeds one region. ``sources`` are the nodes of its sources, ``holding`` the steps that may hold records back,
    ``sinks`` are told when keys come and go.

    ``machine`` is the region's, ``shipping`` takes state out and puts it in; ``letters`` takes what is for others;
    ``turn``: how long it may be at work in one step.
    """

    def __init__(
        self,
        graph: RegionGraph,
        entries: Sequence[ExchangeEntry],
        sources: list[int],
        exits: list[Router],
        pass_barrier: PassBarrier,
        holding: Sequence[HoldingStep] = (),
        *,
        sinks: Sequence[MoveListener] = (),
        machine: ReceivingMachine,
        shipping: StateTransfer,
        letters: list[Outgoing],
        clock: Clock,
        turn: TimeShare | None = None,
    ) -> None:
        self._graph = graph
        self._entries = {entry.inbox.exchange: entry for entry in entries}
        self.sources = sources
        self._exits = exits
        self._limits: list[Backlog] = [*exits, *holding]
        self._holding = holding
        self._pass_barrier = pass_barrier
        self._sinks = sinks
        self.machine = machine
        self._shipping = shipping
        self._letters = letters
        self._pause = MovePause(clock)
        self._pace = IntakePace(clock, turn or TimeShare())
        self._told = (0, 0)
        self._held: list[_HeldRows] = []
        self._grants: list[Grant] = []
        self._first: tuple[str, int] | None = None
        self._waiting: Barrier | Suspend | None = None
        self._sources_wait = False
        self._aligned = False
        self._ends_here = False
        self.suspended = False

    @property
    def open(self) -> bool:
        """Whether data may be taken in: neither an output nor a step inside has a backlog."""
        for limit in self._limits:  # noqa: SIM110  asked for every batch, and a generator costs more than the question
            if limit.backlogged:
                return False
        return True

    @property
    def outputs_open(self) -> bool:
        """Whether what steps inside hold back may leave: no output has a backlog."""
        return not any(router.backlogged for router in self._exits)

    @property
    def routed_rows(self) -> int:
        """How many rows have left the region so far."""
        rows = 0
        for router in self._exits:
            rows += router.routed_rows
        return rows

    def load(self) -> float:
        """By how many times what was let in last was too much at once for what comes behind it; 0 while it is open."""
        if self.open:
            return 0.0
        return max((*(router.load() for router in self._exits), *(step.load for step in self._holding)))

    @property
    def ready(self) -> bool:
        """Whether the next `take` or `ship` will do something."""
        if self._shipping.under_way or self._shipping.indexing:
            return True
        waiting = [lane for entry in self._entries.values() for lane in entry.inbox.lanes.values() if len(lane)]
        if not waiting:
            return False
        is_open = self.open
        return any((is_open and not lane.blocked) or lane.urgent for lane in waiting)

    @property
    def waits_for_time(self) -> bool:
        """Whether what has left the region waits though it has credit, for those who get it are slow."""
        return any(router.waits_for_time for router in self._exits)

    @property
    def sources_open(self) -> bool:
        """Whether the region's sources may be polled."""
        return not self._sources_wait and not self.suspended and self.open

    @property
    def steady(self) -> bool:
        """Whether no slot of the region is on its way, and so every key that has state here may act by itself (R6)."""
        return self.machine.phase is ReceivingPhase.STEADY

    @property
    def indexing(self) -> bool:
        """Whether it is not known yet which keys leave by a move that has been ordered."""
        return self._shipping.indexing

    @property
    def has_to_ship(self) -> bool:
        """Whether `ship` may have something to do."""
        return self.machine.phase is not ReceivingPhase.STEADY or self._shipping.indexing

    @property
    def held_rows(self) -> int:
        """How many rows wait for their slots to be opened (R5)."""
        return sum(len(held.rows) for held in self._held)

    @property
    def keys_moved(self) -> int:
        """How many keys have left here for other workers."""
        return self._shipping.keys_moved

    def take(self) -> tuple[int, list[Grant]]:
        """Take one item from each channel, as long as the region is open and its part of the round lasts: how many,
        and the credit they free.
        """
        taken = senders = 0
        if self._aligned:
            self._maybe_pass()
        waits: tuple[str, int] | None = None
        pace, is_over, channels = self._pace, False, self._channels()
        for entry, sender, lane in channels:
            if not len(lane):
                continue
            if is_over or not (self.open or lane.urgent):
                waits = waits or (entry.inbox.exchange, sender)
                continue
            item = lane.take(pace.batch_size.rows)
            if item is None:
                continue
            if not taken:
                pace.begin()
            taken += 1
            rows = len(item) if isinstance(item, Batch) else 0
            senders += rows > 0
            self._take_in(entry, sender, lane, item)
            is_over = pace.took(rows, self.load() if rows and self._limits else 0.0)
            grant = lane.freed(pace.window)
            if grant is not None and (grant.rows or grant.size):
                self._grants.append(grant)
        if taken:
            pace.end(senders, left=any(not lane.blocked and len(lane) > 0 for _, _, lane in channels))
        self._first = waits
        grants, self._grants = self._grants, []
        return taken, grants

    def _take_in(self, entry: ExchangeEntry, sender: int, lane: InputChannel | Loopback, item: Item) -> None:
        if isinstance(item, Batch):
            self._rows(entry, sender, lane, item)
        elif isinstance(item, Epoch):
            self._do(self.machine.epoch(entry.inbox.exchange, sender, item.time, item.idle))
        elif isinstance(item, MOVING):
            self._in_band(entry, sender, item)
        else:
            self._arrived(item, lane)

    def prepare(self, move: RescaleMove) -> None:
        """``move`` has been ordered: what leaves by it, or by those behind it, is looked for while work goes on."""
        if self.machine.loses(move) or self.machine.worker in move.losing:
            self._shipping.prepare()

    def receive(self, letter: StateChunk | OpenSlots) -> None:
        """Take what comes outside the channels."""
        event = events.StateTaken(letter) if isinstance(letter, StateChunk) else events.OpenTaken(letter)
        self._do(self.machine.handle(event))

    def ship(self) -> int:
        """Get on with what is on its way to others, if there is any: with a parcel, or with finding the keys for it."""
        if self._shipping.indexing:
            self._shipping.index()
            return 1
        if not self._shipping.under_way:
            return 0
        owner, parcel = self._shipping.next()
        self._letters.append((owner, parcel))
        if not self._shipping.under_way:
            self._pause.shipped()
            self._do(self.machine.handle(events.ShippingEnded(parcel.version)))
        return 1

    def at_sources(self, message: Barrier | Suspend, *, last: bool = False) -> None:
        """The coordinator's barrier, at the sources of this region: they are not polled until it has been let in.
        Behind the ``last`` one the region stops. (It comes here first: a region is fed by others of its own worker.)
        """
        self._ends_here = last
        if self.sources:
            self._sources_wait = True
            self._arrived(message)

    def moved(self, version: int) -> None:
        """What moves with ``version`` has left, or has come: what is written from here on is of after it."""
        for sink in self._sinks:
            sink.moved(version)

    def inject(self, message: StateMessage) -> None:
        """Pass a message that acts on state through the region, between two messages."""
        self._let_in(message)

    def _channels(self) -> list[tuple[ExchangeEntry, int, InputChannel | Loopback]]:
        """All channels: first the one that had to wait when the region became full, or it might do so for ever."""
        entries = self._entries.values()
        channels = [(entry, sender, lane) for entry in entries for sender, lane in entry.inbox.lanes.items()]
        if self._first is None:
            return channels
        places = (at for at, (entry, sender, _) in enumerate(channels) if (entry.inbox.exchange, sender) == self._first)
        at = next(places, 0)
        return channels[at:] + channels[:at]

    def _rows(self, entry: ExchangeEntry, sender: int, lane: InputChannel | Loopback, batch: Batch) -> None:
        machine = self.machine
        if self._shipping.watching:
            self._shipping.saw(entry.inbox.exchange, batch)
        if machine.phase is ReceivingPhase.STEADY and lane.version == machine.version:
            self._push(entry.node, batch)
            return
        event = events.RowsTaken(entry.inbox.exchange, sender, lane.version, batch)
        for effect in machine.handle(event):
            assert isinstance(effect, events.Pass)
            if not effect.held:
                self._push(entry.node, batch)
            else:
                self._split(entry, lane, batch, effect.held)

    def _split(self, entry: ExchangeEntry, lane: InputChannel | Loopback, batch: Batch, held: frozenset[int]) -> None:
        """R5: let in what may be, keep the rest."""
        kept = [row for row, slot in enumerate(_listed(entry.slots_of(batch))) if slot in held]
        if not kept:
            self._push(entry.node, batch)
            return
        self._held.append(_HeldRows(lane, entry.node, batch.take(kept), lane.withhold(len(kept))))
        if len(kept) < len(batch):
            self._push(entry.node, batch.drop(kept))

    def _push(self, node: int, message: Batch | Epoch) -> None:
        self._graph.push(node, message)
        self._graph.run()

    def _do(self, effects: Iterable[events.Effect]) -> None:
        for effect in effects:
            match effect:
                case events.Advance():
                    self._push(self._entries[effect.exchange].node, Epoch(effect.time))
                case SendReport():
                    self._letters.append((COORDINATOR, self._with_figures(effect.report)))
                case events.Ship():
                    self.moved(effect.version)
                    self._shipping.start(effect)
                case events.Install():
                    self.moved(effect.parcel.version)
                    self._pause.begins()
                    self._shipping.install(effect.parcel)
                    self._pause.put_in()
                case events.Release():
                    self._release()
                case events.SendShipped():
                    self._tell_receivers(effect.version)
                case events.Pass():
                    raise InternalError("rows are passed where they are taken")

    def _in_band(self, entry: ExchangeEntry, sender: int, message: InBand) -> None:
        if isinstance(message, Marker):
            self._pause.marked()
        self._do(self.machine.handle(events.InBandTaken(entry.inbox.exchange, sender, message)))

    def _with_figures(self, report: Report) -> Report:
        """The report of a move that has ended here says what it took."""
        if not isinstance(report, RegionDone):
            return report
        shipping, (keys, size) = self._shipping, self._told
        self._told = (shipping.keys_moved, shipping.bytes_moved)
        move = self.machine.last_move
        if move is None or not move.more:
            shipping.forget()
        return replace(
            report,
            paused_s=self._pause.taken(),
            keys=shipping.keys_moved - keys,
            bytes=shipping.bytes_moved - size,
        )

    def _release(self) -> None:
        held, self._held = self._held, []
        for rows in held:
            self._push(rows.node, rows.rows)
            grant = rows.lane.give_back(rows.share, self._pace.window)
            if grant is not None:
                self._grants.append(grant)

    def _tell_receivers(self, version: int) -> None:
        """R6: to those that leave as well, for they too have slots that wait."""
        move = self.machine.last_move
        for router in self._exits:
            router.control(Shipped(version), None if move is None else move.everyone)

    def _arrived(self, message: Barrier | Suspend, lane: InputChannel | Loopback | None = None) -> None:
        """At the sources, or from a worker. A suspension behind the last barrier finds the region stopped already."""
        if self.suspended and isinstance(message, Suspend):
            return
        if lane is not None:
            lane.blocked = True
        if self._waiting is not None and self._waiting != message:
            raise InternalError(f"{message} came while {self._waiting} was being aligned (R7: one at a time)")
        self._waiting = message
        lanes = [lane for entry in self._entries.values() for lane in entry.inbox.lanes.values()]
        if all(lane.blocked for lane in lanes) and (self._sources_wait or not self.sources):
            self._aligned = True
            self._maybe_pass()

    def _maybe_pass(self) -> None:
        """Let in what has come on all channels. A barrier waits for epochs that a step holds: behind it all steps of
        the region have seen the same ones, on every worker (S5).
        """
        message = self._waiting
        assert message is not None
        if isinstance(message, Barrier) and any(operator.holds_epochs for operator in self._holding):
            return
        self._waiting, self._sources_wait, self._aligned = None, False, False
        for entry in self._entries.values():
            for lane in entry.inbox.lanes.values():
                lane.blocked = False
        if isinstance(message, Barrier):
            self._pass_barrier(message, {name: self.machine.frontier(name) for name in self._entries}, self._let_in)
        if isinstance(message, Suspend) or self._ends_here:
            self.suspended = True
            self._let_in(SuspendMarker())

    def _let_in(self, message: StateMessage) -> None:
        for node in self.sources:
            self._graph.push(node, message)
        for entry in self._entries.values():
            self._graph.push(entry.node, message)
        self._graph.run()


def _listed(slots: Any) -> list[int]:
    """Slots as a list: of keys in a column they come as one."""
    return slots if isinstance(slots, list) else slots.to_pylist()
