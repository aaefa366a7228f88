"""`enrich` and what acts on state: its queue is persisted, restored at any scale, and drained where state moves."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import CodecError, OperatorError
from malstrom_py.operators.enrich.calls import Cache
from malstrom_py.testing import OperatorTester
from tests.unit.operators.desk import TIMED, barrier, enriching, row, told

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


def test_s1_what_was_restored_is_asked_even_if_nothing_new_comes() -> None:
    with enriching(TIMED) as step:
        step.push(row("a", 1, 1))
        state = barrier(step)
        step.desk.answer("a")
        step.settle()
    with enriching(TIMED) as restored:
        restored.step.restore(state)
        assert restored.step.awaiting
        restored.desk.answer("a")
        restored.settle()
        assert told(restored) == [(1, "A")]


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
