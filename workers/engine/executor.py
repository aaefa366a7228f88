"""The executor of one worker: runs the graph to completion, message by message, in topological order.

Rules: nodes are numbered in topological order, so a node's number is its rank. A message goes to a higher rank only. Of
the nodes with queued messages the lowest rank runs first. So the cost depends on the nodes with messages only, each
node is visited once per run, and after a run all queues are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from threading import Event
from time import perf_counter_ns
from typing import Final, TypeVar

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Control, Epoch, PartMessage, StateMessage
from malstrom_py.data.time import Frontier
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.base import Counters, Operator, Outlet

T = TypeVar("T")

Tap = Callable[[Batch, int], None]
"""Sees each batch that a node sends, and its port."""

_WATCH_S: Final = 0.1
"""The interval in which pending calls are checked for a timeout."""

_PIECE_ROWS: Final = 2048
"""The rows per piece of columns for a step that makes Python values of them: as many as a batch of rows has."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The specification of a node. ``operator`` None: messages pass through.

    ``inputs`` are (node, port) pairs of lower rank; ``epochs`` says of each port whether it carries epochs
    other than the maximum. A node without inputs is pushed to from outside.
    """

    name: str
    operator: Operator | None
    inputs: tuple[tuple[int, int], ...] = ()
    epochs: tuple[bool, ...] = (True,)


class _Node:
    """A node while it runs: its queue, its frontier, and its outlet to the successors."""

    __slots__ = (
        "_arrived",
        "_behind",
        "_epochs",
        "_inbound",
        "_inputs",
        "_ready",
        "_run",
        "_targets",
        "again",
        "counters",
        "epoch",
        "frontier",
        "idle",
        "name",
        "operator",
        "queue",
        "rank",
        "taps",
    )

    def __init__(self, rank: int, spec: NodeSpec, ready: list[int], run: Callable[[], None]) -> None:
        self.rank = rank
        self.name = spec.name
        self.operator = spec.operator
        self.counters = spec.operator.counters if spec.operator else Counters()
        self.counters.rows_out = [0] * len(spec.epochs)
        self._inputs = max(1, len(spec.inputs))
        self._arrived: dict[int, int] = {}
        self._inbound: list[tuple[_Node, int]] = []
        self.frontier = Frontier(self._inputs)
        self.epoch = MIN_EPOCH
        self.idle = False
        self.queue: list[tuple[int, Batch | Control]] = []
        self._epochs = spec.epochs
        self._targets: list[list[tuple[_Node, int]]] = [[] for _ in spec.epochs]
        self._ready = ready
        self._run = run
        self._behind: list[_Node] | None = None
        self.again: list[tuple[int, Batch | Control]] = []
        self.taps: tuple[Tap, ...] = ()

    def connect(self, port: int, target: _Node, index: int) -> None:
        self._targets[port].append((target, index))
        target._inbound.append((self, port))

    def put_back(self, messages: list[tuple[int, Batch | Control]]) -> None:
        if messages and not self.queue:
            heappush(self._ready, self.rank)
        self.queue[:0] = messages

    def take_back(self, index: int, message: Epoch, before: int) -> None:
        """Deliver ``message`` again, because its hook has raised, and reset the frontier to ``before``."""
        if self.epoch >= self.frontier.time:
            return  # the epoch was forwarded before the hook raised
        times = self.frontier.inputs()
        times[index] = before
        self.frontier = Frontier(self._inputs)
        for number, time in enumerate(times):
            self.frontier.advance(number, time)
        self.again.append((index, message))

    def has_all(self, message: StateMessage) -> bool:
        """Return whether ``message`` has arrived on every input. It is handled once, after all earlier data."""
        inputs = self._inputs
        if inputs == 1:
            return True
        arrived = self._arrived.pop(id(message), 0) + 1
        if arrived < inputs:
            self._arrived[id(message)] = arrived
        return arrived == inputs

    def send(self, message: Batch | Control, port: int = 0) -> None:
        if isinstance(message, Batch):
            rows = len(message.values) if type(message) is Batch else len(message)
            if not rows:
                return
            try:
                self.counters.rows_out[port] += rows
            except IndexError as error:
                raise OperatorError(
                    f"step {self.name!r} sent to its output {port}, but it has {len(self._targets)}, numbered from 0",
                    step=self.name,
                ) from error
        elif type(message) is Epoch:
            self.epoch, self.idle = message.time, message.idle
        for target, index in self._targets[port]:
            if not target.queue:
                heappush(self._ready, target.rank)
            target.queue.append((index, message))

    def forward(self, message: Control) -> None:
        everywhere = type(message) is not Epoch or message.time == MAX_EPOCH
        for port, carries in enumerate(self._epochs):
            if carries or everywhere:
                self.send(message, port)

    def continue_at(self, time: int) -> None:
        self.frontier.time = max(self.frontier.time, time)
        self.epoch = self.frontier.time
        if self.operator is not None and self.epoch != MIN_EPOCH:
            self.operator.continue_at(self.epoch)

    def continue_downstream(self) -> None:
        self._merge_inbound()
        self.continue_at(MIN_EPOCH)

    def _merge_inbound(self) -> None:
        self.frontier = Frontier(self._inputs)
        for index, (source, port) in enumerate(self._inbound):
            if source._epochs[port] or source.epoch == MAX_EPOCH:
                self.frontier.advance(index, source.epoch, idle=source.idle)

    def rewind(self) -> None:
        if self._inbound:
            self._merge_inbound()
        reached = Epoch(self.frontier.time, self.frontier.idle)
        sent = reached if self.operator is None else self.operator.rewind(reached)
        self.epoch, self.idle = sent.time, sent.idle

    def passed(self) -> int:
        if self._behind is None:
            self._behind = list(_behind(self))
        return max(node.latest for node in self._behind)

    @property
    def latest(self) -> int:
        """The last epoch that the node has forwarded or, at the end of a stream, taken."""
        return max(self.epoch, self.frontier.time)

    @property
    def targets(self) -> Iterator[_Node]:
        """The successors, on all ports."""
        return (target for port in self._targets for target, _ in port)

    def close(self) -> None:
        """Release the other nodes: these cycles would keep the state of all steps until a full collection."""
        self._inbound, self._targets, self._behind, self._run = [], [], None, _nothing
        self.taps = ()

    def drain(self) -> None:
        # Only higher ranks can be ready while this node runs, so running them now does not change the order.
        self._run()


class _TappedNode(_Node):
    """A node that shows its taps each batch that it sends. A node becomes one while it is tapped, so that a node that
    is not costs nothing.
    """

    __slots__ = ()

    def send(self, message: Batch | Control, port: int = 0) -> None:
        if isinstance(message, Batch) and len(message):
            for tap in self.taps:
                tap(message, port)
        _Node.send(self, message, port)  # `super` would fail where a tap has just ended


def _nothing() -> None:
    """The run of a closed node."""


def _behind(node: _Node) -> set[_Node]:
    """Return ``node`` and all nodes downstream."""
    found, left = {node}, [node]
    while left:
        new = set(left.pop().targets) - found
        found |= new
        left.extend(new)
    return found


class Executor:
    """The executor of a graph of operators. ``measured``: whether the time of each node is counted.

    >>> executor = Executor([NodeSpec("in", None), NodeSpec("out", None, ((0, 0),))])
    >>> executor.push(0, Batch([1, 2]))
    >>> executor.run()
    >>> executor.counters(1).rows_in
    2
    """

    def __init__(self, specs: Sequence[NodeSpec], *, measured: bool = False) -> None:
        self._ready: list[int] = []
        self.visits = 0
        """The number of visits: a visit delivers all queued messages of a node."""
        self._measured = measured
        self._inner_ns = 0
        """The time in steps that the present one has run by draining its outlet: that time is theirs."""
        self._nodes = [_Node(rank, spec, self._ready, self.run) for rank, spec in enumerate(specs)]
        for rank, spec in enumerate(specs):
            for index, (source, port) in enumerate(spec.inputs):
                if not 0 <= source < rank:
                    raise InternalError(f"node {spec.name!r}: its input {source} is not of lower rank than {rank}")
                self._nodes[source].connect(port, self._nodes[rank], index)

    def close(self) -> None:
        """Disconnect the nodes, so that the operators go with the last reference to them. The counters stay."""
        for node in self._nodes:
            node.close()

    def push(self, node: int, message: Batch | Control, *, index: int = 0) -> None:
        """Queue ``message`` at input ``index`` of a node. `run` processes it."""
        target = self._nodes[node]
        if not target.queue:
            heappush(self._ready, node)
        target.queue.append((index, message))

    def outlet(self, node: int) -> Outlet:
        """Return the outlet of ``node``. `run` processes what is sent there."""
        return self._nodes[node]

    def call(self, node: int, function: Callable[[Outlet], T]) -> T:
        """Call ``function`` with the outlet of ``node``. `run` processes what it sends."""
        called = self._nodes[node]
        before_ns, self._inner_ns = self._inner_ns, 0
        started_ns = perf_counter_ns()
        result = function(called)
        took_ns = perf_counter_ns() - started_ns
        called.counters.time_ns += took_ns - self._inner_ns
        self._inner_ns = before_ns + took_ns
        return result

    def run(self) -> None:
        """Process all queued messages, and all messages that follow from them."""
        before_ns, self._inner_ns = self._inner_ns, 0
        began_ns = until_ns = perf_counter_ns() if self._measured else 0
        while self._ready:
            node = self._nodes[heappop(self._ready)]
            self.visits += 1
            self._deliver(node)
            if self._measured:
                now_ns = perf_counter_ns()
                node.counters.time_ns += now_ns - until_ns - self._inner_ns
                until_ns, self._inner_ns = now_ns, 0
        self._inner_ns = before_ns + until_ns - began_ns

    def _deliver(self, node: _Node) -> None:
        """Deliver all queued messages of ``node``."""
        queue, node.queue = node.queue, []
        left = iter(queue)
        try:
            for index, message in left:
                if isinstance(message, Batch):
                    self._deliver_batch(node, index, message)
                elif isinstance(message, Epoch):
                    self._deliver_epoch(node, node.operator, index, message)
                else:
                    self._deliver_control(node, node.operator, message)
        except BaseException:
            # A batch that raised is dropped, an epoch is delivered again. Later messages stay queued.
            again, node.again = node.again, []
            node.put_back([*again, *left])
            raise

    def operator(self, node: int) -> Operator | None:
        """Return the operator of a node; None if messages pass through."""
        return self._nodes[node].operator

    def queued(self, node: int) -> list[tuple[int, Batch | Control]]:
        """Return the queued messages of a node, as (input, message) pairs in order."""
        return list(self._nodes[node].queue)

    def resume(self, node: int, inputs: Sequence[int], epoch: int) -> None:
        """Set the frontiers of a node's ``inputs``, and the ``epoch`` that it has sent, to those of another node."""
        for index, time in enumerate(inputs):
            self._nodes[node].frontier.advance(index, time)
        self._nodes[node].epoch = epoch

    def continue_at(self, arrived: Mapping[int, int], sent: Mapping[int, int]) -> None:
        """Resume where a run of the same graph was. ``arrived``: the frontiers of nodes to which messages are pushed;
        nodes downstream follow from them. ``sent``: the epochs that sending nodes have sent, and do not send again.
        """
        for node, time in arrived.items():
            self._nodes[node].continue_at(time)
        behind = set[int]().union(*map(self.behind, arrived)) - arrived.keys()
        for rank in sorted(behind):
            self._nodes[rank].continue_downstream()
        for node, time in sent.items():
            self._nodes[node].continue_at(time)

    def rewind(self, node: int) -> None:
        """Lower the frontiers of ``node`` and of all nodes downstream, because ``node`` has got a part that lags."""
        for rank in sorted(self.behind(node)):
            self._nodes[rank].rewind()

    def counters(self, node: int) -> Counters:
        """Return the live counters of a node."""
        return self._nodes[node].counters

    def epoch(self, node: int) -> int:
        """Return the last epoch that a node has forwarded or, at the end of a stream, taken."""
        return self._nodes[node].latest

    def behind(self, node: int) -> set[int]:
        """Return ``node`` and all nodes downstream."""
        return {other.rank for other in _behind(self._nodes[node])}

    def merged(self, node: int) -> Frontier:
        """Return the node's frontier with its inputs, read-only."""
        return self._nodes[node].frontier

    def frontier(self, node: int) -> int:
        """Return the node's frontier: the minimum of the epochs of its inputs (T6)."""
        return self._nodes[node].frontier.time

    def outputs(self, node: int) -> list[tuple[int, int | None]]:
        """Return where the batches of ``node`` can be tapped, as (node, port): at itself, on all ports (None); of a
        sink, which sends none, at what feeds it.
        """
        found = self._nodes[node]
        return [(node, None)] if found._epochs else [(source.rank, port) for source, port in found._inbound]

    def tap(self, node: int, tap: Tap) -> None:
        """Let ``tap`` see what ``node`` sends, until `untap`."""
        tapped = self._nodes[node]
        tapped.taps = (*tapped.taps, tap)
        tapped.__class__ = _TappedNode

    def untap(self, node: int, tap: Tap) -> None:
        """Undo `tap`."""
        tapped = self._nodes[node]
        tapped.taps = tuple(other for other in tapped.taps if other is not tap)
        if not tapped.taps:
            tapped.__class__ = _Node

    def finish_calls(
        self, holding: Sequence[tuple[int, Operator]], wake: Event, settle: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the pending calls of ``holding``: nodes and their operators, which hold records back until then.

        ``wake`` is set when a call has finished. ``settle`` is called after each run. `DeadlineError` if a call does
        not return.
        """
        while any(operator.awaiting for _, operator in holding):
            left = sum(operator.resume(self._nodes[node]) for node, operator in holding)
            self.run()
            settle()
            if not left and wake.wait(_WATCH_S):
                wake.clear()

    def _deliver_control(self, node: _Node, operator: Operator | None, message: PartMessage | StateMessage) -> None:
        if operator is None:
            if isinstance(message, PartMessage) or node.has_all(message):
                node.forward(message)
        elif isinstance(message, PartMessage):
            operator.on_part(message, node)
        elif node.has_all(message):
            operator.on_control(message, node)

    def _deliver_epoch(self, node: _Node, operator: Operator | None, index: int, message: Epoch) -> None:
        before = node.frontier.time
        merged = node.frontier.advance(index, message.time, idle=message.idle)
        if merged is None:
            node.counters.held += 1
            return
        idle = node.frontier.idle
        epoch = message if merged == message.time and idle is message.idle else Epoch(merged, idle)
        if operator is None:
            node.forward(epoch)
            return
        try:
            operator.on_epoch(epoch, node)
        except BaseException:
            node.take_back(index, message, before)
            raise
        if merged == MAX_EPOCH and operator.watch is not None:
            operator.watch.ended()

    def _deliver_batch(self, node: _Node, index: int, batch: Batch) -> None:
        operator, counters = node.operator, node.counters
        counters.calls += 1
        counters.rows_in += len(batch.values) if type(batch) is Batch else len(batch)
        if operator is None:
            node.send(batch)
            return
        take = partial(operator.on_side, index) if operator.two_sided else operator.on_batch
        if type(batch) is not ColumnBatch:
            take(batch, node)
            return
        for piece in [batch] if operator.takes_columns else batch.pieces(_PIECE_ROWS):
            made = piece.rows_made
            take(piece, node)
            if piece.rows_made and not made:
                counters.rows_made += len(piece)
            if piece is not batch:
                node.drain()
