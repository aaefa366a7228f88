"""`DagExecutor`: the kinds of operators of a node: outputs, side outputs, dead letters, errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage, DeadLetter
from malstrom_py.errors import DagError, OperatorError, PlanError
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import OnError, Operator, Outlet, StepContext
from malstrom_py.operators.branching import Split
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.operators.logic import Output
from malstrom_py.operators.stateless import Filter, FlatMap
from tests.unit.dag.graphs import at, line, total


@pytest.mark.parametrize("node", ["in", "out"])
def test_an_operator_for_a_source_or_a_sink_is_refused(node: str) -> None:
    with pytest.raises(PlanError, match=f"'{node}' is a (source|sink): operators are registered for operator nodes"):
        line(None).register_operator(node, str)


def test_an_operator_is_registered_once() -> None:
    executor = line(total)
    with pytest.raises(PlanError, match=r"node 'a' has an operator already \(stateful\)"):
        executor.register_operator("a", str)


def test_an_operator_is_registered_before_the_first_event_but_figures_may_be_asked_for() -> None:
    executor = line(None, None)
    executor.metrics()
    assert executor.take_all_sink_outputs() == {}
    executor.register_operator("a", lambda n: n + 1)
    executor.process_event("in", 1)
    with pytest.raises(PlanError, match="node 'b': register operators before the first event"):
        executor.register_operator("b", str)
    assert executor.take_sink_outputs("out") == [2]


def test_steps_of_jobs_run_as_they_are() -> None:
    executor = line(
        partial(FlatMap, fn=str.split),
        partial(KeyBy, fn=lambda word: word[0]),
        partial(Count),
        partial(Filter, predicate=lambda count: count > 1),
    )
    executor.process_event("in", "ant bee asp")
    executor.process_event("in", "bat cow")
    assert executor.take_sink_outputs("out", messages=True) == [at(2, None, "a"), at(2, None, "b")]


def test_the_ports_of_a_step_are_its_outputs_in_order() -> None:
    builder = DagBuilder().source("in").operator("size", outputs=["1", "2"]).connect("in", "size")
    builder.sink_for("size:2", "large").sink_for("size", "small").sink_for("size:1", "middle")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("size", partial(Split, n=3, fn=lambda n: [min(2, n // 10)]))
    executor.process_events("in", [1, 15, 99, 2])
    assert executor.take_all_sink_outputs() == {"small": [1, 2], "middle": [15], "large": [99]}


def test_a_logic_sends_to_side_outputs_by_name() -> None:
    def sort(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        output.side("odd" if message.value % 2 else "even").send(message)
        output.emit(message.key, -message.value, message.timestamp)

    builder = DagBuilder().source("in").operator("sort").connect("in", "sort").operator("double")
    builder.connect("sort:even", "double").sink_for("double", "evens").sink_for("sort", "odds", output="odd")
    executor = DagExecutor.from_dag(builder.sink_for("sort", "all").build())
    executor.register_operator("sort", sort)
    executor.register_operator("double", lambda n: n * 2)
    executor.process_events("in", [1, 2, 3, 4])
    assert executor.take_all_sink_outputs() == {"evens": [4, 8], "odds": [1, 3], "all": [-1, -2, -3, -4]}
    executor.process_watermark("in", 5)
    assert executor.watermark("evens") == executor.watermark("odds") == 5


def test_a_side_output_that_no_edge_and_no_declaration_names_is_an_error() -> None:
    def aside(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        output.side("rejectd").send(message)

    builder = DagBuilder().source("in").operator("a").connect("in", "a").sink_for("a:rejected", "out")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("a", aside, on_error="skip")
    with pytest.raises(OperatorError, match=r"'a' sent .* side output 'rejectd', but its side outputs are 'rejected'"):
        executor.process_event("in", 1)


def test_a_side_output_that_is_declared_and_not_read_is_dropped_and_counted() -> None:
    def aside(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        output.side("odd").send(message)

    builder = DagBuilder().source("in").operator("a", outputs=["odd"]).connect("in", "a").sink_for("a", "out")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("a", aside)
    executor.process_event("in", 1)
    assert executor.take_all_sink_outputs() == {}
    assert executor.node_metrics()["a"].rows_out == 1


def parsing(on_error: OnError) -> DagExecutor:
    """Return the graph in -> parse, which calls int, -> out; its dead letters -> seen, which has state, -> letters."""
    builder = DagBuilder().source("in").operator("parse").connect("in", "parse").sink_for("parse", "out")
    builder.operator("seen").connect("parse:dead_letters", "seen").sink_for("seen", "letters")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("parse", int, on_error=on_error)
    executor.register_operator("seen", last_of_key)
    return executor


def test_records_that_fail_are_skipped_and_counted() -> None:
    executor = parsing("skip")
    executor.process_events("in", ["1", "two", "3"])
    assert executor.take_all_sink_outputs() == {"out": [1, 3]}
    assert executor.node_metrics()["parse"].skipped == 1


def test_records_that_fail_go_to_dead_letters_with_their_keys() -> None:
    executor = parsing("dead-letter")
    executor.process_events("in", [at("1"), at("two", 5, "k"), at("3")])
    assert executor.take_sink_outputs("out") == [1, 3]
    assert executor.take_sink_outputs("letters", messages=True) == [at("two", None, "k")]
    assert executor.node_metrics()["parse"].dead_letters == 1


def last_of_key(message: DataMessage[Any, DeadLetter], key_state: None, output: Output[Any, Any]) -> None:
    """A stateful logic on dead letters, which have the key of their record."""
    output.emit(message.key, message.value.value)


def test_dead_letters_that_nothing_reads_are_counted() -> None:
    executor = DagExecutor.from_dag(
        DagBuilder().source("in").operator("a").connect("in", "a").sink_for("a", "out").build()
    )
    executor.register_operator("a", int, on_error="dead-letter")
    executor.process_event("in", "x")
    assert executor.node_metrics()["a"].dead_letters == 1


def test_state_is_kept_by_key_and_default_makes_the_first() -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    executor.register_operator("a", grow, default=list)
    executor.process_events("in", [at(1, None, "x"), at(2, None, "y"), at(3, None, "x"), 4, 5])
    assert executor.take_sink_outputs("out") == [[1], [2], [1, 3], [4], [4, 5]]


def grow(message: DataMessage[Any, int], state: list[int], output: Output[Any, list[int]]) -> list[int]:
    output.emit(message.key, [*state, message.value])
    return [*state, message.value]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (["k"], "a key of type list cannot be hashed"),
        (float("nan"), "a key is NaN"),
        (("a", []), "a key of type tuple cannot be hashed"),
    ],
)
def test_a_key_that_would_be_found_nowhere_is_told_when_its_event_is_handed_in(key: Any, why: str) -> None:
    event = at(1, None, key)
    handed_in: list[Callable[[DagExecutor], None]] = [
        lambda executor: executor.process_event("in", event),
        lambda executor: executor.process_event("in", [at(1, None, "k"), event]),
        lambda executor: executor.process_events("in", ["k", event]),
        lambda executor: executor.process_event("in", Batch([1], keys=[key])),
        lambda executor: executor.inject_events("a", [event]),
    ]
    for hand_in in handed_in:
        executor = line(total)
        with pytest.raises(DagError, match=f"node '(in|a)': {why}") as caught:
            hand_in(executor)
        assert "key_by" not in str(caught.value)
        executor.run()
        assert executor.take_all_sink_outputs() == {}


def test_outputs_keep_the_key_of_their_input() -> None:
    def rename(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        output.emit("other", 1)

    with pytest.raises(OperatorError, match="'a' sent a record, made state or set a timer under key 'other'"):
        line(rename).process_event("in", 1)


def test_an_operator_of_ones_own_is_made_by_a_factory() -> None:
    class Twice(Operator):
        def on_batch(self, batch: Batch, out: Outlet) -> None:
            out.send(batch)
            out.send(batch)

    contexts: list[StepContext] = []

    def factory(context: StepContext) -> Operator:
        contexts.append(context)
        return Twice(context)

    executor = DagExecutor.from_dag(line(None, None).dag)
    executor.register_operator("a", Twice)
    executor.register_operator("b", factory, kind="factory")
    executor.process_event("in", 1)
    assert executor.take_sink_outputs("out") == [1] * 4
    assert [context.step for context in contexts] == ["b"]


def test_a_factory_that_gives_no_operator_is_told_at_the_first_event() -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    executor.register_operator("a", lambda context: "nothing", kind="factory")
    with pytest.raises(PlanError, match="node 'a': the factory returned str, which is not an Operator"):
        executor.process_event("in", 1)
