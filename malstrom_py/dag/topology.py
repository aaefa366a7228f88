"""A DAG that has been built: its nodes in topological order, frozen. How it is checked for cycles stands here too."""

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
"""The output for records at or below the frontier. It carries no watermarks but the last, for its records lag them."""

DEAD_LETTERS: Final = "dead_letters"
"""The output for records that a node with ``on_error="dead-letter"`` could not take. It carries none either."""

UNTIMED: Final = (LATE, DEAD_LETTERS)
"""The outputs that any node may have, in the order of their ports, which are behind those of its own."""

_NAMED_MAX: Final = 20


class NodeType(StrEnum):
    """What a node is: where events come in, what is done with them, where they are taken out."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Edge:
    """What a node reads: an output of another node."""

    node: str
    output: str = MAIN

    def __str__(self) -> str:
        return self.node if self.output == MAIN else f"{self.node}:{self.output}"


@dataclass(frozen=True, slots=True)
class DagNode:
    """One node: its name, its type, what it reads, and its side outputs in the order of their ports, 1 and up.

    Its own outputs come first; ``late`` and ``dead_letters`` stand behind them, whenever they were named.

    ``takes`` and ``gives`` are the schemas of its input and its main output, None where nothing was said.
    """

    name: str
    type: NodeType
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[str, ...] = ()
    takes: Any = None
    gives: Any = None

    @property
    def own_outputs(self) -> tuple[str, ...]:
        """The side outputs that its operator sends to: all but those that any node may have."""
        return tuple(output for output in self.outputs if output not in UNTIMED)

    def port(self, output: str) -> int | None:
        """The port of an output; None if there is none of that name."""
        if output == MAIN:
            return 0
        return self.outputs.index(output) + 1 if output in self.outputs else None


@dataclass(frozen=True, slots=True)
class Dag:
    """A checked graph, as `DagBuilder.build` gives it: ``nodes`` stand in topological order. It never changes.

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
        """Its ends, by name, and how many operators are between them."""
        sources, sinks, operators = map(self._of, (NodeType.SOURCE, NodeType.SINK, NodeType.OPERATOR))
        return f"sources=[{listed(sources)}], operators={len(operators)}, sinks=[{listed(sinks)}]"

    def rank(self, name: str, of: NodeType | None = None) -> int:
        """Where a node stands in ``nodes``. `NodeNotFound` if there is none of that name, or not ``of`` that type."""
        rank = self.ranks.get(name) if isinstance(name, str) else None
        if rank is None:
            raise NodeNotFound(f"the graph has no node {name!r}; its nodes are {listed(self.ranks)}", node=str(name))
        kind = self.nodes[rank].type
        if of is not None and kind is not of:
            there = f"its {of}s are {listed(self._of(of)) or 'none'}"
            raise NodeNotFound(f"{name!r} is no {of} ({kind}); {there}", node=name)
        return rank

    def _of(self, kind: NodeType) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.type is kind)


def listed(names: Collection[str]) -> str:
    """The first of ``names``, as a message shows them; empty if there are none."""
    shown = ", ".join(map(repr, islice(names, _NAMED_MAX)))
    return f"{shown}, …" if len(names) > _NAMED_MAX else shown


def topological(inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes, each behind all it reads; of those that could come next the one that was declared first.

    ``inputs``: node -> the nodes it reads. What stands on a cycle, or behind one, is left out.

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
    """The nodes of one cycle, in the order in which records would go round, the first once more at its end.

    Empty if there is none. It begins with the node of it that was declared first.

    >>> cycle_in({"a": ["c"], "b": ["a"], "c": ["b"]})
    ['a', 'b', 'c', 'a']
    """
    left = inputs.keys() - set(topological(inputs))
    if not left:
        return []
    # Each node that is left reads one that is left, so walking up must come round.
    node = next(name for name in inputs if name in left)
    walked: dict[str, int] = {}
    while node not in walked:
        walked[node] = len(walked)
        node = next(read for read in inputs[node] if read in left)
    ring = list(walked)[walked[node] :][::-1]
    first = min(range(len(ring)), key=lambda index: list(inputs).index(ring[index]))
    return [*ring[first:], *ring[:first], ring[first]]
