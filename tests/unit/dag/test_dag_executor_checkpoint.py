"""Checkpoints are complete and identify nodes by name; a failed restore names node and reason and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, DataMessage, Epoch, StateMessage
from malstrom_py.errors import CodecError, DagError, OperatorError, RestoreFailed
from malstrom_py.operators.aggregate import Count, Fold, Sum
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import Output
from malstrom_py.operators.stateful_map import TtlMap
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
    fresh.process_watermark("right", 18)
    assert fresh.watermark("join") == 12
    assert fresh.take_sink_outputs("out", messages=True) == []  # 3 is below the watermark of "out", where it was late
    fresh.process_watermark("left", 30)
    fresh.process_watermark("right", 30)
    assert fresh.take_sink_outputs("out", messages=True) == [at("state and timer", 15, "k"), at("queued", 30, "k")]


def test_sinks_that_hold_something_hold_it_after_a_restore_in_order() -> None:
    executor = line(None)
    executor.process_events("in", [1, at(2, 5, "k"), at(3, 4), None])
    fresh = line(None)
    fresh.restore(executor.checkpoint())
    fresh.process_event("in", 5)
    assert fresh.take_all_sink_outputs(messages=True) == {"out": [at(1), at(2, 5, "k"), at(3, 4), at(None), at(5)]}
    assert fresh.take_all_sink_outputs() == {}


def test_a_checkpoint_is_bytes_and_changes_nothing() -> None:
    executor = line(total)
    executor.process_event("in", 1)
    executor.inject_events("a", [2])
    first = executor.checkpoint()
    assert type(first) is bytes
    assert executor.checkpoint() == first
    executor.run()
    assert executor.take_sink_outputs("out") == [1, 3]


def test_a_checkpoint_of_an_executor_that_has_done_nothing_is_one_too() -> None:
    executor = line(total)
    executor.restore(line(total).checkpoint())
    executor.process_event("in", 1)
    assert executor.take_sink_outputs("out") == [1]


@pytest.mark.parametrize("key", [None, 1, 1.5, "k", ("a", None), b"x", frozenset({1})])
@pytest.mark.parametrize("value", [1, None, [1, (2, "x")], {"n": {1, 2}}, np.float64(1.5)])
def test_keys_and_values_come_back_as_the_types_they_were(key: Any, value: Any) -> None:
    def keep(message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        if key_state is not None:
            output.emit(message.key, (message.value, key_state))
        return (message.value,)

    executor = line(keep)
    executor.process_event("in", at(value, None, key))
    executor.inject_events("a", [at(value, None, key)])
    fresh = line(keep)
    fresh.restore(executor.checkpoint())
    fresh.run()
    (message,) = fresh.take_sink_outputs("out", messages=True)
    assert (message.key, message.value) == (key, (value, (value,)))
    assert (type(message.key), type(message.value[0]), type(message.value[1][0])) == (
        type(key),
        type(value),
        type(value),
    )


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
    with pytest.raises(OperatorError, match="at or below the epoch 20"):
        fresh.process_event("in", at(1, 25))
    fresh.process_event("in", at(1, 5))
    assert fresh.node_metrics()["in"].late == 1


def test_figures_begin_at_nothing_after_a_restore() -> None:
    executor = line(total)
    executor.process_event("in", 1)
    executor.restore(executor.checkpoint())
    assert executor.metrics().processed == 0
    executor.process_event("in", 1)
    assert executor.metrics().processed == 3


STEPS: list[tuple[Callable[[], Any], list[Any], list[Any]]] = [
    (lambda: Count, [1, 2, 3], [1, 2, 3]),
    (lambda: partial(Sum, by=None), [1, 2, 3], [1, 3, 6]),
    (lambda: partial(Fold, fn=lambda acc, n: [*acc, n], default=list), [1, 2, 3], [[1], [1, 2], [1, 2, 3]]),
    (
        lambda: partial(TtlMap, fn=lambda _, n, seen: ((n, seen), n), ttl=10, default=None),
        [at(1, 1), at(2, 5), at(3, 30)],
        [(1, None), (2, 1), (3, 2)],
    ),
]


@pytest.mark.parametrize(("step", "events", "expected"), STEPS)
def test_steps_of_jobs_go_on_where_they_were(step: Callable[[], Any], events: list[Any], expected: list[Any]) -> None:
    executor = line(step())
    for event in events:
        executor.process_event("in", event)
        fresh = line(step())
        fresh.restore(executor.checkpoint())
        executor = fresh
    assert executor.take_sink_outputs("out") == expected


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


def test_an_operator_of_ones_own_takes_its_state_back_by_restore() -> None:
    executor = line(Counting)
    executor.process_event("in", "a")
    fresh = line(Counting)
    fresh.restore(executor.checkpoint())
    fresh.process_event("in", "b")
    assert fresh.take_sink_outputs("out") == [1, 2]


class Forgetful(Counting):
    restore = None  # type: ignore[assignment]  # it has none


class Refusing(Counting):
    def restore(self, state: bytes) -> None:
        raise ValueError("secret")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Forgetful, "a Forgetful has persisted a state, but it has no method restore"),
        (Refusing, "its operator raised ValueError"),
    ],
)
def test_an_operator_that_does_not_take_its_state_back_is_named(kind: type[Operator], reason: str) -> None:
    executor = line(kind)
    executor.process_event("in", "a")
    with pytest.raises(RestoreFailed, match=f"node 'a' cannot be restored: {reason}") as caught:
        executor.restore(executor.checkpoint())
    assert (caught.value.node, "secret" in str(caught.value)) == ("a", False)


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


def fill(message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
    return Basket((key_state.items if key_state else 0) + 1)


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


def test_the_class_of_a_default_needs_no_registering() -> None:
    executor = DagExecutor.from_dag(line(None).dag)
    executor.register_operator("a", fill_from, default=Basket0)
    executor.process_event("in", 1)
    executor.restore(executor.checkpoint())


@dataclass(frozen=True)
class Basket0:
    items: int = 0


def fill_from(message: DataMessage[Any, Any], key_state: Basket0, output: Output[Any, Any]) -> Basket0:
    return Basket0(key_state.items + 1)


@pytest.mark.parametrize("watermarks", [None, 5, [("in", 5)], {5: 5}])
def test_watermarks_that_are_none_cannot_be_restored(watermarks: Any) -> None:
    with pytest.raises(RestoreFailed, match=r"watermarks must be a mapping|the graph has no such node"):
        line(None).restore_watermarks(watermarks)
