"""`DagExecutor`: events become batches and pass the graph once, in order; errors name the node; metrics count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.dag import DagBuilder, DagExecutor, DagMetrics, NodeMetrics, NodeType
from malstrom_py.dag.events import batches_of, batches_of_all
from malstrom_py.dag.running import split_late
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage
from malstrom_py.errors import DagError, NodeNotFound, OperatorError, PlanError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.enrich.calls import Asking
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.operators.stateless import Filter, FlatMap
from malstrom_py.worker_context import per_worker
from tests.unit.dag.graphs import Alarm, at, joined, line, total

Call = Callable[[DagExecutor], Any]


def diamond() -> DagExecutor:
    builder = DagBuilder().source("in").operator("double").operator("add").operator("join")
    builder.connect("in", "double").connect("in", "add").connect("double", "join").connect("add", "join")
    executor = DagExecutor.from_dag(builder.sink_for("join", "out").sink_for("double", "left").build())
    executor.register_operator("double", lambda n: n * 2)
    executor.register_operator("add", lambda n: n + 100)
    return executor


def test_a_diamond_gives_10_and_105_for_5_and_every_branch_gets_every_event_and_sinks_are_drained() -> None:
    executor = diamond()
    assert (executor.take_sink_outputs("out"), executor.take_all_sink_outputs()) == ([], {})
    executor.process_event("in", 5)
    assert list(executor.take_all_sink_outputs().items()) == [("out", [10, 105]), ("left", [10])]
    assert (executor.take_sink_outputs("out"), executor.take_all_sink_outputs()) == ([], {})
    executor.process_event("in", 3)
    assert executor.take_sink_outputs("out") == [6, 103]
    assert executor.take_all_sink_outputs(messages=True) == {"left": [at(6)]}


def test_the_graph_tells_of_its_nodes_and_repr_of_its_ends_and_how_far_it_is_but_no_record() -> None:
    executor = joined()
    assert (executor.source_nodes, executor.sink_nodes) == (("left", "right"), ("out",))
    kinds = [executor.node_type(node) for node in ("left", "join", "out")]
    assert kinds == [NodeType.SOURCE, NodeType.OPERATOR, NodeType.SINK] == ["source", "operator", "sink"]
    assert [executor.input_count(node) for node in ("left", "join", "out")] == [0, 2, 1]
    assert [node.name for node in executor.dag.nodes] == ["left", "right", "join", "out"]
    shape = "DagExecutor(sources=['left', 'right'], operators=1, sinks=['out']"
    assert repr(executor) == f"{shape}, registered=0, not started)"
    executor.register_operator("join", lambda n: n * 2)
    executor.process_event("left", 4711)
    assert repr(executor) == f"{shape}, registered=1, started)"
    executor.close()
    assert repr(executor) == f"{shape}, registered=1, closed)"
    with pytest.raises(PlanError, match=r"expected a Dag, got DagBuilder: call build\(\)"):
        DagExecutor.from_dag(DagBuilder())  # type: ignore[arg-type]  # that is what must fail


# Events.

COLUMNS = pa.RecordBatch.from_pydict({"n": [1, 2]})


@pytest.mark.parametrize(
    ("event", "messages"),
    [
        (5, [at(5)]),
        (None, [at(None)]),
        ([], [at([])]),
        ([1, 2], [at([1, 2])]),
        (at(1), [at(1)]),
        (at(1, 5, ("k", None)), [at(1, 5, ("k", None))]),
        (at(1, np.int64(5)), [at(1, 5)]),  # type: ignore[arg-type]  # it has __index__
        ([at(1, 5), at(2), at(3, 4)], [at(1, 5), at(2), at(3, 4)]),
        ([at(1), 2], [at([at(1), 2])]),
        ((at(1),), [at((at(1),))]),
        (Batch([1, 2]), [at(1), at(2)]),
        (Batch([1, 2], keys=["a", "b"], timestamps=[7, 3]), [at(1, 7, "a"), at(2, 3, "b")]),
        (Batch([]), []),
        (ColumnBatch(COLUMNS), [at({"n": 1}), at({"n": 2})]),
        (
            ColumnBatch(COLUMNS, keys=["a", "b"], time_column=pa.array([7, 8])),
            [at({"n": 1}, 7, "a"), at({"n": 2}, 8, "b")],
        ),
    ],
    ids=repr,
)
def test_an_event_is_a_value_a_message_a_list_of_them_or_a_batch(event: Any, messages: list[Any]) -> None:
    executor = line(None)
    executor.process_event("in", event)
    assert executor.take_sink_outputs("out", messages=True) == messages


Row = tuple[Any, Any, int | None]


@given(events=st.lists(st.tuples(st.sampled_from(["a", None]), st.integers(), st.none() | st.integers(-9, 9))))
def test_many_messages_come_in_order_in_batches_that_are_keyed_and_wholly_timed_or_not(events: list[Row]) -> None:
    batches = batches_of_all([DataMessage(*event) for event in events], "n", "p")
    rows = [row for batch in batches for row in zip(batch.keys or (), batch.values, strict=True)]
    assert rows == [(key, value) for key, value, _ in events]
    nothing: list[Any] = [None] * len(events)
    times = [time for batch in batches for time in batch.timestamps or nothing[: len(batch)]]
    assert times == [time for *_, time in events]
    timed = [batch.timestamps is None for batch in batches]
    assert all(here is not there for here, there in pairwise(timed))
    assert {batch.part for batch in batches} <= {"p"}


def test_many_events_are_an_iterable_of_values_and_messages_or_a_batch() -> None:
    executor = line(total)
    executor.process_events("in", (event for event in [1, at(2, 5), at(3, 5, "k"), 4, []][:4]))
    executor.process_events("in", Batch([5, 6], keys=["k", None]))
    executor.process_events("in", [])
    taken = executor.take_sink_outputs("out", messages=True)
    assert taken == [at(1), at(3, 5), at(3, 5, "k"), at(7), at(8, None, "k"), at(13)]
    assert executor.node_metrics()["a"].calls == 4
    for call in (executor.process_events, executor.inject_events):
        with pytest.raises(DagError, match=r"node 'in': events must be a list of .*, got int: write \[event\]"):
            call("in", 5)  # type: ignore[arg-type]  # that is what must fail


def test_columns_stay_columns_and_a_batch_keeps_its_part_where_the_node_gives_none() -> None:
    columns = ColumnBatch(COLUMNS, key_column=pa.array(["a", "b"]), part="theirs")
    for batch in (Batch([1], keys=["a"], timestamps=[5], part="theirs"), columns):
        assert [batches_of(batch, "n", part)[0].part for part in (None, "ours")] == ["theirs", "ours"]
        assert batch.part == "theirs"
    (taken,) = batches_of(columns, "n", "p")
    assert (type(taken), taken.keys) == (ColumnBatch, ["a", "b"])
    assert not columns.rows_made
    bare = ColumnBatch(COLUMNS)
    line(None).process_event("in", bare)
    assert (bare.keys, bare.part) == (None, None)


def test_a_batch_that_was_handed_in_is_not_shared_with_the_caller() -> None:
    values, keys, times = [1, 2], ["a", "b"], [5, 6]
    executor = line(None)
    executor.inject_events("a", Batch(values, keys=keys, timestamps=times))
    for column in (values, keys, times):
        column.clear()
    executor.run()
    assert executor.take_sink_outputs("out", messages=True) == [at(1, 5, "a"), at(2, 6, "b")]


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


@pytest.mark.parametrize(
    "batch",
    [
        Batch([1, 2], keys=["a"]),
        Batch([1], timestamps=[1, 2]),
        Batch([1], timestamps=[]),
        ColumnBatch(COLUMNS, time_column=pa.array([1, None])),
    ],
)
def test_a_batch_of_uneven_columns_or_of_times_with_a_null_is_refused(batch: Batch) -> None:
    with pytest.raises(DagError, match="node 'in'"):
        line(None).process_event("in", batch)


@given(
    times=st.lists(st.integers(-9, 9), min_size=1),
    frontier=st.integers(-10, 10) | st.sampled_from([MIN_EPOCH, MAX_EPOCH]),
)
def test_late_is_what_lies_at_or_below_the_frontier(times: list[int], frontier: int) -> None:
    columns = ColumnBatch(pa.RecordBatch.from_pydict({"n": times}), keys=times, time_column=pa.array(times))
    for batch in (Batch(list(range(len(times))), keys=times, timestamps=times), columns):
        on_time, late = split_late(batch, frontier)
        assert (on_time.timestamps if on_time else []) == [time for time in times if time > frontier]
        assert (late.timestamps if late else []) == [time for time in times if time <= frontier]
        assert {type(one) for one in (on_time, late)} <= {type(batch), type(None)}
    assert not columns.rows_made
    untimed = Batch([1], keys=[None])
    assert split_late(untimed, frontier) == ((None, untimed) if frontier == MAX_EPOCH else (untimed, None))


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.run(),
        lambda e: e.process_event("in", Batch([])),
        lambda e: e.process_events("in", []),
        lambda e: e.process_watermark("in", 1),
        lambda e: e.fire_timers(1),
        lambda e: e.schedule(),
        lambda e: e.restore_watermarks({}),
    ],
)
def test_injected_events_are_run_by_every_call_that_runs_something(call: Call) -> None:
    executor = line(None)
    executor.inject_events("a", [1])
    call(executor)
    assert executor.take_sink_outputs("out") == [1]


# Errors.

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


def test_an_error_of_an_operator_names_the_node_and_what_stands_behind_the_event_stays_queued() -> None:
    builder = DagBuilder().source("in").operator("bad").operator("good").connect("in", "bad").connect("in", "good")
    executor = DagExecutor.from_dag(builder.sink_for("bad", "out").connect("good", "out").build())
    executor.register_operator("bad", lambda n: 10 // n)
    for number in (5, 0, 2):
        executor.inject_events("bad", [number])
    with pytest.raises(OperatorError, match="step 'bad' failed: ZeroDivisionError") as caught:
        executor.process_event("in", 1)
    assert caught.value.step == "bad"
    executor.run()
    assert executor.take_sink_outputs("out") == [2, 5, 10, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.process_event("in", 1),
        lambda e: e.restore(b""),
        lambda e: e.checkpoint(),
        lambda e: e.run(),
        lambda e: e.close(),
    ],
)
def test_an_operator_that_calls_its_own_executor_is_told(call: Call) -> None:
    executor: DagExecutor = line(lambda n: call(executor))
    with pytest.raises(OperatorError) as caught:
        executor.process_event("in", 1)
    assert isinstance(caught.value.__cause__, DagError)
    assert "one of the executor's operators called the executor" in str(caught.value.__cause__)
    executor.close()


# Waiting and closing.


async def name_of(carrier: Any) -> str:
    await asyncio.sleep(0)
    return {"UA": "United", "B6": "JetBlue"}[carrier]


async def never(carrier: Any) -> str:
    raise RuntimeError


def enriching(function: Any = name_of) -> DagExecutor:
    return line(partial(Enrich, asking=Asking(function)), None)


def test_a_call_waits_for_the_calls_that_enrich_makes_and_what_waits_behind_one_that_fails_stays() -> None:
    with enriching() as executor:
        executor.process_events("in", [at(1, 5, "UA"), at(2, 6, "B6"), at(3, 7, "UA")])
        executor.process_watermark("in", 9)
        assert executor.watermark("out") == 9
        assert executor.take_sink_outputs("out") == [(1, "United"), (2, "JetBlue"), (3, "United")]
        with pytest.raises(OperatorError, match="step 'a' failed for key 'XX': KeyError"):
            executor.process_events("in", [at(1, 15, "XX"), at(2, 16, "UA"), at(3, 17, "B6")])
        executor.run()
        assert executor.take_sink_outputs("out") == [(2, "United"), (3, "JetBlue")]


def test_what_enrich_holds_is_in_a_checkpoint() -> None:
    with enriching(never) as executor:
        with pytest.raises(OperatorError):
            executor.process_events("in", [at(1, 5, "UA"), at(2, 6, "B6")])
        snapshot = executor.checkpoint()
    with enriching() as fresh:
        fresh.restore(snapshot)
        fresh.run()
        assert fresh.take_sink_outputs("out", messages=True) == [at((2, "JetBlue"), 6, "B6")]


def test_things_made_per_worker_are_made_once_kept_by_a_restore_and_closed_at_the_end() -> None:
    done: list[str] = []

    class Rates:
        def __init__(self) -> None:
            done.append("made")

        def close(self) -> None:
            done.append("closed")

    rates = per_worker(Rates)
    with line(lambda n: (rates(), n)[1]) as executor:
        executor.process_event("in", 1)
        executor.restore(executor.checkpoint())
        executor.process_event("in", 2)
        assert executor.take_sink_outputs("out") == [1, 2]
        assert done == ["made"]
    assert done == ["made", "closed"]


def test_operators_are_closed_at_the_end_and_by_a_restore_also_when_one_raises() -> None:
    closed: list[str] = []

    class Open(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch)

        def close(self) -> None:
            closed.append(self.context.step)
            if self.context.step == "a":
                raise ValueError("first")

    executor = line(Open, Open)
    executor.process_event("in", 1)
    with pytest.raises(ValueError, match="first"):
        executor.restore(executor.checkpoint())
    assert closed == ["a", "b"]
    with pytest.raises(ValueError, match="first"):
        executor.close()
    assert closed == ["a", "b"] * 2
    executor.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.process_event("in", 1),
        lambda e: e.process_watermark("in", 1),
        lambda e: e.inject_events("a", [1]),
        lambda e: e.take_all_sink_outputs(),
        lambda e: e.metrics(),
        lambda e: e.checkpoint(),
        lambda e: e.restore(b""),
    ],
)
def test_an_executor_that_was_closed_does_nothing_more(call: Call) -> None:
    executor = line(None)
    executor.close()
    with pytest.raises(DagError, match="the executor has been closed"):
        call(executor)


# Metrics


def counted() -> DagExecutor:
    builder = DagBuilder().source("in").operator("odd").operator("pass").operator("join")
    builder.connect("in", "odd").connect("in", "pass").connect("odd", "join").connect("pass", "join")
    executor = DagExecutor.from_dag(builder.sink_for("join", "out").build())
    executor.register_operator("odd", partial(Filter, predicate=lambda n: n % 2))
    return executor


def test_processed_adds_up_over_the_nodes_and_routed_counts_a_record_once_however_many_nodes_read_it() -> None:
    executor = counted()
    assert executor.metrics() == DagMetrics(0, 0, 0, 0, 0, 0)
    assert set(executor.node_metrics().values()) == {NodeMetrics(0, 0, 0, 0, 0, 0, 0)}
    executor.process_events("in", [1, 2, 3])
    assert executor.metrics() == DagMetrics(processed=3 + 3 + 3 + 5 + 5, routed=3 + 2 + 3 + 5, fanned_out=3)
    executor.process_event("in", 4)
    nodes = executor.node_metrics()
    told = {name: (node.rows_in, node.rows_out, node.calls) for name, node in nodes.items()}
    assert told == {"in": (4, 4, 2), "odd": (4, 2, 2), "pass": (4, 4, 2), "join": (6, 6, 3), "out": (6, 0, 3)}
    assert list(told) == ["in", "odd", "pass", "join", "out"]
    assert all(node.time_ns > 0 for node in nodes.values())


def test_what_nothing_reads_is_neither_routed_nor_fanned_out_but_is_sent() -> None:
    executor = joined()
    executor.process_watermark("left", 10)
    executor.process_event("left", at(1, 5))
    assert executor.metrics().routed == 0
    executor.process_event("left", at(1, 15))
    assert executor.metrics().routed == 2


def test_stalls_are_watermarks_that_wait_for_another_input() -> None:
    executor = joined()
    executor.process_watermark("left", 10)
    assert executor.metrics().stalls == 1
    executor.process_watermark("right", 5)
    assert executor.metrics().stalls == 1
    executor.process_watermark("right", 5)
    executor.process_watermark("left", 12)
    assert (executor.metrics().stalls, executor.metrics().epochs) == (2, 3)


def test_skipped_are_the_nodes_that_a_run_leaves_alone() -> None:
    executor = counted()
    executor.process_event("in", 1)
    assert executor.metrics().skipped == 0
    executor.process_event("in", 2)  # "odd" is visited and sends no record
    assert executor.metrics().skipped == 0
    executor.inject_events("join", [1])
    executor.run()
    assert executor.metrics().skipped == 3
    executor.run()
    assert executor.metrics().skipped == 3 + 5
    executor.checkpoint()
    executor.metrics()
    assert executor.metrics().skipped == 3 + 5


def test_skipped_is_counted_when_an_operator_raises_and_never_less_than_nothing() -> None:
    executor = line(lambda n: 1 // n, None)
    with pytest.raises(OperatorError):
        executor.process_event("in", 0)
    assert executor.metrics().skipped == 2
    executor = line(partial(FlatMap, fn=range))
    executor.process_events("in", [5] * 100)  # visits the sink several times
    assert executor.metrics().skipped == 0


def test_time_in_timers_is_time_in_the_node_and_is_measured_only_if_it_is_asked_for() -> None:
    for measured in (True, False):
        executor = line(Alarm(), measured=measured)
        executor.process_event("in", at(1, 1))
        executor.reset_metrics()
        executor.process_watermark("in", 100)
        node = executor.node_metrics()["a"]
        assert (node.rows_in, node.rows_out, node.calls, node.time_ns > 0) == (0, 1, 0, measured)


def test_reset_sets_all_figures_to_nothing_and_they_go_on_from_there() -> None:
    executor = counted()
    executor.process_watermark("in", 1)
    executor.process_events("in", [1, 2, 3])
    executor.run()
    executor.reset_metrics()
    assert set(astuple(executor.metrics())) == {0}
    assert {figure for node in executor.node_metrics().values() for figure in astuple(node)} == {0}
    executor.process_event("in", 1)
    executor.process_watermark("in", 2)
    assert executor.metrics() == DagMetrics(processed=7, routed=5, fanned_out=1, stalls=1, skipped=0, epochs=1)
    assert executor.node_metrics()["odd"].rows_out == 1
