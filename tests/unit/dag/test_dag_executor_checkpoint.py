"""Checkpoints are complete and identify nodes by name; a failed restore names node and reason and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.dag.checkpoint import NodeImage, _sealed, image_of_bytes, image_to_bytes
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Control,
    DataMessage,
    Epoch,
    Interrogate,
    PartFinished,
    PartOpened,
    StateMessage,
)
from malstrom_py.errors import CodecError, DagError, InternalError, OperatorError, RestoreFailed
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import Output
from malstrom_py.testing import CapturingPersistenceBackend
from tests.unit.dag.graphs import Alarm, at, joined, line, total


class Counting(Operator):
    """A user's operator: persists the number of its batches, and restores it with `restore`."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.taken = 0

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.taken += 1
        out.send(batch.with_values([self.taken] * len(batch)))

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, AbsBarrier):
            message.backend.persist(self.context.step, str(self.taken).encode())
        out.forward(message)

    def restore(self, state: bytes) -> None:
        self.taken = int(state)


def test_state_timers_watermarks_queued_events_and_what_nobody_took_are_in_a_checkpoint() -> None:
    executor = joined(Alarm())
    executor.process_event("left", at("state and timer", 5, "k"))
    executor.process_watermark("left", 12)
    executor.process_watermark("right", 11)
    executor.inject_events("join", [at("queued", 20, "k")])
    executor.inject_events("out", [at("untaken", 3, ("k", 1.5))])
    fresh = joined(Alarm())
    fresh.restore(executor.checkpoint())
    assert fresh.checkpoint_watermarks() == {"left": 12, "right": 11, "join": 11, "out": 11}
    assert fresh.metrics().processed == 0  # metrics are not in a checkpoint
    fresh.process_watermark("right", 18)
    assert fresh.watermark("join") == 12
    assert fresh.take_sink_outputs("out", messages=True) == []  # 3 is below the watermark of "out", where it was late
    fresh.process_watermark("left", 30)
    fresh.process_watermark("right", 30)
    assert fresh.take_sink_outputs("out", messages=True) == [at("state and timer", 15, "k"), at("queued", 30, "k")]


def test_columns_that_are_queued_come_back_as_rows() -> None:
    executor = line(None)
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), keys=["a", "b"], time_column=pa.array([5, 6]))
    executor.inject_events("a", batch)
    fresh = line(None)
    fresh.restore(executor.checkpoint())
    fresh.run()
    assert fresh.take_sink_outputs("out", messages=True) == [at({"n": 1}, 5, "a"), at({"n": 2}, 6, "b")]


def test_nodes_are_found_by_name_wherever_they_stand() -> None:
    def build(order: str) -> DagExecutor:
        builder = DagBuilder()
        for name in order:
            (builder.source if name in "xy" else builder.operator)(name)
        reads = [("x", "a"), ("y", "a"), ("a", "b")]
        for upstream, downstream in reads if order == "xyab" else reversed(reads):
            builder.connect(upstream, downstream)
        executor = DagExecutor.from_dag(builder.sink_for("b", "out").build())
        executor.register_operator("b", total)
        return executor

    executor, other = build("xyab"), build("bayx")
    executor.process_event("x", 5)
    executor.process_watermark("x", 10)
    executor.process_watermark("y", 20)
    other.restore(executor.checkpoint())
    assert other.checkpoint_watermarks() == {"x": 10, "y": 20, "a": 10, "b": 10, "out": 10}
    other.process_watermark("x", 15)
    other.process_event("y", 2)
    assert (other.watermark("a"), other.take_sink_outputs("out")) == (15, [5, 7])


def test_no_hook_of_a_logic_is_told_of_an_epoch_again() -> None:
    class Recording(Alarm):
        def on_epoch(self, epoch: Any, state: Any, output: Output[Any, Any]) -> None:
            seen.append((epoch.time, dict(state)))
            output.emit("k", "seen", epoch.time)  # for which "k" must have state

    seen: list[Any] = []
    executor = line(Recording())
    executor.process_event("in", at("kept", 50, "k"))
    executor.process_watermark("in", 20)
    seen.clear()
    fresh = line(Recording())
    fresh.restore(executor.checkpoint())
    assert (seen, fresh.take_sink_outputs("out")) == ([], ["seen"])
    fresh.process_watermark("in", 30)
    assert seen == [(30, {"k": [(60, "kept")]})]
    assert fresh.take_sink_outputs("out", messages=True) == [at("seen", 30, "k")]


def test_an_operator_of_ones_own_is_told_the_epoch_it_had_reached_before_it_has_state() -> None:
    class Recording(Counting):
        def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
            seen.append((epoch.time, self.taken))
            out.send(Batch(["forgotten"], keys=[None], timestamps=[epoch.time]))
            out.forward(epoch)

    seen: list[Any] = []
    executor = line(Recording)
    executor.process_event("in", at("a", 50))
    executor.process_watermark("in", 20)
    fresh = line(Recording)
    fresh.restore(executor.checkpoint())
    assert seen == [(20, 1), (20, 0)]
    assert fresh.take_sink_outputs("out") == executor.take_sink_outputs("out") == [1, "forgotten"]


def test_nothing_may_be_sent_at_or_below_the_epoch_that_was_restored() -> None:
    def early(message: DataMessage[Any, Any], output: Output[Any, Any]) -> None:
        output.emit(message.key, message.value, 15)

    executor = line(early)
    executor.process_watermark("in", 20)
    fresh = line(early)
    fresh.restore(executor.checkpoint())
    with pytest.raises(OperatorError, match="at or below the watermark 20"):
        fresh.process_event("in", at(1, 25))
    fresh.process_event("in", at(1, 5))
    assert fresh.node_metrics()["in"].late == 1


def epochs_graph() -> DagExecutor:
    builder = DagBuilder().source("left").source("right").operator("both").operator("epochs")
    builder.connect("left", "both").connect("right", "both").connect("both", "epochs")
    builder.sink_for("epochs", "on_time").sink_for("epochs", "late", output="late")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("epochs", partial(GenerateEpochs, generator=limit_out_of_orderness(2), unit="ms"))
    return executor


def test_generate_epochs_goes_on_with_the_epoch_of_each_source() -> None:
    def play(executor: DagExecutor, restart: bool) -> Iterator[Any]:
        for source, time in [("left", 10), ("right", 30), ("left", 7), ("right", 27), ("left", 8), ("right", None)]:
            if time is None:
                executor.process_watermark(source, MAX_EPOCH)
            else:
                executor.process_event(source, at((source, time), time))
            if restart:
                snapshot = executor.checkpoint()
                executor = epochs_graph()
                executor.restore(snapshot)
            yield executor.checkpoint_watermarks()
        yield executor.take_all_sink_outputs()

    expected = list(play(epochs_graph(), restart=False))
    assert expected[-1]["late"] == [("left", 7), ("right", 27)]
    assert expected[-2]["on_time"] == 7
    assert list(play(epochs_graph(), restart=True)) == expected


class Forgetful(Counting):
    restore = None  # type: ignore[assignment]  # it has none


class Refusing(Counting):
    def restore(self, state: bytes) -> None:
        raise ValueError("secret")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Forgetful, "a Forgetful has persisted a state, but it has no method restore"),
        (Refusing, "its operator raised ValueError: secret"),
    ],
)
def test_an_operator_that_does_not_take_its_state_back_is_named(kind: type[Operator], reason: str) -> None:
    executor = line(kind)
    executor.process_event("in", "a")
    with pytest.raises(RestoreFailed, match=f"node 'a' cannot be restored: {reason}") as caught:
        executor.restore(executor.checkpoint())
    assert caught.value.node == "a"


class Flushing(Counting):
    """Sends at a barrier the records that it has held back."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.taken += len(batch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        out.send(Batch([self.taken], keys=[None]))
        out.drain()
        self.taken = 0
        super().on_control(message, out)


def test_what_an_operator_sends_at_a_barrier_is_queued_and_in_the_checkpoint() -> None:
    executor = line(Flushing, lambda n: n * 10)
    executor.process_events("in", [1, 2, 3])
    fresh = line(Flushing, lambda n: n * 10)
    fresh.restore(executor.checkpoint())
    for one in (executor, fresh):
        one.run()
        assert one.take_sink_outputs("out") == [30]


def test_a_barrier_has_each_node_persist_upstream_first() -> None:
    builder = DagBuilder().operator("join").source("in").operator("left").operator("right")
    builder.connect("in", "left").connect("in", "right").connect("left", "join").connect("right", "join")
    executor = DagExecutor.from_dag(builder.sink_for("join", "out").build())
    order: list[str] = []

    class Persisting(Counting):
        def on_control(self, message: StateMessage, out: Outlet) -> None:
            order.append(self.context.step)
            super().on_control(message, out)

    for node in ("join", "left", "right"):
        executor.register_operator(node, Persisting)
    executor.process_event("in", 1)
    executor.process_watermark("in", 5)
    backend = CapturingPersistenceBackend()
    images = executor.process_checkpoint_barrier(AbsBarrier("first", backend))
    assert order == ["left", "right", "join"]
    assert backend.calls == list(images) == ["in", "left", "right", "join", "out"]
    assert backend.states == images
    executor.process_event("in", 2)
    executor.restore(backend.states)
    executor.process_event("in", 3)
    assert executor.take_sink_outputs("out") == [1, 2, 3, 4]
    assert executor.checkpoint_watermarks() == dict.fromkeys(images, 5)


def test_a_barrier_is_a_barrier_and_none_persists_if_one_cannot() -> None:
    executor = line(total)
    with pytest.raises(DagError, match="expected an AbsBarrier, got str"):
        executor.process_checkpoint_barrier("now")  # type: ignore[arg-type]  # that is what must fail
    executor.inject_events("a", [at(object(), None, "k")])
    backend = CapturingPersistenceBackend()
    with pytest.raises(CodecError, match="step 'a'"):
        executor.process_checkpoint_barrier(AbsBarrier("first", backend))
    assert backend.calls == []


@dataclass(frozen=True)
class Basket:
    items: int


@dataclass(frozen=True)
class Empty:
    items: int = 0


def fill(message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
    return type(key_state or Basket(0))((key_state.items if key_state else 0) + 1)


def test_a_state_that_cannot_be_stored_names_the_node_and_the_executor_goes_on() -> None:
    executor = line(fill)
    executor.process_event("in", at(1, None, "k"))
    with pytest.raises(CodecError, match=r"step 'a' for key 'k': .*Basket cannot be stored.*not registered"):
        executor.checkpoint()
    assert executor.register_type(Basket) is Basket
    snapshot = executor.checkpoint()
    fresh = line(fill)
    with pytest.raises(RestoreFailed, match=r"node 'a'.*Basket.*not registered"):
        fresh.restore(snapshot)
    fresh.register_type(Basket)
    fresh.restore(snapshot)
    default = DagExecutor.from_dag(executor.dag)
    default.register_operator("a", fill, default=Empty)  # whose class needs no registering
    default.process_event("in", at(1, None, "k"))
    default.restore(default.checkpoint())


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


def test_an_operator_without_state_may_be_changed_for_another() -> None:
    executor = line(lambda n: n, None)
    executor.process_event("in", 1)
    changed = line(lambda message, output: output.emit(message.key, message.value + 1), total)
    changed.restore(executor.checkpoint())
    changed.process_event("in", 1)
    assert changed.take_sink_outputs("out") == [1, 2]


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_bytes_that_are_damaged_or_end_too_soon_are_refused_wherever_that_is(place: float, flip: int) -> None:
    executor = used()
    damaged = bytearray(executor.checkpoint())
    index = int(place * len(damaged))
    refused(executor, bytes(damaged[:index]), "", "damaged|not a checkpoint")
    damaged[index] ^= flip
    refused(executor, bytes(damaged), "", "damaged|not a checkpoint of a DAG of this version")


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


@pytest.mark.parametrize(
    ("marks", "node", "reason"),
    [
        ({"left": 5, "nowhere": 5}, "nowhere", "the graph has no such node"),
        ({"left": 5, "out": "5"}, "out", "must be an int in the stream's unit, got str"),
        ({"left": 5, "out": MIN_EPOCH}, "out", "must be an int64 above"),
        ({5: 5}, "5", "the graph has no such node"),
        *[(marks, "", "watermarks must be a mapping of node -> time") for marks in (None, 5, [("in", 5)])],
    ],
)
def test_watermarks_that_cannot_be_restored_are_told_and_none_is(marks: Any, node: str, reason: str) -> None:
    executor = joined()
    with pytest.raises(RestoreFailed, match=f"(node '{node}'|the graph) cannot be restored: .*{reason}") as caught:
        executor.restore_watermarks(marks)
    assert caught.value.node == node
    assert executor.checkpoint_watermarks() == {}


CODEC = Codec()


def test_all_of_an_image_comes_back() -> None:
    batches = [Batch([1, (2,)], keys=["k", None], timestamps=[5, -6]), Batch([None], keys=[1 << 70], part="p")]
    commands: list[Control] = [Epoch(7), Epoch(8, idle=True), PartOpened("p"), PartFinished("q")]
    queue = list(enumerate([*batches, *commands]))
    image = NodeImage("operator", ["a", "b:late"], "Count", [7, MIN_EPOCH], 7, b"state", queue, batches)
    back = image_of_bytes(image_to_bytes(image, CODEC, "n"), CODEC, "n")
    assert repr(replace(back, queue=[], kept=[])) == repr(replace(image, queue=[], kept=[]))
    assert [index for index, _ in back.queue] == list(range(6))
    assert [message for _, message in back.queue[2:]] == commands
    for kept in (back.kept, [message for _, message in back.queue[:2]]):
        assert [(one.keys, one.values, one.timestamps, one.part) for one in kept if isinstance(one, Batch)] == [
            (one.keys, one.values, one.timestamps, one.part) for one in batches
        ]


def test_a_message_that_cannot_be_queued_in_a_dag_is_our_bug() -> None:
    image = NodeImage("sink", [], "", [], 0, None, [(0, Interrogate(bool))])
    with pytest.raises(InternalError, match="Interrogate"):
        image_to_bytes(image, CODEC, "n")


@pytest.mark.parametrize("value", [7, [1, 2], {"a": 1}, ["operator", [], "", [], 0, None, [], [1]], [[1, 2, 3]]])
def test_what_was_sealed_and_is_no_image_is_told(value: Any) -> None:
    data = _sealed(CODEC.encode_at_rest(value, step="x"))
    with pytest.raises(RestoreFailed, match="node 'n' cannot be restored: these bytes were made by another version"):
        image_of_bytes(data, CODEC, "n")
