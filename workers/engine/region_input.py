"""The input of one region on one worker: back-pressure, barrier alignment, and the region's part in a rescale.

F2: rows and epochs are taken only while no output of the region and no holding step has a backlog; messages of a move
are always taken. S1: barrier alignment: a barrier passes the region when it has arrived on all channels of all
exchanges of the region and at its sources. The region's `ReceivingMachine` decides about a rescale (R3 to R6), and this
module executes its effects. `MovePause` measures the pause of a move for the size of the next one; only time that grows
with the move counts, not the time of markers and `Shipped` in queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch, StateMessage, SuspendMarker
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.rescale.channels.channel import MOVING, Barrier, Grant, InboundChannel, Item, Share, Suspend
from malstrom_py.rescale.moves import receiving_machine as events
from malstrom_py.rescale.moves.protocol import (
    FindKeys,
    ForgetKeys,
    InBand,
    Marker,
    OpenSlots,
    RegionDone,
    Report,
    SendAhead,
    SendReport,
    Shipped,
    StartMove,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine, ReceivingPhase
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.flow_limits import IntakePace, TimeShare
from malstrom_py.workers.engine.garbage import make_old
from malstrom_py.workers.engine.state_transfer import StateTransfer
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

COPY_RESTS: Final = 2.0
"""After a copy went ahead (R12) none does for so many times as long: its new owner takes as long to read it."""

INDEX_RESTS: Final = 6.0
"""After some keys were found, ahead of a rescale, none are for so many times as long: nothing waits for them yet."""

Preparation = FindKeys | ForgetKeys | SendAhead | StartMove
"""The orders by which each region of a worker prepares for the keys that leave."""


class RegionGraph(Protocol):
    """The interface of the executor for a region's input."""

    def push(self, node: int, message: Epoch | StateMessage, *, index: int = 0) -> None: ...

    def outlet(self, node: int) -> Outlet: ...

    def run(self) -> None: ...


class MoveListener(Protocol):
    """The interface of a step that needs to know when keys arrive and leave."""

    def moving(self) -> None: ...

    def moved(self, version: int) -> None: ...


class KeyListener(Protocol):
    """The interface of what notes the batches that arrive."""

    def saw(self, batch: Batch) -> None: ...


class MovePause:
    """The pause of each move in a region, by ``clock``.

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
        """Record a marker; the last one makes the cut."""
        self._cut_s = self._clock.monotonic_s()

    def shipped(self) -> None:
        """Record that all leaving state has left: it was held from the cut on."""
        self._lasted(self._cut_s)

    def begins(self) -> None:
        """Record the start of an installation."""
        if self._began_s is None:
            self._began_s = self._clock.monotonic_s()

    def put_in(self) -> None:
        """Record the end of an installation: the arriving keys were held from the first chunk on."""
        if self._began_s is not None:
            self._lasted(self._began_s)

    def taken(self) -> float:
        """Return the pause in seconds, and reset it for the next move."""
        longest_s, self._longest_s, self._began_s = self._longest_s, 0.0, None
        return longest_s

    def _lasted(self, since_s: float) -> None:
        self._longest_s = max(self._longest_s, self._clock.monotonic_s() - since_s)


PassBarrier = Callable[[Barrier, Mapping[str, int], Callable[[StateMessage], None]], None]
"""A function of an aligned barrier, the epoch that each exchange of the region has passed, and a function that passes
the `AbsBarrier` into the region."""


def _refused(barrier: Barrier, passed: Mapping[str, int], let_in: Callable[[StateMessage], None]) -> None:
    raise InternalError(f"barrier {barrier.snapshot} has passed a worker that is closed")


class ExchangeEntry(NamedTuple):
    """One exchange that feeds the region, and the node that its channels lead to."""

    exchange: Exchange
    node: int


class _HeldRows(NamedTuple):
    """R5: rows of slots that are not open yet, in the order of arrival."""

    lane: InboundChannel
    node: int
    rows: Batch
    share: Share


class RegionInput:
    """The input of one region. ``sources``: the nodes of its sources; ``holding``: the steps that may hold records
    back.

    ``sinks``: the sinks to notify when keys arrive and leave. ``machine``: the region's machine; ``shipping``: takes
    out and installs state; ``messages``: the list for messages to others; ``turn``: the region's share of a round.
    """

    def __init__(
        self,
        graph: RegionGraph,
        entries: Sequence[ExchangeEntry],
        sources: list[int],
        exits: list[Exchange],
        pass_barrier: PassBarrier,
        holding: Sequence[Operator] = (),
        *,
        sinks: Sequence[MoveListener] = (),
        machine: ReceivingMachine,
        shipping: StateTransfer,
        messages: list[Outgoing],
        clock: Clock,
        turn: TimeShare | None = None,
    ) -> None:
        self._graph = graph
        self._entries = {entry.exchange.name: entry for entry in entries}
        self._outlets = {entry.node: graph.outlet(entry.node) for entry in entries}
        self.is_fed = bool(entries)
        """Whether exchanges feed the region."""
        self.sources = sources
        self.exits = exits
        self.limits: list[Operator] = [*exits, *holding]
        self._holding = holding
        self._pass_barrier = pass_barrier
        self._sinks = sinks
        self.machine = machine
        self._shipping = shipping
        self._messages = messages
        self._clock = clock
        self._due_s = 0.0
        self._finds_early = False
        self._pause = MovePause(clock)
        self._pace = IntakePace(clock, turn or TimeShare())
        self._told = (0, 0, 0)
        self._held: list[_HeldRows] = []
        self._grants: list[Grant] = []
        self._first: tuple[str, int] | None = None
        self._waiting: Barrier | Suspend | None = None
        self._sources_wait = False
        self.is_aligned = False
        """Whether a barrier or an end has arrived on all channels and has not passed."""
        self._ends_here = False
        self.left = False
        """Whether the last `take` has left items that the next one may take."""
        self.suspended = False
        self.samplers: Mapping[str, KeyListener] = {}
        """By exchange: what notes the keys of some of the batches that arrive."""

    @property
    def open(self) -> bool:
        """Whether rows may be taken: no output and no holding step has a backlog."""
        for limit in self.limits:  # noqa: SIM110  called for every batch, and a generator is slower than the loop
            if limit.backlogged:
                return False
        return True

    @property
    def outputs_open(self) -> bool:
        """Whether held records may leave: no output has a backlog."""
        return not any(exchange.backlogged for exchange in self.exits)

    @property
    def routed_rows(self) -> int:
        """The number of rows that have left the region so far."""
        rows = 0
        for exchange in self.exits:
            rows += exchange.routed_rows
        return rows

    def load(self) -> float:
        """Return the load that the last batch has caused downstream: above 1, it was too large; 0 while open."""
        if not self.limits or self.open:
            return 0.0
        return max(limit.load for limit in self.limits)

    @property
    def ready(self) -> bool:
        """Whether the next `take` or `ship` has work."""
        if self.has_own_work:
            return True
        waiting = [lane for entry in self._entries.values() for lane in entry.exchange.inbound.values() if len(lane)]
        if not waiting:
            return False
        is_open = self.open
        return any((is_open and not lane.blocked) or lane.urgent for lane in waiting)

    @property
    def waits_for_time(self) -> bool:
        """Whether rows with credit wait for slow receivers downstream."""
        return any(exchange.waits_for_time for exchange in self.exits)

    @property
    def sources_open(self) -> bool:
        """Whether the region's sources may be polled."""
        return not self._sources_wait and not self.suspended and (not self.limits or self.open)

    @property
    def steady(self) -> bool:
        """Whether no slot of the region is moving, so that keys with state may emit without input (R6)."""
        return self.machine.phase is ReceivingPhase.STEADY

    @property
    def indexing(self) -> bool:
        """Whether the keys that leave in an ordered move are not known yet."""
        return self._shipping.indexing

    @property
    def copying(self) -> bool:
        """Whether state of an ordered move has yet to be sent ahead (R12)."""
        return self._shipping.copying

    @property
    def due_s(self) -> float | None:
        """When `ship` may continue what it does with rests, on the clock's monotonic time; None without such work."""
        return self._due_s if self._shipping.copying or self._finds_with_rests else None

    @property
    def has_own_work(self) -> bool:
        """Whether `ship` has something to do now."""
        shipping = self._shipping
        if shipping.under_way or (shipping.indexing and not self._finds_with_rests):
            return True
        return self.due_s is not None and self._clock.monotonic_s() >= self._due_s

    @property
    def has_to_ship(self) -> bool:
        """Whether `ship` may have something to do."""
        return self.machine.phase is not ReceivingPhase.STEADY or self._shipping.indexing or self._shipping.copying

    @property
    def held_rows(self) -> int:
        """The number of rows that wait for their slots to open (R5)."""
        return sum(len(held.rows) for held in self._held)

    @property
    def keys_moved(self) -> int:
        """The number of keys that have left for other workers."""
        return self._shipping.keys_moved

    def take(self) -> tuple[int, list[Grant]]:
        """Take one item from each channel, while the region is open and its share of the round lasts.

        Return the number of items and the freed credit.
        """
        taken = senders = 0
        if self.is_aligned:
            self._maybe_pass()
        waits: tuple[str, int] | None = None
        pace, is_over, channels = self._pace, False, self._channels()
        for entry, sender, lane in channels:
            if not len(lane):
                continue
            if is_over or not (self.open or lane.urgent):
                waits = waits or (entry.exchange.name, sender)
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
            is_over = pace.took(rows, self.load() if rows and self.limits else 0.0)
            grant = lane.freed(pace.window)
            if grant is not None and (grant.rows or grant.size):
                self._grants.append(grant)
        self.left = False
        if taken:
            self.left = any(not lane.blocked and len(lane) > 0 for _, _, lane in channels)
            pace.end(senders, left=self.left)
        self._first = waits
        grants, self._grants = self._grants, []
        return taken, grants

    def _take_in(self, entry: ExchangeEntry, sender: int, lane: InboundChannel, item: Item) -> None:
        if isinstance(item, Batch):
            self._rows(entry, sender, lane, item)
        elif isinstance(item, Epoch):
            self._do(self.machine.epoch(entry.exchange.name, sender, item.time, item.idle))
        elif isinstance(item, MOVING):
            self._in_band(entry, sender, item)
        else:
            self._arrived(item, lane)

    def prepare(self, order: Preparation) -> None:
        """Find the keys that leave, while work continues, or forget them; or send their state ahead (R12).

        After `FindKeys` no move waits for the keys, and they are found with rests.
        """
        self._finds_early = isinstance(order, FindKeys)
        match order:
            case FindKeys():
                self._shipping.prepare()
            case ForgetKeys():
                self._shipping.forget()
            case SendAhead(move, least):
                self._due_s = 0.0
                if self.machine.loses(move):
                    self._shipping.send_ahead(move.version, self.machine.lost_in(move), least=least)
            case StartMove(move):
                self._due_s = 0.0
                if self.machine.loses(move) or self.machine.worker in move.losing:
                    self._shipping.prepare()
                elif move.losing:
                    make_old()  # keys are going to arrive here

    @property
    def _finds_with_rests(self) -> bool:
        """Whether keys are being found that no move waits for."""
        return self._finds_early and self._shipping.indexing

    def _with_rests(self) -> int:
        """Find some keys, or send a chunk ahead (R12), and leave rows here and at the new owner the time for theirs."""
        began_s = self._clock.monotonic_s()
        if began_s < self._due_s:
            return 0
        if self._shipping.indexing:
            self._shipping.index()
            rests = INDEX_RESTS
        else:
            self._messages.extend(self._shipping.copy())
            rests = COPY_RESTS
        now_s = self._clock.monotonic_s()
        self._due_s = now_s + rests * (now_s - began_s)
        return 1

    def receive(self, message: StateChunk | OpenSlots) -> None:
        """Handle a message from outside the channels."""
        event = events.StateTaken(message) if isinstance(message, StateChunk) else events.OpenTaken(message)
        self._do(self.machine.handle(event))

    def ship(self) -> int:
        """Send the next chunks of leaving state, or find keys that leave. Return 0 if there is no such work."""
        indexes = self._shipping.indexing and not self._finds_with_rests
        if not indexes and (self._finds_with_rests or self._shipping.copying):
            return self._with_rests()
        if not (indexes or self._shipping.under_way):
            return 0
        until_s = self._clock.monotonic_s() + self._shipping.ships_s
        while indexes:
            self._shipping.index()
            if not self._shipping.indexing or self._clock.monotonic_s() >= until_s:
                return 1
        while self._shipping.under_way:
            owner, parcel = self._shipping.next()
            self._messages.append((owner, parcel))
            if not self._shipping.under_way:
                self._pause.shipped()
                self._do(self.machine.handle(events.ShippingEnded(parcel.version)))
            elif self._clock.monotonic_s() >= until_s:
                break
        return 1

    def at_sources(self, message: Barrier | Suspend, *, last: bool = False) -> None:
        """Inject a barrier at the sources of this region: they are not polled until the barrier has passed.

        After the ``last`` barrier the region stops. The call comes before any barrier on a channel, because this
        worker's own regions feed the region too.
        """
        self._ends_here = last
        if self.sources:
            self._sources_wait = True
            self._arrived(message)

    def moving(self) -> None:
        """Notify sinks that a move is under way, until `moved`."""
        for sink in self._sinks:
            sink.moving()

    def moved(self, version: int) -> None:
        """Notify sinks that the move ``version`` is over here: later rows are of after it."""
        for sink in self._sinks:
            sink.moved(version)

    def inject(self, message: StateMessage) -> None:
        """Pass a message that acts on state through the region. Call between two messages."""
        self._let_in(message)

    def _channels(self) -> list[tuple[ExchangeEntry, int, InboundChannel]]:
        """Return all channels, first the one that waited when the region became full, which prevents starvation."""
        entries = self._entries.values()
        channels = [(entry, sender, lane) for entry in entries for sender, lane in entry.exchange.inbound.items()]
        if self._first is None:
            return channels
        places = (at for at, (entry, sender, _) in enumerate(channels) if (entry.exchange.name, sender) == self._first)
        at = next(places, 0)
        return channels[at:] + channels[:at]

    def _rows(self, entry: ExchangeEntry, sender: int, lane: InboundChannel, batch: Batch) -> None:
        machine, sampler = self.machine, self.samplers.get(entry.exchange.name)
        if sampler is not None:
            sampler.saw(batch)
        if self._shipping.watching:
            self._shipping.saw(entry.exchange.name, batch)
            if self._finds_early and self._shipping.is_overgrown:
                self._shipping.forget()  # joiners take long, and most keys have come and gone: the move finds them
        if machine.phase is ReceivingPhase.STEADY and lane.version == machine.version:
            self._push(entry.node, batch)
            return
        event = events.RowsTaken(entry.exchange.name, sender, lane.version, batch)
        for effect in machine.handle(event):
            assert isinstance(effect, events.Pass)
            if not effect.held:
                self._push(entry.node, batch)
            else:
                self._split(entry, lane, batch, effect.held)

    def _split(self, entry: ExchangeEntry, lane: InboundChannel, batch: Batch, held: frozenset[int]) -> None:
        """R5: pass the rows of open slots, hold the others."""
        kept = [row for row, slot in enumerate(entry.exchange.slots(batch).tolist()) if slot in held]
        if not kept:
            self._push(entry.node, batch)
            return
        self._held.append(_HeldRows(lane, entry.node, batch.take(kept), lane.withhold(len(kept))))
        if len(kept) < len(batch):
            self._push(entry.node, batch.drop(kept))

    def _push(self, node: int, message: Batch | Epoch) -> None:
        if isinstance(message, Batch):
            self._outlets[node].send(message)  # the node would pass it on unchanged
        else:
            self._graph.push(node, message)
        self._graph.run()

    def _do(self, effects: Iterable[events.Effect]) -> None:
        for effect in effects:
            match effect:
                case events.Advance():
                    self._push(self._entries[effect.exchange].node, Epoch(effect.time))
                case SendReport():
                    self._messages.append((COORDINATOR, self._with_figures(effect.report)))
                case events.Ship():
                    self._shipping.start(effect)
                case events.Install():
                    self._pause.begins()
                    self._shipping.install(effect.parcel)
                    self._pause.put_in()
                    self.moved(effect.parcel.version)  # steps that held the cut have sent it
                case events.KeepAside():
                    self._shipping.keep_aside(effect.parcel)
                case events.Release():
                    self._release()
                case events.SendShipped():
                    self._tell_receivers(effect.version)
                case events.Pass():
                    raise InternalError("rows are passed where they are taken")

    def _in_band(self, entry: ExchangeEntry, sender: int, message: InBand) -> None:
        if isinstance(message, Marker):
            self._pause.marked()
        effects = self.machine.handle(events.InBandTaken(entry.exchange.name, sender, message))
        if isinstance(message, Marker) and self.machine.phase is not ReceivingPhase.MARKING:
            self.moving()  # from the cut on
        self._do(effects)

    def _with_figures(self, report: Report) -> Report:
        """Return ``report``; a `RegionDone` gets the pause and the amount of the move."""
        if not isinstance(report, RegionDone):
            return report
        self.moved(report.version)  # where nothing left or arrived
        shipping, (keys, size, ahead) = self._shipping, self._told
        self._told = (shipping.keys_moved, shipping.bytes_moved, shipping.bytes_ahead)
        shipping.move_over()
        move = self.machine.last_move
        if move is None or not move.more:
            shipping.forget()
        return replace(
            report,
            paused_s=self._pause.taken(),
            keys=shipping.keys_moved - keys,
            bytes=shipping.bytes_moved - size,
            ahead=shipping.bytes_ahead - ahead,
        )

    def _release(self) -> None:
        held, self._held = self._held, []
        for rows in held:
            self._push(rows.node, rows.rows)
            grant = rows.lane.give_back(rows.share, self._pace.window)
            if grant is not None:
                self._grants.append(grant)

    def _tell_receivers(self, version: int) -> None:
        """R6: send Shipped to all members, also to leavers, which have pending slots too."""
        move = self.machine.last_move
        for exchange in self.exits:
            exchange.control(Shipped(version), None if move is None else move.everyone)

    def _arrived(self, message: Barrier | Suspend, lane: InboundChannel | None = None) -> None:
        """Align ``message``, which has arrived on ``lane`` or at the sources. A suspended region ignores `Suspend`."""
        if self.suspended and isinstance(message, Suspend):
            return
        if lane is not None:
            lane.blocked = True
        if self._waiting is not None and self._waiting != message:
            raise InternalError(f"{message} arrived during the alignment of {self._waiting} (R7: one at a time)")
        self._waiting = message
        lanes = [lane for entry in self._entries.values() for lane in entry.exchange.inbound.values()]
        if all(lane.blocked for lane in lanes) and (self._sources_wait or not self.sources):
            self.is_aligned = True
            self._maybe_pass()

    def close(self) -> None:
        """Release the worker that this region belongs to."""
        self._pass_barrier = _refused

    def _maybe_pass(self) -> None:
        """Pass the aligned message. A barrier waits for held epochs, so that after it all steps of the region have seen
        the same epochs, on every worker (S5).
        """
        message = self._waiting
        assert message is not None
        if isinstance(message, Barrier) and any(operator.holds_epochs for operator in self._holding):
            return
        self._waiting, self._sources_wait, self.is_aligned = None, False, False
        for entry in self._entries.values():
            for lane in entry.exchange.inbound.values():
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
