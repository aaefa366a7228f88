"""`DagBuilder`: the call or `build` names every fault of a graph; a correct graph is immutable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.dag import Dag, DagBuilder, DagExecutor, DagNode, Edge, NodeType
from malstrom_py.errors import PlanError


def line() -> DagBuilder:
    return DagBuilder().source("in").operator("step").connect("in", "step").sink_for("step", "out")


def test_a_linear_graph_is_built_in_topological_order() -> None:
    dag = line().build()
    assert dag.nodes == (
        DagNode("in", NodeType.SOURCE, (), ("late",)),
        DagNode("step", NodeType.OPERATOR, (Edge("in"),)),
        DagNode("out", NodeType.SINK, (Edge("step"),)),
    )
    assert (dag.sources, dag.sinks) == (("in",), ("out",))
    assert dict(dag.ranks) == {"in": 0, "step": 1, "out": 2}


def test_the_order_of_the_calls_does_not_matter_but_among_equals() -> None:
    builder = DagBuilder().operator("last").operator("first").source("in")
    builder.connect("first", "last").connect("in", "first").sink_for("last", "out").sink_for("first", "early")
    assert [node.name for node in builder.build().nodes] == ["in", "first", "last", "out", "early"]


def test_a_source_may_go_straight_to_a_sink() -> None:
    assert [node.name for node in DagBuilder().source("in").sink_for("in", "out").build().nodes] == ["in", "out"]


def test_fan_out_fan_in_and_diamond_are_graphs() -> None:
    builder = DagBuilder().source("in").source("other").operator("left").operator("right").operator("join")
    builder.connect("in", "left").connect("in", "right").connect("left", "join").connect("right", "join")
    builder.connect("other", "join").sink_for("join", "out").connect("left", "out")
    dag = builder.build()
    read = {node.name: [str(edge) for edge in node.inputs] for node in dag.nodes}
    assert (read["join"], read["out"]) == (["left", "right", "other"], ["join", "left"])


def test_a_dag_is_frozen_and_the_builder_goes_on_without_it() -> None:
    builder = line()
    dag = builder.build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        dag.nodes = ()  # type: ignore[misc]  # that is what must fail
    builder.sink_for("step", "more")
    assert (dag.sinks, builder.build().sinks) == (("out",), ("out", "more"))
    assert line().build() == dag


def test_side_outputs_are_named_by_edges_in_order_or_declared() -> None:
    named = (
        line().connect("step", "out", output="odd").sink_for("step:even", "even").sink_for("in:late", "late").build()
    )
    assert {node.name: node.outputs for node in named.nodes}["step"] == ("odd", "even")
    assert [named.nodes[1].port(name) for name in ("out", "even", "late")] == [0, 2, None]
    declared = DagBuilder().source("in").operator("step", outputs=["a", "b"]).connect("in", "step")
    node = declared.sink_for("step", "out").sink_for("step", "b", output="b").build().nodes[1]
    assert (node.outputs, [node.port(name) for name in ("out", "a", "b", "c")]) == (("a", "b"), [0, 1, 2, None])
    assert str(Edge("step", "odd")) == "step:odd"
    assert str(Edge("step", "out")) == "step"


def test_a_node_of_which_only_a_side_output_is_read_is_connected() -> None:
    builder = DagBuilder().source("in").operator("step").connect("in", "step").sink_for("step:odd", "odd")
    assert builder.build().sinks == ("odd",)


def refused(builder: DagBuilder, call: Callable[[DagBuilder], Any], message: str) -> None:
    """Check that ``call`` raises ``message`` and changes nothing."""
    before = repr(vars(builder))
    with pytest.raises(PlanError, match=message):
        call(builder)
    assert repr(vars(builder)) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.source("in"), r"has a node 'in' already \(source\).*this source needs another"),
        (lambda b: b.operator("in"), r"has a node 'in' already \(source\).*this operator needs another"),
        (lambda b: b.sink_for("step", "in"), r"has a node 'in' already \(source\).*this sink needs another"),
        (lambda b: b.sink_for("nowhere", "in"), "has a node 'in' already"),
    ],
)
def test_a_duplicate_name_is_told_with_what_has_it(call: Callable[[DagBuilder], Any], message: str) -> None:
    refused(line(), call, message)


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.connect("nowhere", "step"),
        lambda b: b.connect("step", "nowhere"),
        lambda b: b.connect("nowhere:late", "step"),
        lambda b: b.sink_for("nowhere", "more"),
    ],
)
def test_a_node_that_was_never_added_is_told_with_those_there_are(call: Callable[[DagBuilder], Any]) -> None:
    builder = call(line())
    there = "'in', 'step', 'out'(, 'more')?"
    for _ in range(2):  # the builder is unchanged and remains usable
        with pytest.raises(PlanError, match=rf"has no node 'nowhere'; it has {there}\. '\w+' reads '[\w:]+': add both"):
            builder.build()


def test_of_many_nodes_some_are_told() -> None:
    builder = DagBuilder().sink_for("x", "out")
    for number in range(30):
        builder.source(f"s{number}")
    with pytest.raises(PlanError, match=r"no node 'x'; it has 'out', 's0', .*'s18', …\. 'out' reads 'x'"):
        builder.build()
    with pytest.raises(PlanError, match="has no node 'x'; it has none"):
        DagBuilder().connect("x", "y").build()


def test_edges_may_come_before_the_nodes_they_name() -> None:
    early = DagBuilder().connect("left", "join").connect("in", "left").connect("in", "right").connect("right", "join")
    early.sink_for("join", "out").operator("join").operator("right").operator("left").source("in")
    late = DagBuilder().source("in").operator("left").operator("right").operator("join").connect("left", "join")
    late.connect("in", "left").connect("in", "right").connect("right", "join").sink_for("join", "out")
    nodes = [{node.name: node for node in builder.build().nodes} for builder in (early, late)]
    assert nodes[0] == nodes[1]


def test_a_diamond_whose_edges_come_first_gives_ten_and_a_hundred_and_five() -> None:
    builder = DagBuilder().source("in").connect("in", "double").connect("in", "add")
    builder.connect("double", "merge").connect("add", "merge").sink_for("merge", "out")
    executor = DagExecutor.from_dag(builder.operator("merge").operator("add").operator("double").build())
    executor.register_operator("double", lambda n: n * 2)
    executor.register_operator("add", lambda n: n + 100)
    executor.process_event("in", 5)
    assert sorted(executor.take_sink_outputs("out")) == [10, 105]


def test_side_outputs_keep_the_order_of_the_edges_whenever_their_ends_are_added() -> None:
    builder = DagBuilder().source("in").connect("in", "step").connect("step:odd", "a").connect("step:even", "b")
    builder.operator("step").operator("b").sink_for("step:third", "third").operator("a")
    nodes = {node.name: node for node in builder.sink_for("a", "out").connect("b", "out").build().nodes}
    assert nodes["step"].outputs == ("odd", "even", "third")


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
    edges: tuple[str, str], call: Callable[[DagBuilder], Any], message: str
) -> None:
    typed = DagBuilder().source("in", int).operator("step", int).connect("in", "step").sink_for("step", "out")
    refused(typed.connect(*edges), call, message)


def test_an_empty_schema_goes_with_every_other() -> None:
    empty, fields = pa.schema([]), pa.schema([("n", pa.int64())])
    builder = DagBuilder().source("in", fields).operator("any", empty).operator("typed", fields).operator("kind", int)
    builder.connect("in", "any").connect("any", "typed").connect("any", "kind")
    assert builder.sink_for("typed", "out", empty).connect("kind", "out").build().sinks == ("out",)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "x" * 65, 7, None, ["a"]])
def test_a_name_that_is_no_id_is_refused(name: Any) -> None:
    refused(line(), lambda b: b.source(name), "node")
    refused(line(), lambda b: b.operator(name), "node")
    refused(line(), lambda b: b.sink_for("step", name), "node")
    if name != "a:b":  # which is an output of a node that may be added later
        refused(line(), lambda b: b.connect(name, "step"), "has no node")
    refused(line(), lambda b: b.connect("in", name), "has no node")


@pytest.mark.parametrize("output", ["", "a b", "a:b", 7])
def test_a_side_output_that_is_no_id_is_refused(output: Any) -> None:
    refused(line(), lambda b: b.sink_for("step", "more", output=output), "output")
    refused(line(), lambda b: b.operator("more", outputs=[output]), "output")


def test_outputs_that_make_no_sense_are_refused() -> None:
    refused(line(), lambda b: b.operator("a", outputs=["x", "x"]), "'a': an output is listed twice")
    refused(line(), lambda b: b.operator("a", outputs=["out"]), "'a': an output is listed twice.*'out' is the main one")
    refused(
        line(), lambda b: b.operator("a", outputs="late"), r"'a': outputs must be a list of names, write \['late'\]"
    )
    refused(line(), lambda b: b.connect("step:a", "out", output="b"), "'step:a' and output='b' are two outputs")
    assert line().connect("step:a", "out", output="a").build().nodes[1].outputs == ("a",)


def test_an_output_that_a_node_does_not_have_is_told_with_those_it_has() -> None:
    declared = DagBuilder().source("in").operator("step", outputs=["odd"]).connect("in", "step")
    refused(declared, lambda b: b.sink_for("step:even", "x"), "operator 'step' has no output 'even' that 'x' .*'odd'")
    refused(declared, lambda b: b.sink_for("in:odd", "x"), "source 'in' has no output 'odd' .* it has 'out', 'late'")


def test_edges_that_cannot_be_are_refused_naming_both_ends() -> None:
    refused(line(), lambda b: b.connect("step", "in"), "source 'in' cannot read 'step'")
    refused(line(), lambda b: b.connect("out", "step"), "'step' cannot read sink 'out'")
    refused(line(), lambda b: b.sink_for("out", "more"), "'more' cannot read sink 'out'")
    refused(line(), lambda b: b.connect("in", "step"), "'step' reads 'in' already")
    refused(line().sink_for("step:a", "a"), lambda b: b.connect("step:a", "a"), "'a' reads 'step:a' already")


def test_an_empty_graph_is_told() -> None:
    with pytest.raises(PlanError, match="the graph is empty: start with source"):
        DagBuilder().build()


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (line().source("alone"), "source 'alone' is disconnected: nothing reads it"),
        (DagBuilder().source("alone"), "source 'alone' is disconnected: nothing reads it"),
        (line().operator("alone"), "operator 'alone' is disconnected: it reads nothing"),
        (line().operator("end").connect("step", "end"), "operator 'end' is disconnected: nothing reads it"),
        (line().operator("start").connect("start", "step"), "operator 'start' is disconnected: it reads nothing"),
    ],
)
def test_a_disconnected_node_is_named(builder: DagBuilder, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        builder.build()


def ring(*names: str) -> DagBuilder:
    builder = line()
    for name in names:
        builder.operator(name)
    for upstream, downstream in zip(names, [*names[1:], names[0]], strict=True):
        builder.connect(upstream, downstream)
    return builder


@pytest.mark.parametrize(
    ("builder", "cycle"),
    [
        (line().operator("self").connect("self", "self"), "self -> self"),
        (ring("a", "b"), "a -> b -> a"),
        (ring("a", "b", "c").connect("in", "b"), "a -> b -> c -> a"),
        (line().operator("back").connect("step", "back").connect("back", "step"), "step -> back -> step"),
    ],
)
def test_a_cycle_is_named_in_order(builder: DagBuilder, cycle: str) -> None:
    with pytest.raises(PlanError, match=f"the graph has a cycle: {cycle}. Remove one of these edges"):
        builder.build()


def test_schemas_that_match_or_are_not_said_go_together() -> None:
    fields = pa.schema([("n", pa.int64())])
    builder = DagBuilder().source("in", fields).operator("parse", input_schema=fields, output_schema=int)
    builder.connect("in", "parse").operator("double", int).connect("parse", "double").operator("any")
    builder.connect("double", "any").sink_for("any", "out", str).sink_for("in:late", "late", fields)
    builder.sink_for("parse:rejected", "rejected", bytes)  # the schema of a side output is unknown
    nodes = {node.name: node for node in builder.build().nodes}
    assert (nodes["parse"].takes, nodes["parse"].gives) == (fields, int)
    assert (nodes["double"].takes, nodes["double"].gives, nodes["any"].gives, nodes["out"].takes) == (
        int,
        int,
        None,
        str,
    )


def test_schemas_that_do_not_match_are_told_with_both_nodes_and_the_reason() -> None:
    builder = DagBuilder().source("in", str).operator("root", float)
    refused(builder, lambda b: b.connect("in", "root"), "schemas of 'in' and 'root' do not match: str is not float")
    refused(builder, lambda b: b.sink_for("in", "out", int), "schemas of 'in' and 'out' do not match: str is not int")
    refused(builder, lambda b: b.sink_for("in:late", "out", int), "of 'in:late' and 'out' do not match")
    here, there = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.string())])
    refused(
        DagBuilder().source("in", here).operator("root", there),
        lambda b: b.connect("in", "root"),
        "schemas of 'in' and 'root' do not match: 'n' is int64, not string",
    )


@pytest.mark.parametrize("schema", ["int", 7, [int], {"n": int}])
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    refused(line(), lambda b: b.source("a", schema), "node 'a': a schema must be a pyarrow.Schema or a type")
    refused(line(), lambda b: b.operator("a", output_schema=schema), "node 'a': a schema must be")
    refused(line(), lambda b: b.sink_for("step", "a", schema), "node 'a': a schema must be")


def test_a_graph_of_ten_thousand_nodes_is_built() -> None:
    builder = DagBuilder().source("s")
    previous = "s"
    for number in range(10_000):
        builder.operator(f"n{number}").connect(previous, f"n{number}")
        previous = f"n{number}"
    dag = builder.sink_for(previous, "out").build()
    assert isinstance(dag, Dag)
    assert [node.name for node in dag.nodes][:3] == ["s", "n0", "n1"]


def test_a_name_that_is_no_str_is_told_as_one_of_a_node() -> None:
    for call in (DagBuilder.source, DagBuilder.operator):
        with pytest.raises(PlanError, match=r"the name of a (source|operator) must be a str, got int") as caught:
            call(DagBuilder(), 5)  # type: ignore[arg-type]
        assert ".map" not in str(caught.value)


def test_of_many_nodes_the_first_are_named() -> None:
    builder = DagBuilder()
    for number in range(30):
        builder.source(f"s{number}")
    with pytest.raises(PlanError, match=r"no node 'x'; it has 's0', 's1', .*'s19', …\. 'end' reads 'x'"):
        builder.connect("x", "end").build()
