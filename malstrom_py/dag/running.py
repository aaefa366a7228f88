"""A DAG while it runs: the one executor over the nodes of a graph.

A sink of a DAG: keeps the records that reach it until they are taken.

Outlets that an operator is given when its image is taken, or put back: what it sends then goes no further.

Rule: nodes are numbered as they stand in the `Dag`. Each source is one part of its own name, so that steps that keep
something per part work here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.dag.images import NodeImage
from malstrom_py.dag.registration import NodeRegistration, context_of
from malstrom_py.dag.topology import LATE, MAIN, UNTIMED, Dag, DagNode, NodeType
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Control,
    DataMessage,
    Epoch,
    PartFinished,
    PartMessage,
    PartOpened,
    StateMessage,
)
from malstrom_py.operators.base import Counters, Operator, Outlet, StepContext
from malstrom_py.worker_context import Resources
from malstrom_py.workers.engine.executor import Executor, NodeSpec


class SinkCollector(Operator):
    """Keeps batches in the order they came. ``waiting`` are the names of the sinks that have some, for all to share."""

    takes_columns = True

    def __init__(self, context: StepContext, waiting: set[str]) -> None:
        super().__init__(context)
        self._waiting = waiting
        self._batches: list[Batch] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._batches.append(batch)
        self._waiting.add(self.context.step)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The graph ends here."""

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The graph ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """The graph ends here."""

    def take(self) -> list[Any]:
        """The values that came since the last call, in order."""
        return [value for batch in self._drained() for value in batch.values]

    def take_messages(self) -> list[DataMessage[Any, Any]]:
        """The records that came since the last call, in order, with their keys and timestamps."""
        return [
            DataMessage(key, value, timestamp)
            for batch in self._drained()
            for key, value, timestamp in zip(
                batch.keys or repeat(None), batch.values, batch.timestamps or repeat(None), strict=False
            )
        ]

    def kept(self) -> list[Batch]:
        """What would be taken, left where it is."""
        return list(self._batches)

    def _drained(self) -> list[Batch]:
        batches, self._batches = self._batches, []
        self._waiting.discard(self.context.step)
        return batches


class BarrierStops:
    """Sends on all but the barrier itself, which each node is given in its turn, upstream first."""

    def __init__(self, out: Outlet) -> None:
        self._out = out

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Queue what is no barrier at the successors."""
        if not isinstance(message, AbsBarrier):
            self._out.send(message, port)

    def forward(self, message: Control) -> None:
        """The same, for control messages."""
        if not isinstance(message, AbsBarrier):
            self._out.forward(message)

    def drain(self) -> None:
        """Nothing runs while images are taken: what is queued is in them."""

    def passed(self) -> int:
        """What has been passed on."""
        return self._out.passed()


class Nowhere:
    """Forgets what it is given: it was sent before, where the image was taken."""

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Forget it."""

    def forward(self, message: Control) -> None:
        """Forget it."""

    def drain(self) -> None:
        """There is nothing."""

    def passed(self) -> int:
        """Nothing."""
        return MIN_EPOCH


class PersistedStates:
    """The backend of a barrier: keeps what is persisted, by operator."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}

    def persist(self, operator: str, state: bytes) -> None:
        """Keep it."""
        self.states[operator] = state


_WATCH_S: Final = 0.1
"""How often calls that are under way are looked at, for having taken too long."""


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What all nodes of one `DagExecutor` share."""

    codec: Codec
    clock: Clock
    resources: Resources
    measured: bool = True


class RunningDag:
    """The nodes of ``dag`` with what is ``registered`` for them. `open` comes before the first event."""

    def __init__(self, dag: Dag, registered: Mapping[str, NodeRegistration], means: NodeServices) -> None:
        self.dag = with_ports(dag, registered)
        self.waiting: set[str] = set()
        """The sinks that have something to take."""
        self.interrupted = False
        """Whether watermarks may be queued between two calls: an operator has raised, or so it was when restored."""
        self._registered = registered
        self._means = means
        self.operators = [self._operator(node) for node in self.dag.nodes]
        specs = [self._spec(node, operator) for node, operator in zip(self.dag.nodes, self.operators, strict=True)]
        self.executor = Executor(specs, measured=means.measured)
        self._holding = [
            (rank, operator)
            for rank, operator in enumerate(self.operators)
            if operator is not None and operator.holding
        ]

    def _operator(self, node: DagNode) -> Operator | None:
        if node.type is NodeType.SINK:
            return SinkCollector(context_of(node, "fail"), self.waiting)
        registered = self._registered.get(node.name)
        if registered is None:
            return None
        means = self._means
        return registered.build(context_of(node, registered.on_error, codec=means.codec, clock=means.clock))

    def _spec(self, node: DagNode, operator: Operator | None) -> NodeSpec:
        nodes, ranks = self.dag.nodes, self.dag.ranks
        inputs = tuple((ranks[edge.node], nodes[ranks[edge.node]].port(edge.output) or 0) for edge in node.inputs)
        return NodeSpec(node.name, operator, inputs, (True, *(output not in UNTIMED for output in node.outputs)))

    def open(self, parts: Mapping[str, Mapping[str, Any]], finished: frozenset[str] = frozenset()) -> None:
        """Open the part of each source that has not ``finished``, if a step keeps something per part.

        ``parts``: node -> source -> what the node had kept for it.
        """
        if not any(map(keeps_parts, self.operators)):
            return
        for source in self.dag.sources:
            if source not in finished:
                kept = {node: of_parts[source] for node, of_parts in parts.items() if source in of_parts}
                self.executor.push(self.dag.ranks[source], PartOpened(source, kept or None))
        self.executor.run()

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work``, then wait for what steps hold back: calls that ``enrich`` has made, and that are under way."""
        self.interrupted = True
        work()
        wake = self._means.resources.wake
        while any(operator.awaiting for _, operator in self._holding):
            left = sum(self.executor.call(rank, operator.resume) for rank, operator in self._holding)
            self.executor.run()
            if not left and wake.wait(_WATCH_S):
                wake.clear()
        self.interrupted = False

    def close(self) -> None:
        """Have operators give up what they have open. The first error is raised when all have."""
        errors: list[Exception] = []
        for operator in self.operators:
            for call in operator.context.at_close if isinstance(operator, Operator) else ():
                call()
            close = getattr(operator, "close", None)
            try:
                if callable(close):
                    close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def reached(self, rank: int) -> int:
        """The watermark of a node, for what comes in now: behind those that are queued, when an operator has raised."""
        frontier = self.executor.frontier(rank)
        if not self.interrupted:
            return frontier
        inputs = self.executor.merged(rank).inputs()
        for index, message in self.executor.queued(rank):
            if isinstance(message, Epoch):
                inputs[index] = max(inputs[index], message.time)
        return max(frontier, min(inputs))

    def enter(self, rank: int, on_time: Batch | None, late: Batch | None) -> None:
        """Queue records at a node; the late ones go to its output ``late``, or into the count and no further."""
        if on_time is not None:
            self.executor.push(rank, on_time)
        if late is not None:
            counters, port = self.executor.counters(rank), self.dag.nodes[rank].port(LATE)
            counters.rows_in += len(late)
            counters.late += len(late)
            if port is not None:
                self.executor.call(rank, lambda out: out.send(late, port))

    def advance(self, rank: int, time: int) -> None:
        """Queue a watermark at every input of a node. The part of a source ends with the maximum."""
        node = self.dag.nodes[rank]
        if time == MAX_EPOCH and node.type is NodeType.SOURCE:
            self.executor.push(rank, PartFinished(node.name))
        for index in range(max(1, len(node.inputs))):
            self.executor.push(rank, Epoch(time), index=index)

    def sink(self, name: str) -> SinkCollector:
        """What collects at a sink."""
        operator = self.operators[self.dag.ranks[name]]
        assert isinstance(operator, SinkCollector)
        return operator

    def label(self, node: str) -> str:
        """What is registered for a node; empty if nothing."""
        registered = self._registered.get(node)
        return "" if registered is None else registered.label

    def counters(self) -> list[Counters]:
        """What each node has counted."""
        return [self.executor.counters(rank) for rank in range(len(self.dag.nodes))]

    def readers(self) -> list[list[int]]:
        """How many nodes read each port of each node."""
        read = Counter((edge.node, edge.output) for node in self.dag.nodes for edge in node.inputs)
        return [[read[node.name, output] for output in (MAIN, *node.outputs)] for node in self.dag.nodes]

    def image(self, rank: int, snapshot: str) -> NodeImage:
        """The image of one node. What its operator sends at the barrier is queued behind it, and so in later images."""
        node, operator, executor = self.dag.nodes[rank], self.operators[rank], self.executor
        backend = PersistedStates()
        if operator is not None:
            barrier = AbsBarrier(snapshot, backend)
            executor.call(rank, lambda out: operator.on_control(barrier, BarrierStops(out)))
        return NodeImage(
            str(node.type),
            [str(edge) for edge in node.inputs],
            self.label(node.name),
            executor.merged(rank).inputs(),
            executor.epoch(rank),
            backend.states.get(node.name),
            executor.queued(rank),
            operator.kept() if isinstance(operator, SinkCollector) else [],
        )


def with_ports(dag: Dag, registered: Mapping[str, NodeRegistration]) -> Dag:
    """``dag``, where what sends to ``late`` itself has that output also if nothing reads it."""
    lacking = {
        node.name
        for node in dag.nodes
        if LATE not in node.outputs and node.name in registered and registered[node.name].sends_late
    }
    if not lacking:
        return dag
    nodes = [replace(node, outputs=(LATE, *node.outputs)) if node.name in lacking else node for node in dag.nodes]
    return replace(dag, nodes=tuple(nodes))


def keeps_parts(operator: Operator | None) -> bool:
    """Whether it matters to ``operator`` that a part of a source comes or goes."""
    return operator is not None and type(operator).on_part not in (Operator.on_part, SinkCollector.on_part)
