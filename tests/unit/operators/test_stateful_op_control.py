"""`stateful_op` and control messages: what it reports, gives away, takes and persists, as capability table A says."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.data.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    DataMessage,
    Epoch,
    Interrogate,
    Rescale,
    SuspendMarker,
)
from malstrom_py.errors import InternalError
from malstrom_py.operators.logic import KeyedLogic, Output
from malstrom_py.testing import CapturingPersistenceBackend, OperatorTester


def total(message: DataMessage[str, int], state: int | None, output: Output[str, int]) -> int | None:
    """Adds up; a sum of 0 counts as no state."""
    state = (state or 0) + message.value
    output.emit(message.key, state, message.timestamp)
    return state or None


class Alarm(KeyedLogic[str, int, int, int]):
    """Rings at each time it is given; keeps how often it was set."""

    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> int | None:
        output.set_timer(message.key, message.value)
        return (key_state or 0) + 1 if message.value % 2 else None

    def on_timer(self, key: str, time: int, key_state: int | None, output: Output[str, int]) -> int | None:
        output.emit(key, time, time)
        return key_state


def summing(**options: Any) -> OperatorTester:
    return OperatorTester(lambda stream: stream.stateful_op("sum", total), keyed=True, **options)


def alarm() -> OperatorTester:
    return OperatorTester(lambda stream: stream.stateful_op("alarm", Alarm()), keyed=True, timed=True)


def rows(tester: OperatorTester) -> list[tuple[Any, Any]]:
    return [(m.key, m.value) for m in tester.receive_local() if isinstance(m, DataMessage)]


def test_collect_removes_state_and_gives_it_under_the_name_of_the_step() -> None:
    tester = summing().send_local([("a", 1), ("b", 2)]).step()
    states = tester.collect({"a"})
    assert list(states) == ["sum"]
    assert tester.codec.decode_in_flight(states["sum"]) == (["a"], [1], {})
    assert tester.interrogate() == {"b"}


def test_acquire_installs_state() -> None:
    giver, taker = summing().send_local([("a", 5), ("b", 1)]).step(), summing()
    taker.acquire(giver.collect({"a", "b"}))
    assert taker.interrogate() == {"a", "b"}
    taker.receive_local()
    assert rows(taker.send_local([("a", 1), ("b", 1)]).step()) == [("a", 6), ("b", 2)]


def test_r5_acquiring_onto_existing_state_is_an_internal_error() -> None:
    giver, taker = summing().send_local([("a", 5)]).step(), summing().send_local([("a", 1)]).step()
    with pytest.raises(InternalError, match=r"'sum'.*'a'"):
        taker.acquire(giver.collect({"a"}))


def test_a_barrier_persists_state_under_the_name_of_the_step_and_it_restores() -> None:
    tester = summing().send_local([("a", 1), ("b", 2), ("c", 1), ("c", -1)]).step()
    persisted = tester.barrier()
    assert list(persisted.states) == ["sum"]
    fresh = summing()
    fresh.restore(persisted)
    assert fresh.states["sum"].values == {"a": 1, "b": 2}
    assert rows(fresh.send_local([("a", 1)]).step()) == [("a", 2)]


def test_s5_only_the_keys_that_are_owned_are_restored() -> None:
    tester = summing().send_local([("a", 1), ("b", 2)]).step()
    fresh = summing()
    fresh.restore(tester.barrier(), lambda key: key == "b")
    assert fresh.interrogate() == {"b"}


def test_system_messages_are_forwarded_once_and_in_order() -> None:
    tester = summing()
    messages: list[Any] = [
        Rescale(2, (0,)),
        Interrogate(lambda key: True),
        Collect(frozenset("a")),
        Acquire({}),
        AbsBarrier("snapshot", CapturingPersistenceBackend()),
        Epoch(7),
    ]
    assert tester.send_local(*messages).step().receive_local() == messages
    assert tester.send_local(SuspendMarker()).step().receive_local()[0].__class__ is SuspendMarker


def test_t6_timers_are_in_the_snapshot() -> None:
    tester = alarm().send_local([("a", 7, 1), ("b", 8, 1)]).step()
    fresh = alarm()
    fresh.restore(tester.barrier())
    assert rows(fresh.send_local(Epoch(7)).step()) == [("a", 7)]
    assert rows(fresh.send_local(Epoch(8)).step()) == [("b", 8)]
