"""Timers of the runtime's clock: ``output.set_timer(key, time, clock="processing")``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped


class Alarm(mp.KeyedLogic[str, Any, Any, int]):
    """Sets the timers that records ask for, and sends when each rings."""

    def __init__(self, clock: Any = None) -> None:
        self._clock = clock

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, message.value, clock="processing")
        return (key_state or 0) + 1

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.emit(key, (time, key_state) if self._clock is None else (time, round(self._clock.now_s() * 1_000)))
        return key_state


def stepped(logic: Any = None, *, event_time: bool = False) -> tuple[Stepped, VirtualClock]:
    clock = VirtualClock(start_s=100.0)
    factory = partial(StatefulOp, logic=logic or Alarm(), event_time=event_time)
    return Stepped(factory, keyed=True, clock=clock), clock


def at(*times: Any, key: str = "a") -> Batch:
    return Batch(list(times), keys=[key] * len(times))


def tick(step: Stepped, clock: VirtualClock, seconds: float) -> list[Any]:
    clock.advance(seconds)
    before = len(step.values())
    step.call(partial(step.operator.on_schedule, clock=clock))
    return step.values()[before:]


def test_a_time_is_in_ms_a_moment_or_a_span_from_now() -> None:
    step, clock = stepped()
    step.push(at(101_000, datetime(1970, 1, 1, 0, 1, 42, tzinfo=UTC), timedelta(seconds=3)))
    assert tick(step, clock, 0.9) == []
    assert tick(step, clock, 0.1) == [(101_000, 3)]
    assert tick(step, clock, 5.0) == [(102_000, 3), (103_000, 3)]
    assert tick(step, clock, 99.0) == []


@pytest.mark.parametrize("time", ["noon", None, 1.5, datetime(2024, 1, 1), True, 2**63])  # noqa: DTZ001  a naive one
def test_any_other_time_is_an_error_that_names_the_remedy(time: Any) -> None:
    step, _ = stepped()
    with pytest.raises(OperatorError, match=r"'under-test' set a timer of the runtime's clock .* give an int in ms"):
        step.push(at(time))


def test_it_wakes_the_worker_only_while_there_is_one() -> None:
    step, clock = stepped()
    assert step.operator.scheduled
    assert step.operator.dormant
    step.push(at(101_000))
    assert not step.operator.dormant
    tick(step, clock, 2.0)
    assert step.operator.dormant


def test_at_the_end_of_the_stream_all_ring() -> None:
    step, _ = stepped()
    step.push(at(500_000), at(400_000, key="b"), Epoch(MAX_EPOCH))
    assert step.values() == [(400_000, 1), (500_000, 1)]


class Forever(Alarm):
    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.set_timer(key, timedelta(seconds=1), clock="processing")
        return key_state


class Back(Alarm):
    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.set_timer(key, time, clock="processing")
        return key_state


def test_t6_one_that_sets_the_next_for_ever_ends_with_the_stream_and_one_that_is_not_later_is_refused() -> None:
    step, clock = stepped(Forever())
    step.push(at(101_000))
    assert tick(step, clock, 60.0) == []
    step.push(Epoch(MAX_EPOCH))
    assert step.operator.counters.dropped_timers == 1
    step, clock = stepped(Back())
    step.push(at(101_000))
    with pytest.raises(OperatorError, match="which is not later"):
        tick(step, clock, 60.0)


class Both(Alarm):
    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, 7)
        return 1


def test_a_timer_of_event_time_on_a_stream_without_epochs_is_an_error_that_names_the_clock() -> None:
    step, _ = stepped(Both())
    with pytest.raises(OperatorError, match='stream without epochs: give it clock="processing"'):
        step.push(at(1))
    job = mp.Job("docs").source("words", sources.Memory(["a"])).key_by("word", str)
    with pytest.raises(OperatorError, match="stream without epochs"):
        mp.collect(job.stateful_op("it", Both()))


def test_in_a_job_they_ring_while_nothing_comes() -> None:
    clock, out = VirtualClock(), sinks.Memory()

    class Once:
        def list_parts(self) -> list[str]:
            return ["only"]

        def build_part(self, part: str, state: Any) -> Once:
            self.left = [timedelta(seconds=5), timedelta(seconds=20)]
            return self

        def poll(self, rows_max: int) -> Any:
            left, self.left = self.left, []
            return left or None

        def is_finished(self) -> bool:
            return clock.monotonic_s() >= 60

        def snapshot(self) -> None:
            return None

        def close(self) -> None:
            """Nothing is open."""

    job = mp.Job("alarms")
    job.source("once", Once()).key_by("key", str).stateful_op("alarm", Alarm(clock)).sink("out", out)  # type: ignore[arg-type]
    mp.run(job, clock=clock)
    assert [time for time, _ in out.items] == [5_000, 20_000]
    assert all(time <= rang_at <= time + 1_000 for time, rang_at in out.items)
