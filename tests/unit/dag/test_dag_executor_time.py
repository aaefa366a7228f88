"""`DagExecutor` and event time: watermarks and timers per node, late records, schedules, and what raises on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from malstrom_py.clock import Clock
from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.errors import DagError, OperatorError
from malstrom_py.operators.branching import Union
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.testing import VirtualClock
from tests.unit.dag.graphs import Alarm, at, joined, line, total


class Epochs(KeyedLogic[Any, Any, Any, Any]):
    """Forwards its records, and sends the epochs that it receives."""

    def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        output.send(message)
        return "seen"

    def on_epoch(self, epoch: Epoch, state: Any, output: Output[Any, Any]) -> None:
        for key in state:
            output.emit(key, f"epoch {epoch.time}", epoch.time if epoch.time < MAX_EPOCH else MAX_EPOCH - 1)


def test_a_watermark_never_goes_back_and_is_told_once() -> None:
    executor = line(Epochs())
    executor.process_event("in", at("one", 50))
    for time in (10, 10, 5, -3, 11):
        executor.process_watermark("in", time)
    assert executor.take_sink_outputs("out") == ["one", "epoch 10", "epoch 11"]
    assert executor.metrics().epochs == 2


@pytest.mark.parametrize("time", ["7", 7.0, None, True, MIN_EPOCH, MAX_EPOCH + 1])
def test_a_watermark_that_is_no_time_is_refused(time: Any) -> None:
    executor = line(None)
    for call in (partial(executor.process_watermark, "in"), executor.fire_timers):
        with pytest.raises(DagError, match="must be an int"):
            call(time)
    executor.process_watermark("in", np.int64(7))  # type: ignore[arg-type]  # it has __index__
    assert executor.watermark("out") == 7


def test_fire_timers_without_a_watermark_fires_nothing() -> None:
    executor = joined(Alarm())
    executor.process_event("left", at("a", 5))
    executor.fire_timers(1000)
    executor.process_watermark("left", 1000)
    executor.fire_timers(1000)
    assert executor.take_sink_outputs("out") == []


class Overdue(KeyedLogic[Any, Any, Any, Any]):
    """Sets timers for times in the past, given by the value; raises once when the first bad one fires."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        for time in message.value:
            output.set_timer(message.key, time)
        return "set"

    def on_timer(self, key: Any, time: int, key_state: Any, output: Output[Any, Any]) -> Any:
        if time == self.bad:
            raise ValueError
        output.emit(key, time, time + 100)
        return key_state


def test_fire_timers_fires_what_one_that_raised_has_left_up_to_the_time_and_the_nodes_own_watermark() -> None:
    executor = joined(Overdue(1))
    executor.process_watermark("left", 7)
    executor.process_watermark("right", 6)
    with pytest.raises(OperatorError, match="step 'join' failed for key 'x': ValueError"):
        executor.process_event("left", at([1, 2, 3, 5, 8], 50, "x"))
    executor.fire_timers(1)
    assert executor.take_sink_outputs("out") == []
    executor.fire_timers(3)
    assert executor.take_sink_outputs("out") == [2, 3]
    executor.fire_timers(1000)
    assert executor.take_sink_outputs("out", messages=True) == [at(5, 105, "x")]
    executor.process_watermark("right", 8)
    executor.process_watermark("left", 8)
    assert executor.take_sink_outputs("out") == [8]


def test_what_fire_timers_sends_reaches_timers_further_down_in_the_same_call() -> None:
    executor = line(Overdue(1), Alarm(-200))
    executor.process_watermark("in", 10)
    with pytest.raises(OperatorError):
        executor.process_event("in", at([1, 2], 50, "x"))
    with pytest.raises(OperatorError, match="step 'b' sent a record at -98"):  # so the timer of "b" has fired
        executor.fire_timers(10)


def late_graph() -> DagExecutor:
    builder = (
        DagBuilder().source("in").operator("a").connect("in", "a").sink_for("a", "out").sink_for("in:late", "late")
    )
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("a", Epochs())
    return executor


def test_late_events_go_to_the_output_of_that_name_record_by_record_and_it_ends_with_the_stream() -> None:
    executor = late_graph()
    executor.process_watermark("in", 10)
    executor.process_events("in", [at(1, 11), at(2, 10), at(3), at(4, 9), at(5, 12)])
    taken = executor.take_all_sink_outputs(messages=True)
    assert taken == {"out": [at(1, 11), at(3), at(5, 12)], "late": [at(2, 10), at(4, 9)]}
    assert (executor.watermark("out"), executor.watermark("late")) == (10, None)
    metrics = executor.node_metrics()["in"]
    assert (metrics.rows_in, metrics.late) == (5, 2)
    executor.process_watermark("in", MAX_EPOCH)
    executor.take_all_sink_outputs()
    executor.process_event("in", at("timed", 5))
    executor.process_event("in", "untimed")
    assert executor.take_all_sink_outputs() == {"late": ["timed", "untimed"]}
    assert executor.watermark("late") == MAX_EPOCH


def test_on_schedule_is_called_when_it_is_asked_for_with_the_clock() -> None:
    class Ticks(Union):
        scheduled = True

        def on_schedule(self, out: Any, clock: Clock) -> None:
            clocks.append(clock)
            out.send(Batch([10], keys=["k"]))

    clocks: list[Clock] = []
    clock = VirtualClock()
    executor = line(Ticks, total, clock=clock)
    executor.process_event("in", at(1, None, "k"))
    assert (executor.take_sink_outputs("out"), clocks) == ([1], [])
    executor.schedule()
    executor.schedule()
    assert (executor.take_sink_outputs("out"), clocks) == ([11, 21], [clock, clock])


def test_an_event_behind_a_watermark_that_is_still_queued_is_late() -> None:
    builder = DagBuilder().source("one").operator("bad").connect("one", "bad").sink_for("bad", "a")
    builder.source("two").sink_for("two", "b").sink_for("two:late", "late")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("bad", lambda n: 1 // n)
    executor.inject_events("bad", [0])
    executor.inject_events("bad", [0])
    executor.inject_events("bad", [0])
    with pytest.raises(OperatorError):
        executor.process_watermark("two", 10)
    with pytest.raises(OperatorError):
        executor.process_event("two", at("late", 9))
    with pytest.raises(OperatorError):
        executor.process_watermark("two", 10)
    executor.run()
    assert executor.take_all_sink_outputs() == {"late": ["late"]}
    assert executor.metrics().epochs == 1


def test_a_generator_that_fails_fails_every_call_until_it_does_not() -> None:
    class Broken:
        def tracker(self, unit: Any) -> Any:
            if broken:
                raise ValueError
            return limit_out_of_orderness(0).tracker(unit)

    broken = [1]
    executor = line(partial(GenerateEpochs, generator=Broken(), unit="ms"))
    for _ in range(2):
        with pytest.raises(OperatorError, match="step 'a' failed: ValueError"):
            executor.process_event("in", at(1, 5))
    broken.clear()
    executor.process_event("in", at(1, 5))
    executor.process_watermark("in", MAX_EPOCH)
    assert (executor.take_sink_outputs("out"), executor.watermark("out")) == ([1], MAX_EPOCH)


# A watermark whose hook raised is not lost: the next call continues with it, also after a restore.

GO_ON: list[Callable[[DagExecutor], Any]] = [
    lambda executor: executor.run(),
    lambda executor: executor.process_watermark("in", MAX_EPOCH),
    lambda executor: executor.fire_timers(MAX_EPOCH),
    lambda executor: executor.schedule(),
]


class Fails(KeyedLogic[Any, Any, Any, Any]):
    """Forwards records; its on_epoch raises ``times`` times, and then counts."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.told: list[int] = []

    def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        output.send(message)
        return None

    def on_epoch(self, epoch: Epoch, state: Any, output: Output[Any, Any]) -> None:
        if self.times:
            self.times -= 1
            raise ValueError
        self.told.append(epoch.time)


@pytest.mark.parametrize("go_on", GO_ON)
def test_a_watermark_whose_on_epoch_raised_reaches_all_behind_it_with_the_next_call(
    go_on: Callable[[DagExecutor], Any],
) -> None:
    executor = line(Fails(), partial(CollectStep, size=9, every_s=None), Fails(0))
    executor.process_event("in", at(1, 5, "k"))
    with pytest.raises(OperatorError, match="step 'a' failed: ValueError"):
        executor.process_watermark("in", MAX_EPOCH)
    assert executor.checkpoint_watermarks() == {"in": MAX_EPOCH}
    go_on(executor)
    assert executor.checkpoint_watermarks() == dict.fromkeys(("in", "a", "b", "c", "out"), MAX_EPOCH)
    assert executor.take_sink_outputs("out") == [[1]]


@pytest.mark.parametrize("go_on", GO_ON)
def test_so_does_one_behind_a_timer_that_raised_and_the_other_timers_ring(go_on: Callable[[DagExecutor], Any]) -> None:
    executor = line(Alarm(), None)
    executor.process_events("in", [at("bad", 1, "x"), at("good", 2, "y")])
    with pytest.raises(OperatorError, match="failed for key 'x'"):
        executor.process_watermark("in", MAX_EPOCH)
    assert executor.take_sink_outputs("out") == []
    go_on(executor)
    assert executor.take_sink_outputs("out", messages=True) == [at("good", 12, "y")]
    assert executor.watermark("out") == MAX_EPOCH


def test_it_comes_again_as_long_as_its_hook_raises_and_what_is_behind_it_waits() -> None:
    logic = Fails(3)
    executor = line(logic)
    calls: list[Callable[[], None]] = [
        lambda: executor.process_watermark("in", 7),
        lambda: executor.process_event("in", at("new", 9)),
        executor.run,
    ]
    for call in calls:
        with pytest.raises(OperatorError):
            call()
        assert executor.watermark("a") is None
        assert executor.take_sink_outputs("out") == []
    executor.process_watermark("in", 8)
    assert logic.told == [7, 8]
    assert executor.take_sink_outputs("out") == ["new"]
    assert executor.watermark("out") == 8


def test_it_is_in_a_checkpoint_and_comes_again_behind_a_restore() -> None:
    executor = joined(Fails())
    executor.process_watermark("left", 5)
    with pytest.raises(OperatorError):
        executor.process_watermark("right", 3)
    fixed = Fails(0)
    fresh = joined(fixed)
    fresh.restore(executor.checkpoint())
    assert fresh.checkpoint_watermarks() == executor.checkpoint_watermarks() == {"left": 5, "right": 3}
    fresh.run()
    assert (fixed.told, fresh.watermark("join"), fresh.watermark("out")) == ([3], 3, 3)
    fresh.process_watermark("right", 4)
    fresh.process_watermark("right", 9)
    assert (fixed.told, fresh.watermark("out")) == ([3, 4, 5], 5)


def test_the_watermark_of_a_join_stays_what_it_was_before_the_one_that_raised() -> None:
    logic = Fails(0)
    executor = joined(logic)
    executor.process_watermark("left", 5)
    executor.process_watermark("right", 3)
    logic.times = 1
    with pytest.raises(OperatorError):
        executor.process_watermark("right", 9)
    assert executor.checkpoint_watermarks() == {"left": 5, "right": 9, "join": 3, "out": 3}
    executor.process_watermark("left", 7)
    assert (logic.told, executor.watermark("out")) == ([3, 5, 7], 7)


def late_at(node: str, logic: Any) -> DagExecutor:
    builder = DagBuilder().source("in").operator("a").operator("b").connect("in", "a").connect("a", "b")
    builder.sink_for("b", "out").sink_for(f"{node}:late", "late")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("a", logic)
    return executor


@pytest.mark.parametrize("restored", [False, True])
def test_t1_what_is_injected_behind_a_queued_watermark_is_late_by_it(restored: bool) -> None:
    executor = late_at("a", Fails())
    with pytest.raises(OperatorError):
        executor.process_watermark("in", 10)
    if restored:
        fresh = late_at("a", Fails(0))
        fresh.restore(executor.checkpoint())
        executor = fresh
    executor.inject_events("a", [at("late", 10), at("on time", 11)])
    executor.inject_events("b", [at("not late at b", 10)])
    executor.run()
    assert executor.take_all_sink_outputs() == {"out": ["not late at b", "on time"], "late": ["late"]}


def two_readers() -> DagExecutor:
    builder = DagBuilder().source("in").operator("bad").operator("b").connect("in", "bad").connect("in", "b")
    builder.sink_for("bad", "inverse").sink_for("b", "out").sink_for("b:late", "late")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("bad", lambda n: 1 // n)
    return executor


@pytest.mark.parametrize("restored", [False, True])
def test_t1_so_is_what_is_injected_at_a_node_that_one_has_not_reached_for_another_raised(restored: bool) -> None:
    executor = two_readers()
    executor.inject_events("bad", [0])
    with pytest.raises(OperatorError):
        executor.process_watermark("in", 10)
    if restored:
        fresh = two_readers()
        fresh.restore(executor.checkpoint())
        executor = fresh
    assert executor.watermark("b") is None
    executor.inject_events("b", [at("late", 10), at("on time", 11)])
    executor.run()
    assert executor.take_all_sink_outputs() == {"out": ["on time"], "late": ["late"]}
