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


def test_interrogate_reports_the_keys_with_state_that_pass() -> None:
    tester = summing().send_local([("a", 1), ("b", 2), ("c", 3)]).step()
    assert tester.interrogate() == {"a", "b", "c"}
    assert tester.interrogate(lambda key: key < "c") == {"a", "b"}


def test_interrogate_does_not_report_a_key_whose_state_was_discarded() -> None:
    tester = summing().send_local([("a", 1), ("b", 2), ("a", -1)]).step()
    assert tester.interrogate() == {"b"}


def test_interrogate_adds_to_what_others_have_reported() -> None:
    tester = summing().send_local([("a", 1)]).step()
    message = Interrogate(lambda key: True, {"z"})
    tester.send_local(message).step()
    assert message.keys == {"a", "z"}


def test_collect_removes_state_and_gives_it_under_the_name_of_the_step() -> None:
    tester = summing().send_local([("a", 1), ("b", 2)]).step()
    states = tester.collect({"a"})
    assert list(states) == ["sum"]
    assert tester.codec.decode_in_flight(states["sum"]) == (["a"], [1], {})
    assert tester.interrogate() == {"b"}


def test_a_key_that_was_collected_starts_from_its_default() -> None:
    tester = summing().send_local([("a", 5)]).step()
    tester.collect({"a"})
    tester.receive_local()
    assert rows(tester.send_local([("a", 1)]).step()) == [("a", 1)]


def test_collect_of_a_discarded_key_adds_nothing() -> None:
    tester = summing().send_local([("a", 1), ("a", -1)]).step()
    assert tester.collect({"a", "never seen"}) == {}


def test_acquire_installs_state() -> None:
    giver, taker = summing().send_local([("a", 5), ("b", 1)]).step(), summing()
    taker.acquire(giver.collect({"a", "b"}))
    assert taker.interrogate() == {"a", "b"}
    taker.receive_local()
    assert rows(taker.send_local([("a", 1), ("b", 1)]).step()) == [("a", 6), ("b", 2)]


def test_acquire_of_another_step_changes_nothing() -> None:
    tester = summing().send_local([("a", 5)]).step()
    tester.acquire({"another step": b"not for this one"})
    assert tester.states["sum"].values == {"a": 5}


def test_r5_acquiring_onto_existing_state_is_an_internal_error() -> None:
    giver, taker = summing().send_local([("a", 5)]).step(), summing().send_local([("a", 1)]).step()
    with pytest.raises(InternalError, match=r"'sum'.*'a'"):
        taker.acquire(giver.collect({"a"}))


def test_a_new_state_of_none_drops_the_key() -> None:
    tester = summing().send_local([("a", 1), ("b", 1), ("a", -1)]).step()
    assert tester.states["sum"].values == {"b": 1}


def test_a_barrier_persists_state_under_the_name_of_the_step_and_it_restores() -> None:
    tester = summing().send_local([("a", 1), ("b", 2), ("c", 1), ("c", -1)]).step()
    persisted = tester.barrier()
    assert list(persisted.states) == ["sum"]
    fresh = summing()
    fresh.restore(persisted)
    assert fresh.states["sum"].values == {"a": 1, "b": 2}
    assert rows(fresh.send_local([("a", 1)]).step()) == [("a", 2)]


def test_a_barrier_leaves_the_state_as_it_is() -> None:
    tester = summing().send_local([("a", 1)]).step()
    first, second = tester.barrier("1"), tester.barrier("2")
    assert first.states == second.states
    tester.receive_local()
    assert rows(tester.send_local([("a", 1)]).step()) == [("a", 2)]


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


def test_timers_move_with_their_key() -> None:
    giver, taker = alarm().send_local([("a", 7, 1), ("a", 9, 1), ("b", 11, 1)]).step(), alarm()
    taker.acquire(giver.collect({"a"}))
    assert rows(giver.send_local(Epoch(20)).step()) == [("b", 11)]
    assert rows(taker.send_local(Epoch(8)).step()) == [("a", 7)]
    assert rows(taker.send_local(Epoch(20)).step()) == [("a", 9)]


def test_a_key_with_timers_alone_is_reported_and_moves() -> None:
    giver, taker = alarm().send_local([("a", 8, 1)]).step(), alarm()
    assert giver.states["alarm"].values == {}
    assert giver.interrogate() == {"a"}
    taker.acquire(giver.collect({"a"}))
    assert giver.interrogate() == set()
    assert rows(taker.send_local(Epoch(8)).step()) == [("a", 8)]


def test_t6_timers_are_in_the_snapshot() -> None:
    tester = alarm().send_local([("a", 7, 1), ("b", 8, 1)]).step()
    fresh = alarm()
    fresh.restore(tester.barrier())
    assert rows(fresh.send_local(Epoch(7)).step()) == [("a", 7)]
    assert rows(fresh.send_local(Epoch(8)).step()) == [("b", 8)]


def test_a_timer_that_has_moved_and_come_back_rings_once() -> None:
    here, there = alarm().send_local([("a", 7, 1)]).step(), alarm()
    there.acquire(here.collect({"a"}))
    here.acquire(there.collect({"a"}))
    assert rows(there.send_local(Epoch(9)).step()) == []
    assert rows(here.send_local(Epoch(9)).step()) == [("a", 7)]
