"""A watermark whose hook raised is not lost: the next call continues with it, also after a restore."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.logic import KeyedLogic, Output
from tests.unit.dag.graphs import Alarm, at, joined, line

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
