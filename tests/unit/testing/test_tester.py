"""`OperatorTester`: the output is that of a job; single steps, fake workers, time, persistence and test mode."""

from __future__ import annotations

import gc
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import windows
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, DataMessage, Epoch, SuspendMarker
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.rescale.channels.channel import Barrier, Credit, Suspend
from malstrom_py.testing import CapturingPersistenceBackend, OperatorTester, VirtualClock, as_step
from malstrom_py.testing.single_step import SingleStep, plan_single_step


def add(key: Any, value: int, total: int) -> tuple[int, int]:
    return total + value, total + value


def summing(**options: Any) -> OperatorTester:
    return OperatorTester(lambda stream: stream.stateful_map("sum", add, default=int), keyed=True, **options)


def rows(messages: list[Any]) -> list[tuple[Any, Any]]:
    return [(message.key, message.value) for message in messages if isinstance(message, DataMessage)]


def test_rows_are_written_as_the_stream_has_them() -> None:
    def step(stream: Any) -> Any:
        return stream.map("step", lambda value: value)

    message = DataMessage("k", 7, 5)
    plain = OperatorTester(step).send_local([1, (2, 3)]).step().receive_local()
    assert [m.value for m in plain if isinstance(m, DataMessage)] == [1, (2, 3)]
    assert OperatorTester(step, keyed=True, timed=True).send_local([("k", 7, 5), message]).step().receive_local() == [
        message,
        message,
    ]
    timed = OperatorTester(step, timed=True).send_local([(7, 5)]).step().receive_local()
    assert timed == [DataMessage(None, 7, 5)]


@pytest.mark.parametrize("row", [7, ("a",), ("a", 1, 2, 3), ["a", 1]])
def test_a_row_of_another_form_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match=r"tuple \(key, value\)"):
        summing().send_local([row]).step()


def test_a_row_without_a_timestamp_is_refused_on_a_timed_stream() -> None:
    tester = OperatorTester(lambda stream: stream.count("step"), keyed=True, timed=True)
    with pytest.raises(ValueError, match="needs a timestamp"):
        tester.send_local([DataMessage("a", 1)]).step()


def test_batches_epochs_and_rows_are_processed_in_order() -> None:
    tester = OperatorTester(lambda stream: stream.count("step"), keyed=True, timed=True)
    tester.send_local([("a", 0, 5)], Epoch(5), Batch([0], keys=["a"], timestamps=[6]), Epoch(MAX_EPOCH))
    assert tester.receive_local() == []
    assert tester.step().receive_local() == [
        DataMessage("a", 1, 5),
        Epoch(5),
        DataMessage("a", 2, 6),
        Epoch(MAX_EPOCH),
    ]
    assert tester.receive_local() == []


def test_dead_letters_are_received_apart() -> None:
    tester = OperatorTester(lambda stream: stream.map("step", lambda v: 1 // v, on_error="dead-letter"))
    tester.send_local([1, 0]).step()
    assert rows(tester.receive_local()) == [(None, 1)]
    ((_, letter),) = rows(tester.receive_dead_letters())
    assert (letter.step, letter.value) == ("step", 0)


def test_a_step_may_have_several_inputs() -> None:
    tester = OperatorTester(lambda left, right: left.union("both", right), inputs=2, timed=True)
    tester.send_local([("l", 5)]).send_local([("r", 6)], input=1).send_local(Epoch(4), input=0).step()
    assert tester.receive_local() == [DataMessage(None, "l", 5), DataMessage(None, "r", 6)]
    assert tester.send_local(Epoch(3), input=1).step().receive_local() == [Epoch(3)]
    assert tester.send_local(Epoch(9)).step().receive_local() == [Epoch(9)]


def test_rows_of_an_unkeyed_input_come_from_a_part() -> None:
    def step(stream: Any) -> Any:
        on_time, _ = stream.assign_timestamps("at", abs).generate_epochs("epochs", mp.limit_out_of_orderness(1))
        return on_time

    tester = OperatorTester(step)
    assert tester.send_local([5, 9]).step().receive_local() == [
        DataMessage(None, 5, 5),
        DataMessage(None, 9, 9),
        Epoch(7),
    ]
    other = OperatorTester(step)
    other.take_parts(tester.release_parts())
    assert other.send_local([7, 8, 20]).step().receive_local() == [
        DataMessage(None, 8, 8),
        DataMessage(None, 20, 20),
        Epoch(18),
    ]
    restored = OperatorTester(step)
    restored.restore(other.barrier())
    assert rows(restored.send_local([18, 19]).step().receive_local()) == [(None, 19)]


class Pulse(mp.KeyedLogic[str, int, int, int]):
    """Sends the value of each key on schedule."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: mp.Output[str, int]) -> int:
        return message.value

    def on_schedule(self, state: MutableMapping[str, int], output: mp.Output[str, int]) -> None:
        for key, value in state.items():
            output.emit(key, value)


def test_schedules_run_on_the_virtual_clock_once_a_linger() -> None:
    clock = VirtualClock()
    batch = mp.Batching(linger_s=2)
    tester = OperatorTester(lambda s: s.stateful_op("pulse", Pulse()), keyed=True, clock=clock, batch=batch)
    assert tester.send_local([("a", 1)]).step().step().receive_local() == []
    clock.advance(2)
    assert rows(tester.step().step().receive_local()) == [("a", 1)]
    tester.clock.advance(1.9)
    assert tester.step().receive_local() == []


def test_f3_rows_of_others_come_out_at_the_fake_workers() -> None:
    tester = OperatorTester(lambda stream: stream.key_by("key", lambda v: v % 10).count("seen"), workers=3)
    tester.send_local(list(range(40)), Epoch(MAX_EPOCH)).step()
    mine = {key for key, _ in rows(tester.receive_local())}
    others = [tester.receive_remote(worker) for worker in (1, 2)]
    theirs = [{key for key, _ in rows(messages)} for messages in others]
    assert mine | theirs[0] | theirs[1] == set(range(10))
    assert len(mine) + len(theirs[0]) + len(theirs[1]) == 10
    assert [messages[-1] for messages in others] == [Epoch(MAX_EPOCH)] * 2


def test_what_fake_workers_send_is_taken_in() -> None:
    tester = OperatorTester(lambda stream: stream.key_by("key", str).count("seen"), workers=2)
    tester.send_remote(1, [("a", "x"), ("b", "y")], Epoch(MAX_EPOCH))
    assert rows(tester.receive_local()) == [("a", 1), ("b", 1)]
    tester.send_local(Epoch(MAX_EPOCH)).step()
    assert tester.receive_local() == [Epoch(MAX_EPOCH)]


def test_s1_a_barrier_behind_an_exchange_waits_for_the_fake_workers() -> None:
    tester = OperatorTester(lambda stream: stream.key_by("key", str).count("seen"), workers=2)
    assert tester.barrier("1").states == {}
    assert tester.receive_remote(1) == [Barrier("1")]
    tester.send_remote(1, Barrier("1"))
    (barrier,) = tester.receive_local()
    assert isinstance(barrier, AbsBarrier)
    assert isinstance(barrier.backend, CapturingPersistenceBackend)
    assert list(barrier.backend.states) == ["seen"]


def test_a_suspension_goes_to_all() -> None:
    tester = OperatorTester(lambda stream: stream.key_by("key", str), workers=2)
    tester.send_local(SuspendMarker()).step()
    assert tester.receive_remote(1) == [Suspend()]
    tester.send_remote(1, Suspend())
    assert tester.receive_local() == [SuspendMarker()]


def test_f2_without_credit_rows_wait_until_the_fake_worker_has_taken_some() -> None:
    batch = mp.Batching(rows_max=1, credit=Credit(rows=2))
    tester = OperatorTester(lambda stream: stream.key_by("key", lambda v: "ant"), workers=2, batch=batch)
    for number in range(5):
        tester.send_local([number])
    tester.step()
    assert [value for _, value in rows(tester.receive_remote(1))] == [0, 1]
    tester.step()
    assert [value for _, value in rows(tester.receive_remote(1))] == [2, 3]


def test_a_restored_step_has_seen_the_epoch_it_was_persisted_at() -> None:
    def step(stream: Any) -> Any:
        return stream.stateful_op("step", lambda message, state, output: output.send(message))

    tester = OperatorTester(step, keyed=True, timed=True).send_local([("a", 1, 7)], Epoch(7)).step()
    persisted = tester.barrier()
    assert persisted.epoch == 7
    fresh = OperatorTester(step, keyed=True, timed=True)
    fresh.restore(persisted)
    assert fresh.receive_local() == []
    assert fresh.send_local(Epoch(7), Epoch(8)).step().receive_local() == [Epoch(8)]


@dataclass
class Registered:
    total: int = 0


def test_types_of_state_are_registered_as_in_a_job() -> None:
    def keep(key: str, value: int, state: Any) -> tuple[int, Registered]:
        return value, Registered(value)

    tester = OperatorTester(lambda stream: stream.stateful_map("keep", keep), keyed=True, types=[Registered])
    persisted = tester.send_local([("a", 7)]).step().barrier()
    fresh = OperatorTester(lambda stream: stream.stateful_map("keep", keep), keyed=True, types=[Registered])
    fresh.restore(persisted)
    assert fresh.states["keep"].values == {"a": Registered(7)}


def test_a_tester_that_is_forgotten_is_closed_in_its_own_context() -> None:
    """The collector may close it in the middle of ``ContextVar.set``: another one in that context crashes CPython."""
    called: ContextVar[str] = ContextVar("called", default="nowhere")
    heard: list[str] = []

    def close(resource: object) -> None:
        called.set("by the collector")
        heard.append(called.get())

    handle = mp.per_worker(object, close)
    tester = OperatorTester(lambda stream: stream.map("made", lambda value: handle() is not None))
    tester.send_local([1]).step()
    cycle: list[object] = [tester]
    cycle.append(cycle)
    del tester, cycle
    gc.collect()
    assert heard == ["by the collector"]
    assert called.get() == "nowhere"


# A single step


def single(factory: Any, *, keyed: bool = True) -> SingleStep:
    return plan_single_step(factory, keyed=keyed, timed=False, inputs=1, slots=8, types=())


def test_only_what_the_factory_makes_is_the_step() -> None:
    step = single(lambda stream: stream.map("one", str).count("two"))
    assert [made.name for made in step.steps] == ["one", "two"]
    assert [recorded for _, recorded in step.outputs] == ["two"]
    assert step.plan.slots == 8


def test_dead_letters_are_recorded_if_the_step_has_some() -> None:
    assert single(lambda stream: stream.map("one", str)).dead_letters == ()
    (letters,) = single(lambda stream: stream.map("one", str, on_error="dead-letter")).dead_letters
    assert letters[1] == "one"


def test_a_step_without_outputs_is_a_sink() -> None:
    out = mp.sinks.Memory()
    assert single(lambda stream: stream.sink("out", out)).outputs == ()


def test_an_output_crosses_if_an_exchange_stands_before_it() -> None:
    step = single(lambda s: (s.map("here", str), s.key_by("key", str).count("there")), keyed=False)
    assert [step.crosses(name) for name, _ in step.outputs] == [False, True]


class Twice(Operator):
    """Sends each batch twice."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)
        out.send(batch)


def test_an_operator_of_ones_own_can_be_a_step() -> None:
    tester = OperatorTester(as_step(Twice, name="twice"), keyed=True)
    assert tester.send_local([("a", 1)]).step().receive_local() == [DataMessage("a", 1)] * 2
    assert [step.name for step in tester.single.steps] == ["twice"]


class Ringing(mp.KeyedLogic[str, int, int, int]):
    """Needs event time."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, 5)
        return message.value

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> None:
        return None


def test_the_option_that_was_forgotten_is_named() -> None:
    with pytest.raises(PlanError, match="give timed=True"):
        single(lambda stream: stream.window("tens", windows.tumbling(10)).count())
    with pytest.raises(PlanError, match="give keyed=True"):
        single(lambda stream: stream.count("count"), keyed=False)
    with pytest.raises(PlanError, match=r"step 'ring'.*not the class itself$"):
        single(lambda stream: stream.stateful_op("ring", Ringing))


def summed(message: Any, state: Any, output: Any) -> Any:
    return state


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (Ringing(), "an object of type Ringing, not a function of the stream: .*such as lambda stream: "),
        (Ringing, "the class Ringing, not a function of the stream"),
        (None, "an object of type NoneType, not a function of the stream"),
        (summed, r"summed at .*test_tester.py:\d+ cannot be called with a stream"),
        (lambda: None, "cannot be called with a stream"),
        (lambda stream: stream, "returned its input"),
        (lambda stream: 7, "got int"),
    ],
)
def test_what_is_no_function_of_the_stream_is_refused(factory: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        single(factory)
