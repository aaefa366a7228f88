"""`DagExecutor`: a DAG that is fed by calls. One process, one thread, and nothing runs by itself.

Rule: a call that hands something in processes it, with all that comes of it, in topological order; so it costs by the
nodes that are touched. Between two calls nothing is under way but what was injected, or left when an operator raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, TypeVar

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec, TypeTable, can_register
from malstrom_py.dag.events import batches_of, batches_of_all, split_late, time_of
from malstrom_py.dag.images import bundle, image_of_bytes, image_to_bytes, unbundle
from malstrom_py.dag.metrics import DagMetrics, NodeMetrics, dag_metrics, node_metrics, reset
from malstrom_py.dag.registration import Kind, NodeRegistration, registration_of
from malstrom_py.dag.restoring import restored, watermarks_of
from malstrom_py.dag.running import NodeServices, RunningDag
from malstrom_py.dag.topology import Dag, NodeType
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, AbsBarrier, DeadLetter
from malstrom_py.errors import DagError, PlanError
from malstrom_py.operators.base import OnError
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.worker_context import Resources

C = TypeVar("C", bound=type)


class DagExecutor:
    """Runs a `Dag`. Register operators first, then hand in events and watermarks, and take what the sinks hold.

    An event is a plain value, or an `mp.DataMessage` with a key and a timestamp (ints in one unit of your choice); a
    record without a key has the key None. A record at or below the watermark of the node where it comes in is late: it
    goes to the node's side output ``late``, if that is read, and is counted. Not for several threads at once.

    An error of an operator reaches the caller of the method that ran it. The batch that it was given is gone: an event,
    or the events that were handed in together; states that it has changed by then stay changed. A watermark is not
    gone: it, and what else was under way, stays queued, and the next call goes on with it.

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
        self._means = NodeServices(Codec(self._types), clock or SystemClock(), Resources(), measured)
        self._registered: dict[str, NodeRegistration] = {}
        self._running: RunningDag | None = None
        self._started = self._busy = self._closed = False
        self._skipped = self._epochs = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "started" if self._started else "not started"
        return f"DagExecutor({self._dag.shape}, registered={len(self._registered)}, {state})"

    @classmethod
    def from_dag(cls, dag: Dag, *, measured: bool = True, clock: Clock | None = None) -> Self:
        """An executor of ``dag``, with no operator registered yet.

        ``measured``: whether time is, for `node_metrics`; ``clock`` is what `schedule` tells operators.
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
        """Have ``operator`` run at an operator node; one without passes records through. Before the first event.

        ``operator`` is one of these, told by its hooks or by how many arguments it must be given; or say ``kind``:

        - ``"function"``: value -> value. Key and timestamp stay.
        - ``"stateless"``: an `mp.StatelessLogic`, or a function of (message, output).
        - ``"stateful"``: an `mp.KeyedLogic` or `mp.StatefulLogic`, or a function of (message, key_state, output) that
          returns the new state; state is per key of the event. ``default`` makes the state of a key that has none.
        - ``"factory"``: a step, as ``functools.partial(Step, …)`` of a class of ``malstrom_py.operators``, or another
          function `StepContext` -> `Operator`. `restore` calls it anew. Side outputs are its ports from 1 up.

        ``on_error="skip"`` drops records it raises on, ``"dead-letter"`` sends them to the side output
        ``dead_letters``.

        Raises:
            NodeNotFound: there is no such node.
            PlanError: it is a source or a sink, has an operator already, or ``operator`` cannot be one.
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
        """Allow values and state of a class (dataclass, named tuple, Enum) in checkpoints. Returns the class."""
        return self._types.register(kind)

    def process_event(self, source: str, event: Any) -> None:
        """Hand an event in at a source: a value, a `DataMessage`, a list of these messages, or a `Batch`.

        Raises:
            NodeNotFound: there is no such source.
            DagError: a timestamp is none; or a key cannot be hashed, or is NaN.
            OperatorError: an operator raised.
        """
        rank = self._dag.rank(source, NodeType.SOURCE)
        self._enter(rank, batches_of(event, source, source))
        self._run()

    def process_events(self, source: str, events: Iterable[Any] | Batch) -> None:
        """Hand many events in at once, values and messages or a `Batch`: that costs far less than one by one."""
        rank = self._dag.rank(source, NodeType.SOURCE)
        self._enter(rank, batches_of_all(events, source, source))
        self._run()

    def process_watermark(self, source: str, time: int) -> None:
        """Promise that nothing at or below ``time`` follows at a source; `mp.MAX_EPOCH`: nothing at all.

        A node's watermark is the minimum over its inputs, an input that has had none holds it back, and it never goes
        back: a ``time`` that is no news is ignored. Timers fire, and ``on_epoch`` is called, where a watermark moves.

        Raises:
            NodeNotFound: there is no such source.
            DagError: ``time`` is no int64.
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

        A watermark that moves has fired them already, so this is for those that are left: set for a time that had
        passed, behind one that raised. What is queued is processed first, as by `run`.
        """
        time = time_of(time, "the time of timers")
        running = self._start()
        executor = running.executor

        def fire() -> None:
            executor.run()
            for rank, operator in enumerate(running.operators):
                due = min(time, executor.frontier(rank))
                if isinstance(operator, StatefulOp) and due > MIN_EPOCH:
                    executor.call(rank, partial(operator.fire_timers, due))
                    # What they sent comes to the nodes behind before their own timers, as with a watermark.
                    executor.run()

        self._run(fire)

    def schedule(self) -> None:
        """Call ``on_schedule`` of the operators that have it, with the executor's clock. Nothing else does."""
        running = self._start()
        for rank, operator in enumerate(running.operators):
            if operator is not None and operator.scheduled:
                running.executor.call(rank, partial(operator.on_schedule, clock=self._means.clock))
        self._run()

    def inject_events(self, node: str, events: Iterable[Any] | Batch) -> None:
        """Queue events at any node, values, messages or a `Batch`; the next call that runs anything processes them.

        They are in a checkpoint until then. Raises `NodeNotFound`, or `DagError` for a timestamp that is none.
        """
        rank = self._dag.rank(node)
        part = node if self._dag.nodes[rank].type is NodeType.SOURCE else None
        self._enter(rank, batches_of_all(events, node, part))

    def run(self) -> None:
        """Process what is queued."""
        self._start()
        self._run()

    def take_sink_outputs(self, sink: str, *, messages: bool = False) -> list[Any]:
        """The values that have reached a sink since the last call, in order; as `DataMessage` s with ``messages``."""
        self._dag.rank(sink, NodeType.SINK)
        collected = self._built().sink(sink)
        return collected.take_messages() if messages else collected.take()

    def take_all_sink_outputs(self, *, messages: bool = False) -> dict[str, list[Any]]:
        """The same of every sink that holds something, by name, in topological order."""
        waiting = sorted(self._built().waiting, key=self._dag.ranks.__getitem__)
        return {sink: self.take_sink_outputs(sink, messages=messages) for sink in waiting}

    def metrics(self) -> DagMetrics:
        """What the graph has done. See `DagMetrics` for each figure."""
        running = self._built()
        nodes = zip(running.counters(), running.readers(), strict=True)
        return dag_metrics(nodes, skipped=self._skipped, epochs=self._epochs)

    def node_metrics(self) -> dict[str, NodeMetrics]:
        """What each node has done, by name. See `NodeMetrics` for each figure."""
        counters = self._built().counters()
        return {node.name: node_metrics(counted) for node, counted in zip(self._dag.nodes, counters, strict=True)}

    def reset_metrics(self) -> None:
        """Set all figures to 0."""
        self._skipped = self._epochs = 0
        for counters in self._built().counters():
            reset(counters)

    @property
    def dag(self) -> Dag:
        """The graph that it runs."""
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
        """Whether a node is a ``"source"``, an ``"operator"`` or a ``"sink"``. `NodeNotFound` if there is none."""
        return self._dag.nodes[self._dag.rank(node)].type

    def input_count(self, node: str) -> int:
        """How many outputs of other nodes a node reads: 0 for a source. `NodeNotFound` if there is none."""
        return len(self._dag.nodes[self._dag.rank(node)].inputs)

    def watermark(self, node: str) -> int | None:
        """The watermark that a node has passed on, or, at a sink, taken; None before the first."""
        epoch = self._built().executor.epoch(self._dag.rank(node))
        return None if epoch == MIN_EPOCH else epoch

    def checkpoint(self) -> bytes:
        """All there is, at rest: state, timers, watermarks, what is queued, what nobody has taken from the sinks.

        Figures are not in it. It can be restored in another process, by an executor of the same graph.

        Raises:
            CodecError: a key, value or state cannot be stored; names the node.
        """
        return bundle(self._images("checkpoint"), self._means.codec)

    def restore(self, snapshot: bytes | Mapping[str, bytes]) -> None:
        """Go on where ``snapshot`` was taken: by `checkpoint`, or by node as `process_checkpoint_barrier` gives it.

        Operators are registered before, and built anew. What belongs to a node is found by its name, wherever it now
        stands in the graph. No hook of a logic is called. Figures begin at 0. Timers of one time may ring in another
        order than they were set; those of one key ring in order.

        Raises:
            RestoreFailed: these are no such bytes, or not those of this graph; names node and reason. Nothing changes.
        """
        self._idle()
        self._open()
        former, codec = self._running, self._means.codec
        stored = snapshot if isinstance(snapshot, Mapping) else unbundle(snapshot, codec)
        images = {name: image_of_bytes(image, codec, name) for name, image in stored.items()}
        with self._means.resources:
            self._running = restored(self._dag, self._registered, self._means, images)
            self._started = True
            self._skipped = self._epochs = 0
            if former is not None:
                former.close()

    def process_checkpoint_barrier(self, barrier: AbsBarrier) -> dict[str, bytes]:
        """Have each node persist into ``barrier.backend`` under its name, upstream first; returns the same by node."""
        if not isinstance(barrier, AbsBarrier):
            raise DagError(f"expected an AbsBarrier, got {type(barrier).__name__}")
        images = self._images(barrier.snapshot)
        for name, image in images.items():
            barrier.backend.persist(name, image)
        return images

    def checkpoint_watermarks(self) -> dict[str, int]:
        """The watermark that each node has passed on; nodes that have none are left out."""
        marks = {node.name: self.watermark(node.name) for node in self._dag.nodes}
        return {name: time for name, time in marks.items() if time is not None}

    def restore_watermarks(self, watermarks: Mapping[str, int]) -> None:
        """Let every node reach the watermark it had, as if it came now: what is due fires. None goes back.

        `restore` does that too, and silently; this is for watermarks alone. What a ``generate_epochs`` knows of each
        source is not in them.

        Raises:
            RestoreFailed: a node is not in the graph, or a watermark no int64. Nothing has changed.
        """
        times = watermarks_of(self._dag, watermarks)
        running = self._start()
        for rank, time in times.items():
            if time > running.executor.epoch(rank):
                running.advance(rank, time)
        self._run()

    def close(self) -> None:
        """Close what operators have open and what `mp.per_worker` has made. A ``with`` block does it at its end.

        Executors without such operators need not be closed. What is queued is not processed.
        """
        self._idle()
        running, self._running, self._closed = self._running, None, True
        try:
            if running is not None:
                with self._means.resources:
                    running.close()
        finally:
            self._means.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _images(self, snapshot: str) -> dict[str, bytes]:
        running, codec = self._start(), self._means.codec
        with self._means.resources:
            return {
                node.name: image_to_bytes(running.image(rank, snapshot), codec, node.name)
                for rank, node in enumerate(self._dag.nodes)
            }

    def _built(self) -> RunningDag:
        self._open()
        if self._running is None:
            self._running = RunningDag(self._dag, self._registered, self._means)
        return self._running

    def _open(self) -> None:
        if self._closed:
            raise DagError("the executor has been closed")

    def _idle(self) -> None:
        """`DagError` if an operator is at work, for it is one that has called."""
        if self._busy:
            raise DagError("the executor was called by one of its own operators: let it send, and call when it is done")

    def _start(self) -> RunningDag:
        self._idle()
        running = self._built()
        if not self._started:
            # Built anew if this fails, for some parts may have been opened by then.
            self._running = None
            with self._means.resources:
                running.open({})
            self._running, self._started = running, True
        return running

    def _enter(self, rank: int, batches: list[Batch]) -> None:
        running = self._start()
        for batch in batches:
            running.enter(rank, *split_late(batch, running.reached(rank)))

    def _run(self, work: Callable[[], None] | None = None) -> None:
        running = self._built()
        executor = running.executor
        before, self._busy = executor.visits, True
        try:
            with self._means.resources:
                running.run(work or executor.run)
        finally:
            self._busy = False
            self._skipped += max(0, len(self._dag.nodes) - (executor.visits - before))
