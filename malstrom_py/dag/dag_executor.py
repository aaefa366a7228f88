"""`DagExecutor`: runs a DAG in the calls of its user, in one process and one thread.

Rule: a call with input processes the input and everything that results from it, in topological order, so its cost
depends on the nodes that it reaches. Between two calls the queues hold only injected events, and messages that were
left when an operator raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec, TypeTable, can_register
from malstrom_py.dag.checkpoint import bundle, image_of_bytes, images_of, restored, unbundle, watermarks_of
from malstrom_py.dag.events import batches_of, batches_of_all, time_of
from malstrom_py.dag.graph import MAIN, Dag, DagNode, NodeType
from malstrom_py.dag.registration import Kind, NodeRegistration, registration_of
from malstrom_py.dag.running import NodeServices, RunningDag
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, AbsBarrier, DeadLetter
from malstrom_py.errors import DagError, PlanError
from malstrom_py.operators.base import Counters, OnError
from malstrom_py.operators.stateful_op import StatefulOp

C = TypeVar("C", bound=type)


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


class DagExecutor:
    """The executor of a `Dag`. Register operators first, then pass events and watermarks, and take the sinks' records.

    An event is a plain value, or an `mp.DataMessage` with a key and a timestamp (ints in one unit of your choice); a
    record without a key has the key None. A record at or below the watermark of the node that it enters is late: it
    is counted, and goes to the node's side output ``late``, if that has a reader. Not thread-safe.

    An exception of an operator reaches the caller. The batch that the operator processed (an event, or the events that
    were passed together) is lost; states that it changed stay changed. A watermark is not lost: it and all other
    messages in flight stay queued, and the next call continues with them.

    >>> from malstrom_py import DataMessage
    >>> from malstrom_py.dag import DagBuilder, DagExecutor
    >>> dag = DagBuilder().source("in").operator("sum").connect("in", "sum").sink_for("sum", "out").build()
    >>> def add(message, total, output):
    ...     total = (total or 0) + message.value
    ...     output.emit(message.key, total, message.timestamp)
    ...     return total
    >>> executor = DagExecutor.from_dag(dag)
    >>> executor.register_operator("sum", add)
    >>> executor.process_event("in", [DataMessage("a", 1), DataMessage("b", 2), DataMessage("a", 3)])
    >>> snapshot = executor.checkpoint()
    >>> executor.take_sink_outputs("out"), executor.take_sink_outputs("out")
    ([1, 2, 4], [])
    >>> executor.restore(snapshot)
    >>> executor.process_event("in", DataMessage("a", 5))
    >>> executor.take_sink_outputs("out")
    [1, 2, 4, 9]
    """

    def __init__(self, dag: Dag, *, measured: bool = True, clock: Clock | None = None) -> None:
        if not isinstance(dag, Dag):
            raise PlanError(f"expected a Dag, got {type(dag).__name__}: call build() on the DagBuilder")
        self._dag = dag
        self._types = TypeTable()
        self._types.register(DeadLetter)
        self._services = NodeServices(Codec(self._types), clock or SystemClock(), measured=measured)
        self._registered: dict[str, NodeRegistration] = {}
        self._running: RunningDag | None = None
        self._started = self._busy = self._closed = False
        self._skipped = self._epochs = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "started" if self._started else "not started"
        return f"DagExecutor({self._dag.shape}, registered={len(self._registered)}, {state})"

    @classmethod
    def from_dag(cls, dag: Dag, *, measured: bool = True, clock: Clock | None = None) -> Self:
        """Return an executor of ``dag`` without registered operators.

        ``measured``: whether `node_metrics` measures time; ``clock``: the clock of `schedule`.
        """
        return cls(dag, measured=measured, clock=clock)

    def register_operator(
        self,
        node: str,
        operator: Any,
        *,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        kind: Kind | None = None,
    ) -> None:
        """Register ``operator`` for an operator node, before the first event; without one records pass through.

        ``operator`` is of one of these kinds, recognized by its hooks or its number of required arguments, or given as
        ``kind``:

        - ``"function"``: value -> value. Key and timestamp stay.
        - ``"stateless"``: an `mp.StatelessLogic`, or a function of (message, output).
        - ``"stateful"``: an `mp.KeyedLogic` or `mp.StatefulLogic`, or a function of (message, key_state, output) that
          returns the new state; state is per key of the event. ``default`` makes the state of a new key.
        - ``"factory"``: a step, as ``functools.partial(Step, …)`` of a class of ``malstrom_py.operators``, or another
          function `StepContext` -> `Operator`. `restore` calls it again. Side outputs are its ports from 1 up.

        ``on_error="skip"`` drops records on which the operator raises, ``"dead-letter"`` sends them to the side output
        ``dead_letters``.

        Raises:
            NodeNotFound: the node does not exist.
            PlanError: the node is a source or a sink, or has an operator already; or ``operator`` is not an operator.
        """
        found = self._dag.nodes[self._dag.rank(node)]
        if found.type is not NodeType.OPERATOR:
            raise PlanError(f"{node!r} is a {found.type}: operators are registered for operator nodes only")
        if node in self._registered:
            raise PlanError(f"node {node!r} has an operator already ({self._registered[node].label})")
        if self._started:
            raise PlanError(f"node {node!r}: register operators before the first event, watermark or restore")
        self._registered[node] = registration_of(operator, found, default=default, on_error=on_error, kind=kind)
        if isinstance(default, type) and can_register(default):
            self._types.register(default)
        self._running = None

    def register_type(self, kind: C) -> C:
        """Allow values and state of a class (dataclass, named tuple, Enum) in checkpoints; return the class."""
        return self._types.register(kind)

    def process_event(self, source: str, event: Any) -> None:
        """Process an event at a source: a value, a `DataMessage`, a list of these messages, or a `Batch`.

        Raises:
            NodeNotFound: the source does not exist.
            DagError: a timestamp is illegal; or a key cannot be hashed, or is NaN.
            OperatorError: an operator raised.
        """
        rank = self._dag.rank(source, NodeType.SOURCE)
        self._enter(rank, batches_of(event, source, source))
        self._run()

    def process_events(self, source: str, events: Iterable[Any] | Batch) -> None:
        """Process many events together, values and messages or a `Batch`: far cheaper than one by one."""
        rank = self._dag.rank(source, NodeType.SOURCE)
        self._enter(rank, batches_of_all(events, source, source))
        self._run()

    def process_watermark(self, source: str, time: int) -> None:
        """Promise that no record at or below ``time`` follows at a source; `mp.MAX_EPOCH`: no record at all.

        A node's watermark is the minimum over its inputs, and an input without a watermark holds it back. It never
        decreases: a ``time`` that is not larger is ignored. Where a watermark moves, timers fire and ``on_epoch`` is
        called.

        Raises:
            NodeNotFound: the source does not exist.
            DagError: ``time`` is not an int64.
            OperatorError: an operator raised.
        """
        rank = self._dag.rank(source, NodeType.SOURCE)
        time = time_of(time, f"the watermark of source {source!r}", source)
        running = self._start()
        if time > running.reached(rank):
            self._epochs += 1
            running.advance(rank, time)
        self._run()

    def fire_timers(self, time: int) -> None:
        """Fire the timers up to ``time`` of every node, but none above the node's own watermark (T6).

        A watermark that moves fires timers itself. This method fires the remaining ones: those set for a time in the
        past, and those after one that raised. Queued messages are processed first, as by `run`.
        """
        time = time_of(time, "the time of timers")
        running = self._start()
        executor = running.executor

        def fire() -> None:
            executor.run()
            for rank, operator in enumerate(running.operators):
                due = min(time, executor.frontier(rank))
                if isinstance(operator, StatefulOp) and due > MIN_EPOCH:
                    operator.fire_timers(due, executor.outlet(rank))
                    # Downstream nodes get these records before their own timers fire, as with a watermark.
                    executor.run()

        self._run(fire)

    def schedule(self) -> None:
        """Call ``on_schedule`` of the operators that have it, with the executor's clock. No other method calls it."""
        running = self._start()
        for rank, operator in running.scheduled:
            operator.on_schedule(running.executor.outlet(rank), self._services.clock)
        self._run()

    def inject_events(self, node: str, events: Iterable[Any] | Batch) -> None:
        """Queue events at any node, values, messages or a `Batch`; the next call that runs the graph processes them.

        Until then a checkpoint contains them. Raises `NodeNotFound`, or `DagError` for an illegal timestamp.
        """
        rank = self._dag.rank(node)
        part = node if self._dag.nodes[rank].type is NodeType.SOURCE else None
        self._enter(rank, batches_of_all(events, node, part))

    def run(self) -> None:
        """Process the queued messages."""
        self._start()
        self._run()

    def take_sink_outputs(self, sink: str, *, messages: bool = False) -> list[Any]:
        """Return the values that reached a sink since the last call, in order; as `DataMessage` s with ``messages``."""
        self._dag.rank(sink, NodeType.SINK)
        return self._built().sink(sink).take(messages=messages)

    def take_all_sink_outputs(self, *, messages: bool = False) -> dict[str, list[Any]]:
        """Return the values of every sink that has some, by name, in topological order."""
        waiting = sorted(self._built().waiting, key=self._dag.ranks.__getitem__)
        return {sink: self.take_sink_outputs(sink, messages=messages) for sink in waiting}

    def metrics(self) -> DagMetrics:
        """Return the metrics of the graph, described in `DagMetrics`."""
        read = Counter((edge.node, edge.output) for node in self._dag.nodes for edge in node.inputs)
        processed = routed = fanned_out = stalls = 0
        for node, counters in self._counters():
            processed += counters.rows_in
            stalls += counters.held
            for output, rows in zip((MAIN, *node.outputs), counters.rows_out, strict=True):
                routed += rows if read[node.name, output] else 0
                fanned_out += rows if read[node.name, output] > 1 else 0
        return DagMetrics(processed, routed, fanned_out, stalls, self._skipped, self._epochs)

    def node_metrics(self) -> dict[str, NodeMetrics]:
        """Return the metrics of each node by name, described in `NodeMetrics`."""
        return {
            node.name: NodeMetrics(
                counted.rows_in,
                sum(counted.rows_out),
                counted.calls,
                counted.time_ns,
                counted.late,
                counted.skipped,
                counted.dead_letters,
            )
            for node, counted in self._counters()
        }

    def reset_metrics(self) -> None:
        """Set all metrics to 0."""
        self._skipped = self._epochs = 0
        for _, counters in self._counters():
            # In place: the node and its operator share them.
            for field in fields(counters):
                value = getattr(counters, field.name)
                setattr(counters, field.name, [0] * len(value) if isinstance(value, list) else 0)

    @property
    def dag(self) -> Dag:
        """The graph."""
        return self._dag

    @property
    def source_nodes(self) -> tuple[str, ...]:
        """The names of the sources, in topological order."""
        return self._dag.sources

    @property
    def sink_nodes(self) -> tuple[str, ...]:
        """The names of the sinks, in topological order."""
        return self._dag.sinks

    def node_type(self, node: str) -> NodeType:
        """Return the type of a node: ``"source"``, ``"operator"`` or ``"sink"``. `NodeNotFound` if it is missing."""
        return self._dag.nodes[self._dag.rank(node)].type

    def input_count(self, node: str) -> int:
        """Return the number of a node's inputs: 0 for a source. `NodeNotFound` if it is missing."""
        return len(self._dag.nodes[self._dag.rank(node)].inputs)

    def watermark(self, node: str) -> int | None:
        """Return the last watermark that a node has forwarded or, at a sink, received; None before the first."""
        epoch = self._built().executor.epoch(self._dag.rank(node))
        return None if epoch == MIN_EPOCH else epoch

    def checkpoint(self) -> bytes:
        """Return a checkpoint: state, timers, watermarks, queued messages, and the records in the sinks.

        It does not contain metrics. An executor of the same graph can restore it, also in another process.

        Raises:
            CodecError: a key, value or state cannot be stored; names the node.
        """
        return bundle(self._images("checkpoint"), self._services.codec)

    def restore(self, snapshot: bytes | Mapping[str, bytes]) -> None:
        """Restore ``snapshot``, the result of `checkpoint` or, by node, of `process_checkpoint_barrier`.

        Register operators before; they are built again. A node is identified by its name, at any place in the graph. No
        hook of a logic is called. Metrics begin at 0. Timers of one time may fire in another order than they were set;
        those of one key fire in order.

        Raises:
            RestoreFailed: the bytes are not a checkpoint of this graph; names node and reason. The executor is
                unchanged.
        """
        self._idle()
        self._open()
        former, codec = self._running, self._services.codec
        stored = snapshot if isinstance(snapshot, Mapping) else unbundle(snapshot, codec)
        images = {name: image_of_bytes(image, codec, name) for name, image in stored.items()}
        with self._services.resources:
            self._running = restored(self._dag, self._registered, self._services, images)
            self._started = True
            self._skipped = self._epochs = 0
            if former is not None:
                former.close()

    def process_checkpoint_barrier(self, barrier: AbsBarrier) -> dict[str, bytes]:
        """Persist each node into ``barrier.backend`` under its name, upstream first; return the same by node."""
        if not isinstance(barrier, AbsBarrier):
            raise DagError(f"expected an AbsBarrier, got {type(barrier).__name__}")
        images = self._images(barrier.snapshot)
        for name, image in images.items():
            barrier.backend.persist(name, image)
        return images

    def checkpoint_watermarks(self) -> dict[str, int]:
        """Return the watermark of each node that has one."""
        marks = {node.name: self.watermark(node.name) for node in self._dag.nodes}
        return {name: time for name, time in marks.items() if time is not None}

    def restore_watermarks(self, watermarks: Mapping[str, int]) -> None:
        """Advance every node to the given watermark, as if it arrived now: due timers fire. No watermark decreases.

        `restore` restores watermarks too, without firing timers; use this method for watermarks alone. They do not
        contain the state that ``generate_epochs`` keeps for each source.

        Raises:
            RestoreFailed: a node is not in the graph, or a watermark is not an int64. The executor is unchanged.
        """
        times = watermarks_of(self._dag, watermarks)
        running = self._start()
        for rank, time in times.items():
            if time > running.executor.epoch(rank):
                running.advance(rank, time)
        self._run()

    def close(self) -> None:
        """Close the resources of operators and those of `mp.per_worker`. A ``with`` block does it at its end.

        An executor without such resources need not be closed. Queued messages are not processed.
        """
        self._idle()
        running, self._running, self._closed = self._running, None, True
        try:
            if running is not None:
                with self._services.resources:
                    running.close()
        finally:
            self._services.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _images(self, snapshot: str) -> dict[str, bytes]:
        running = self._start()
        with self._services.resources:
            return images_of(running, snapshot, self._services.codec)

    def _counters(self) -> Iterator[tuple[DagNode, Counters]]:
        running = self._built()
        return ((node, running.executor.counters(rank)) for rank, node in enumerate(running.dag.nodes))

    def _built(self) -> RunningDag:
        self._open()
        if self._running is None:
            self._running = RunningDag(self._dag, self._registered, self._services)
        return self._running

    def _open(self) -> None:
        if self._closed:
            raise DagError("the executor has been closed")

    def _idle(self) -> None:
        """`DagError` if an operator is running, because then that operator is the caller."""
        if self._busy:
            raise DagError(
                "one of the executor's operators called the executor: send records from the operator instead"
            )

    def _start(self) -> RunningDag:
        self._idle()
        running = self._built()
        if not self._started:
            # If opening fails, the operators are built again, because some parts may already be open.
            self._running = None
            with self._services.resources:
                running.open({})
            self._running, self._started = running, True
        return running

    def _enter(self, rank: int, batches: list[Batch]) -> None:
        running = self._start()
        for batch in batches:
            running.enter(rank, batch)

    def _run(self, work: Callable[[], None] | None = None) -> None:
        running = self._built()
        executor = running.executor
        before, self._busy = executor.visits, True
        try:
            with self._services.resources:
                running.run(work or executor.run)
        finally:
            self._busy = False
            self._skipped += max(0, len(self._dag.nodes) - (executor.visits - before))
