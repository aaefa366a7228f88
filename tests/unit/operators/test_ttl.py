"""``ttl=``: the state of a key goes once event time, or the clock, passes its last record + ttl."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sources
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, Collect, DataMessage, Epoch, Interrogate
from malstrom_py.errors import PlanError
from malstrom_py.operators.keyed import expiring
from malstrom_py.operators.stateful_map import TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.state.artefact import artefact
from malstrom_py.state.entries import Times, decoded_entries, encoded_entries
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import OperatorTester, VirtualClock
from tests.unit.operators.stepping import Stepped


def counted(key: Any, value: int, state: int | None) -> tuple[int, int]:
    return (state or 0) + 1, (state or 0) + 1


def listed(key: Any, value: int, state: int | None) -> tuple[list[int], int]:
    return [(state or 0) + 1], (state or 0) + 1


def as_op(message: Any, state: int | None, output: Any) -> int:
    output.emit(message.key, (state or 0) + 1, message.timestamp)
    return (state or 0) + 1


class Whole(mp.KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        for row, key in enumerate(keys):
            state[key] = state.get(key, 0) + 1
            output.emit(key, state[key], timestamps and timestamps[row])


STEPS: dict[str, Callable[..., Any]] = {
    "stateful_map": lambda s, **o: s.stateful_map("n", counted, **o),
    "stateful_flat_map": lambda s, **o: s.stateful_flat_map("n", listed, **o),
    "stateful_op": lambda s, **o: s.stateful_op("n", as_op, **o),
    "on_batch": lambda s, **o: s.stateful_op("n", Whole(), **o),
    "count": lambda s, **o: s.count("n", **o),
    "sum": lambda s, **o: s.sum("n", **o),
    "fold": lambda s, **o: s.fold("n", lambda n, _: n + 1, default=int, **o),
    "aggregate": lambda s, **o: s.aggregate("n", n=agg.count(), **o).map("of", lambda found: found["n"]),
    "reduce": lambda s, **o: s.reduce("n", lambda before, one: before + one, **o),
    "top_n": lambda s, **o: s.top_n("n", 9, **o).map("of", len),
    "mean": lambda s, **o: s.mean("n", by=lambda one: 1, **o).map("of", int),
    "distinct": lambda s, **o: s.distinct("n", **o),
    "min": lambda s, **o: s.min("n", **o),
    "max": lambda s, **o: s.max("n", **o),
}
NUMBERED = [step for step in STEPS if step not in ("distinct", "min", "max", "mean")]


def run(step: str, ttl: Any, moves: list[Any], *, clock: VirtualClock | None = None) -> tuple[list[Any], int]:
    """Send records of the key "a", at a time or None, and epochs; return the outputs and the number of keys left."""
    timed = clock is None
    tester = OperatorTester(
        lambda stream: STEPS[step](stream, ttl=ttl),
        keyed=True,
        timed=timed,
        clock=clock or VirtualClock(start_s=1_000.0),
    )
    sent: list[Any] = []
    for move in moves:
        if isinstance(move, timedelta):
            assert clock is not None
            clock.advance(move.total_seconds())
        elif isinstance(move, Epoch):
            tester.send_local(move)
        else:
            tester.send_local([DataMessage("a", 1, move)])
        tester.step()
        sent += [message.value for message in tester.receive_local() if isinstance(message, DataMessage)]
    (state,) = tester.states.values()
    return sent, len(state.values)


@pytest.mark.parametrize("step", NUMBERED)
def test_a_key_starts_again_once_event_time_has_passed_its_last_record_and_the_ttl(step: str) -> None:
    assert run(step, 10, [1, 3, Epoch(12), 13])[0] == [1, 2, 3]  # a record exactly at the end still finds the state
    assert run(step, 10, [1, 3, Epoch(14), 15])[0] == [1, 2, 1]
    assert run(step, 10, [1, 3, 14, 12, 25])[0] == [1, 2, 1, 2, 1]  # the frontier only frees the memory
    assert run(step, 10, [5, 2, Epoch(13), 15])[0] == [1, 2, 3]  # the latest counts, not the last


@pytest.mark.parametrize("step", STEPS)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=12),
    cuts=st.sets(st.integers(1, 11)),
)
def test_a_ttl_does_not_depend_on_how_batches_are_cut(step: str, rows: list[tuple[str, int]], cuts: set[int]) -> None:
    def sent(cuts: set[int]) -> list[Any]:
        tester = OperatorTester(lambda stream: STEPS[step](stream, ttl=10), keyed=True, timed=True)
        for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]):
            tester.send_local([DataMessage(key, 1, time) for key, time in rows[start:end]])
            tester.step()
        return tester.receive_local()

    assert sent(cuts) == sent(set())


def picky(key: Any, value: Any, state: int | None) -> tuple[int, int]:
    return (state or 0) + 2 // value, (state or 0) + 1


def dropping(key: Any, value: Any, state: int | None) -> tuple[int, int | None]:
    return (state or 0) + 1, None if value == "drop" else (state or 0) + 1


def as_dropping_op(message: Any, state: int | None, output: Any) -> int | None:
    sent, state = dropping(message.key, message.value, state)
    output.emit(message.key, sent, message.timestamp)
    return state


DROPPING: dict[str, Callable[..., Any]] = {
    "stateful_map": lambda s, **o: s.stateful_map("n", dropping, **o),
    "stateful_flat_map": lambda s, **o: s.stateful_flat_map(
        "n", lambda *of: ([dropping(*of)[0]], dropping(*of)[1]), **o
    ),
    "stateful_op": lambda s, **o: s.stateful_op("n", as_dropping_op, **o),
    "ttl_map": lambda s, ttl, **o: s.ttl_map("n", dropping, ttl=ttl, **o),
}


@pytest.mark.parametrize("step", DROPPING)
@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.sampled_from([1, 1, "drop"])), max_size=12),
    cuts=st.sets(st.integers(1, 11)),
)
@example(rows=[("a", 35, 1), ("a", 30, "drop"), ("a", 5, 1), ("a", 20, 1)], cuts=set())
def test_a_key_that_was_dropped_lives_by_its_records_since(
    step: str, rows: list[tuple[str, int, Any]], cuts: set[int]
) -> None:
    tester = OperatorTester(lambda stream: DROPPING[step](stream, ttl=10), keyed=True, timed=True)
    for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]):
        tester.send_local([DataMessage(key, value, time) for key, time, value in rows[start:end]])
        tester.step()
    counts: dict[str, int] = {}
    last: dict[str, int] = {}
    expected = []
    for key, time, value in rows:
        if key in counts and time > last[key] + 10:
            del counts[key], last[key]
        counts[key], last[key] = counts.get(key, 0) + 1, max(time, last.get(key, time))
        expected.append(counts[key])
        if value == "drop":
            del counts[key], last[key]
    received = tester.receive_local()
    assert [message.value for message in received if isinstance(message, DataMessage)] == expected


FAILING: dict[str, Callable[..., Any]] = {
    "stateful_map": lambda s, **o: s.stateful_map("n", picky, **o),
    "stateful_flat_map": lambda s, **o: s.stateful_flat_map("n", lambda *of: ([picky(*of)[0]], picky(*of)[1]), **o),
    "stateful_op": lambda s, **o: s.stateful_op("n", lambda m, n, out: as_op(m, n, out) + 0 // m.value, **o),
    "ttl_map": lambda s, ttl, **o: s.ttl_map("n", picky, ttl=ttl, **o),
    "fold": lambda s, **o: s.fold("n", lambda n, one: n + 2 // one, default=int, **o),
    "sum": lambda s, **o: s.sum("n", by=lambda one: 1 // one, **o),
    "aggregate": lambda s, **o: s.aggregate("n", n=agg.sum(lambda one: 1 // one), **o),
    "top_n": lambda s, **o: s.top_n("n", 9, by=lambda one: 1 // one, **o),
    "distinct": lambda s, **o: s.distinct("n", by=lambda one: 1 // one, **o),
}
"""Steps that fail on the value 0."""


@pytest.mark.parametrize("step", FAILING)
@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.sampled_from([1, 1, 0])), max_size=12),
    cuts=st.sets(st.integers(1, 11)),
)
def test_a_record_that_fails_changes_nothing(step: str, rows: list[tuple[str, int, int]], cuts: set[int]) -> None:
    """It ends no state, for records that come late, and prolongs none."""

    def sent(rows: list[tuple[str, int, int]], cuts: set[int]) -> list[Any]:
        made = FAILING[step]
        tester = OperatorTester(lambda stream: made(stream, ttl=10, on_error="skip"), keyed=True, timed=True)
        for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]):
            tester.send_local([DataMessage(key, value, time) for key, time, value in rows[start:end]])
            tester.step()
        return tester.receive_local()

    assert sent(rows, cuts) == sent([row for row in rows if row[2]], set())


@pytest.mark.parametrize("step", STEPS)
def test_the_state_of_all_that_expired_is_gone(step: str) -> None:
    assert run(step, 10, [1, Epoch(11)])[1] == 1
    assert run(step, 10, [1, Epoch(12)])[1] == 0


@pytest.mark.parametrize("step", NUMBERED)
def test_without_event_time_it_goes_by_the_clock(step: str) -> None:
    clock = VirtualClock(start_s=1_000.0)
    ttl, second = timedelta(seconds=10), timedelta(seconds=1)
    assert run(step, ttl, [None, 10 * second, None, 10.5 * second, None], clock=clock)[0] == [1, 2, 1]


def test_by_the_clock_states_go_although_nothing_comes() -> None:
    clock = VirtualClock()
    step = Stepped(
        partial(expiring, factory=partial(StatefulOp, logic=as_op), ttl=5_000, by_clock=True), keyed=True, clock=clock
    )
    assert step.operator.scheduled
    assert step.operator.dormant
    step.push(Batch([1], keys=["a"]))
    assert not step.operator.dormant
    clock.advance(5.0)
    step.call(partial(step.operator.on_schedule, clock=clock))
    assert step.operator.keys == 1
    clock.advance(0.001)
    step.call(partial(step.operator.on_schedule, clock=clock))
    assert (step.operator.keys, step.operator.dormant) == (0, True)


class Rings(mp.KeyedLogic[str, int, Any, int]):
    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        for after in (5, 20):
            output.set_timer(message.key, message.timestamp + after)
        return 1

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.emit(key, (time, key_state), time)
        return 7 if time == 21 else key_state

    def on_epoch(self, epoch: Epoch, state: Any, output: Any) -> None:
        if epoch.time == MAX_EPOCH:
            for key, value in state.items():
                output.emit(key, ("end", value), MAX_EPOCH - 1)


def rings(*messages: Any) -> Stepped:
    factory = partial(expiring, factory=partial(StatefulOp, logic=Rings()), ttl=10, by_clock=False)
    return Stepped(factory, timed=True, keyed=True).push(*messages)


def test_a_timer_sees_the_state_as_it_is_at_its_own_time() -> None:
    record = Batch([1], keys=["a"], timestamps=[1])
    assert rings(record, Epoch(100)).values() == [(6, 1), (21, None)]


def test_what_a_timer_makes_lives_for_a_ttl_too() -> None:
    step = rings(Batch([1], keys=["a"], timestamps=[1]), Epoch(25))
    assert step.operator.keys == 1
    assert step.push(Epoch(31)).operator.keys == 1
    assert step.push(Epoch(32)).operator.keys == 0
    assert rings(Batch([1], keys=["a"], timestamps=[1]), Epoch(100)).operator.keys == 0


class Revives(mp.KeyedLogic[str, int, Any, int]):
    """One timer drops the state, the next makes one, and the last shows whether it is there."""

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        for after in (2, 4, 12):
            output.set_timer(message.key, message.timestamp + after)
        return 1

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.emit(key, (time, key_state), time)
        return None if time == 2 else 2


def test_a_state_that_a_timer_makes_lasts_as_long_whatever_other_keys_and_epochs_there_are() -> None:
    for keys in ("a", "ab"):
        for epochs in ([100], [2, 4, 5, 14], [3, 12], list(range(1, 30))):
            factory = partial(expiring, factory=partial(StatefulOp, logic=Revives()), ttl=10, by_clock=False)
            step = Stepped(factory, timed=True, keyed=True)
            step.push(Batch([1] * len(keys), keys=list(keys), timestamps=[0, 9][: len(keys)]))
            for time in epochs:
                step.push(Epoch(time))
            step.push(Epoch(100))
            assert [value for value in step.values() if value[0] in (2, 4, 12)][:3] == [(2, 1), (4, None), (12, 2)]


def test_at_the_end_of_the_stream_hooks_see_the_states_that_are_there() -> None:
    step = rings(Batch([1], keys=["a"], timestamps=[1]), Epoch(8), Epoch(MAX_EPOCH))
    assert step.values() == [(6, 1), (21, None), ("end", 7)]
    assert step.operator.keys in (0, 1)


def test_a_key_that_a_hook_has_dropped_does_not_move_for_its_end() -> None:
    class Drops(mp.KeyedLogic[str, int, Any, int]):
        def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
            return 1

        def on_epoch(self, epoch: Epoch, state: Any, output: Any) -> None:
            state.clear()

    step = Stepped(
        partial(expiring, factory=partial(StatefulOp, logic=Drops()), ttl=10, by_clock=False), timed=True, keyed=True
    )
    taken = Collect({"a"})
    step.push(Batch([1], keys=["a"], timestamps=[5]), Epoch(6), taken)
    assert taken.states == {}


def test_the_initial_state_lives_from_the_first_epoch_on() -> None:
    step = Stepped(partial(TtlMap, fn=counted, ttl=10, default=None), timed=True, keyed=True)
    assert isinstance(step.operator, TtlMap)
    step.operator.start_with({"a": 5})
    assert step.push(Epoch(100), Epoch(110)).operator.keys == 1
    assert step.push(Epoch(111)).operator.keys == 0


def test_s5_a_snapshot_in_which_the_end_was_a_timer_is_restored() -> None:
    codec = Codec()
    (name,) = codec.encode_each_at_rest(["a"], step="s", keys=["a"])
    old = artefact({0: ([name], [b"\x01" + codec.encode_at_rest([3, [50]], step="s")])}, delta=False)
    step = Stepped(partial(TtlMap, fn=counted, ttl=10, default=None), timed=True, keyed=True)
    assert isinstance(step.operator, TtlMap)
    step.operator.track(lambda keys: [0] * len(keys))
    step.operator.install([old], {0})
    assert len(step.operator.state.timers) == 0
    assert step.push(Epoch(50)).operator.keys == 1
    assert step.push(Epoch(51)).operator.keys == 0


def test_s5_ends_and_timers_of_both_clocks_are_stored_and_those_without_are_stored_as_ever() -> None:
    state = KeyedState("s", Codec())
    state.track(lambda keys: [0] * len(keys))
    state.values.update(plain=1, timed=2)
    state.timers.set("timed", 9)
    assert state.artefact(AbsBarrier("s1", None)) == artefact(  # type: ignore[arg-type]  # it is not asked
        {
            0: (
                Codec().encode_each_at_rest(["plain", "timed"], step="s", keys=["plain", "timed"]),
                [b"\x10\x01", b"\x01\x10\x92\x02\x91\x09"],
            )
        },
        delta=False,
    )
    dated = encoded_entries(Codec(), ["a"], [2], {"a": Times([9], [8], 7)}, step="s")
    assert dated == [b"\x02\x10\x94\x02\x91\x09\x91\x08\x07"]
    assert decoded_entries(Codec(), ["a"], dated, step="s") == ([2], {"a": Times([9], [8], 7)})


def test_a_ttl_that_cannot_be_used_is_refused() -> None:
    words = mp.Job("docs").source("words", sources.Memory(["a"])).key_by("word", str)
    with pytest.raises(PlanError, match="no event time, so ttl goes by the clock: give a timedelta, got 5"):
        words.count("n", ttl=5)
    for ttl in (0, -1, True, "5", timedelta(0)):
        with pytest.raises(PlanError, match="ttl"):
            words.count("n", ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'ttl'"):
        words.collect("lists", size=2, ttl=timedelta(1))  # type: ignore[call-arg]


# ttl_map


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
        if key in counts and time > last[key] + TTL:
            del counts[key], last[key]
        counts[key] = counts.get(key, 0) + 1
        last[key] = max(time, last.get(key, time))
        expected.append(counts[key])
        if value == "drop":
            del counts[key], last[key]
    assert step.values() == expected
    assert step.operator.keys == len(counts)
