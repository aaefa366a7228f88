"""Timers and schedules of `stateful_op`, by event time and by the clock: T6, order, once, set again, refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Acquire, Collect, DataMessage, Epoch, Interrogate
from malstrom_py.errors import OperatorError
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped

State = MutableMapping[str, Any]


class Alarms(KeyedLogic[str, Any, Any, int]):
    """A value is a list of times to be woken at. Sends when it was woken, and at which epoch."""

    def __init__(self, again: Callable[[int], int | None] = lambda time: None, keep: bool = True) -> None:
        self._again, self._keep = again, keep
        self.calls: list[Any] = []

    def on_data(self, message: DataMessage[str, Any], key_state: int | None, output: Output[str, Any]) -> int | None:
        for time in message.value:
            output.set_timer(message.key, time)
        return 1 if self._keep else None

    def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> int | None:
        self.calls.append((key, time))
        again = self._again(time)
        if again is not None:
            output.set_timer(key, again)
        return key_state

    def on_epoch(self, epoch: Epoch, state: State, output: Output[str, Any]) -> None:
        self.calls.append(epoch.time)


def stepped(logic: Any, **options: Any) -> Stepped:
    return Stepped(partial(StatefulOp, logic=logic, default=None), keyed=True, timed=True, **options)


def wake(key: str, *times: Any, at: int = 1000) -> Batch:
    return Batch([list(times)], keys=[key], timestamps=[at])


def test_t6_timers_fire_when_the_frontier_reaches_them_by_time_before_on_epoch_and_once() -> None:
    logic = Alarms()
    stepped(logic).push(wake("b", 7, 3), wake("a", 5, 3, 8), Epoch(2), Epoch(7), Epoch(8), Epoch(9))
    assert logic.calls == [2, ("b", 3), ("a", 3), ("a", 5), ("b", 7), 7, ("a", 8), 8, 9]


def test_a_timer_that_on_epoch_sets_for_a_time_already_reached_fires_before_the_epoch_passes() -> None:
    class Late(Alarms):
        def on_epoch(self, epoch: Epoch, state: State, output: Output[str, Any]) -> None:
            for key in state:
                output.set_timer(key, epoch.time if epoch.time < MAX_EPOCH else 50)

        def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> int | None:
            output.emit(key, "woken", time)
            return key_state

    step = stepped(Late()).push(wake("a"), Epoch(7), Epoch(MAX_EPOCH))
    assert step.rows() == [("a", "woken", 7), ("a", "woken", 50)]
    assert [type(message) for message in step.messages()] == [Batch, Epoch, Batch, Epoch]


def test_the_maximum_epoch_wakes_all() -> None:
    logic = Alarms()
    step = stepped(logic).push(wake("a", 5, MAX_EPOCH - 1, MAX_EPOCH, -(1 << 80)), Epoch(MAX_EPOCH))
    assert logic.calls[:-1] == [("a", -(1 << 80)), ("a", 5), ("a", MAX_EPOCH - 1), ("a", MAX_EPOCH)]
    asked = Interrogate(lambda key: True)
    step.push(asked)
    assert asked.keys == {"a"}  # for its state


def test_what_on_timer_sends_may_be_at_the_epoch_and_comes_before_it() -> None:
    class Saying(Alarms):
        def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> None:
            output.emit(key, "woken", time)

    step = stepped(Saying()).push(wake("a", 5), Epoch(5))
    assert step.rows() == [("a", "woken", 5)]
    assert [type(message) for message in step.messages()] == [Batch, Epoch]
    assert step.operator.keys == 0  # it returned None
    with pytest.raises(OperatorError, match="sent a record at 4, at or below the watermark 5") as caught:
        step.push(wake("a", 4))
    assert caught.value.rule == "epoch order"


def test_what_on_timer_sent_of_a_key_it_dropped_is_not_held_against_on_epoch() -> None:
    class Both(Alarms):
        def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> None:
            output.emit(key, "woken", time)

        def on_epoch(self, epoch: Epoch, state: State, output: Output[str, Any]) -> None:
            for key in state:
                output.emit(key, "there", epoch.time)

    step = stepped(Both()).push(wake("a", 5), wake("b"), Epoch(6))
    assert step.rows() == [("a", "woken", 5), ("b", "there", 6)]


@pytest.mark.parametrize("hook", ["on_data", "on_timer", "on_batch", "on_epoch", "on_schedule"])
def test_a_timer_of_a_foreign_key_is_refused(hook: str) -> None:
    def meddle(self: Any, *arguments: Any) -> None:
        arguments[-1].set_timer("other", 5)

    logic = type("Meddling", (Alarms,), {hook: meddle})()
    step = stepped(logic)

    def live() -> None:
        step.push(wake("a", 1), Epoch(3))
        step.call(partial(step.operator.on_schedule, clock=VirtualClock()))

    with pytest.raises(OperatorError, match=r"set a timer under key 'other'.*meddle at ") as caught:
        live()
    assert caught.value.rule == "key kept"


def test_a_logic_without_on_timer_sets_none() -> None:
    def function(message: DataMessage[str, int], state: None, output: Output[str, int]) -> None:
        output.set_timer(message.key, 5)

    with pytest.raises(OperatorError, match="'under-test' set a timer, but its logic has no on_timer"):
        stepped(function).push(wake("a"))


@pytest.mark.parametrize("time", [None, "noon", 1.5, float("inf"), True, np.int64(5), MAX_EPOCH + 1, 1 << 80], ids=repr)
def test_a_time_that_is_none_is_refused(time: Any) -> None:
    with pytest.raises(OperatorError, match="'under-test' set a timer at "):
        stepped(Alarms()).push(wake("a", time))


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_record_that_raises_takes_its_timers_with_it(policy: Any) -> None:
    class Torn(Alarms):
        def on_data(
            self, message: DataMessage[str, Any], key_state: int | None, output: Output[str, Any]
        ) -> int | None:
            super().on_data(message, key_state, output)
            if message.key == "bad":
                raise ValueError
            return 1

    logic = Torn()
    batch = Batch([[3], [4], [5]], keys=["a", "bad", "b"], timestamps=[9, 9, 9])
    step = stepped(logic, on_error=policy).push(batch, Epoch(8))
    assert logic.calls == [("a", 3), ("b", 5), 8]
    assert step.operator.keys == 2


@pytest.mark.parametrize("policy", ["fail", "skip", "dead-letter"])
def test_on_timer_that_raises_fails_whatever_the_policy_and_names_key_and_place(policy: Any) -> None:
    class Failing(Alarms):
        def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> None:
            raise ValueError("secret")

    with pytest.raises(OperatorError, match=r"for key 'a'.*Failing\.on_timer at ") as caught:
        stepped(Failing(), on_error=policy).push(wake("a", 1), Epoch(1))
    assert "secret" in str(caught.value)
    assert "on_error" not in str(caught.value)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 30), max_size=3)),
        st.integers(1, 6),
        st.sets(st.sampled_from("abc")),
    ),
    max_size=30,
)


@given(operations=OPERATIONS)
def test_timers_do_what_an_oracle_says_also_when_keys_move_away_and_back(operations: list[Any]) -> None:
    """A tuple sets timers, a number advances the frontier, a set of keys moves there and back."""
    logic, frontier = Alarms(again=lambda time: time + 10 if time < 20 else None, keep=False), 0
    step, oracle = stepped(logic).push(Epoch(0)), set[tuple[int, str]]()
    expected: list[Any] = [0]

    def fire() -> None:
        while due := sorted(timer for timer in oracle if timer[0] <= frontier):
            time, key = due[0]
            oracle.remove(due[0])
            expected.append((key, time))
            if time < 20:
                oracle.add((time + 10, key))

    for operation in operations:
        if isinstance(operation, tuple):
            key, times = operation
            step.push(wake(key, *times, at=frontier + 1))
            oracle.update((time, key) for time in times)
            fire()
        elif isinstance(operation, int):
            frontier += operation
            step.push(Epoch(frontier))
            fire()
            expected.append(frontier)
        else:
            taken = Collect(frozenset(operation))
            step.push(taken, Acquire(taken.states))
    # Which of two keys at one time comes first depends on when their timers were set, which the oracle does not know.
    assert sorted_runs(logic.calls) == sorted_runs(expected)


def sorted_runs(calls: list[Any]) -> list[Any]:
    """The calls, those of one time in the order of keys."""
    runs: list[list[Any]] = []
    for call in calls:
        if runs and isinstance(call, tuple) and isinstance(runs[-1][-1], tuple) and runs[-1][-1][1] == call[1]:
            runs[-1].append(call)
        else:
            runs.append([call])
    return [sorted(run) if isinstance(run[0], tuple) else run for run in runs]


class Ticking(KeyedLogic[str, int, Any, int]):
    """Says on schedule what each key has, and forgets it every second time."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, Any]) -> int:
        return (key_state or 0) + message.value

    def on_schedule(self, state: MutableMapping[str, int], output: Output[str, Any]) -> None:
        for key in list(state):
            output.emit(key, state.pop(key))


def test_what_on_schedule_drops_is_gone_and_what_it_sends_keeps_the_rules() -> None:
    step = Stepped(partial(StatefulOp, logic=Ticking(), default=None), keyed=True).push(Batch([1, 2], keys=["a", "b"]))
    step.call(partial(step.operator.on_schedule, clock=VirtualClock()))
    assert step.rows() == [("a", 1, None), ("b", 2, None)]
    assert step.operator.keys == 0
    timed = stepped(Ticking()).push(Batch([1], keys=["a"], timestamps=[1]))
    with pytest.raises(OperatorError, match="without a timestamp on a timed stream"):
        timed.call(partial(timed.operator.on_schedule, clock=VirtualClock()))


@pytest.mark.parametrize("hook", ["on_batch", "on_epoch", "on_schedule"])
def test_states_that_compare_item_by_item_are_kept(hook: str) -> None:
    class Arrays(KeyedLogic[str, int, Any, Any]):
        def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
            for key in keys:
                state[key] = np.zeros(2) if hook == "on_batch" else 1

        def on_epoch(self, epoch: Epoch, state: Any, output: Any) -> None:
            state["a"] = np.zeros(2)

        def on_schedule(self, state: Any, output: Any) -> None:
            state["a"] = np.zeros(2)
            state["b"] = None

    step = stepped(Arrays()).push(Batch([1, 2], keys=["a", "b"], timestamps=[1, 1]))
    if hook == "on_epoch":
        step.push(Epoch(5))
    if hook == "on_schedule":
        step.call(partial(step.operator.on_schedule, clock=VirtualClock()))
    assert step.operator.keys == (1 if hook == "on_schedule" else 2)


def test_t6_a_timer_that_a_timer_sets_at_the_end_of_the_stream_is_dropped_and_counted() -> None:
    logic = Alarms(again=lambda time: time + 10)
    step = stepped(logic)
    step.push(wake("a", 5, 95), wake("b", 20), Epoch(100))
    assert step.operator.counters.dropped_timers == 0
    logic.calls.clear()
    step.push(Epoch(MAX_EPOCH))
    assert logic.calls == [("a", 105), ("b", 110), MAX_EPOCH]  # one timer at 105, set twice
    assert step.operator.counters.dropped_timers == 2


class Hourly(KeyedLogic[str, int, tuple[str, int], int]):
    """A report each hour, for ever; at the end what is left."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, Any]) -> int:
        assert message.timestamp is not None
        if key_state is None:
            output.set_timer(message.key, message.timestamp + 60)
        return (key_state or 0) + message.value

    def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> int | None:
        if output.ended:
            output.emit(key, ("rest", key_state or 0), MAX_EPOCH - 1)
            return None
        output.emit(key, ("hour", key_state or 0), time)
        output.set_timer(key, time + 60)
        return 0


def test_t6_a_logic_that_always_sets_the_next_timer_ends_with_the_stream_and_loses_nothing() -> None:
    job = mp.Job("hours")
    timed = job.source("rows", sources.Memory([0, 10, 70, 200, 210])).assign_timestamps("at", lambda at: at)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    out = sinks.Memory()
    ones = on_time.key_by("all", lambda at: "all").map("one", lambda at: 1)
    ones.stateful_op("hourly", Hourly()).sink("out", out)
    result = mp.run(job, progress=False, batch=mp.Batching(rows_max=1))
    assert sum(number for _, number in out.items) == 5
    assert out.items[-1][0] == "rest"
    assert result.dropped_timers == 0


class Careless(Hourly):
    """Does not ask whether the stream has ended."""

    def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, Any]) -> int | None:
        output.emit(key, ("hour", key_state or 0), time)
        output.set_timer(key, time + 60)
        return 0


def test_a_drain_commits_what_a_logic_with_endless_timers_has_sent() -> None:
    for logic, dropped in ((Hourly(), 0), (Careless(), 1)):
        begun = Event()

        def times(part: int, start: int, begun: Event = begun) -> Iterator[int]:
            for time in count(start):
                yield time
                begun.set()

        job, out = mp.Job("drained"), sinks.Memory()
        stream = job.source("times", sources.Generator(times)).assign_timestamps("at", int)
        on_time, _ = stream.generate_epochs("epochs", mp.limit_out_of_orderness(0))
        ones = on_time.key_by("all", lambda at: "all").map("one", lambda at: 1)
        ones.stateful_op("hourly", logic).sink("out", out)
        handle = mp.InProcess(progress=False).start(job, control=False)
        begun.wait(60)
        handle.stop(drain=True, timeout_s=60)
        result = handle.wait()
        assert sum(number for _, number in out.items) == result.read
        assert result.dropped_timers == dropped
        assert ("dropped timers" in str(result)) is bool(dropped)


@pytest.mark.parametrize("back", [0, 1])
def test_a_timer_set_for_the_time_of_the_one_that_rings_or_before_is_refused(back: int) -> None:
    step = stepped(Alarms(again=lambda time: time - back))
    with pytest.raises(OperatorError, match=r"on_timer of key 'a' at 5 set a timer at \d, which is not later"):
        step.push(wake("a", 5), Epoch(7))


# By the clock


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


def alarming(logic: Any = None, *, event_time: bool = False) -> tuple[Stepped, VirtualClock]:
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
    step, clock = alarming()
    step.push(at(101_000, datetime(1970, 1, 1, 0, 1, 42, tzinfo=UTC), timedelta(seconds=3)))
    assert tick(step, clock, 0.9) == []
    assert tick(step, clock, 0.1) == [(101_000, 3)]
    assert tick(step, clock, 5.0) == [(102_000, 3), (103_000, 3)]
    assert tick(step, clock, 99.0) == []


@pytest.mark.parametrize("time", ["noon", None, 1.5, datetime(2024, 1, 1), True, 2**63])  # noqa: DTZ001  a naive one
def test_any_other_time_is_an_error_that_names_the_remedy(time: Any) -> None:
    step, _ = alarming()
    with pytest.raises(OperatorError, match=r"'under-test' set a timer of the runtime's clock .* give an int in ms"):
        step.push(at(time))


def test_it_wakes_the_worker_only_while_there_is_one() -> None:
    step, clock = alarming()
    assert step.operator.scheduled
    assert step.operator.dormant
    step.push(at(101_000))
    assert not step.operator.dormant
    tick(step, clock, 2.0)
    assert step.operator.dormant


def test_at_the_end_of_the_stream_all_ring() -> None:
    step, _ = alarming()
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
    step, clock = alarming(Forever())
    step.push(at(101_000))
    assert tick(step, clock, 60.0) == []
    step.push(Epoch(MAX_EPOCH))
    assert step.operator.counters.dropped_timers == 1
    step, clock = alarming(Back())
    step.push(at(101_000))
    with pytest.raises(OperatorError, match="which is not later"):
        tick(step, clock, 60.0)


class Both(Alarm):
    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, 7)
        return 1


def test_a_timer_of_event_time_on_a_stream_without_epochs_is_an_error_that_names_the_clock() -> None:
    step, _ = alarming(Both())
    with pytest.raises(OperatorError, match='stream without watermarks: give it clock="processing"'):
        step.push(at(1))
    job = mp.Job("docs").source("words", sources.Memory(["a"])).key_by("word", str)
    with pytest.raises(OperatorError, match="stream without watermarks"):
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
