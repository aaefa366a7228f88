"""A failed restore is a `RestoreFailed` that names node and reason, and the executor is unchanged."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, AbsBarrier
from malstrom_py.errors import DagError, NodeNotFound, RestoreFailed
from malstrom_py.operators.aggregate import Count, Sum
from malstrom_py.operators.branching import Union
from malstrom_py.testing import CapturingPersistenceBackend
from tests.unit.dag.graphs import Alarm, at, joined, line, total


def used() -> DagExecutor:
    """Return in -> a (a running sum) -> b -> out, with state, a watermark, a queued event and an output not taken."""
    executor = line(total, None)
    executor.process_events("in", [at(1, 5, "k"), at(2, 6, "k")])
    executor.process_watermark("in", 4)
    executor.inject_events("b", [7])
    return executor


def refused(executor: DagExecutor, snapshot: Any, node: str, reason: str) -> None:
    before = executor.checkpoint()
    figures = executor.metrics()
    with pytest.raises(RestoreFailed, match=reason) as caught:
        executor.restore(snapshot)
    assert caught.value.node == node
    assert caught.value.reason in str(caught.value)
    assert str(caught.value).endswith("The executor is unchanged.")
    assert executor.checkpoint() == before
    assert executor.metrics() == figures


def graph(*nodes: str, end: str = "out", source: str = "in") -> DagBuilder:
    builder, previous = DagBuilder().source(source), source
    for name in nodes:
        builder.operator(name).connect(previous, name)
        previous = name
    return builder.sink_for(previous, end)


def other_types() -> DagBuilder:
    """Return the nodes of `used`, with other types."""
    builder = DagBuilder().source("in").source("a").sink_for("in", "b").operator("out")
    return builder.connect("a", "out").connect("out", "b")


@pytest.mark.parametrize(
    ("builder", "node", "reason"),
    [
        (graph("a"), "b", "node 'b' cannot be restored: the checkpoint has no such node"),
        (
            graph("a", "b", "c"),
            "c",
            "node 'c' cannot be restored: the checkpoint has this node, but the graph does not",
        ),
        (graph("a", "c"), "b", "node 'b' cannot be restored: the checkpoint has no such node"),
        (graph("a", "b", end="end"), "out", "node 'out' cannot be restored: the checkpoint has no such node"),
        (graph("a", "b", source="s"), "in", "node 'in' cannot be restored: the checkpoint has no such node"),
        (graph("b", "a"), "b", "node 'b' cannot be restored: it read 'in' and now reads 'a'"),
        (graph("a", "b").sink_for("a", "c"), "c", "node 'c' cannot be restored: the checkpoint has this node"),
        (graph("a", "b").connect("a", "out"), "out", "node 'out' cannot .*: it read 'b', 'a' and now reads 'b'"),
        (other_types(), "a", "node 'a' cannot be restored: it was of type source and is now of type operator"),
    ],
)
def test_a_checkpoint_of_another_graph_is_refused(builder: DagBuilder, node: str, reason: str) -> None:
    refused(used(), DagExecutor.from_dag(builder.build()).checkpoint(), node, reason)


@pytest.mark.parametrize(
    ("registered", "label"),
    [(None, "missing"), (lambda n: n, "function"), (lambda message, output: None, "stateless"), (Count, "Count")],
)
def test_state_is_not_given_to_an_operator_of_another_kind(registered: Any, label: str) -> None:
    executor = line(registered, None)
    refused(executor, used().checkpoint(), "a", f"its state is of a stateful, but its operator is now {label}")


def test_state_of_one_step_is_not_given_to_another() -> None:
    counting, summing = line(Count), line(partial(Sum, by=None))
    counting.process_event("in", 1)
    refused(summing, counting.checkpoint(), "a", "its state is of a Count, but its operator is now Sum")


def test_an_operator_without_state_may_be_changed_for_another() -> None:
    executor = line(lambda n: n, None)
    executor.process_event("in", 1)
    changed = line(lambda message, output: output.emit(message.key, message.value + 1), total)
    changed.restore(executor.checkpoint())
    changed.process_event("in", 1)
    assert changed.take_sink_outputs("out") == [1, 2]


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_damaged_bytes_are_refused_wherever_the_damage_is(place: float, flip: int) -> None:
    executor = used()
    damaged = bytearray(executor.checkpoint())
    damaged[int(place * len(damaged))] ^= flip
    refused(executor, bytes(damaged), "", "damaged|not a checkpoint of a DAG of this version")


@given(length=st.floats(0, 1, exclude_max=True))
def test_bytes_that_end_too_soon_are_refused(length: float) -> None:
    whole = used().checkpoint()
    refused(used(), whole[: int(length * len(whole))], "", "damaged|not a checkpoint")


@pytest.mark.parametrize("snapshot", [b"", b"malstrom", b"\x00" * 100, "text", None, 7, [b"x"], bytearray(b"x")])
def test_what_is_no_checkpoint_is_refused(snapshot: Any) -> None:
    refused(used(), snapshot, "", "checkpoint")


def test_one_damaged_node_of_a_barrier_is_named() -> None:
    executor = used()
    images = executor.process_checkpoint_barrier(AbsBarrier("x", CapturingPersistenceBackend()))
    refused(executor, {**images, "b": images["b"][:-1]}, "b", "node 'b' cannot be restored: the checkpoint is damaged")
    refused(executor, {**images, "b": "text"}, "b", "node 'b' cannot be restored: a checkpoint must be bytes, got str")
    refused(executor, {**images, "b": images["a"]}, "b", "node 'b' cannot be restored: it read 'in' and now reads 'a'")
    refused(executor, {**images, "b": executor.checkpoint()}, "b", "made by another version")
    refused(executor, {name: images[name] for name in images if name != "b"}, "b", "has no such node")
    refused(executor, images["b"], "", "the graph cannot be restored: these bytes are not a checkpoint")
    executor.restore(images)


def test_an_epoch_that_an_operator_does_not_bear_fails_the_restore() -> None:
    class Touchy(Union):
        def on_epoch(self, epoch: Any, out: Any) -> None:
            if touchy:
                raise ValueError("secret")

    touchy: list[int] = []
    executor = line(Touchy)
    executor.process_watermark("in", 5)
    touchy.append(1)
    refused(executor, executor.checkpoint(), "a", "node 'a' cannot be restored: its operator raised ValueError")


def test_watermarks_alone_are_restored_as_if_they_came_now() -> None:
    executor = joined(Alarm())
    executor.process_watermark("left", 20)
    executor.process_watermark("right", 12)
    marks = executor.checkpoint_watermarks()
    assert marks == {"left": 20, "right": 12, "join": 12, "out": 12}
    other = joined(Alarm())
    other.process_event("left", at("due", 2))
    other.restore_watermarks(marks)
    assert other.checkpoint_watermarks() == marks
    assert other.take_sink_outputs("out", messages=True) == [at("due", 12)]
    other.process_watermark("right", 25)
    assert other.watermark("join") == 20


def test_watermarks_that_are_restored_never_go_back() -> None:
    executor = joined()
    executor.process_watermark("left", 30)
    executor.restore_watermarks({"left": 20, "right": 10})
    assert executor.checkpoint_watermarks() == {"left": 30, "right": 10, "join": 10, "out": 10}
    executor.restore_watermarks({})
    executor.restore_watermarks({"join": 15, "left": MAX_EPOCH})
    assert executor.checkpoint_watermarks() == {"left": MAX_EPOCH, "right": 10, "join": 15, "out": 15}


def test_no_watermarks_yet_are_none() -> None:
    assert joined().checkpoint_watermarks() == {}


@pytest.mark.parametrize(
    ("marks", "node", "reason"),
    [
        ({"left": 5, "nowhere": 5}, "nowhere", "the graph has no such node"),
        ({"left": 5, "out": "5"}, "out", "must be an int in the stream's unit, got str"),
        ({"left": 5, "out": MIN_EPOCH}, "out", "must be an int64 above"),
    ],
)
def test_watermarks_that_cannot_be_restored_are_told_and_none_is(marks: Any, node: str, reason: str) -> None:
    executor = joined()
    with pytest.raises(RestoreFailed, match=f"node '{node}' cannot be restored: .*{reason}") as caught:
        executor.restore_watermarks(marks)
    assert caught.value.node == node
    assert executor.checkpoint_watermarks() == {}


def test_a_failure_to_restore_is_an_error_of_the_dag_and_no_missing_node() -> None:
    assert issubclass(RestoreFailed, DagError)
    assert not issubclass(RestoreFailed, NodeNotFound)
