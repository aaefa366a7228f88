"""Topological order and cycles, of any graph."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.dag.topology import Dag, DagNode, Edge, NodeType, cycle_in, topological


def graphs(*, forward: bool) -> st.SearchStrategy[dict[str, list[str]]]:
    """Nodes "0", "1", … in this order; each reads any nodes, or with ``forward`` only earlier ones."""

    def reads(size: int, n: int) -> st.SearchStrategy[list[str]]:
        last = n - 1 if forward else size - 1
        return st.lists(st.integers(0, last).map(str)) if last >= 0 else st.just([])

    def of_size(size: int) -> st.SearchStrategy[dict[str, list[str]]]:
        rows = st.tuples(*(reads(size, n) for n in range(size)))
        return rows.map(lambda row: {str(n): read for n, read in enumerate(row)})

    return st.integers(1, 9).flatmap(of_size)


@given(inputs=graphs(forward=False))
def test_a_graph_has_an_order_or_a_cycle(inputs: dict[str, list[str]]) -> None:
    order, cycle = topological(inputs), cycle_in(inputs)
    assert len(set(order)) == len(order)
    assert all(order.index(read) < order.index(name) for name in order for read in inputs[name])
    assert (len(order) == len(inputs)) is (cycle == [])
    if cycle:
        assert cycle[0] == cycle[-1] == min(cycle)
        assert len(set(cycle)) == len(cycle) - 1
        assert all(here in inputs[there] for here, there in pairwise(cycle))


@given(inputs=graphs(forward=True))
def test_nodes_declared_in_order_stay_so(inputs: dict[str, list[str]]) -> None:
    assert topological(inputs) == list(inputs)
    assert cycle_in(inputs) == []


def test_a_cycle_that_nodes_stand_behind_is_the_cycle_alone() -> None:
    assert cycle_in({"in": [], "x": ["b"], "y": ["x", "in"], "b": ["a", "in"], "a": ["b"]}) == ["b", "a", "b"]


def test_a_long_way_needs_no_depth() -> None:
    chain = {str(n): [str(n - 1)] if n else ["4999"] for n in range(5000)}
    assert len(cycle_in(chain)) == 5001


def test_a_type_is_its_word() -> None:
    assert [str(kind) for kind in NodeType] == ["source", "operator", "sink"]
    assert {"source": 1}[NodeType.SOURCE] == 1


def test_a_graph_tells_its_ends() -> None:
    nodes = (DagNode("a", NodeType.SOURCE), DagNode("b", NodeType.SOURCE), DagNode("c", NodeType.SINK, (Edge("a"),)))
    dag = Dag(nodes, {"a": 0, "b": 1, "c": 2})
    assert (dag.sources, dag.sinks) == (("a", "b"), ("c",))
