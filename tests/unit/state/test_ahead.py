"""The state of one step that goes ahead of its move: what is confirmed, what is sent again, and what is never used."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, Acquire, Collect
from malstrom_py.errors import InternalError
from malstrom_py.state.artefact import contents, is_delta
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import CapturingPersistenceBackend


def tracked(values: dict[Any, Any] | None = None) -> KeyedState:
    state = KeyedState("count", Codec())
    state.track(lambda keys: [0 for _ in keys])
    assign(state, values or {})
    return state


def assign(state: KeyedState, values: dict[Any, Any]) -> None:
    state.note(values)
    state.values.update(values)


def ahead(giver: KeyedState, taker: KeyedState, *keys: Any) -> bytes | None:
    """Send the state of ``keys`` ahead."""
    copied = giver.send_ahead(keys)
    if copied is not None:
        taker.put_aside(copied)
    return copied


def cut(giver: KeyedState, taker: KeyedState, *keys: Any) -> Collect:
    """Let ``keys`` leave; the move is over then."""
    message = Collect(dict.fromkeys(keys).keys())
    giver.handle(message)
    taker.handle(Acquire(message.states, message.confirmed))
    giver.forget_ahead()
    taker.forget_ahead()
    return message


def test_r12_what_has_not_changed_is_confirmed_and_not_sent_again() -> None:
    giver, taker = tracked({"a": "x" * 10_000}), tracked()
    ahead(giver, taker, "a")
    message = cut(giver, taker, "a")
    assert message.states == {}
    assert len(message.confirmed["count"]) < 100
    assert (giver.values, taker.values) == ({}, {"a": "x" * 10_000})


def test_r12_what_has_changed_is_sent_again_and_its_copy_is_not_used() -> None:
    giver, taker = tracked({"a": 1, "b": 2}), tracked()
    ahead(giver, taker, "a", "b")
    assign(giver, {"a": 5})
    message = cut(giver, taker, "a", "b")
    assert message.states.keys() == message.confirmed.keys() == {"count"}
    assert taker.values == {"a": 5, "b": 2}


def test_r12_a_key_that_is_gone_does_not_come_back() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    ahead(giver, taker, "a")
    giver.note(["a"])
    del giver.values["a"]
    message = cut(giver, taker, "a")
    assert (message.states, message.confirmed, taker.values) == ({}, {}, {})


def test_r12_a_key_that_came_after_the_copy_is_sent_at_the_cut() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    ahead(giver, taker, "a")
    assign(giver, {"new": 3})
    cut(giver, taker, "a", "new")
    assert taker.values == {"a": 1, "new": 3}


def test_r12_nothing_is_used_before_the_cut() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    giver.timers.set("a", 7)
    ahead(giver, taker, "a")
    assert (taker.values, len(taker.timers), taker.keys()) == ({}, 0, set())
    assert list(taker.timers.due(100)) == []


def test_r12_a_timer_that_was_set_or_has_fired_since_is_a_change() -> None:
    for change in (lambda state: state.timers.set("a", 9), lambda state: list(state.timers.due(7))):
        giver, taker = tracked({"a": 1}), tracked()
        giver.timers.set("a", 7)
        ahead(giver, taker, "a")
        change(giver)
        expected = giver.timers.times("a")
        message = cut(giver, taker, "a")
        assert message.confirmed == {}
        assert taker.timers.times("a") == expected


def test_r12_timers_go_ahead_with_their_key() -> None:
    giver, taker = tracked(), tracked()
    giver.timers.set("only a timer", 3)
    giver.clock_timers.set("only a timer", 4)
    ahead(giver, taker, "only a timer")
    assert cut(giver, taker, "only a timer").states == {}
    assert (taker.timers.times("only a timer"), taker.clock_timers.times("only a timer")) == ([3], [4])
    assert (len(giver.timers), len(giver.clock_timers)) == (0, 0)


def test_r12_a_later_copy_replaces_an_earlier_one() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    ahead(giver, taker, "a")
    assign(giver, {"a": 2})
    ahead(giver, taker, "a")
    assert cut(giver, taker, "a").states == {}
    assert taker.values == {"a": 2}


def test_r12_a_copy_is_of_its_moment_though_the_state_is_changed_in_place() -> None:
    giver, taker = tracked({"a": [1]}), tracked()
    ahead(giver, taker, "a")
    giver.note(["a"])
    giver.values["a"].append(2)
    cut(giver, taker, "a")
    assert taker.values == {"a": [1, 2]}


def test_r12_a_confirmed_key_whose_copy_has_not_come_is_an_error() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    giver.send_ahead(["a"])
    with pytest.raises(InternalError, match=r"state of key 'a' was confirmed, and has not come \(R12\)"):
        cut(giver, taker, "a")


def test_r12_what_went_ahead_of_a_move_is_worth_nothing_in_the_next_one() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    ahead(giver, taker, "a")
    giver.forget_ahead()
    taker.forget_ahead()
    message = cut(giver, taker, "a")
    assert message.confirmed == {}
    assert taker.values == {"a": 1}


def test_r12_a_key_without_state_does_not_go_ahead() -> None:
    giver = tracked({"a": None})
    assert giver.send_ahead(["a", "unknown"]) is None
    assert giver.is_ahead("unknown")
    assert giver.counted_ahead == (0, 0)


def test_r12_changes_are_counted_among_what_was_sent() -> None:
    giver = tracked({"a": 1, "b": 2, "c": 3})
    giver.send_ahead(["a", "b"])
    assign(giver, {"b": 5, "c": 6})
    assert giver.counted_ahead == (2, 1)
    assert [giver.is_ahead(key) for key in "abc"] == [True, False, False]


def test_r12_a_step_that_has_gone_over_to_another_mapping_sends_all_of_it_at_the_cut() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    ahead(giver, taker, "a")
    giver.values = dict(giver.values)
    message = cut(giver, taker, "a")
    assert message.confirmed == {}
    assert taker.values == {"a": 1}


def test_r12_without_tracking_nothing_goes_ahead() -> None:
    state = KeyedState("count", Codec())
    assert not state.goes_ahead
    assert tracked().goes_ahead


def barrier(state: KeyedState, snapshot: str, parent: str | None = None) -> bytes:
    backend = CapturingPersistenceBackend()
    state.handle(AbsBarrier(snapshot, backend, parent))
    return backend.states["count"]


def count(artefact: bytes) -> int:
    return sum(len(keys) for _, (keys, _) in contents(artefact))


def numbered(prefix: str) -> KeyedState:
    return tracked({f"{prefix}{number}": number for number in range(20)})


def test_s2_a_copy_is_no_change_for_a_delta_and_a_barrier_none_for_a_copy() -> None:
    giver, taker = numbered(""), tracked()
    barrier(giver, "1")
    assign(giver, {"3": -3})
    ahead(giver, taker, "3", "4")
    delta = barrier(giver, "2", "1")
    assert (is_delta(delta), count(delta)) == (True, 1)
    assert giver.counted_ahead == (2, 0)
    assert cut(giver, taker, "3", "4").states == {}
    assert taker.values == {"3": -3, "4": 4}


def test_s2_a_confirmed_key_is_in_the_next_delta_of_both_workers() -> None:
    giver, taker = numbered(""), numbered("other ")
    barrier(giver, "1")
    barrier(taker, "1")
    ahead(giver, taker, "4")
    cut(giver, taker, "4")
    assert [count(barrier(state, "2", "1")) for state in (giver, taker)] == [1, 1]
