"""`DagBuilder`: the call or `build` names every fault of a graph; a correct graph is immutable and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.dag import Dag, DagBuilder, DagNode, Edge, NodeType
from malstrom_py.dag.graph import mismatch
from malstrom_py.errors import PlanError

Call = Callable[[DagBuilder], Any]


def line() -> DagBuilder:
    return DagBuilder().source("in").operator("step").connect("in", "step").sink_for("step", "out")


def declared() -> DagBuilder:
    return DagBuilder().source("in").operator("step", outputs=["odd"]).connect("in", "step")


def refused(builder: DagBuilder, call: Call, message: str) -> None:
    """Check that ``call`` raises ``message`` and changes nothing."""
    before = repr(vars(builder))
    with pytest.raises(PlanError, match=message):
        call(builder)
    assert repr(vars(builder)) == before


def test_a_linear_graph_is_frozen_and_in_topological_order_and_the_builder_goes_on_without_it() -> None:
    builder = line()
    dag = builder.build()
    assert dag.nodes == (
        DagNode("in", NodeType.SOURCE, (), ("late",)),
        DagNode("step", NodeType.OPERATOR, (Edge("in"),)),
        DagNode("out", NodeType.SINK, (Edge("step"),)),
    )
    assert (dag.sources, dag.sinks, dict(dag.ranks)) == (("in",), ("out",), {"in": 0, "step": 1, "out": 2})
    assert [str(node.type) for node in dag.nodes] == ["source", "operator", "sink"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        dag.nodes = ()  # type: ignore[misc]  # that is what must fail
    builder.sink_for("step", "more")
    assert (dag.sinks, builder.build().sinks) == (("out",), ("out", "more"))
    assert line().build() == dag


def test_fan_out_fan_in_and_diamond_are_graphs_and_the_order_of_the_calls_does_not_matter_but_among_equals() -> None:
    builder = DagBuilder().operator("join").connect("left", "join").connect("right", "join").operator("left")
    builder.operator("right").source("in").source("other").connect("in", "left").connect("in", "right")
    builder.connect("other", "join").sink_for("join", "out").connect("left", "out")
    dag = builder.build()
    read = {node.name: [str(edge) for edge in node.inputs] for node in dag.nodes}
    assert (read["join"], read["out"]) == (["left", "right", "other"], ["join", "left"])
    assert list(read) == ["in", "left", "right", "other", "join", "out"]


@given(reads=st.lists(st.lists(st.integers(0, 8)), min_size=1, max_size=9))
def test_a_graph_has_an_order_or_a_cycle(reads: list[list[int]]) -> None:
    builder = DagBuilder()
    edges = {(upstream % len(reads), node) for node, upstreams in enumerate(reads) for upstream in upstreams}
    for node in range(len(reads)):
        builder.operator(f"n{node}").connect("in", f"n{node}").sink_for(f"n{node}", f"out{node}")
    for upstream, node in edges:
        builder.connect(f"n{upstream}", f"n{node}")
    try:
        order = [node.name for node in builder.source("in").build().nodes]
    except PlanError as error:
        cycle = [int(name[1:]) for name in str(error).split(": ")[1].split(". Remove")[0].split(" -> ")]
        assert cycle[0] == cycle[-1] == min(cycle)
        assert len(set(cycle)) == len(cycle) - 1
        assert edges >= set(pairwise(cycle))
    else:
        assert all(order.index(f"n{upstream}") < order.index(f"n{node}") for upstream, node in edges)
        if all(upstream < node for upstream, node in edges):
            assert [name for name in order if name[0] == "n"] == [f"n{node}" for node in range(len(reads))]


@pytest.mark.long
def test_a_graph_of_ten_thousand_nodes_is_built_and_so_long_a_cycle_is_found() -> None:
    builder, previous = DagBuilder().source("s"), "s"
    for number in range(10_000):
        builder.operator(f"n{number}").connect(previous, f"n{number}")
        previous = f"n{number}"
    dag = builder.sink_for(previous, "out").build()
    assert isinstance(dag, Dag)
    assert [node.name for node in dag.nodes][:3] == ["s", "n0", "n1"]
    with pytest.raises(PlanError, match=r"cycle: n0 -> n1 -> n2 .*-> n9999 -> n0"):
        builder.connect(previous, "n0").build()


def test_side_outputs_have_ports_in_the_order_of_edges_or_as_declared() -> None:
    named = line().connect("step", "out", output="odd").sink_for("step:even", "even").sink_for("in:late", "late")
    node = named.build().nodes[1]
    assert (node.outputs, [node.port(name) for name in ("out", "even", "late")]) == (("odd", "even"), [0, 2, None])
    node = (
        declared().operator("more", outputs=["a", "b"]).connect("step", "more").sink_for("more:b", "b").build().nodes[2]
    )
    assert (node.outputs, [node.port(name) for name in ("out", "a", "b", "c")]) == (("a", "b"), [0, 1, 2, None])
    early = DagBuilder().source("in").connect("in", "step").connect("step:odd", "a").connect("step:even", "b")
    early.operator("step").operator("b").sink_for("step:third", "third").operator("a").sink_for("a", "out")
    nodes = {node.name: node for node in early.connect("b", "out").build().nodes}
    assert nodes["step"].outputs == ("odd", "even", "third")
    assert line().connect("step:a", "out", output="a").build().nodes[1].outputs == ("a",)
    assert [str(Edge("step", output)) for output in ("odd", "out")] == ["step:odd", "step"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.source("in"), r"has a node 'in' already \(source\).*this source needs another"),
        (lambda b: b.operator("in"), r"has a node 'in' already \(source\).*this operator needs another"),
        (lambda b: b.sink_for("step", "in"), r"has a node 'in' already \(source\).*this sink needs another"),
        (lambda b: b.sink_for("nowhere", "in"), "has a node 'in' already"),
        (lambda b: b.operator("a", outputs=["x", "x"]), "'a': an output is listed twice"),
        (lambda b: b.operator("a", outputs=["out"]), "'a': an output is listed twice.*'out' is the main one"),
        (lambda b: b.operator("a", outputs="late"), r"'a': outputs must be a list of names, write \['late'\]"),
        (lambda b: b.connect("step:a", "out", output="b"), "'step:a' and output='b' are two outputs"),
        (lambda b: b.connect("step", "in"), "source 'in' cannot read 'step'"),
        (lambda b: b.connect("out", "step"), "'step' cannot read sink 'out'"),
        (lambda b: b.sink_for("out", "more"), "'more' cannot read sink 'out'"),
        (lambda b: b.connect("in", "step"), "'step' reads 'in' already"),
        (lambda b: b.sink_for("in:odd", "x"), "source 'in' has no output 'odd' .* it has 'out', 'late'"),
        (lambda b: b.source(5), "the name of a source must be a str, got int: it is the node's id"),
    ],
)
def test_a_call_that_cannot_be_is_refused_naming_the_nodes(call: Call, message: str) -> None:
    refused(line(), call, message)


def test_an_output_that_a_node_does_not_have_is_told_with_those_it_has() -> None:
    refused(declared(), lambda b: b.sink_for("step:even", "x"), "'step' has no output 'even' that 'x' .*'out', 'odd'")
    refused(line().sink_for("step:a", "a"), lambda b: b.connect("step:a", "a"), "'a' reads 'step:a' already")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "x" * 65, 7, None, ["a"]])
def test_a_name_that_is_no_id_is_refused(name: Any) -> None:
    for call in (DagBuilder.source, DagBuilder.operator, lambda b, name: b.sink_for("step", name)):
        refused(line(), lambda b, call=call: call(b, name), "node")  # type: ignore[misc]  # a bound default
    if name != "a:b":  # which is an output of a node that may be added later
        refused(line(), lambda b: b.connect(name, "step"), "has no node")
    refused(line(), lambda b: b.connect("in", name), "has no node")


@pytest.mark.parametrize("output", ["", "a b", "a:b", 7])
def test_a_side_output_that_is_no_id_is_refused(output: Any) -> None:
    refused(line(), lambda b: b.sink_for("step", "more", output=output), "output")
    refused(line(), lambda b: b.operator("more", outputs=[output]), "output")


@pytest.mark.parametrize(
    ("edges", "call", "message"),
    [
        (("x", "step"), lambda b: b.sink_for("step", "x"), "'step' cannot read sink 'x'"),
        (("step", "x"), lambda b: b.source("x"), "source 'x' cannot read 'step'"),
        (("x:odd", "step"), lambda b: b.operator("x", outputs=["even"]), "operator 'x' has no output 'odd'"),
        (("x:odd", "step"), lambda b: b.source("x"), "source 'x' has no output 'odd'"),
        (("step", "x"), lambda b: b.operator("x", str), "schemas of 'step' and 'x' do not match: int is not str"),
        (("step", "x"), lambda b: b.sink_for("in", "x", str), "schemas of 'in' and 'x' do not match"),
        (("x", "step"), lambda b: b.source("x", str), "schemas of 'x' and 'step' do not match: str is not int"),
        (("step", "x"), lambda b: b.connect("step", "x"), "'x' reads 'step' already"),
        (("step", "x"), lambda b: b.sink_for("step", "x"), "'x' reads 'step' already"),
    ],
)
def test_an_edge_that_cannot_be_is_told_by_the_call_that_adds_its_other_end(
    edges: tuple[str, str], call: Call, message: str
) -> None:
    typed = DagBuilder().source("in", int).operator("step", int).connect("in", "step").sink_for("step", "out")
    refused(typed.connect(*edges), call, message)


def ring(*names: str) -> DagBuilder:
    builder = line()
    for name in names:
        builder.operator(name)
    for upstream, downstream in zip(names, [*names[1:], names[0]], strict=True):
        builder.connect(upstream, downstream)
    return builder


THERE = "'in', 'step', 'out'(, 'more')?"
MANY = DagBuilder().sink_for("x", "out")
for number in range(30):
    MANY.source(f"s{number}")


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (DagBuilder(), "the graph is empty: start with source"),
        (
            line().connect("nowhere", "step"),
            rf"has no node 'nowhere'; it has {THERE}\. 'step' reads 'nowhere': add both",
        ),
        (line().connect("step", "nowhere"), rf"has no node 'nowhere'; it has {THERE}\. 'nowhere' reads 'step': add"),
        (line().connect("nowhere:late", "step"), rf"no node 'nowhere'; it has {THERE}\. 'step' reads 'nowhere:late'"),
        (line().sink_for("nowhere", "more"), rf"has no node 'nowhere'; it has {THERE}\. 'more' reads 'nowhere': add"),
        (DagBuilder().connect("x", "y"), "has no node 'x'; it has none"),
        (MANY, r"no node 'x'; it has 'out', 's0', .*'s18', …\. 'out' reads 'x'"),
        (line().source("alone"), "source 'alone' is disconnected: nothing reads it"),
        (DagBuilder().source("alone"), "source 'alone' is disconnected: nothing reads it"),
        (line().operator("alone"), "operator 'alone' is disconnected: it reads nothing"),
        (line().operator("end").connect("step", "end"), "operator 'end' is disconnected: nothing reads it"),
        (line().operator("start").connect("start", "step"), "operator 'start' is disconnected: it reads nothing"),
        (line().operator("self").connect("self", "self"), "the graph has a cycle: self -> self. Remove one of these"),
        (ring("a", "b"), "the graph has a cycle: a -> b -> a. Remove one of these edges"),
        (ring("a", "b", "c").connect("in", "b"), "the graph has a cycle: a -> b -> c -> a. Remove"),
        (
            line().operator("back").connect("step", "back").connect("back", "step"),
            "cycle: step -> back -> step. Remove",
        ),
    ],
)
def test_a_fault_of_the_whole_graph_is_told_by_build(builder: DagBuilder, message: str) -> None:
    for _ in range(2):  # the builder is unchanged and remains usable
        with pytest.raises(PlanError, match=message):
            builder.build()


def test_schemas_that_match_or_are_not_said_go_together() -> None:
    fields = pa.schema([("n", pa.int64())])
    builder = DagBuilder().source("in", fields).operator("parse", input_schema=fields, output_schema=int)
    builder.connect("in", "parse").operator("double", int).connect("parse", "double").operator("any")
    builder.connect("double", "any").sink_for("any", "out", str).sink_for("in:late", "late", fields)
    builder.sink_for("parse:rejected", "rejected", bytes)  # the schema of a side output is unknown
    nodes = {node.name: node for node in builder.build().nodes}
    assert (nodes["parse"].takes, nodes["parse"].gives, nodes["double"].takes) == (fields, int, int)
    assert (nodes["double"].gives, nodes["any"].gives, nodes["out"].takes) == (int, None, str)


def test_schemas_that_do_not_match_are_told_with_both_nodes_and_the_reason() -> None:
    builder = DagBuilder().source("in", str).operator("root", float)
    refused(builder, lambda b: b.connect("in", "root"), "schemas of 'in' and 'root' do not match: str is not float")
    refused(builder, lambda b: b.sink_for("in:late", "out", int), "of 'in:late' and 'out' do not match")


class Row(TypedDict):
    n: int


class Point(NamedTuple):
    x: int


class Named(Protocol):
    name: str


FIELDS = pa.schema([("n", pa.int64()), ("s", pa.string())])
EMPTY = pa.schema([])
SURE = pa.schema([pa.field("n", pa.int64(), nullable=False)])
"""A schema whose field is never null."""


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        *[(None, int), (int, None), (int, int), (bool, int), (int, float), (int, complex), (float, complex)],
        *[(Any, int), (int, Any), (object, int), (int, object)],
        *[(int, int | None), (int | None, int | str | None), (bool, int | str)],
        *[(list[int], list), (list, list[int]), (list[bool], list[int]), (dict[str, int], Mapping)],
        (list[int], Sequence[str]),  # not compared: the relation of a list to a sequence is unknown here
        *[(tuple[int, str], tuple[int, str]), (Point, tuple), (Point, Named), (Row, dict), (int, Row)],
        *[(FIELDS, FIELDS), (FIELDS, FIELDS.with_metadata({"made": "by a test"}))],
        *[(FIELDS, dict), (FIELDS, Mapping), (FIELDS, dict[str, Any]), (dict, FIELDS)],
        (SURE, pa.schema([("n", pa.int64())])),
        *[(EMPTY, EMPTY), (EMPTY, FIELDS), (FIELDS, EMPTY), (pa.schema([], metadata={"by": "a test"}), FIELDS)],
        *[(int, EMPTY), (EMPTY, list[str])],
    ],
    ids=str,
)
def test_what_fits_or_cannot_be_told_goes(given: Any, taken: Any) -> None:
    assert mismatch(given, taken) is None


@pytest.mark.parametrize(
    ("given", "taken", "why"),
    [
        (str, int, "str is not int"),
        (float, int, "float is not int"),
        (int | None, int, "int | None is not int"),
        (str, int | None, "str is not int | None"),
        (list[str], list[int], "list[str] is not list[int]"),
        (list, dict, "list is not dict"),
        (FIELDS, int, "dict is not int"),
        (str, FIELDS, "str is not dict"),
        (FIELDS, pa.schema([("n", pa.int32()), ("s", pa.binary())]), "'n' is int64, not int32; 's' is string, not bin"),
        (FIELDS, pa.schema([("n", pa.int64())]), "'s' is not expected"),
        (FIELDS, pa.schema([("n", pa.int64()), ("x", pa.int8())]), "'x' is missing; 's' is not expected"),
        (FIELDS, pa.schema(list(FIELDS)[::-1]), "the fields come as ['n', 's'], not as ['s', 'n']"),
        (pa.schema([("n", pa.int64())]), SURE, "'n' may be null"),
        (pa.schema([*SURE, *SURE]), pa.schema([*SURE, ("n", pa.int8())]), "'n' is int64, not int8"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_the_reason(given: Any, taken: Any, why: str) -> None:
    assert (mismatch(given, taken) or "").startswith(why)


@pytest.mark.parametrize("schema", [None, int, list[int], int | None, Any, FIELDS, Row, Named, type(None)])
def test_what_is_a_schema_is_taken(schema: Any) -> None:
    assert DagBuilder().source("a", schema).sink_for("a", "b").build().nodes[0].gives is schema


FOREIGN = type("Schema", (), {})()
"""A schema of another library."""


@pytest.mark.parametrize("schema", ["int", 1, [int], (int, str), {"n": int}, len, pa.int64(), SURE.field("n"), FOREIGN])
def test_what_is_none_is_refused_with_its_type_but_not_its_value(schema: Any) -> None:
    message = f"node 'a': a schema must be a pyarrow.Schema or a type .*, got {type(schema).__name__}$"
    refused(line(), lambda b: b.source("a", schema), message)
    refused(line(), lambda b: b.operator("a", output_schema=schema), message)
    refused(line(), lambda b: b.sink_for("step", "a", schema), message)
