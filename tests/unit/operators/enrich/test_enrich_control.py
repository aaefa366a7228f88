"""`enrich` and what acts on state: its queue is persisted, restored at any scale, and drained where state moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    AbsBarrier,
    Acquire,
    Collect,
    DataMessage,
    Epoch,
    Interrogate,
    SuspendMarker,
)
from malstrom_py.errors import CodecError, DeadlineError, OperatorError
from malstrom_py.operators.enrich import calls
from malstrom_py.operators.enrich.calls import Cache, Gathered, Held
from malstrom_py.testing import CapturingPersistenceBackend, OperatorTester, Persisted
from tests.unit.operators.desk import TIMED, Enriching, barrier, enriching, row, told

# Barriers.


def test_s1_what_is_in_flight_at_a_barrier_is_asked_again_before_anything_new() -> None:
    with enriching(TIMED) as step:
        step.desk.answer("c")
        step.push(row("c", 0, 1), Epoch(5), row("a", 1, 6), row("b", 2, 7), row("a", 3, 8))
        state = barrier(step)
        # It waits until no epoch waits, and for nothing else.
        assert told(step) == [(0, "C"), Epoch(5)]
        step.desk.answer("a", "b")
        step.settle()
        assert told(step)[2:] == [(1, "A"), (2, "B"), (3, "A")]
    with enriching(TIMED) as restored:
        restored.step.restore(state)
        assert restored.step.keys == 2
        restored.push(row("c", 4, 9), Epoch(10))
        restored.desk.wait(4)
        assert restored.desk.asked == ["a", "b", "a", "c"]
        restored.desk.answer("c", "b", "a")
        restored.settle()
        assert told(restored) == [(1, "A"), (2, "B"), (3, "A"), (4, "C"), Epoch(10)]


def test_a_barrier_with_nothing_in_flight_persists_that() -> None:
    with enriching(TIMED) as step, enriching(TIMED) as restored:
        step.push(Epoch(5))
        restored.step.restore(barrier(step))
        assert (restored.step.awaiting, restored.step.keys) == (False, 0)
        restored.push(Epoch(5))
        assert told(restored) == [Epoch(5)]


def test_answers_are_no_state() -> None:
    with enriching(cache=Cache()) as step:
        step.desk.answer("a")
        step.push(row("a", 1, 1))
        step.settle()
        state = barrier(step)
    with enriching(cache=Cache()) as restored:
        restored.step.restore(state)
        restored.push(row("a", 1, 1))
        restored.desk.wait(1)
        restored.desk.answer("a")
        restored.settle()


def test_restored_records_share_calls_with_new_ones() -> None:
    with enriching(cache=Cache()) as step:
        step.push(row("a", 1, 1))
        state = barrier(step)
        step.desk.answer("a")
        step.settle()
    with enriching(cache=Cache()) as restored:
        restored.step.restore(state)
        restored.push(row("a", 2, 2), row("a", 3, 3))
        restored.desk.answer("a")
        restored.settle()
        assert (restored.values(), restored.desk.asked) == ([(1, "A"), (2, "A"), (3, "A")], ["a"])


def test_a_by_that_raises_on_a_restored_record_is_a_failure_of_it() -> None:
    with enriching() as step:
        step.push(row("a", 0, 1), row("b", 1, 2))
        state = barrier(step)
        step.desk.answer("a", "b")
        step.settle()
    with enriching({"on_error": "skip"}, by=lambda value: 1 // value) as restored:
        restored.step.restore(state)
        restored.desk.answer(1)
        restored.settle()
        assert (restored.values(), restored.counters.skipped) == ([(1, "1")], 1)


def test_a_value_that_cannot_be_stored_fails_the_barrier_with_its_key() -> None:
    with enriching() as step:
        step.push(row("a", threading.Lock(), 1))
        with pytest.raises(CodecError, match="'under-test' for key 'a'"):
            barrier(step)
        step.desk.answer("a")


@pytest.mark.parametrize("checks", [True, False])
def test_test_mode_finds_what_could_not_be_stored_at_once(checks: bool) -> None:
    async def look(key: str) -> str:
        return key

    with OperatorTester(lambda s: s.enrich("e", look), keyed=True, checks=checks) as tester:
        tester.send_local([("a", threading.Lock())])
        if checks:
            with pytest.raises(CodecError, match="step 'e' for key 'a'"):
                tester.step()
        else:
            assert len(tester.step().receive_local()) == 1


def test_test_mode_finds_a_value_that_is_changed_while_it_waits() -> None:
    async def mark(value: dict[str, Any]) -> None:
        value["seen"] = True

    tester = OperatorTester(lambda s: s.enrich("e", mark, by=lambda value: value), keyed=True)
    with pytest.raises(OperatorError, match=r"step 'e' changed a value while it waited \(in .*mark at "):
        tester.send_local([("a", {"x": 1})]).step()


# N workers restored on M.

ENTRY = st.tuples(st.sampled_from("abcd"), st.integers(0, 5)) | st.integers(1, 4)
OWN_THING: dict[str, Any] = {"by": lambda value: value}


def dealt(entries: list[Any], owner: dict[str, int]) -> list[list[Any]]:
    """The input of three workers: rows of separate keys, whose values are numbers, and all epochs."""
    inputs: list[list[Any]] = [[], [], []]
    epoch = 0
    for number, entry in enumerate(entries):
        if isinstance(entry, int):
            epoch += 10 * entry
            for messages in inputs:
                messages.append(Epoch(epoch))
        else:
            key, delta = entry
            inputs[owner[key]].append(row(key, number, epoch + 1 + delta))
    return inputs


def interrupted(messages: list[Any], done: int) -> tuple[list[Any], bytes]:
    """What has left a worker when the first ``done`` of ``messages`` are answered, and those before the last epoch, for
    which a barrier waits; and what it persists then."""
    numbers = [message.values[0] for message in messages if isinstance(message, Batch)]
    done = max([done, *(at for at, message in enumerate(messages) if isinstance(message, Epoch))])
    answered = {message.values[0] for message in messages[:done] if isinstance(message, Batch)}
    with enriching(TIMED, **OWN_THING) as step:
        step.desk.answer(*answered)
        step.push(*messages)
        unanswered = (n for n, m in enumerate(messages) if isinstance(m, Batch) and m.values[0] not in answered)
        step.settle(held=len(messages) - next(unanswered, len(messages)))
        came, state = list(step.messages()), barrier(step)
        step.desk.answer(*(set(numbers) - answered))
        step.settle()
    return came, state


def restored(states: list[bytes], owned: set[str], numbers: int) -> list[Any]:
    """All that comes out of a worker that takes the ``owned`` keys over, up to the end."""
    with enriching(TIMED, **OWN_THING) as step:
        for state in states:
            step.step.restore(state, owned.__contains__)
        step.push(Epoch(MAX_EPOCH))
        step.desk.answer(*range(numbers))
        step.settle()
        return list(step.messages())


def in_event_time(messages: list[Any]) -> bool:
    """Whether epochs rise, and no row comes at or below one that has come."""
    reached = -1
    for message in messages:
        lowest = message.time if isinstance(message, Epoch) else min(message.timestamps)
        if lowest <= reached:
            return False
        reached = lowest if isinstance(message, Epoch) else reached
    return True


def numbers_of(messages: list[Any], key: str) -> list[int]:
    rows = [zip(m.keys or (), m.values, strict=True) for m in messages if isinstance(m, Batch)]
    return [value[0] for pairs in rows for k, value in pairs if k == key]


@settings(max_examples=40)
@given(
    entries=st.lists(ENTRY, max_size=12),
    before=st.fixed_dictionaries({key: st.integers(0, 2) for key in "abcd"}),
    after=st.fixed_dictionaries({key: st.integers(0, 1) for key in "abcd"}),
    done=st.integers(0, 12),
)
def test_s5_what_several_workers_had_in_flight_is_restored_on_others(
    entries: list[Any], before: dict[str, int], after: dict[str, int], done: int
) -> None:
    first = [interrupted(messages, done) for messages in dealt(entries, before)]
    states = [state for _, state in first]
    second = [restored(states, {key for key in "abcd" if after[key] == n}, len(entries)) for n in range(2)]
    assert all(in_event_time(came) for came in (*(came for came, _ in first), *second))
    assert all(came[-1] == Epoch(MAX_EPOCH) for came in second)
    for key in "abcd":
        came = numbers_of([*first[before[key]][0], *second[after[key]]], key)
        assert came == [n for n, entry in enumerate(entries) if not isinstance(entry, int) and entry[0] == key]


# Moving state.


@contextmanager
def answered_later(step: Enriching, *things: str) -> Iterator[None]:
    """The desk answers while the step waits."""
    later = threading.Timer(0.01, step.desk.answer, things)
    later.start()
    yield
    later.join()


def test_interrogate_tells_the_keys_in_flight_that_pass() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1), row("b", 2, 2), row("a", 3, 3))
        step.desk.answer("a")
        step.settle(held=2)
        assert step.send(Interrogate(lambda key: True)).keys == {"a", "b"}
        assert step.send(Interrogate(lambda key: key == "a")).keys == {"a"}
        step.desk.answer("b")
        step.settle()
        assert step.send(Interrogate(lambda key: True)).keys == set()


def test_r4_collect_waits_for_the_calls_of_its_keys_and_lets_what_stands_before_them_leave() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1), row("b", 2, 2), row("c", 3, 3))
        with answered_later(step, "b", "a"):
            message = step.send(Collect({"b"}))
        assert message.states == {}
        assert (step.values(), step.held) == ([(1, "A"), (2, "B")], 1)
        assert step.send(Interrogate(lambda key: True)).keys == {"c"}
        step.desk.answer("c")


def test_r4_collect_lets_every_epoch_leave_first_also_for_keys_that_are_not_here() -> None:
    with enriching(TIMED) as step:
        step.push(row("a", 1, 1), Epoch(5), row("b", 2, 6))
        with answered_later(step, "a"):
            step.send(Collect({"elsewhere"}))
        assert told(step) == [(1, "A"), Epoch(5)]
        step.desk.answer("b")


def test_r4_collect_of_nothing_that_is_here_waits_for_nothing() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1))
        step.send(Collect({"elsewhere"}))
        assert step.held == 1
        step.desk.answer("a")


def test_r5_acquire_lets_every_epoch_leave_first_and_brings_nothing() -> None:
    with enriching(TIMED) as step:
        step.push(row("a", 1, 1), Epoch(5), row("b", 2, 6))
        with answered_later(step, "a"):
            step.send(Acquire({"other": b""}))
        assert told(step) == [(1, "A"), Epoch(5)]
        step.desk.answer("b")


def test_what_leaves_for_a_collect_comes_out_before_it() -> None:
    """So that later steps get the rows and epochs before they give up state."""

    async def look(key: str) -> str:
        await asyncio.sleep(0)
        return key

    def total(key: str, value: Any, state: int) -> tuple[int, int]:
        return state + 1, state + 1

    def both(stream: Any) -> Any:
        return stream.enrich("e", look).stateful_map("n", total, default=int)

    with OperatorTester(both, keyed=True, timed=True) as tester, OperatorTester(both, keyed=True, timed=True) as other:
        message = Collect({"a"})
        tester.send_local([("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], Epoch(3), message).step()
        other.acquire(message.states)
        got = tester.receive_local()
        assert got.index(Epoch(3)) < got.index(message)
        assert set(message.states) == {"n"}
        assert [
            m.value for m in other.send_local([("a", 4, 4)]).step().receive_local() if isinstance(m, DataMessage)
        ] == [3]


def test_a_collect_that_waits_in_vain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_GRACE_S", 0.01 - 30.0)
    with enriching() as step:
        step.push(row("a", 1, 1))
        with pytest.raises(DeadlineError, match="'under-test'"):
            step.send(Collect({"a"}))


def test_behind_a_suspension_nothing_comes() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1))
        step.desk.wait(1)
        step.send(SuspendMarker())
        step.desk.answer("a")
        assert (step.step.awaiting, step.call(step.step.resume), step.values()) == (False, 0, [])


# The test kit.


class Opening(CapturingPersistenceBackend):
    """Lets calls come back once everything has been persisted."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: Future[None] = Future()

    def persist(self, operator: str, state: bytes) -> None:
        super().persist(operator, state)
        self.opened.set_result(None)


def test_a_tester_persists_what_is_in_flight_and_restores_it() -> None:
    backend, asked = Opening(), list[str]()

    async def look(key: str) -> str:
        asked.append(key)
        await asyncio.shield(asyncio.wrap_future(backend.opened))
        return key.upper()

    def step(stream: Any) -> Any:
        return stream.enrich("e", look).map("same", lambda pair: pair)

    with OperatorTester(step, keyed=True, timed=True) as tester, OperatorTester(step, keyed=True, timed=True) as fresh:
        tester.send_local(Epoch(3), [("a", 1, 4), ("b", 2, 4)], AbsBarrier("s", backend)).step()
        assert sorted(asked) == ["a", "b"]
        fresh.restore(Persisted(backend.states, epoch=3), lambda key: key == "b")
        got = fresh.send_local([("b", 3, 5)]).step().receive_local()
        assert sorted(asked) == ["a", "b", "b", "b"]
        assert [m.value for m in got if not isinstance(m, Epoch)] == [(2, "B"), (3, "B")]  # type: ignore[union-attr]


# Records that wait


class Sent:
    """An outlet that keeps batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def send(self, message: Any, port: int = 0) -> None:
        self.batches.append(message)


def test_rows_leave_as_one_batch_that_is_timed_as_a_whole() -> None:
    sent: Any = Sent()
    rows = Gathered(sent)
    for timestamp in (1, 2, None, 3):
        rows.add(Held("a", None, timestamp), "value")
    rows.send()
    rows.send()
    assert [(len(batch), batch.timestamps) for batch in sent.batches] == [(2, [1, 2]), (1, None), (1, [3])]
