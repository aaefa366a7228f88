"""The sending side of one worker in a move: hands over parts, then switches all exchanges together (R2, R8). Between
moves it takes new parts (R13).

The `SendingMachine` decides; this module executes its effects on the worker's graph, between two messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from malstrom_py.errors import InternalError
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.rescale.moves import sending_machine as machine
from malstrom_py.rescale.moves.protocol import (
    AddParts,
    Leave,
    PartHandedOver,
    PollParts,
    RescaleMove,
    SendReport,
    StartMove,
)
from malstrom_py.sources.base import Part
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.executor import Executor
from malstrom_py.workers.engine.graph_builder import Membership, WorkerGraph
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing


class PartPosition(NamedTuple):
    """The position of a part that is handed over."""

    at: Any
    is_finished: bool


class RoutingSwitch:
    """The sending side of the worker ``member``; ``messages``: the list for messages to others."""

    def __init__(self, graph: WorkerGraph, member: Membership, messages: list[Outgoing]) -> None:
        self._executor: Executor = graph.executor
        self._exchanges: Sequence[Exchange] = list(graph.exchanges.values())
        # The sending node of an exchange is the one after the key_by.
        self._sending = [(exchange, graph.nodes[name] + 1) for name, exchange in graph.exchanges.items()]
        nodes, operators = graph.nodes, graph.operators
        self._sources = {name: (nodes[name], op) for name, op in operators.items() if isinstance(op, ReadSource)}
        self._generators = [(nodes[name], op) for name, op in operators.items() if isinstance(op, GenerateEpochs)]
        # On exchanges that a source feeds no epoch is sent between hand-over and marker, not even by a region (R2).
        fed = {node for source, _ in self._sources.values() for node in self._executor.behind(source)}
        self._fed_by_sources = [(exchange, node) for exchange, node in self._sending if node in fed]
        self._sinks = [op for op in operators.values() if isinstance(op, WriteSink)]
        self._source_inputs = [region_input for region_input in graph.inputs if region_input.sources]
        self._before: dict[str, int] = {}
        self._messages = messages
        self._machine = machine.SendingMachine(member.worker, version=member.version)
        self._worker = member.worker
        self._followers = graph.followers
        self._started = member.worker in member.members
        self._gained: list[PartHandedOver] = []

    @property
    def version(self) -> int:
        """The version of the routing table."""
        return self._machine.version

    @property
    def may_poll(self) -> bool:
        """Whether sources may be polled and may send epochs: not before a joiner's marker, nor while parts are awaited
        (R2).
        """
        return self._started and self._machine.phase is machine.SendingPhase.STEADY

    def start(self) -> None:
        """R1: a joiner owns nothing before its first move. Call when the sinks are open."""
        for sink in () if self._started else self._sinks:
            sink.owns_nothing()

    def receive(self, message: StartMove | PollParts | Leave | PartHandedOver | AddParts) -> None:
        """Handle an order of the coordinator, or a part that another worker hands over."""
        match message:
            case AddParts():
                self._add(message)
                return
            case StartMove():
                effects = self._machine.handle(machine.RescaleOrdered(message))
            case PollParts():
                effects = self._machine.handle(machine.PollOrdered(message))
            case Leave():
                effects = self._machine.handle(machine.LeaveOrdered(message))
            case PartHandedOver():
                effects = self._machine.handle(machine.PartCame(message))
        for effect in effects:
            self._do(effect)
        if not self._machine.may_poll and isinstance(message, StartMove):
            self._silence(self._fed_by_sources)

    def check(self) -> None:
        """Raise `InternalError` if an invariant is broken."""
        self._machine.check()

    def _add(self, order: AddParts) -> None:
        """R13: read new parts. They begin above every epoch that another worker may have passed."""
        if not self.may_poll:
            raise InternalError(f"worker {self._worker}: new parts of {order.source!r} during a move (R13)")
        for follower in self._followers:
            follower.catch_up()
        node, source = self._sources[order.source]
        self._call(node, partial(source.add, parts=[(Part(part), position) for part, position in order.parts]))
        for other, generator in self._generators:
            self._call(other, generator.advance)

    def _do(self, effect: machine.Effect) -> None:
        match effect:
            case machine.FlushOutgoing():
                for exchange in self._exchanges:
                    exchange.flush()
            case machine.HandOver():
                self._hand_over(effect)
            case machine.TakePart():
                self._gained.append(effect.part)
            case machine.SwitchExchanges():
                self._switch(effect.move)
            case machine.PollGained():
                self._sources[effect.source][1].poll_gained()
            case machine.SayBye():
                self._leave()
            case SendReport():
                self._messages.append((COORDINATOR, effect.report))

    def _leave(self) -> None:
        for exchange in self._exchanges:
            exchange.leave()
        for sink in self._sinks:
            sink.owns_nothing()

    def _hand_over(self, effect: machine.HandOver) -> None:
        move = effect.move
        node, source = self._sources[move.source]
        position, released = self._call(node, partial(source.release, part=Part(move.part)))
        where = PartPosition(position, released is None)
        state = None if released is None else released.state
        self._messages.append((move.taker, PartHandedOver(effect.version, move, where, state)))

    def _switch(self, move: RescaleMove) -> None:
        """R2, T2: switch to the table of ``move``. The markers carry the new frontiers, which may be lower."""
        self._silence(self._sending)
        for region_input in self._source_inputs:
            region_input.moving()
        before, self._before = self._before, {}
        for node, generator in self._generators:
            self._call(node, generator.keep)
        for node, reader in self._sources.values():
            self._call(node, reader.expect_parts if self._worker in move.new else reader.expect_none)
        gained, self._gained = self._gained, []
        for part in gained:
            self._take(part)
        for source in sorted({part.move.source for part in gained}):
            self._executor.rewind(self._sources[source][0])
        for node, generator in self._generators:
            self._call(node, generator.advance)
        for node, reader in self._sources.values():
            self._call(node, reader.settle)
        for exchange, node in self._sending:
            after = self._executor.merged(node)
            exchange.switch(move, before=before[exchange.name], after=after.time, idle=after.idle)
        for region_input in self._source_inputs:
            region_input.moved(move.version)
        self._started = True

    def _silence(self, sending: Iterable[tuple[Exchange, int]]) -> None:
        """Stop sending epochs and record the last frontiers; the marker will carry the next ones."""
        for exchange, node in sending:
            if not exchange.silent:
                self._before[exchange.name] = self._executor.frontier(node)
                exchange.silent = True

    def _take(self, part: PartHandedOver) -> None:
        node, source = self._sources[part.move.source]
        name, position = Part(part.move.part), part.position
        if position.is_finished:
            source.take_finished(part=name, position=position.at)
        else:
            self._call(node, partial(source.take, part=name, position=position.at, state=part.state))

    def _call(self, node: int, function: Callable[..., Any]) -> Any:
        result = self._executor.call(node, function)
        self._executor.run()
        return result
