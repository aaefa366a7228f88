"""`DagExecutor`: events pass the graph in order, once; errors of calls name the node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from malstrom_py.dag import DagBuilder, DagExecutor, NodeType
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage
from malstrom_py.errors import DagError, NodeNotFound, OperatorError, PlanError
from malstrom_py.operators.stateless import Filter
from tests.unit.dag.graphs import at, joined, line, total


def test_linear_events_pass_the_operators_in_turn_and_keep_their_order() -> None:
    executor = line(lambda n: n * 2, lambda n: n + 1)
    for number in range(4):
        executor.process_event("in", number)
    assert executor.take_sink_outputs("out") == [1, 3, 5, 7]


def test_its_repr_has_the_ends_of_the_graph_and_how_far_it_is_but_no_record() -> None:
    builder = DagBuilder().source("in").operator("double").operator("rest").connect("in", "double")
    dag = builder.connect("double", "rest").sink_for("rest", "out").sink_for("in:late", "late").build()
    executor = DagExecutor.from_dag(dag)
    shape = "sources=['in'], operators=2, sinks=['out', 'late']"
    assert repr(executor) == f"DagExecutor({shape}, registered=0, not started)"
    executor.register_operator("double", lambda n: n * 2)
    executor.process_event("in", 4711)
    assert repr(executor) == f"DagExecutor({shape}, registered=1, started)"
    executor.close()
    assert repr(executor) == f"DagExecutor({shape}, registered=1, closed)"


def test_fan_out_gives_every_branch_every_event() -> None:
    builder = DagBuilder().source("in").operator("double").connect("in", "double")
    executor = DagExecutor.from_dag(builder.sink_for("in", "left").sink_for("double", "right").build())
    executor.register_operator("double", lambda n: n * 2)
    executor.process_events("in", [1, 2])
    assert executor.take_all_sink_outputs() == {"left": [1, 2], "right": [2, 4]}


def test_fan_in_takes_from_every_source_as_it_comes() -> None:
    executor = joined(lambda value: value.upper())
    for source, value in [("left", "a"), ("right", "b"), ("left", "c")]:
        executor.process_event(source, value)
    assert executor.take_sink_outputs("out") == ["A", "B", "C"]


def diamond() -> DagExecutor:
    builder = DagBuilder().source("in").operator("double").operator("add").operator("join")
    builder.connect("in", "double").connect("in", "add").connect("double", "join").connect("add", "join")
    executor = DagExecutor.from_dag(builder.sink_for("join", "out").build())
    executor.register_operator("double", lambda n: n * 2)
    executor.register_operator("add", lambda n: n + 100)
    return executor


def test_a_diamond_gives_10_and_105_for_5() -> None:
    executor = diamond()
    executor.process_event("in", 5)
    assert executor.take_sink_outputs("out") == [10, 105]


def test_a_node_without_operator_passes_records_through() -> None:
    executor = line(None, lambda n: n + 1, None)
    executor.process_event("in", at(1, 7, "k"))
    assert executor.take_sink_outputs("out", messages=True) == [DataMessage("k", 2, 7)]


def test_sinks_are_drained_in_order() -> None:
    executor = diamond()
    assert executor.take_sink_outputs("out") == []
    assert executor.take_all_sink_outputs() == {}
    executor.process_event("in", 1)
    executor.process_event("in", 2)
    assert executor.take_all_sink_outputs() == {"out": [2, 101, 4, 102]}
    assert executor.take_sink_outputs("out") == []
    assert executor.take_all_sink_outputs() == {}
    executor.process_event("in", 3)
    assert executor.take_sink_outputs("out") == [6, 103]
    assert executor.take_all_sink_outputs(messages=True) == {}


def test_all_sinks_that_hold_something_come_in_topological_order() -> None:
    builder = DagBuilder().source("in").operator("odd").connect("in", "odd")
    builder.sink_for("odd", "z").sink_for("in", "y").sink_for("odd:no", "a")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("odd", partial(Filter, predicate=lambda n: n % 2))
    executor.process_event("in", 1)
    assert list(executor.take_all_sink_outputs().items()) == [("z", [1]), ("y", [1])]


@pytest.mark.parametrize(
    ("event", "messages"),
    [
        (5, [at(5)]),
        (None, [at(None)]),
        ([], [at([])]),
        ([1, 2], [at([1, 2])]),
        (at(1), [at(1)]),
        (at(1, 5), [at(1, 5)]),
        (at(1, 5, ("k", None)), [at(1, 5, ("k", None))]),
        (at(1, np.int64(5)), [at(1, 5)]),  # type: ignore[arg-type]  # it has __index__
        ([at(1, 5), at(2), at(3, 4)], [at(1, 5), at(2), at(3, 4)]),
        ([at(1), 2], [at([at(1), 2])]),
        (Batch([1, 2]), [at(1), at(2)]),
        (Batch([1, 2], keys=["a", "b"], timestamps=[7, 3]), [at(1, 7, "a"), at(2, 3, "b")]),
        (Batch([]), []),
        (ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]})), [at({"n": 1}), at({"n": 2})]),
        (
            ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}), keys=["a"], time_column=pa.array([7])),
            [at({"n": 1}, 7, "a")],
        ),
    ],
    ids=repr,
)
def test_an_event_is_a_value_a_message_a_list_of_them_or_a_batch(event: Any, messages: list[Any]) -> None:
    executor = line(None)
    executor.process_event("in", event)
    assert executor.take_sink_outputs("out", messages=True) == messages


def test_many_events_are_handed_in_at_once_in_order() -> None:
    executor = line(total)
    executor.process_events("in", (event for event in [1, at(2, 5), at(3, 5, "k"), 4, []][:4]))
    executor.process_events("in", Batch([5, 6], keys=["k", None]))
    executor.process_events("in", [])
    assert executor.take_sink_outputs("out", messages=True) == [
        at(1),
        at(3, 5),
        at(3, 5, "k"),
        at(7),
        at(8, None, "k"),
        at(13),
    ]
    assert executor.node_metrics()["a"].calls == 4


def test_a_batch_that_was_handed_in_is_not_changed() -> None:
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}))
    line(None).process_event("in", batch)
    assert (batch.keys, batch.part) == (None, None)


@pytest.mark.parametrize("time", ["5", 5.0, True, MIN_EPOCH, MAX_EPOCH, MAX_EPOCH + 1, -(1 << 70)])
def test_a_timestamp_that_is_none_is_refused_and_nothing_is_queued(time: Any) -> None:
    executor = line(None)
    for event in (at("secret", time), [at("secret", 5), at("secret", time)], Batch([1], timestamps=[time])):
        with pytest.raises(DagError, match="node 'in': a timestamp") as caught:
            executor.process_event("in", event)
        assert caught.value.node == "in"
        assert "secret" not in str(caught.value)
    executor.run()
    assert executor.take_sink_outputs("out") == []


@pytest.mark.parametrize("batch", [Batch([1, 2], keys=["a"]), Batch([1], timestamps=[1, 2]), Batch([1], timestamps=[])])
def test_a_batch_of_uneven_columns_is_refused(batch: Batch) -> None:
    with pytest.raises(DagError, match="node 'in'"):
        line(None).process_event("in", batch)


UNKNOWN: list[Callable[[DagExecutor, str], Any]] = [
    lambda executor, node: executor.process_event(node, 1),
    lambda executor, node: executor.process_events(node, [1]),
    lambda executor, node: executor.process_watermark(node, 1),
    lambda executor, node: executor.inject_events(node, [1]),
    lambda executor, node: executor.take_sink_outputs(node),
    lambda executor, node: executor.register_operator(node, str),
    lambda executor, node: executor.node_type(node),
    lambda executor, node: executor.input_count(node),
    lambda executor, node: executor.watermark(node),
]


@pytest.mark.parametrize("call", UNKNOWN)
@pytest.mark.parametrize("node", ["nowhere", "", None, 7, ["in"]])
def test_an_unknown_node_is_told_with_those_there_are(call: Callable[[DagExecutor, Any], Any], node: Any) -> None:
    with pytest.raises(NodeNotFound, match=r"the graph has no node .*; its nodes are 'in', 'a', 'out'") as caught:
        call(line(None), node)
    assert caught.value.node == str(node)
    assert isinstance(caught.value, DagError)


def test_a_node_of_another_type_is_told_with_those_of_the_right_one() -> None:
    executor = line(None)
    for call in UNKNOWN[:3]:
        with pytest.raises(NodeNotFound, match=r"'a' is a node of type operator, not source; the sources are 'in'"):
            call(executor, "a")
    with pytest.raises(NodeNotFound, match="'in' is a node of type source, not sink; the sinks are 'out'"):
        executor.take_sink_outputs("in")


def test_the_graph_tells_of_its_nodes() -> None:
    executor = joined()
    assert (executor.source_nodes, executor.sink_nodes) == (("left", "right"), ("out",))
    kinds = [executor.node_type(node) for node in ("left", "join", "out")]
    assert kinds == [NodeType.SOURCE, NodeType.OPERATOR, NodeType.SINK] == ["source", "operator", "sink"]
    assert [executor.input_count(node) for node in ("left", "join", "out")] == [0, 2, 1]
    assert [node.name for node in executor.dag.nodes] == ["left", "right", "join", "out"]


def test_an_executor_is_made_of_a_graph_that_is_built() -> None:
    with pytest.raises(PlanError, match=r"expected a Dag, got DagBuilder: call build\(\)"):
        DagExecutor.from_dag(DagBuilder())  # type: ignore[arg-type]  # that is what must fail


def test_an_error_of_an_operator_names_the_node_and_the_executor_goes_on() -> None:
    executor = line(lambda n: 1 // n, total)
    executor.process_event("in", 1)
    with pytest.raises(OperatorError, match="step 'a' failed: ZeroDivisionError") as caught:
        executor.process_event("in", 0)
    assert caught.value.step == "a"
    executor.process_event("in", 1)
    assert executor.take_sink_outputs("out") == [1, 2]


def test_what_stands_behind_an_event_that_raised_stays_queued() -> None:
    builder = DagBuilder().source("in").operator("bad").operator("good").connect("in", "bad").connect("in", "good")
    executor = DagExecutor.from_dag(builder.sink_for("bad", "out").connect("good", "out").build())
    executor.register_operator("bad", lambda n: 10 // n)
    executor.inject_events("bad", [5])
    executor.inject_events("bad", [0])
    executor.inject_events("bad", [2])
    with pytest.raises(OperatorError):
        executor.process_event("in", 1)
    executor.run()
    assert executor.take_sink_outputs("out") == [2, 5, 10, 1]


def test_an_operator_that_calls_its_own_executor_is_told() -> None:
    executor: DagExecutor = line(lambda n: executor.process_event("in", n))
    with pytest.raises(OperatorError) as caught:
        executor.process_event("in", 1)
    assert isinstance(caught.value.__cause__, DagError)
    assert "one of the executor's operators called the executor" in str(caught.value.__cause__)


@pytest.mark.parametrize("call", [lambda e: e.restore(b""), lambda e: e.checkpoint(), lambda e: e.run()])
def test_so_is_one_that_would_checkpoint_or_restore_it(call: Callable[[DagExecutor], Any]) -> None:
    executor: DagExecutor = line(lambda n: call(executor))
    with pytest.raises(OperatorError) as caught:
        executor.process_event("in", 1)
    assert isinstance(caught.value.__cause__, DagError)


def test_injected_events_are_queued_at_any_node_until_something_runs() -> None:
    executor = line(lambda n: n + 1, lambda n: n * 10)
    executor.inject_events("b", [1, at(2, 5, "k")])
    executor.inject_events("out", Batch([7]))
    executor.inject_events("in", [3])
    assert executor.take_all_sink_outputs() == {}
    executor.process_event("in", 4)
    assert executor.take_sink_outputs("out") == [7, 10, 20, 40, 50]


def test_injected_events_are_run_by_every_call_that_runs_something() -> None:
    calls: list[Callable[[DagExecutor], Any]] = [
        lambda e: e.run(),
        lambda e: e.process_event("in", Batch([])),
        lambda e: e.process_events("in", []),
        lambda e: e.process_watermark("in", 1),
        lambda e: e.fire_timers(1),
        lambda e: e.schedule(),
        lambda e: e.restore_watermarks({}),
    ]
    for call in calls:
        executor = line(None)
        executor.inject_events("a", [1])
        call(executor)
        assert executor.take_sink_outputs("out") == [1]
