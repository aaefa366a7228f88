"""A finished DAG: its nodes in topological order, immutable; and the search for cycles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final

from malstrom_py.errors import NodeNotFound

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
    """Return the nodes in topological order; ties are broken by the order of declaration.

    ``inputs``: node -> the nodes it reads. Nodes on a cycle, or downstream of one, are left out.

    >>> topological({"out": ["double"], "numbers": [], "double": ["numbers"]})
    ['numbers', 'double', 'out']
    """
    names = list(inputs)
    missing = {name: len(set(read)) for name, read in inputs.items()}
    readers: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(names):
        for read in set(inputs[name]):
            readers[read].append(number)
    ready = [number for number, name in enumerate(names) if not missing[name]]
    heapify(ready)
    order: list[str] = []
    while ready:
        name = names[heappop(ready)]
        order.append(name)
        for number in readers[name]:
            missing[names[number]] -= 1
            if not missing[names[number]]:
                heappush(ready, number)
    return order


def cycle_in(inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes of one cycle in the order of the edges, with the first node repeated at the end.

    The first node is the one that was declared first. Empty if the graph has no cycle.

    >>> cycle_in({"a": ["c"], "b": ["a"], "c": ["b"]})
    ['a', 'b', 'c', 'a']
    """
    left = inputs.keys() - set(topological(inputs))
    if not left:
        return []
    # Each remaining node reads a remaining node, so walking upstream must reach a node twice.
    node = next(name for name in inputs if name in left)
    walked: dict[str, int] = {}
    while node not in walked:
        walked[node] = len(walked)
        node = next(read for read in inputs[node] if read in left)
    ring = list(walked)[walked[node] :][::-1]
    first = min(range(len(ring)), key=lambda index: list(inputs).index(ring[index]))
    return [*ring[first:], *ring[:first], ring[first]]
