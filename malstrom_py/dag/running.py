"""A running DAG: the operators and sinks of a graph, on one `Executor` of the engine, their images and their metrics.

Rule: nodes are numbered as in the `Dag`. Each source is a source part of the same name, so that steps that keep state
per part work in a DAG too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
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


@dataclass(frozen=True, slots=True)
class DagMetrics:
    """Metrics of the whole graph, since it was built, restored, or since ``reset_metrics``.

    Attributes:
        processed: records received, summed over the nodes: one through a source, two operators and a sink counts 4.
        routed: records sent to an output that has a reader; counted once for any number of readers.
        fanned_out: the routed records whose output has more than one reader.
        stalls: watermarks that reached a node without moving its watermark, because another input is lower.
        skipped: nodes not visited, summed over the runs: each call that processes events, watermarks or timers is one
            run, and its cost depends on the nodes that it visits. (A node that is visited twice counts as two.)
        epochs: watermarks given to ``process_watermark`` that moved that of their source; others are ignored.
    """

    processed: int = 0
    routed: int = 0
    fanned_out: int = 0
    stalls: int = 0
    skipped: int = 0
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Metrics of one node, over the same time.

    Attributes:
        rows_in: records received, including late ones.
        rows_out: records sent, on all outputs, with or without readers.
        calls: batches received: an event is a batch, and events that are passed together are one batch.
        time_ns: nanoseconds spent in the node, with events, watermarks and timers; 0 if not measured. Includes the time
            of nodes that an operator runs before it continues, as ``flat_map`` does.
        late: records at or below its watermark.
        skipped: records on which its operator failed, dropped by ``on_error="skip"``.
        dead_letters: records on which its operator failed, sent to its output ``dead_letters``.
    """

    rows_in: int = 0
    rows_out: int = 0
    calls: int = 0
    time_ns: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


def node_metrics(counters: Counters) -> NodeMetrics:
    """Return the metrics of a node from its counters."""
    return NodeMetrics(
        counters.rows_in,
        sum(counters.rows_out),
        counters.calls,
        counters.time_ns,
        counters.late,
        counters.skipped,
        counters.dead_letters,
    )


def dag_metrics(nodes: Iterable[tuple[Counters, list[int]]], *, skipped: int, epochs: int) -> DagMetrics:
    """Return the metrics of the graph from each node's counters and its number of readers per port."""
    processed = routed = fanned_out = stalls = 0
    for counters, readers in nodes:
        processed += counters.rows_in
        stalls += counters.held
        for rows, read_by in zip(counters.rows_out, readers, strict=True):
            routed += rows if read_by else 0
            fanned_out += rows if read_by > 1 else 0
    return DagMetrics(processed, routed, fanned_out, stalls, skipped, epochs)


def reset(counters: Counters) -> None:
    """Set all counters to 0, in place: the node and its operator share them."""
    for counted in fields(counters):
        value = getattr(counters, counted.name)
        setattr(counters, counted.name, [0] * len(value) if isinstance(value, list) else 0)


Queued = tuple[int, "Batch | Control"]


@dataclass(frozen=True, slots=True)
class NodeImage:
    """The image of one node. ``inputs``: their names; ``reached``: their epochs; ``epoch``: the last epoch sent.

    ``label``: the name of its operator; ``state``: the persisted state of the operator, or None; ``kept``: the batches
    in a sink.
    """

    type: str
    inputs: list[str]
    label: str
    reached: list[int]
    epoch: int
    state: bytes | None = None
    queue: list[Queued] = field(default_factory=list)
    kept: list[Batch] = field(default_factory=list)


class SinkCollector(Operator):
    """A sink: keeps batches in their order until they are taken. ``waiting``: the names of all sinks with batches."""

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
        """Return the values received since the last call, in order."""
        return [value for batch in self._drained() for value in batch.values]

    def take_messages(self) -> list[DataMessage[Any, Any]]:
        """Return the records received since the last call, in order, with their keys and timestamps."""
        return [
            DataMessage(key, value, timestamp)
            for batch in self._drained()
            for key, value, timestamp in zip(
                batch.keys or repeat(None), batch.values, batch.timestamps or repeat(None), strict=False
            )
        ]

    def kept(self) -> list[Batch]:
        """Return the batches without removing them."""
        return list(self._batches)

    def _drained(self) -> list[Batch]:
        batches, self._batches = self._batches, []
        self._waiting.discard(self.context.step)
        return batches


class BarrierStops:
    """An outlet that drops barriers: the DAG passes the barrier to each node itself, upstream first."""

    def __init__(self, out: Outlet) -> None:
        self._out = out

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Queue a message other than a barrier at the successors."""
        if not isinstance(message, AbsBarrier):
            self._out.send(message, port)

    def forward(self, message: Control) -> None:
        """Forward a control message other than a barrier."""
        if not isinstance(message, AbsBarrier):
            self._out.forward(message)

    def drain(self) -> None:
        """Do nothing: while images are taken no message is processed; the images contain the queues."""

    def passed(self) -> int:
        """Return the last forwarded epoch."""
        return self._out.passed()


class Nowhere:
    """An outlet that drops every message, for a restore: the messages were sent before the image was taken."""

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Drop the message."""

    def forward(self, message: Control) -> None:
        """Drop the message."""

    def drain(self) -> None:
        """Do nothing."""

    def passed(self) -> int:
        """Return the minimum epoch."""
        return MIN_EPOCH


class PersistedStates:
    """The backend of a barrier: keeps the persisted state of each operator in memory."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}

    def persist(self, operator: str, state: bytes) -> None:
        """Keep ``state``."""
        self.states[operator] = state


_WATCH_S: Final = 0.1
"""The interval in which pending calls are checked for a timeout."""


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The services that all nodes of one `DagExecutor` share."""

    codec: Codec
    clock: Clock
    resources: Resources
    measured: bool = True


class RunningDag:
    """The nodes of ``dag`` with their ``registered`` operators. Call `open` before the first event."""

    def __init__(self, dag: Dag, registered: Mapping[str, NodeRegistration], services: NodeServices) -> None:
        self.dag = with_ports(dag, registered)
        self.waiting: set[str] = set()
        """The names of the sinks with batches."""
        self.interrupted = False
        """Whether watermarks may be queued between two calls: after an operator raised, or after a restore of that."""
        self._registered = registered
        self._services = services
        self.operators = [self._operator(node) for node in self.dag.nodes]
        specs = [self._spec(node, operator) for node, operator in zip(self.dag.nodes, self.operators, strict=True)]
        self.executor = Executor(specs, measured=services.measured)
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
        services = self._services
        return registered.build(context_of(node, registered.on_error, codec=services.codec, clock=services.clock))

    def _spec(self, node: DagNode, operator: Operator | None) -> NodeSpec:
        nodes, ranks = self.dag.nodes, self.dag.ranks
        inputs = tuple((ranks[edge.node], nodes[ranks[edge.node]].port(edge.output) or 0) for edge in node.inputs)
        return NodeSpec(node.name, operator, inputs, (True, *(output not in UNTIMED for output in node.outputs)))

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
        wake = self._services.resources.wake
        while any(operator.awaiting for _, operator in self._holding):
            left = sum(self.executor.call(rank, operator.resume) for rank, operator in self._holding)
            self.executor.run()
            if not left and wake.wait(_WATCH_S):
                wake.clear()
        self.interrupted = False

    def close(self) -> None:
        """Close the operators; raise the first error after all are closed."""
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
        """Return the watermark that applies to a new record of a node; it includes watermarks queued after an error."""
        frontier = self.executor.frontier(rank)
        if not self.interrupted:
            return frontier
        inputs = self.executor.merged(rank).inputs()
        for index, message in self.executor.queued(rank):
            if isinstance(message, Epoch):
                inputs[index] = max(inputs[index], message.time)
        return max(frontier, min(inputs))

    def enter(self, rank: int, on_time: Batch | None, late: Batch | None) -> None:
        """Queue records at a node. Late ones are counted, and sent to its output ``late`` if it has one."""
        if on_time is not None:
            self.executor.push(rank, on_time)
        if late is not None:
            counters, port = self.executor.counters(rank), self.dag.nodes[rank].port(LATE)
            counters.rows_in += len(late)
            counters.late += len(late)
            if port is not None:
                self.executor.call(rank, lambda out: out.send(late, port))

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

    def label(self, node: str) -> str:
        """Return the label of a node's registered operator, or an empty text."""
        registered = self._registered.get(node)
        return "" if registered is None else registered.label

    def counters(self) -> list[Counters]:
        """Return the counters of each node."""
        return [self.executor.counters(rank) for rank in range(len(self.dag.nodes))]

    def readers(self) -> list[list[int]]:
        """Return the number of readers of each port of each node."""
        read = Counter((edge.node, edge.output) for node in self.dag.nodes for edge in node.inputs)
        return [[read[node.name, output] for output in (MAIN, *node.outputs)] for node in self.dag.nodes]

    def image(self, rank: int, snapshot: str) -> NodeImage:
        """Take the image of one node; images of later nodes contain the messages that it sends at the barrier."""
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
    """Return ``dag`` with the output ``late`` added to each node whose operator sends to it."""
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
    """Return whether ``operator`` handles the opening and finishing of source parts."""
    return operator is not None and type(operator).on_part not in (Operator.on_part, SinkCollector.on_part)
