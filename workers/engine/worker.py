"""One worker: runs its graph, source parts and sink writers, and exchanges frames with other workers.

Rule: single-threaded and driven from outside, one `step` at a time, each deterministic. Between two messages the graph
holds records only in operator state and exchange buffers. A worker never blocks and never calls another worker: `step`
returns its messages. One exception: before state moves while external calls of a step are in flight, the worker waits
for the calls, for a bounded time. After a barrier each exchange has passed the same epochs on every worker (T3), so one
frontier per exchange is enough to resume with any number of workers (S5).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress, count
from time import perf_counter_ns
from typing import Final, Protocol

from malstrom_py.builder.plan import Plan, Step
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, StateMessage
from malstrom_py.errors import InternalError
from malstrom_py.events import AnyEvent
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.operators.read_source import ReadSource, RestoredPart
from malstrom_py.operators.write_sink import WriteParts, WriteSink
from malstrom_py.rescale.channels.channel import Barrier, Frame, Grant, RemoteInbound, Suspend
from malstrom_py.rescale.moves.protocol import (
    AddParts,
    BarrierPassed,
    FindKeys,
    ForgetKeys,
    InjectBarrier,
    Leave,
    OpenSlots,
    Order,
    PackAhead,
    PartHandedOver,
    PollParts,
    RegionDone,
    SendAhead,
    SentAhead,
    StartMove,
    StateChunk,
)
from malstrom_py.sources.base import Part
from malstrom_py.state.artefact import StoredArtefact
from malstrom_py.state.artefact_parts import in_parts
from malstrom_py.state.keyed_state import Migrate
from malstrom_py.state.memory import State
from malstrom_py.worker_context import Resources, close_all, own_values
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.flow_limits import Batching, MoveTurns
from malstrom_py.workers.engine.gathering import GATHER_S, ROWS_BUSY
from malstrom_py.workers.engine.graph_builder import (
    Membership,
    States,
    WorkerGraph,
    build_graph,
    start_with,
    track_keys,
)
from malstrom_py.workers.engine.measuring import Measuring
from malstrom_py.workers.engine.region_input import Preparation, RegionInput
from malstrom_py.workers.engine.routing_switch import RoutingSwitch
from malstrom_py.workers.engine.snapshot_capture import CapturedState, PackingAhead, SnapshotCapture
from malstrom_py.workers.engine.source_driver import SourceDriver
from malstrom_py.workers.engine.tapping import Tapping
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.messages import COORDINATOR, Incoming, Outgoing, PeerMessage


def counts_of(plan: Plan, graph: WorkerGraph) -> dict[str, StepCounts]:
    """Return the counts of each step of ``plan``, without those of shadows: they are not of the job."""
    return {step.name: _counts(step, graph) for step in plan.steps if step.shadow_of is None}


def _counts(step: Step, graph: WorkerGraph) -> StepCounts:
    node = graph.nodes[step.name]
    counters = graph.executor.counters(node)
    epoch, exchange = graph.executor.epoch(node), graph.exchanges.get(step.name)
    return StepCounts(
        kind=step.kind,
        rows_in=counters.rows_in,
        ports={port.name: rows for port, rows in zip(step.ports, counters.rows_out, strict=True)},
        filtered=counters.filtered,
        late=counters.late,
        skipped=counters.skipped,
        dead_letters=counters.dead_letters,
        rows_made=counters.rows_made,
        columns_made=counters.columns_made,
        dropped_timers=counters.dropped_timers,
        unmatched=counters.unmatched,
        ahead=counters.ahead,
        keys=graph.operators[step.name].keys,
        epoch=None if epoch == MIN_EPOCH else epoch,
        busy_s=counters.time_ns / 1e9,
        sent_bytes=0 if exchange is None else exchange.sent_bytes,
        waiting_s=0.0 if exchange is None else exchange.waiting_ns / 1e9,
    )


def continue_at(graph: WorkerGraph, frontiers: Mapping[str, int]) -> None:
    """Set each exchange and the steps downstream to its frontier, which its senders have already sent."""
    known = {name: time for name, time in frontiers.items() if name in graph.entries}
    for region, region_input in zip(graph.regions, graph.inputs, strict=True):
        for name in region.entries:
            if name in known:
                region_input.machine.continue_at(name, known[name])
    graph.executor.continue_at(
        {graph.entries[name]: time for name, time in known.items()},
        # The sending node of an exchange is the one after the key_by.
        {graph.nodes[name] + 1: time for name, time in known.items()},
    )


_LINGER_MIN_S: Final = 0.001
"""The shortest time between two calls of `on_schedule`: without it a virtual clock would not advance."""

NOTHING: Final[Mapping[str, Mapping[Part, RestoredPart]]] = {}
"""The positions of a job whose sources have not been read."""

_CLOSED: Final = (ReadSource, Enrich, WriteSink, WriteParts)
"""The steps that need `close`."""


class Closable(Protocol):
    """The interface of objects that a worker closes at its end."""

    def close(self) -> None: ...


class Worker:
    """The worker of ``plan`` with the number and table of ``member``. ``tracked``: the job has snapshots, so steps
    record which keys change (S2). ``wake``: an event that another thread sets when an awaited result has arrived.
    """

    def __init__(
        self,
        plan: Plan,
        member: Membership,
        *,
        batching: Batching,
        clock: Clock,
        codec: Codec,
        tracked: bool = False,
        checks: bool = False,
        state: State | None = None,
        wake: threading.Event | None = None,
        keys_per_chunk: int | None = None,
    ) -> None:
        self.id = member.worker
        values = own_values(plan.job, plan.parameters, member.parameters)
        self._resources = Resources(worker=member.worker, wake=wake, parameters=values, clock=clock)
        self._plan, self._batching = plan, batching
        self._clock, self._codec = clock, codec
        self._incarnation, self._table = member.incarnation, member.table
        self._cutting: SnapshotCapture | None = None
        self._packing: PackingAhead | None = None
        self._keys_packed = None if keys_per_chunk is None else 1
        self._cut: CapturedState | None = None
        self._graph = build_graph(
            plan,
            member,
            batching=batching,
            codec=codec,
            clock=clock,
            pass_barrier=self._pass_barrier,
            checks=checks,
            state=state,
            keys_per_chunk=keys_per_chunk,
        )
        if tracked:
            track_keys(self._graph)
        self.operators = operators = self._graph.operators
        self._measuring = Measuring(member.worker, self._graph)
        self.reading = SourceDriver(self._graph, batching=batching, clock=clock, worker=member.worker)
        self._inputs = {region.name: each for region, each in zip(self._graph.regions, self._graph.inputs, strict=True)}
        self._moving = [self._inputs[region.name] for region in self._graph.regions if region.entries]
        self._messages = self._graph.messages
        self._switching = RoutingSwitch(self._graph, member, self._messages)
        self._sending = self._with_channels()
        self.sinks = [op for op in operators.values() if isinstance(op, WriteSink)]
        self._closing = [op for op in operators.values() if isinstance(op, _CLOSED)]
        input_of_step = {step: self._inputs[region.name] for region in self._graph.regions for step in region.steps}
        placed = [(self._graph.nodes[name], op, input_of_step[name]) for name, op in operators.items()]
        self._scheduled = [place for place in placed if place[1].scheduled]
        self._holding = [place for place in placed if place[1].holding]
        self._listening = [op for op in operators.values() if op.listens]
        self._orders: deque[StartMove | PollParts | Leave | PartHandedOver | AddParts] = deque()
        self._ahead: SentAhead | None = None
        self._linger_until_s, self._share, self._unread = 0.0, 1, False
        self.turns = MoveTurns(clock)
        self.tapping = Tapping(self.id, plan, self._graph, clock)

    @cached_property
    def slots(self) -> frozenset[int]:
        """The slots that this worker owns at its start."""
        return frozenset(compress(count(), map(self.id.__eq__, self._table)))

    def open_sinks(self) -> None:
        """Open the writers of all sinks. Call this first, so that nothing is read that cannot be written."""
        with self._resources:
            for sink in self.sinks:
                sink.open()
        self._switching.start()

    def install(self, step: str, chain: Sequence[StoredArtefact], migrate: Migrate | None) -> None:
        """S5: install in a step the part of another worker's artefacts that this worker owns. Call before all else."""
        operator = self._graph.operators[step]
        with self._resources:
            for part in in_parts(chain, self.slots, operator.installs_bytes):
                operator.install(part, self.slots, migrate=migrate)

    def continue_chain(self, step: str, snapshot: str) -> None:
        """S2: write the next state of ``step`` as changes since ``snapshot``, in which it is what was installed."""
        self._graph.operators[step].continue_chain(snapshot)

    def start_with(self, states: States) -> None:
        """Install the part of the initial ``states`` that this worker owns."""
        if states:
            with self._resources:
                start_with(self._graph, states, self.slots)

    def continue_at(self, frontiers: Mapping[str, int]) -> None:
        """Set the frontiers of exchanges, after `install` and before sources are opened."""
        with self._resources:
            continue_at(self._graph, frontiers)

    def open_sources(
        self, parts: Mapping[str, Sequence[Part]], restored: Mapping[str, Mapping[Part, RestoredPart]] = NOTHING
    ) -> list[Outgoing]:
        """Open the sources, each with its ``parts`` on this worker, by step; ``restored``: the positions of parts that
        were read before.
        """
        with self._resources:
            self.reading.open(parts, restored)
        return self._outgoing()

    def connect(self, worker: int) -> None:
        """Open the channels to and from ``worker``, which joins (R1)."""
        for exchange in self._graph.exchanges.values():
            exchange.connect(worker)
        self._sending = self._with_channels()

    def disconnect(self, worker: int) -> None:
        """Close the channels to and from ``worker``, which has left: its Bye has been taken from each (R8)."""
        for exchange in self._graph.exchanges.values():
            exchange.disconnect(worker)
        self._sending = self._with_channels()

    def _with_channels(self) -> list[Exchange]:
        """Return the exchanges with channels to other workers. With one worker nothing is buffered or sent."""
        return [exchange for exchange in self._graph.exchanges.values() if exchange.remote]

    def receive(self, message: Incoming) -> list[Outgoing]:
        """Handle a message of another worker or the coordinator. Return the messages to send."""
        if isinstance(message, Frame):
            inbound = self._graph.exchanges[message.channel.exchange].inbound.get(message.channel.sender)
            if isinstance(inbound, RemoteInbound):
                inbound.receive(message)
            elif message.incarnation >= self._incarnation:  # else the sender is of a run that has ended (F1)
                raise InternalError(f"a frame arrived on channel {message.channel}, which is not open here")
            return []
        if isinstance(message, Grant):
            outbound = self._graph.exchanges[message.channel.exchange].remote.get(message.channel.receiver)
            if outbound is not None:  # else the receiver has left
                outbound.grant(message)
            return []
        with self._resources:
            self._take_letter(message)
        return self._outgoing()

    def _take_letter(self, message: PeerMessage | Order) -> None:
        match message:
            case StateChunk() | OpenSlots():
                self._inputs[message.region].receive(message)
            case PackAhead():
                self._packing = PackingAhead(message, self.operators, self._keys_packed)
            case InjectBarrier():
                self._inject(Barrier(message.snapshot, message.parent), last=message.last)
            case FindKeys() | ForgetKeys():
                self._prepare(message)
            case SendAhead():
                self._prepare(message)
                self._ahead = SentAhead(message.move.version, self.id)
            case _:
                if isinstance(message, StartMove):
                    self._prepare(message)
                self._orders.append(message)
                self._obey()

    def _prepare(self, order: Preparation) -> None:
        for region_input in self._graph.inputs:
            region_input.prepare(order)

    def _obey(self) -> None:
        """Execute orders, one after the other. A switch waits until the leaving keys are known: before the markers no
        row is held for that search, after them rows would be held.
        """
        orders = self._orders
        while orders and not (isinstance(orders[0], StartMove) and any(each.indexing for each in self._graph.inputs)):
            version = self._switching.version
            self._switching.receive(orders.popleft())
            if self._switching.version != version:
                self.turns.begin()

    def step(self, share: int = 1, *, gathered: bool = False) -> tuple[int, list[Outgoing]]:
        """Process the next items, regions downstream first. Return the amount of work and the messages to send.

        ``share``: the number of workers that share this thread; ``gathered``: whether the next step may come some
        milliseconds later. Then this one takes few rows all the way, from the sources on, and cuts their frames.
        """
        began_ns = perf_counter_ns()
        if share != self._share:
            self._share = share
            self._graph.turn.share(share)
        with self._resources:
            if self._packing is not None and self._packing.comes_first():
                self._capture()
                done, outgoing = 0, self._outgoing()
            else:
                done, outgoing = self._step(gathered=gathered)
        self._measuring.time.stepped(began_ns, busy=bool(done or outgoing))
        return done, outgoing

    def _step(self, *, gathered: bool) -> tuple[int, list[Outgoing]]:
        turns, began_s = self.turns, self._clock.monotonic_s()
        done = self._resume() if self._holding else 0
        gathered = gathered and not (turns.under_way or self._orders)
        self._unread = False
        if gathered and self._switching.may_poll:
            done += self._read_few(began_s)
        taken, grants = self._take(upstream_first=gathered)
        done += taken
        if self._orders:
            self._obey()
        if turns.under_way and self._has_moved:
            turns.end(may_read=self._switching.may_poll)
        if self._ahead is not None and not any(each.copying for each in self._graph.inputs):
            self._messages.append((COORDINATOR, self._ahead))
            self._ahead = None
        if not gathered and self._switching.may_poll and not (turns.under_way and turns.comes_first(began_s, done)):
            done += self._read()
        if self._scheduled or self._sending:
            self._linger(flush=gathered or not done)
        if self._packing is not None or self._cutting is not None:
            self._capture(began_s)
        outgoing = self._outgoing() if self._sending or self._messages or self.reading.notices.new else []
        if grants:
            outgoing[:0] = [(grant.channel.sender, grant) for grant in grants]
        return done, outgoing

    def _read(self) -> int:
        """Poll the sources. Return the number of records."""
        read = self.reading.read()
        if self.turns.under_way and self.reading.has_caught_up:
            self.turns.sources_caught_up()
        for follower in self._graph.followers:
            follower.follow()
        return read

    def _take(self, *, upstream_first: bool) -> tuple[int, list[Grant]]:
        """Let each region take items, and send of its state. Return the amount of work and the freed credit."""
        done, grants = 0, list[Grant]()
        for region_input in reversed(self._graph.inputs) if upstream_first else self._graph.inputs:
            if region_input.is_fed or region_input.is_aligned:
                taken, freed = region_input.take()
                done += taken + region_input.ship() if region_input.has_to_ship else taken
                grants += freed
        return done, grants

    def _read_few(self, began_s: float) -> int:
        """Poll the sources until they have no rows for now, have given many or have taken long. Return the number of
        records.
        """
        read, until_s = 0, began_s + min(self._batching.linger_s, GATHER_S)
        while self.reading.is_due:
            read += self._read()
            if read >= ROWS_BUSY or self._clock.monotonic_s() > until_s:
                self._unread = True
                break
        return read

    @property
    def _has_moved(self) -> bool:
        """Whether all regions have ended the last move that this worker has begun."""
        return all(each.machine.version == self._switching.version for each in self._moving)

    def suspend(self) -> list[Outgoing]:
        """Stop after all data in flight: inject a `SuspendMarker` at the sources."""
        with self._resources:
            self._inject(Suspend())
        return self._outgoing()

    def notify(self, event: AnyEvent) -> None:
        """Notify the logics of ``event``."""
        with self._resources:
            for operator in self._listening:
                operator.on_event(event)

    def take_cut(self) -> CapturedState | None:
        """Return the image at a barrier that has passed, once; else None."""
        cut, self._cut = self._cut, None
        return cut

    @property
    def backlogged(self) -> bool:
        """Whether any row waits for credit."""
        return any(exchange.backlogged for exchange in self._graph.exchanges.values())

    @property
    def inputs(self) -> Sequence[RegionInput]:
        """The inputs of the regions, read-only."""
        return self._graph.inputs

    def region_input(self, region: str) -> RegionInput:
        """Return the input of a region, read-only."""
        return self._inputs[region]

    def check(self) -> None:
        """Raise `InternalError` if an invariant is broken."""
        self._switching.check()
        for region_input in self._graph.inputs:
            region_input.machine.check()

    @property
    def awaiting(self) -> bool:
        """Whether a step holds records back, which need a later `step`."""
        return any(operator.awaiting for _, operator, _ in self._holding)

    @property
    def ready(self) -> bool:
        """Whether the next `step` has an item to take, an image to make, or the end of a move to report."""
        has_passed = self._cutting is not None and self._cutting.is_complete
        packs = self._packing is not None and self._packing.under_way
        to_report = (self.turns.under_way and self._has_moved) or self._ahead is not None
        return has_passed or packs or to_report or any(each.ready for each in self._graph.inputs)

    @property
    def at_rest(self) -> bool:
        """Whether another `step` would do nothing until a message arrives or time passes."""
        return not self.ready and not (self._switching.may_poll and self.reading.is_due)

    @property
    def waits(self) -> bool:
        """Whether any row waits for credit or for a call, or state moves, after a `step`."""
        if self._measuring.time.backlogged or (self._holding and self.awaiting) or self.turns.under_way:
            return True
        return any(each.has_to_ship for each in self._graph.inputs)

    @property
    def settled(self) -> bool:
        """Whether a `step` with ``gathered`` has taken all rows: what comes next may wait some milliseconds."""
        if self._unread or self._orders or self._packing is not None or self.waits:
            return False
        return not any(each.left for each in self._graph.inputs)

    @property
    def version(self) -> int:
        """The version of the routing table that this worker sends by."""
        return self._switching.version

    @property
    def suspended(self) -> bool:
        """Whether all regions have stopped, at a `SuspendMarker` or at the last barrier."""
        return all(each.suspended for each in self._graph.inputs)

    @property
    def finished(self) -> bool:
        """Whether the maximum epoch has reached every exchange, and no message is left to take or to send."""
        graph = self._graph
        return (
            self.reading.finished
            and not self._orders
            and self._cutting is None
            and self._cut is None
            and all(each.steady for each in graph.inputs)
            and not self.awaiting
            and not any(len(channel) for exchange in graph.exchanges.values() for channel in exchange.inbound.values())
            and not any(exchange.backlogged for exchange in graph.exchanges.values())
            and all(graph.executor.frontier(node) == MAX_EPOCH for node in graph.entries.values())
        )

    def due_s(self) -> float | None:
        """Return the time of the next scheduled work, on the clock's monotonic time; None without any."""
        wakes = any(not operator.dormant for _, operator, _ in self._scheduled)
        due_s: list[float | None] = [self._linger_until_s if wakes else None]
        due_s += [each.due_s for each in self._graph.inputs]
        if self._switching.may_poll:
            due_s.append(self.reading.due_s())
        return min((due for due in due_s if due is not None), default=None)

    def counts(self) -> dict[str, StepCounts]:
        """Return the counts of each step so far."""
        return counts_of(self._plan, self._graph)

    def figures(self, *, fresh: bool = False) -> WorkerFigures:
        """Return the figures of this worker now; ``fresh``: the expensive ones too, however often."""
        with self._resources:
            return self._measuring.figures(fresh=fresh)

    def rows_in(self, step: str) -> int:
        """Return the number of records that a step has taken so far."""
        return self._graph.executor.counters(self._graph.nodes[step]).rows_in

    def close_before_commit(self) -> None:
        """Close everything but the transactional writers, so that a failure here leaves all output invisible."""
        self._close([op for op in self._closing if not (isinstance(op, WriteSink) and op.transactional is not None)])

    def close(self) -> None:
        """Close open sources and writers, then the resources of this worker. Raise the first error at the end.

        The state goes with the last reference to this worker: nothing in it refers to it any more.
        """
        self._close([*self._closing, self._resources])
        self._graph.close()

    def _close(self, things: Sequence[Closable]) -> None:
        with self._resources:
            close_all(thing.close for thing in things)

    def _resume(self) -> int:
        """Resume steps that hold records back and may send. Return the number of records that have left them."""
        left, executor = 0, self._graph.executor
        for node, operator, region_input in self._holding:
            if operator.awaiting and region_input.outputs_open:
                left += executor.call(node, operator.resume)
                executor.run()
        return left

    def _linger(self, *, flush: bool) -> None:
        """Call the steps that are scheduled, and cut frames from buffered rows: about every ``linger_s`` and if the
        next step may come later.
        """
        now_s = self._clock.monotonic_s()
        is_due = now_s >= self._linger_until_s
        if is_due:
            self._linger_until_s = now_s + max(_LINGER_MIN_S, self._batching.linger_s)
            for node, operator, region_input in self._scheduled:
                # R6: output of keys that have just arrived must follow their output on the old worker.
                if region_input.steady and not region_input.suspended:
                    self._graph.executor.call(node, partial(operator.on_schedule, clock=self._clock))
            self._graph.executor.run()
        if flush or is_due:  # after the scheduled steps: nothing may wake this worker for what they have sent
            for exchange in self._sending:
                exchange.flush()

    def _outgoing(self) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        self._messages += self.reading.notices.take()
        if self._sending or self._messages:
            for exchange in self._sending:
                for receiver, channel in exchange.remote.items():
                    outgoing += [(receiver, frame) for frame in channel.take()]
            # The next move begins when all have reported the end of this one: the sources have their turn before.
            held = self._region_ends() if self.turns.owes_sources else []
            outgoing += self._messages
            self._messages[:] = held
        return outgoing

    def _region_ends(self) -> list[Outgoing]:
        """Take the reports of the end of a move out of the messages."""
        ends = [message for message in self._messages if isinstance(message[1], RegionDone)]
        self._messages[:] = [message for message in self._messages if not isinstance(message[1], RegionDone)]
        return ends

    def _inject(self, message: Barrier | Suspend, *, last: bool = False) -> None:
        for region_input in self._graph.inputs:
            region_input.at_sources(message, last=last)

    def _pass_barrier(
        self, message: Barrier, frontiers: Mapping[str, int], let_in: Callable[[StateMessage], None]
    ) -> None:
        if self._cutting is None:
            self._cutting = SnapshotCapture(message, len(self._graph.inputs))
        cutting, began_s = self._cutting, self._clock.monotonic_s()
        let_in(cutting.abs_barrier(self._incarnation))
        cutting.passed(frontiers, self._clock.monotonic_s() - began_s)

    def _capture(self, began_s: float | None = None) -> None:
        """Pack some state ahead of a barrier, or make the image at one that has passed. ``began_s``: of this turn."""
        if self._cutting is not None:
            self._maybe_cut(self._cutting)
        if self._packing is not None and self._packing.under_way:
            report = self._packing.take_turn(self.id, self._clock, began_s)
            if report is not None:
                self._messages.append((COORDINATOR, report))

    def _maybe_cut(self, cutting: SnapshotCapture) -> None:
        if not cutting.is_complete:
            return
        self._cut = cutting.cut(self.id, self._graph.operators, self._codec)
        self._cutting = self._packing = None
        report = BarrierPassed(cutting.barrier.snapshot, self.id, self._cut.paused_s)
        self._messages.append((COORDINATOR, report))
