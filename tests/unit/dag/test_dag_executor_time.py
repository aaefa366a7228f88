"""`DagExecutor` and event time: watermarks and timers per node, late records, schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.clock import Clock
from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, Epoch
from malstrom_py.errors import DagError, OperatorError
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.testing import VirtualClock
from tests.unit.dag.graphs import Alarm, at, joined, line


class Epochs(KeyedLogic[Any, Any, Any, Any]):
    """Forwards its records, and sends the epochs that it receives."""

    def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        output.send(message)
        return "seen"

    def on_epoch(self, epoch: Epoch, state: Any, output: Output[Any, Any]) -> None:
        for key in state:
            output.emit(key, f"epoch {epoch.time}", epoch.time if epoch.time < MAX_EPOCH else MAX_EPOCH - 1)


def test_a_watermark_reaches_every_node_behind_its_source() -> None:
    executor = line(None, Epochs())
    executor.process_event("in", at("one", 5))
    executor.process_watermark("in", 7)
    assert executor.take_sink_outputs("out", messages=True) == [at("one", 5), at("epoch 7", 7)]
    assert executor.checkpoint_watermarks() == {"in": 7, "a": 7, "b": 7, "out": 7}


def test_the_watermark_of_a_node_is_the_minimum_of_its_inputs_and_one_without_any_holds_it_back() -> None:
    executor = joined()
    seen = []
    for source, time in [("left", 10), ("right", 4), ("right", 20), ("left", 15)]:
        executor.process_watermark(source, time)
        seen.append(executor.watermark("join"))
    assert seen == [None, 4, 10, 15]
    assert (executor.watermark("left"), executor.watermark("right"), executor.watermark("out")) == (15, 20, 15)


def test_a_watermark_never_goes_back_and_is_told_once() -> None:
    executor = line(Epochs())
    executor.process_event("in", at("one", 50))
    for time in (10, 10, 5, -3, 11):
        executor.process_watermark("in", time)
    assert executor.take_sink_outputs("out") == ["one", "epoch 10", "epoch 11"]
    assert executor.metrics().epochs == 2


@given(marks=st.lists(st.tuples(st.sampled_from(["left", "right"]), st.integers(-5, 30) | st.just(MAX_EPOCH))))
def test_watermarks_of_a_join_are_the_running_minimum(marks: list[tuple[str, int]]) -> None:
    executor = joined(Epochs())
    reached = {"left": MIN_EPOCH, "right": MIN_EPOCH}
    for source, time in marks:
        executor.process_watermark(source, time)
        reached[source] = max(reached[source], time)
        least = min(reached.values())
        assert executor.watermark("out") == executor.watermark("join") == (None if least == MIN_EPOCH else least)


@pytest.mark.parametrize("time", ["7", 7.0, None, True, MIN_EPOCH, MAX_EPOCH + 1])
def test_a_watermark_that_is_no_time_is_refused(time: Any) -> None:
    executor = line(None)
    for call in (partial(executor.process_watermark, "in"), executor.fire_timers):
        with pytest.raises(DagError, match="must be an int"):
            call(time)
    executor.process_watermark("in", np.int64(7))  # type: ignore[arg-type]  # it has __index__
    assert executor.watermark("out") == 7


def test_t6_timers_fire_at_the_nodes_own_watermark() -> None:
    executor = joined(Alarm())
    executor.process_event("left", at("a", 5, "k"))
    executor.process_watermark("left", 100)
    assert executor.take_sink_outputs("out") == []
    executor.process_watermark("right", 14)
    assert executor.take_sink_outputs("out") == []
    executor.process_watermark("right", 15)
    assert executor.take_sink_outputs("out", messages=True) == [at("a", 15, "k")]
    executor.process_watermark("right", 90)
    assert executor.take_sink_outputs("out") == []


def test_timers_of_nodes_behind_each_other_fire_in_the_order_of_the_graph() -> None:
    executor = line(Alarm(1), Alarm(2), Alarm(3))
    executor.process_event("in", at("a", 10))
    executor.process_watermark("in", 12)
    assert executor.take_sink_outputs("out") == []
    executor.process_watermark("in", 100)
    assert executor.take_sink_outputs("out", messages=True) == [at("a", 16)]


def test_timers_that_are_due_by_time_then_by_when_they_were_set() -> None:
    executor = line(Alarm())
    executor.process_events("in", [at(n, time, key) for n, (time, key) in enumerate([(3, "b"), (1, "a"), (3, "a")])])
    executor.process_watermark("in", 50)
    assert executor.take_sink_outputs("out", messages=True) == [at(1, 11, "a"), at(0, 13, "b"), at(2, 13, "a")]


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


def test_late_events_go_to_the_output_of_that_name_record_by_record() -> None:
    executor = late_graph()
    executor.process_watermark("in", 10)
    executor.process_events("in", [at(1, 11), at(2, 10), at(3), at(4, 9), at(5, 12)])
    taken = executor.take_all_sink_outputs(messages=True)
    assert taken == {"out": [at(1, 11), at(3), at(5, 12)], "late": [at(2, 10), at(4, 9)]}
    assert (executor.watermark("out"), executor.watermark("late")) == (10, None)
    metrics = executor.node_metrics()["in"]
    assert (metrics.rows_in, metrics.late) == (5, 2)


def test_the_late_output_ends_with_the_stream() -> None:
    executor = late_graph()
    executor.process_watermark("in", MAX_EPOCH)
    executor.process_event("in", at("timed", 5))
    executor.process_event("in", "untimed")
    assert executor.take_all_sink_outputs() == {"late": ["timed", "untimed"]}
    assert executor.watermark("late") == MAX_EPOCH


def test_late_events_that_nothing_reads_are_counted_and_dropped() -> None:
    executor = line(Epochs())
    executor.process_watermark("in", 10)
    executor.process_event("in", at(1, 10))
    assert executor.take_all_sink_outputs() == {}
    assert executor.node_metrics()["in"].late == 1


def test_injected_events_are_late_by_the_watermark_of_their_node() -> None:
    builder = DagBuilder().source("left").source("right").operator("join").connect("left", "join")
    builder.connect("right", "join").sink_for("join", "out").sink_for("join:late", "late")
    executor = DagExecutor.from_dag(builder.build())
    executor.process_watermark("left", 10)
    executor.inject_events("join", [at(1, 5)])
    executor.process_watermark("right", 7)
    executor.inject_events("join", [at(2, 7), at(3, 8)])
    executor.run()
    assert executor.take_all_sink_outputs() == {"out": [1, 3], "late": [2]}
    assert executor.node_metrics()["join"].late == 1


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


def test_records_at_or_below_a_nodes_watermark_cannot_be_sent() -> None:
    def early(message: DataMessage[Any, Any], output: Output[Any, Any]) -> None:
        output.emit(message.key, message.value, message.timestamp - 10 if message.timestamp else None)

    executor = line(early)
    executor.process_watermark("in", 10)
    with pytest.raises(OperatorError, match="'a' sent a record at 5, at or below the epoch 10") as caught:
        executor.process_event("in", at(1, 15))
    assert caught.value.rule == "epoch order"


def test_generate_epochs_works_where_sources_are_its_parts() -> None:
    builder = DagBuilder().source("left").source("right").operator("both").operator("epochs")
    builder.connect("left", "both").connect("right", "both").connect("both", "epochs")
    builder.sink_for("epochs", "on_time").sink_for("epochs", "late", output="late")
    executor = DagExecutor.from_dag(builder.build())
    executor.register_operator("epochs", partial(GenerateEpochs, generator=limit_out_of_orderness(0), unit="ms"))
    for source, time in [("left", 10), ("left", 9), ("right", 5), ("right", 7), ("right", 6)]:
        executor.process_event(source, at(time, time))
    assert executor.take_all_sink_outputs() == {"on_time": [10, 5, 7], "late": [9, 6]}
    assert executor.watermark("on_time") == 6
    executor.process_watermark("right", MAX_EPOCH)
    assert executor.watermark("on_time") == 9
    executor.process_watermark("left", MAX_EPOCH)
    assert (executor.watermark("on_time"), executor.watermark("late")) == (MAX_EPOCH, MAX_EPOCH)


def test_on_schedule_is_called_when_it_is_asked_for_with_the_clock() -> None:
    class Ticks(KeyedLogic[Any, Any, Any, Any]):
        def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
            return message.value

        def on_schedule(self, state: Any, output: Output[Any, Any]) -> None:
            for key, value in state.items():
                output.emit(key, value)

    executor = line(Ticks(), clock=VirtualClock())
    executor.process_event("in", at(1, None, "k"))
    assert executor.take_sink_outputs("out") == []
    executor.schedule()
    executor.schedule()
    assert executor.take_sink_outputs("out", messages=True) == [at(1, None, "k")] * 2


def test_operators_are_told_the_clock_of_the_executor() -> None:
    clocks: list[Clock] = []

    class Recording(GenerateEpochs):
        def on_schedule(self, out: Any, clock: Clock) -> None:
            clocks.append(clock)

        scheduled = True

    clock = VirtualClock()
    executor = line(partial(Recording, generator=limit_out_of_orderness(0), unit="ms"), clock=clock)
    executor.schedule()
    assert clocks == [clock]


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
