"""`ttl_map`: a key's state lasts until the frontier passes its last record + ttl."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch, Interrogate
from malstrom_py.operators.stateful_map import TtlMap
from tests.unit.operators.stepping import Stepped

TTL = 10


def seen(key: str, value: Any, count: int) -> tuple[int, int | None]:
    if value == "raise":
        raise ValueError
    return count + 1, None if value == "drop" else count + 1


def stepped(on_error: Any = "fail") -> Stepped:
    return Stepped(partial(TtlMap, fn=seen, ttl=TTL, default=int), timed=True, keyed=True, on_error=on_error)


def at(*times: int, key: str = "a", value: Any = 0) -> Batch:
    return Batch([value] * len(times), keys=[key] * len(times), timestamps=list(times))


def timers(step: Stepped, key: str = "a") -> list[int]:
    assert isinstance(step.operator, TtlMap)
    assert step.operator.state.expiry is not None
    until = step.operator.state.expiry.until.get(key)
    return [] if until is None else [until]


def test_a_dropped_key_leaves_no_timer_behind() -> None:
    step = stepped().push(at(1), at(2, value="drop"))
    assert (step.operator.keys, timers(step)) == (0, [])
    asked = Interrogate(lambda key: True)
    step.push(asked)
    assert asked.keys == set()


def test_a_record_it_raises_on_prolongs_nothing() -> None:
    step = stepped("skip").push(at(100), at(109, value="raise"))
    assert timers(step) == [110]
    mixed = Batch([0, "raise"], keys=["a", "a"], timestamps=[101, 109])
    assert timers(step.push(mixed)) == [111]
    assert step.push(Epoch(112)).operator.keys == 0


def test_a_new_key_that_only_raises_has_neither_state_nor_timer() -> None:
    step = stepped("dead-letter").push(at(100, value="raise"))
    assert (step.operator.keys, timers(step)) == (0, [])


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(0, 15), st.sampled_from([0, "drop"])), st.integers(1, 9)
        ),
        max_size=30,
    )
)
def test_it_does_what_the_words_of_the_rule_say(moves: list[Any]) -> None:
    step, frontier = stepped(), 0
    counts: dict[str, int] = {}
    last: dict[str, int] = {}
    expected = []
    for move in moves:
        if isinstance(move, int):
            frontier += move
            step.push(Epoch(frontier))
            for key in [key for key in counts if frontier > last[key] + TTL]:
                del counts[key], last[key]
            continue
        key, ahead, value = move
        time = frontier + 1 + ahead
        step.push(at(time, key=key, value=value))
        counts[key] = counts.get(key, 0) + 1
        last[key] = max(time, last.get(key, time))
        expected.append(counts[key])
        if value == "drop":
            del counts[key], last[key]
    assert step.values() == expected
    assert step.operator.keys == len(counts)
