"""Metrics: the exact value of each counter, their reset, and the cost by visited nodes."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial

import pytest

from malstrom_py.dag import DagBuilder, DagExecutor, DagMetrics, NodeMetrics
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateless import Filter, FlatMap
from tests.unit.dag.graphs import Alarm, at, joined, line


def diamond() -> DagExecutor:
    builder = DagBuilder().source("in").operator("odd").operator("pass").operator("join")
    builder.connect("in", "odd").connect("in", "pass").connect("odd", "join").connect("pass", "join")
    executor = DagExecutor.from_dag(builder.sink_for("join", "out").build())
    executor.register_operator("odd", partial(Filter, predicate=lambda n: n % 2))
    return executor


def test_processed_adds_up_over_the_nodes_and_routed_counts_a_record_once_however_many_nodes_read_it() -> None:
    executor = diamond()
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
    executor = diamond()
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
    executor = diamond()
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


def test_cost_goes_by_the_nodes_that_are_touched() -> None:
    """The same 10 nodes are visited among 20 and among 10,010 nodes; the others are never called."""
    for others in (10, 10_000):
        builder, previous = DagBuilder().source("in").source("idle"), "in"
        for number in range(8):
            builder.operator(f"n{number}").connect(previous, f"n{number}")
            previous = f"n{number}"
        builder.sink_for(previous, "out")
        for number in range(others):
            builder.sink_for("idle", f"o{number}")
        executor = DagExecutor.from_dag(builder.build())
        for number in range(8):
            executor.register_operator(f"n{number}", lambda n: n + 1)
        for number in range(20):
            executor.process_event("in", number)
        nodes = executor.node_metrics()
        calls = {name: node.calls for name, node in nodes.items() if node.calls}
        assert calls == dict.fromkeys(["in", *(f"n{number}" for number in range(8)), "out"], 20)
        assert sum(node.time_ns > 0 for node in nodes.values()) == 10
        assert executor.metrics().skipped == 20 * (others + 1)
        assert len(executor.take_all_sink_outputs()) == 1
