"""The builder of a DAG: nodes and edges one by one, checked as soon as it can be.

Rule: what is wrong at a call raises `PlanError` there and names the nodes; what only the whole graph shows (it is
empty, it has a cycle, a node is disconnected), `build` does. A call that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from malstrom_py.dag.schemas import check_schema, mismatch
from malstrom_py.dag.topology import LATE, MAIN, UNTIMED, Dag, DagNode, Edge, NodeType, cycle_in, listed, topological
from malstrom_py.errors import PlanError
from malstrom_py.names import check_name


@dataclass(slots=True)
class _Draft:
    """A node while the graph is built. ``open``: whether `connect` may name side outputs that it does not have yet."""

    type: NodeType
    takes: Any = None
    gives: Any = None
    outputs: list[str] = field(default_factory=list)
    open: bool = False
    inputs: list[Edge] = field(default_factory=list)


class DagBuilder:
    """Builds a `Dag`. Every method but `build` returns the builder, so that calls can be chained.

    A node's name is its id in checkpoints: unique in the graph, ``[A-Za-z0-9_-]{1,64}``. A schema is a
    ``pyarrow.Schema`` or a Python type; where both ends of an edge have one, they are compared.

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
        self._nodes: dict[str, _Draft] = {}

    def source(self, name: str, schema: Any = None) -> Self:
        """A node where events come in.

        Its side output ``late`` has the records that come at or below its watermark.
        """
        return self._add(name, _Draft(NodeType.SOURCE, gives=check_schema(schema, name), outputs=[LATE]))

    def operator(
        self,
        name: str,
        schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        outputs: Sequence[str] | None = None,
    ) -> Self:
        """A node that an operator can be registered for; without one it passes records through.

        ``schema`` is what it takes and what it gives; ``input_schema`` and ``output_schema`` say these apart.
        ``outputs`` are its side outputs, by port from 1 up; without it they are those that `connect` names. ``late``
        and ``dead_letters`` count behind the others.
        """
        takes = check_schema(schema if input_schema is None else input_schema, name)
        gives = check_schema(schema if output_schema is None else output_schema, name)
        sides = [_check_output(name, output) for output in _listed(outputs, name)]
        if len({MAIN, *sides}) <= len(sides):
            raise PlanError(f"node {name!r}: an output stands twice in {[MAIN, *sides]}: {MAIN!r} is the main one")
        return self._add(name, _Draft(NodeType.OPERATOR, takes, gives, sides, outputs is None))

    def sink_for(self, node: str, name: str, schema: Any = None, *, output: str | None = None) -> Self:
        """A node where records are taken out, and that reads ``node``. `connect` may add to what it reads."""
        draft = _Draft(NodeType.SINK, takes=check_schema(schema, name))
        self._check_new(name, NodeType.SINK)
        edge = self._edge(node, output, name, draft)
        self._nodes[name] = draft
        self._attach(edge, draft)
        return self

    def connect(self, upstream: str, downstream: str, *, output: str | None = None) -> Self:
        """Have ``downstream`` read ``upstream``: its main output, or the side output of that name.

        ``connect("split:late", "audit")`` is the same as ``connect("split", "audit", output="late")``.
        """
        target = self._find(downstream)
        if target.type is NodeType.SOURCE:
            raise PlanError(f"source {downstream!r} cannot read {upstream!r}: events come into it from outside only")
        self._attach(self._edge(upstream, output, downstream, target), target)
        return self

    def build(self) -> Dag:
        """The graph, checked and frozen. The builder can be used on.

        Raises:
            PlanError: it is empty, has a cycle (told in order), or has a node that is disconnected: a source or an
                operator that nothing reads, an operator that reads nothing.
        """
        if not self._nodes:
            raise PlanError("the graph is empty: start with source('name')")
        inputs = {name: [edge.node for edge in draft.inputs] for name, draft in self._nodes.items()}
        cycle = cycle_in(inputs)
        if cycle:
            raise PlanError(f"the graph has a cycle: {' -> '.join(cycle)}. Take out one of these edges")
        self._check_connected()
        nodes = tuple(self._frozen(name, self._nodes[name]) for name in topological(inputs))
        return Dag(nodes, {node.name: rank for rank, node in enumerate(nodes)})

    def _frozen(self, name: str, draft: _Draft) -> DagNode:
        # What any node may have stands behind its own, so that it is nobody's port by the order of some calls.
        own = [output for output in draft.outputs if output not in UNTIMED]
        outputs = (*own, *(output for output in UNTIMED if output in draft.outputs))
        return DagNode(name, draft.type, tuple(draft.inputs), outputs, draft.takes, draft.gives)

    def _check_connected(self) -> None:
        read = {edge.node for draft in self._nodes.values() for edge in draft.inputs}
        for name, draft in self._nodes.items():
            if draft.type is not NodeType.SOURCE and not draft.inputs:
                raise PlanError(f"{draft.type} {name!r} is disconnected: it reads nothing. connect('…', {name!r})")
            if draft.type is not NodeType.SINK and name not in read:
                raise PlanError(
                    f"{draft.type} {name!r} is disconnected: nothing reads it, so what it gives would be lost. "
                    f"connect({name!r}, '…') or sink_for({name!r}, '…')"
                )

    def _check_new(self, name: str, kind: NodeType) -> None:
        if not isinstance(name, str):
            raise PlanError(
                f"the name of a {kind} is a str, got {type(name).__name__}: it is the node's id in checkpoints"
            )
        check_name(name, "node")
        if name in self._nodes:
            raise PlanError(
                f"the graph has a node {name!r} already ({self._nodes[name].type}): names are ids, so this {kind} "
                f"needs another"
            )

    def _add(self, name: str, draft: _Draft) -> Self:
        self._check_new(name, draft.type)
        self._nodes[name] = draft
        return self

    def _find(self, name: str) -> _Draft:
        if not isinstance(name, str) or name not in self._nodes:
            there = listed(self._nodes) or "none"
            raise PlanError(f"the graph has no node {name!r}; it has {there}. Add it before it is connected")
        return self._nodes[name]

    def _edge(self, upstream: str, output: str | None, downstream: str, target: _Draft) -> Edge:
        """The edge, if it can be there."""
        name, colon, named = upstream.partition(":") if isinstance(upstream, str) else (upstream, "", "")
        if colon and output is not None and output != named:
            raise PlanError(f"{upstream!r} and output={output!r} are two outputs: name one of them")
        draft = self._find(name)
        edge = Edge(name, MAIN if not colon and output is None else _check_output(name, named if colon else output))
        if draft.type is NodeType.SINK:
            raise PlanError(f"{downstream!r} cannot read sink {name!r}: records leave the graph there")
        if edge.output not in (MAIN, *draft.outputs) and not draft.open:
            raise PlanError(
                f"{draft.type} {name!r} has no output {edge.output!r} that {downstream!r} could read; it has "
                f"{', '.join(map(repr, (MAIN, *draft.outputs)))}"
            )
        if edge in target.inputs:
            raise PlanError(f"{downstream!r} reads {str(edge)!r} already")
        # What a side output gives is known of sources only, whose late records are like the others.
        gives = draft.gives if edge.output == MAIN or draft.type is NodeType.SOURCE else None
        why = mismatch(gives, target.takes)
        if why is not None:
            raise PlanError(f"the schemas of {str(edge)!r} and {downstream!r} do not match: {why}")
        return edge

    def _attach(self, edge: Edge, target: _Draft) -> None:
        target.inputs.append(edge)
        outputs = self._nodes[edge.node].outputs
        if edge.output not in (MAIN, *outputs):
            outputs.append(edge.output)


def _listed(outputs: Sequence[str] | None, node: str) -> Sequence[str]:
    if isinstance(outputs, str):
        raise PlanError(f"node {node!r}: outputs is a list of names, write [{outputs!r}]")
    return outputs or ()


def _check_output(node: str, output: object) -> str:
    """``output`` if it can be the name of a side output of ``node``, or the main one's."""
    if not isinstance(output, str):
        raise PlanError(f"node {node!r}: the name of an output is a str, got {type(output).__name__}")
    return check_name(output, "side output")
