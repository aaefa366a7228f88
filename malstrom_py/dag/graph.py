"""The graph of a DAG: its nodes in topological order, and the builder that checks them as early as possible.

Rule: an error in a call raises `PlanError` there and names the nodes. `build` raises for errors of the whole graph: it
is empty, it has a cycle, a node is missing or disconnected. An edge may name nodes that are added later; each end is
checked when its node is added. A call that raises changes nothing.

Rule: the schema of a node is a pyarrow schema or a Python type. Two schemas match unless they certainly differ. This
module neither imports pyarrow nor examines records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import islice
from types import UnionType
from typing import Any, Final, Self, Union, get_args, get_origin

from malstrom_py.errors import NodeNotFound, PlanError
from malstrom_py.validation import check_name

MAIN: Final = "out"
"""The name of a node's main output."""

LATE: Final = "late"
"""The output for late records. It carries only the last watermark, because its records are below the others."""

DEAD_LETTERS: Final = "dead_letters"
"""The output for records on which an operator with ``on_error="dead-letter"`` failed. Also without watermarks."""

UNTIMED: Final = (LATE, DEAD_LETTERS)
"""The outputs that any node may have, in the order of their ports, which follow those of the node's own outputs."""

_NAMED_MAX: Final = 20


class NodeType(StrEnum):
    """The type of a node: receives events, processes them, or collects them."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a node: an output of another node."""

    node: str
    output: str = MAIN

    def __str__(self) -> str:
        return self.node if self.output == MAIN else f"{self.node}:{self.output}"


@dataclass(frozen=True, slots=True)
class DagNode:
    """One node: its name, its type, its inputs, and its side outputs in the order of their ports, 1 and up.

    ``late`` and ``dead_letters`` follow the node's own outputs. ``takes`` and ``gives`` are the schemas of its input
    and its main output, or None.
    """

    name: str
    type: NodeType
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[str, ...] = ()
    takes: Any = None
    gives: Any = None

    @property
    def own_outputs(self) -> tuple[str, ...]:
        """The side outputs of its operator, without ``late`` and ``dead_letters``."""
        return tuple(output for output in self.outputs if output not in UNTIMED)

    def port(self, output: str) -> int | None:
        """Return the port of an output, or None if the node has no output of that name."""
        if output == MAIN:
            return 0
        return self.outputs.index(output) + 1 if output in self.outputs else None


@dataclass(frozen=True, slots=True)
class Dag:
    """A checked, immutable graph from `DagBuilder.build`; ``nodes`` are in topological order.

    >>> from malstrom_py.dag import DagBuilder
    >>> builder = DagBuilder().source("numbers").operator("double").connect("numbers", "double")
    >>> dag = builder.sink_for("double", "out").build()
    >>> [node.name for node in dag.nodes], dag.sources, dag.sinks
    (['numbers', 'double', 'out'], ('numbers',), ('out',))
    """

    nodes: tuple[DagNode, ...]
    ranks: Mapping[str, int] = field(repr=False, compare=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in topological order."""
        return self._of(NodeType.SOURCE)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The names of the sinks, in topological order."""
        return self._of(NodeType.SINK)

    @property
    def shape(self) -> str:
        """The names of the sources and sinks, and the number of operators."""
        sources, sinks, operators = map(self._of, (NodeType.SOURCE, NodeType.SINK, NodeType.OPERATOR))
        return f"sources=[{listed(sources)}], operators={len(operators)}, sinks=[{listed(sinks)}]"

    def rank(self, name: str, of: NodeType | None = None) -> int:
        """Return the index of a node in ``nodes``. `NodeNotFound` if it is missing or not of type ``of``."""
        rank = self.ranks.get(name) if isinstance(name, str) else None
        if rank is None:
            raise NodeNotFound(f"the graph has no node {name!r}; its nodes are {listed(self.ranks)}", node=str(name))
        kind = self.nodes[rank].type
        if of is not None and kind is not of:
            others = listed(self._of(of)) or "none"
            raise NodeNotFound(f"{name!r} is a node of type {kind}, not {of}; the {of}s are {others}", node=name)
        return rank

    def _of(self, kind: NodeType) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.type is kind)


def listed(names: Collection[str]) -> str:
    """Return the first of ``names`` as a text for messages."""
    shown = ", ".join(map(repr, islice(names, _NAMED_MAX)))
    return f"{shown}, …" if len(names) > _NAMED_MAX else shown


def topological(inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes in topological order; ties are broken by the order of declaration. ``inputs``: node -> the nodes
    it reads. `CycleError` has the nodes of one cycle, in the order of the edges, with the first one at both ends.

    >>> topological({"out": ["double"], "numbers": [], "double": ["numbers"]})
    ['numbers', 'double', 'out']
    """
    names = list(inputs)
    declared = {name: number for number, name in enumerate(names)}
    sorter = TopologicalSorter(inputs)
    sorter.prepare()
    ready: list[int] = []
    order: list[str] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, declared[name])
        order.append(names[heappop(ready)])
        sorter.done(order[-1])
    return order


_ALSO_TAKEN = {float: (int,), complex: (int, float)}
"""The types that Python's typing also accepts for a float, and for a complex number."""


def check_schema(schema: Any, node: str) -> Any:
    """Return ``schema`` if it is None, a ``pyarrow.Schema`` or a type; else raise `PlanError` naming ``node``."""
    if schema is None or schema is Any or is_schema(schema) or isinstance(schema, type) or get_origin(schema):
        return schema
    raise PlanError(
        f"node {node!r}: a schema must be a pyarrow.Schema or a type such as int or dict[str, float], "
        f"got {type(schema).__name__}"
    )


def mismatch(given: Any, taken: Any) -> str | None:
    """Return why records of schema ``given`` do not match the schema ``taken``; None if they match or may match.

    >>> mismatch(str, int)
    'str is not int'
    >>> mismatch(bool, int | None), mismatch(int, float), mismatch(list[int], list), mismatch(None, int)
    (None, None, None, None)

    A schema without fields matches every schema, as None does.
    """
    if any(one is None or _is_empty_schema(one) for one in (given, taken)):
        return None
    if is_schema(given) and is_schema(taken):
        return _difference(given, taken)
    # The rows of a schema are dicts.
    given, taken = (dict if is_schema(one) else one for one in (given, taken))
    return None if _fits(given, taken) else f"{_shown(given)} is not {_shown(taken)}"


def is_schema(schema: Any) -> bool:
    """Return whether ``schema`` is a ``pyarrow.Schema``, without importing pyarrow."""
    kind = type(schema)
    return kind.__name__ == "Schema" and kind.__module__.partition(".")[0] == "pyarrow"


def _is_empty_schema(schema: Any) -> bool:
    return is_schema(schema) and not schema.names


def _difference(given: Any, taken: Any) -> str | None:
    if given.equals(taken):
        return None
    if given.names != taken.names:
        missing = [f"{name!r} is missing" for name in taken.names if name not in given.names]
        more = [f"{name!r} is not expected" for name in given.names if name not in taken.names]
        return "; ".join([*missing, *more]) or f"the fields come as {given.names}, not as {taken.names}"
    differences = []
    for here, there in zip(given, taken, strict=True):
        if here.type != there.type:
            differences.append(f"{here.name!r} is {here.type}, not {there.type}")
        elif here.nullable and not there.nullable:
            differences.append(f"{here.name!r} may be null")
    return "; ".join(differences) or None


def _fits(given: Any, taken: Any) -> bool:
    if given == taken or not {Any, object}.isdisjoint((given, taken)):
        return True
    if _is_union(given):
        return all(_fits(one, taken) for one in get_args(given))
    if _is_union(taken):
        return any(_fits(given, one) for one in get_args(taken))
    here, there = get_origin(given) or given, get_origin(taken) or taken
    if not isinstance(here, type) or not isinstance(there, type):
        return True
    if here is there:
        inside = get_args(given), get_args(taken)
        return len(inside[0]) != len(inside[1]) or all(map(_fits, *inside))
    try:
        return issubclass(here, there) or here in _ALSO_TAKEN.get(there, ())
    except TypeError:  # protocols and typed dicts do not support issubclass
        return True


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _shown(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind)


class DagBuilder:
    """The builder of a `Dag`. Every method except `build` returns the builder, so that calls can be chained.

    A node's name is its id in checkpoints: unique in the graph, ``[A-Za-z0-9_-]{1,64}``. A schema is a
    ``pyarrow.Schema`` or a Python type. If both ends of an edge have a schema, the two must match.

    >>> from malstrom_py.dag import DagBuilder, DagExecutor
    >>> builder = DagBuilder().source("in", int)
    >>> builder = builder.operator("double", int).operator("add", int).connect("in", "double").connect("in", "add")
    >>> dag = builder.sink_for("double", "out").connect("add", "out").build()
    >>> executor = DagExecutor.from_dag(dag)
    >>> executor.register_operator("double", lambda n: n * 2)
    >>> executor.register_operator("add", lambda n: n + 100)
    >>> executor.process_event("in", 5)
    >>> executor.take_sink_outputs("out")
    [10, 105]
    """

    def __init__(self) -> None:
        self._nodes: dict[str, DagNode] = {}
        """The nodes without their inputs, and with the side outputs that they declare."""
        self._open: set[str] = set()
        """The operators to which `connect` may add side outputs."""
        self._edges: dict[tuple[Edge, str], None] = {}
        """Edges and their readers, in the order of the calls, which is the order of inputs and of side outputs."""
        self._awaited: defaultdict[str, list[tuple[Edge, str]]] = defaultdict(list)
        """Missing node -> the edges that name it."""

    def source(self, name: str, schema: Any = None) -> Self:
        """Add a node that receives events.

        Its side output ``late`` has the records at or below its watermark.
        """
        return self._add(DagNode(name, NodeType.SOURCE, outputs=(LATE,), gives=check_schema(schema, name)))

    def operator(
        self,
        name: str,
        schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        outputs: Sequence[str] | None = None,
    ) -> Self:
        """Add a node for an operator; a node without a registered operator passes records through.

        ``schema`` is the schema of its input and its main output; ``input_schema`` and ``output_schema`` replace it for
        one of the two. ``outputs`` are its side outputs, by port from 1 up; by default those that `connect` names.
        ``late`` and ``dead_letters`` have the last ports.
        """
        takes = check_schema(schema if input_schema is None else input_schema, name)
        gives = check_schema(schema if output_schema is None else output_schema, name)
        if isinstance(outputs, str):
            raise PlanError(f"node {name!r}: outputs must be a list of names, write [{outputs!r}]")
        sides = tuple(_check_output(name, output) for output in outputs or ())
        if len({MAIN, *sides}) <= len(sides):
            raise PlanError(f"node {name!r}: an output is listed twice in {[MAIN, *sides]}: {MAIN!r} is the main one")
        node = DagNode(name, NodeType.OPERATOR, outputs=sides, takes=takes, gives=gives)
        return self._add(node, is_open=outputs is None)

    def sink_for(self, node: str, name: str, schema: Any = None, *, output: str | None = None) -> Self:
        """Add a sink that reads ``node``. `connect` may add inputs."""
        sink = DagNode(name, NodeType.SINK, takes=check_schema(schema, name))
        self._check_new(sink)
        edge = self._edge(node, output)
        self._check_edge(edge, name, sink)
        self._check_once(edge, name)
        self._add(sink)
        return self._attach(edge, name)

    def connect(self, upstream: str, downstream: str, *, output: str | None = None) -> Self:
        """Add an edge from ``upstream``, its main output or the side output ``output``, to ``downstream``.

        ``connect("split:late", "audit")`` is the same as ``connect("split", "audit", output="late")``. Both nodes may
        be added later.

        >>> dag = (
        ...     DagBuilder().source("in").connect("in", "left").connect("in", "right").connect("left", "join")
        ...     .connect("right", "join").operator("left").operator("right").operator("join").sink_for("join", "out")
        ... ).build()
        >>> [node.name for node in dag.nodes]
        ['in', 'left', 'right', 'join', 'out']
        """
        edge = self._edge(upstream, output)
        self._check_name(downstream)
        self._check_edge(edge, downstream)
        self._check_once(edge, downstream)
        return self._attach(edge, downstream)

    def build(self) -> Dag:
        """Check the graph and return it. The builder remains usable.

        Raises:
            PlanError: the graph is empty, has an edge to or from a missing node, has a cycle (the message lists it), or
                has a disconnected node: a source or an operator without a reader, or an operator without an input.
        """
        if not self._nodes and not self._edges:
            raise PlanError("the graph is empty: start with source('name')")
        self._check_added()
        read: dict[str, list[Edge]] = {name: [] for name in self._nodes}
        outputs = {name: list(node.outputs) for name, node in self._nodes.items()}
        for edge, downstream in self._edges:
            read[downstream].append(edge)
            if edge.output not in (MAIN, *outputs[edge.node]):
                outputs[edge.node].append(edge.output)
        order = self._ordered(read)
        self._check_connected(read)
        nodes = tuple(
            # The sort puts ``late`` and ``dead_letters`` last, so that ports do not depend on the order of calls.
            replace(self._nodes[name], inputs=tuple(read[name]), outputs=tuple(sorted(outputs[name], key=_untimed)))
            for name in order
        )
        return Dag(nodes, {node.name: rank for rank, node in enumerate(nodes)})

    def _check_added(self) -> None:
        for edge, downstream in self._edges:
            for name in (edge.node, downstream):
                if name not in self._nodes:
                    raise PlanError(
                        f"the graph has no node {name!r}; it has {listed(self._nodes) or 'none'}. {downstream!r} reads "
                        f"{str(edge)!r}: add both with source, operator or sink_for"
                    )

    def _ordered(self, read: Mapping[str, Sequence[Edge]]) -> list[str]:
        try:
            return topological({name: [edge.node for edge in edges] for name, edges in read.items()})
        except CycleError as error:
            ring, names = error.args[1][:-1], list(read)
            first = min(range(len(ring)), key=lambda index: names.index(ring[index]))
            cycle = " -> ".join([*ring[first:], *ring[:first], ring[first]])
            raise PlanError(f"the graph has a cycle: {cycle}. Remove one of these edges") from None

    def _check_connected(self, read: Mapping[str, Sequence[Edge]]) -> None:
        has_reader = {edge.node for edge, _ in self._edges}
        for name, node in self._nodes.items():
            if node.type is not NodeType.SOURCE and not read[name]:
                raise PlanError(f"{node.type} {name!r} is disconnected: it reads nothing. connect('…', {name!r})")
            if node.type is not NodeType.SINK and name not in has_reader:
                raise PlanError(
                    f"{node.type} {name!r} is disconnected: nothing reads it, so its records would be lost. "
                    f"connect({name!r}, '…') or sink_for({name!r}, '…')"
                )

    def _check_new(self, node: DagNode) -> None:
        name, kind = node.name, node.type
        if not isinstance(name, str):
            raise PlanError(
                f"the name of a {kind} must be a str, got {type(name).__name__}: it is the node's id in checkpoints"
            )
        check_name(name, "node")
        if name in self._nodes:
            raise PlanError(
                f"the graph has a node {name!r} already ({self._nodes[name].type}): names are ids, so this {kind} "
                f"needs another name"
            )

    def _add(self, node: DagNode, *, is_open: bool = False) -> Self:
        self._check_new(node)
        for edge, downstream in self._awaited.get(node.name, ()):
            self._check_edge(edge, downstream, node, is_open=is_open)
        self._awaited.pop(node.name, None)
        self._nodes[node.name] = node
        if is_open:
            self._open.add(node.name)
        return self

    def _attach(self, edge: Edge, downstream: str) -> Self:
        self._edges[edge, downstream] = None
        for name in {edge.node, downstream} - self._nodes.keys():
            self._awaited[name].append((edge, downstream))
        return self

    def _check_name(self, name: str) -> None:
        """`PlanError` if ``name`` cannot be the name of a node."""
        why = f"a name is a str, not {type(name).__name__}"
        try:
            if isinstance(name, str):
                check_name(name, "node")
                return
        except PlanError as error:
            why = str(error)
        raise PlanError(f"the graph has no node {name!r}; it has {listed(self._nodes) or 'none'}: {why}")

    def _edge(self, upstream: str, output: str | None) -> Edge:
        """Return the output that ``upstream`` and ``output`` name. `PlanError` if the names are illegal."""
        name, colon, named = upstream.partition(":") if isinstance(upstream, str) else (upstream, "", "")
        if colon and output is not None and output != named:
            raise PlanError(f"{upstream!r} and output={output!r} are two outputs: name one of them")
        self._check_name(name)
        return Edge(name, MAIN if not colon and output is None else _check_output(name, named if colon else output))

    def _check_edge(self, edge: Edge, downstream: str, new: DagNode | None = None, *, is_open: bool = False) -> None:
        """`PlanError` if ``downstream`` cannot read ``edge``; a missing node is not checked. ``new``: a node to add."""
        writer, reader = (
            new if new is not None and name == new.name else self._nodes.get(name) for name in (edge.node, downstream)
        )
        if reader is not None and reader.type is NodeType.SOURCE:
            raise PlanError(f"source {downstream!r} cannot read {edge.node!r}: it receives events from outside only")
        if writer is None:
            return
        if writer.type is NodeType.SINK:
            raise PlanError(f"{downstream!r} cannot read sink {edge.node!r}: records leave the graph there")
        if writer.port(edge.output) is None and not ((is_open and writer is new) or writer.name in self._open):
            raise PlanError(
                f"{writer.type} {edge.node!r} has no output {edge.output!r} that {downstream!r} could read; it has "
                f"{', '.join(map(repr, (MAIN, *writer.outputs)))}"
            )
        if reader is None:
            return
        # The schema of a side output is known only for sources, whose late records are like the others.
        gives = writer.gives if edge.output == MAIN or writer.type is NodeType.SOURCE else None
        why = mismatch(gives, reader.takes)
        if why is not None:
            raise PlanError(f"the schemas of {str(edge)!r} and {downstream!r} do not match: {why}")

    def _check_once(self, edge: Edge, downstream: str) -> None:
        if (edge, downstream) in self._edges:
            raise PlanError(f"{downstream!r} reads {str(edge)!r} already")


def _untimed(output: str) -> int:
    """Return the place of an output: 0 for those of the operator, then ``late``, then ``dead_letters``."""
    return UNTIMED.index(output) + 1 if output in UNTIMED else 0


def _check_output(node: str, output: object) -> str:
    """Return ``output`` if it is a legal name of an output; else raise `PlanError`."""
    if not isinstance(output, str):
        raise PlanError(f"node {node!r}: the name of an output must be a str, got {type(output).__name__}")
    return check_name(output, "side output")
