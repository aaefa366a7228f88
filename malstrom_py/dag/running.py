"""A running DAG: a plan of the graph's nodes, built and run by the engine, and fed by calls.

Rule: the steps of the plan are the nodes of the `Dag`, in its order. Each source is a source part of the same name, so
that steps that keep state per part work in a DAG too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

from malstrom_py.builder.plan import Plan, Port, Step, StreamRef
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.dag.graph import LATE, MAIN, UNTIMED, Dag, DagNode, NodeType
from malstrom_py.dag.registration import NodeRegistration
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    DataMessage,
    Epoch,
    PartFinished,
    PartMessage,
    PartOpened,
    StateMessage,
)
from malstrom_py.operators.base import Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.worker_context import Resources, close_all
from malstrom_py.workers.engine.graph_builder import build_fed


class SinkCollector(Operator):
    """A sink: keeps batches in their order until they are taken. ``waiting``: the names of all sinks with batches."""

    takes_columns = True

    def __init__(self, context: StepContext, *, waiting: set[str]) -> None:
        super().__init__(context)
        self._waiting = waiting
        self.batches: list[Batch] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.batches.append(batch)
        self._waiting.add(self.context.step)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The graph ends here."""

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The graph ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """The graph ends here."""

    def take(self, *, messages: bool) -> list[Any]:
        """Return the values received since the last call, in order; with ``messages`` as records."""
        batches, self.batches = self.batches, []
        self._waiting.discard(self.context.step)
        if not messages:
            return [value for batch in batches for value in batch.values]
        return [
            DataMessage(key, value, timestamp)
            for batch in batches
            for key, value, timestamp in zip(
                batch.keys or repeat(None), batch.values, batch.timestamps or repeat(None), strict=False
            )
        ]


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The services that all nodes of one `DagExecutor` share."""

    codec: Codec
    clock: Clock
    resources: Resources = field(default_factory=Resources)
    measured: bool = True


class RunningDag:
    """The nodes of ``dag`` with their ``registered`` operators. Call `open` before the first event."""

    def __init__(self, dag: Dag, registered: Mapping[str, NodeRegistration], services: NodeServices) -> None:
        self.dag = _with_late(dag, registered)
        self.waiting: set[str] = set()
        """The names of the sinks with batches."""
        self.interrupted = False
        """Whether watermarks may be queued between two calls: after an operator raised, or after a restore of that."""
        self.registered = registered
        self._wake = services.resources.wake
        plan = Plan("dag", 1, tuple(map(self._step, self.dag.nodes)))
        self.executor, operators = build_fed(
            plan, codec=services.codec, clock=services.clock, measured=services.measured
        )
        self.operators = list(operators.values())
        self.scheduled = [(rank, operator) for rank, operator in enumerate(self.operators) if operator.scheduled]
        self._holding = [(rank, operator) for rank, operator in enumerate(self.operators) if operator.holding]

    def _step(self, node: DagNode) -> Step:
        nodes, ranks = self.dag.nodes, self.dag.ranks
        inputs = (StreamRef(edge.node, nodes[ranks[edge.node]].port(edge.output) or 0) for edge in node.inputs)
        ports = (Port(output, epochs=output not in UNTIMED) for output in (MAIN, *node.outputs))
        factory: OperatorFactory = partial(SinkCollector, waiting=self.waiting) if node.type is NodeType.SINK else Union
        registered = self.registered.get(node.name) or NodeRegistration(factory)
        return Step(node.name, node.type, registered.factory, tuple(inputs), tuple(ports), on_error=registered.on_error)

    def open(self, parts: Mapping[str, Mapping[str, Any]], finished: frozenset[str] = frozenset()) -> None:
        """Open the part of each source that has not ``finished``, if a step keeps state per part.

        ``parts``: node -> source -> the node's state of that part.
        """
        if not any(map(keeps_parts, self.operators)):
            return
        for source in self.dag.sources:
            if source not in finished:
                kept = {node: of_parts[source] for node, of_parts in parts.items() if source in of_parts}
                self.executor.push(self.dag.ranks[source], PartOpened(source, kept or None))
        self.executor.run()

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work``, then wait for the pending calls of ``enrich``, whose records are held back."""
        self.interrupted = True
        work()
        if self._holding:
            self.executor.finish_calls(self._holding, self._wake)
        self.interrupted = False

    def close(self) -> None:
        """Close the operators; raise the first error after all are closed."""
        closes = (getattr(operator, "close", None) for operator in self.operators)
        close_all(filter(callable, closes))

    def reached(self, rank: int) -> int:
        """Return the watermark that applies to a new record of a node; it includes watermarks queued after an error."""
        frontier = self.executor.frontier(rank)
        if not self.interrupted:
            return frontier
        inputs = self.executor.merged(rank).inputs()
        for index, message in self.executor.queued(rank):
            if isinstance(message, Epoch):
                inputs[index] = max(inputs[index], message.time)
        return max(frontier, min(inputs))

    def enter(self, rank: int, batch: Batch) -> None:
        """Queue records at a node. Late ones are counted, and sent to its output ``late`` if it has one."""
        on_time, late = split_late(batch, self.reached(rank))
        if on_time is not None:
            self.executor.push(rank, on_time)
        if late is not None:
            counters, port = self.executor.counters(rank), self.dag.nodes[rank].port(LATE)
            counters.rows_in += len(late)
            counters.late += len(late)
            if port is not None:
                self.executor.outlet(rank).send(late, port)

    def advance(self, rank: int, time: int) -> None:
        """Queue a watermark at every input of a node. The maximum epoch finishes the part of a source."""
        node = self.dag.nodes[rank]
        if time == MAX_EPOCH and node.type is NodeType.SOURCE:
            self.executor.push(rank, PartFinished(node.name))
        for index in range(max(1, len(node.inputs))):
            self.executor.push(rank, Epoch(time), index=index)

    def sink(self, name: str) -> SinkCollector:
        """Return the collector of a sink."""
        operator = self.operators[self.dag.ranks[name]]
        assert isinstance(operator, SinkCollector)
        return operator


def split_late(batch: Batch, frontier: int) -> tuple[Batch | None, Batch | None]:
    """Split a batch into the records above ``frontier`` and those at or below it; None for an empty batch.

    After the maximum epoch every record is late, also one without a timestamp.
    """
    if frontier == MAX_EPOCH:
        return None, batch
    times = batch.timestamps
    if times is None or frontier == MIN_EPOCH or min(times) > frontier:
        return batch, None
    late = [time <= frontier for time in times]
    if all(late):
        return None, batch
    return batch.compress([not one for one in late]), batch.compress(late)


def keeps_parts(operator: Operator) -> bool:
    """Return whether ``operator`` handles the opening and finishing of source parts."""
    return type(operator).on_part not in (Operator.on_part, SinkCollector.on_part)


def _with_late(dag: Dag, registered: Mapping[str, NodeRegistration]) -> Dag:
    """Return ``dag`` with the output ``late`` added to each node whose operator sends to it."""
    nodes = list(dag.nodes)
    for name, registration in registered.items():
        node = nodes[rank := dag.ranks[name]]
        if registration.sends_late and LATE not in node.outputs:
            nodes[rank] = replace(node, outputs=(LATE, *node.outputs))
    return replace(dag, nodes=tuple(nodes))
