"""The state of one step that goes ahead of its move: what is confirmed, what is sent again, and what is never used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def image(state: KeyedState) -> dict[Any, Any]:
    return {
        key: (state.values.get(key), state.timers.times(key), state.clock_timers.times(key))
        for key in sorted(state.keys())
    }


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "grow", "drop", "timer", "clock", "due", *["ahead"] * 5, "forget"]),
        st.sampled_from("ab"),
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=20,
)


@settings(max_examples=100)
@given(operations=OPERATIONS, leaving=st.sets(st.sampled_from("ab"), min_size=1))
def test_r12_whatever_happens_after_a_copy_the_taker_has_what_the_giver_had_at_the_cut(
    operations: list[tuple[str, str, int]], leaving: set[str]
) -> None:
    giver, taker = tracked({"a": [1], "b": [2]}), tracked()
    for what, key, number in operations:
        match what:
            case "set":
                assign(giver, {key: [number]})
            case "grow":  # in place
                giver.note([key])
                giver.values.setdefault(key, []).append(number)
            case "drop":
                giver.note([key])
                giver.values.pop(key, None)
            case "timer" | "clock":
                (giver.timers if what == "timer" else giver.clock_timers).set(key, number)
            case "due":
                list(giver.timers.due(number))
            case "ahead":
                ahead(giver, taker, key)
            case "forget":  # the move was given up
                giver.forget_ahead()
                taker.forget_ahead()
    before = image(giver)
    assert (taker.keys(), len(taker.timers)) == (set(), 0), "nothing is used before the cut"
    cut(giver, taker, *sorted(leaving))
    assert image(taker) == {key: held for key, held in before.items() if key in leaving}
    assert image(giver) == {key: held for key, held in before.items() if key not in leaving}


def test_r12_a_confirmed_key_whose_copy_has_not_come_is_an_error() -> None:
    giver, taker = tracked({"a": 1}), tracked()
    giver.send_ahead(["a"])
    with pytest.raises(InternalError, match=r"state of key 'a' was confirmed, and has not come \(R12\)"):
        cut(giver, taker, "a")


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
    giver.send_ahead(["b"])
    assert giver.counted_ahead == (2, 0)


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
