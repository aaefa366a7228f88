"""The keyed state of one step: timers, control messages, tracked changes, and states that cannot be stored."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappush
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, Acquire, AnyOf, Collect, Interrogate, Rescale, SuspendMarker
from malstrom_py.errors import CodecError, InternalError
from malstrom_py.state.artefact import entries_in
from malstrom_py.state.expiry import Expiry
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.timers import Timers
from malstrom_py.testing import CapturingPersistenceBackend


def keyed_state(values: dict[Any, Any] | None = None, timers: dict[Any, list[int]] | None = None) -> KeyedState:
    state = KeyedState("step", Codec())
    state.values.update(values or {})
    for key, times in (timers or {}).items():
        for time in times:
            state.timers.set(key, time)
    return state


def contents(state: KeyedState) -> dict[Any, tuple[Any, list[int]]]:
    held = state.keys()
    return {key: (state.values.get(key), state.timers.times(key)) for key in held}


def timers_of(*pairs: tuple[Any, int]) -> Timers:
    timers = Timers()
    for key, time in pairs:
        timers.set(key, time)
    return timers


def test_a_timer_set_while_others_are_taken_out_takes_part() -> None:
    timers, seen = timers_of(("a", 1), ("a", 9)), []
    for key, time in timers.due(5):
        seen.append((key, time))
        if time < 7:
            timers.set(key, time + 2)
    assert seen == [("a", 1), ("a", 3), ("a", 5)]
    assert timers.times("a") == [7, 9]


def test_times_below_any_epoch_and_keys_without_order_are_no_trouble() -> None:
    timers = timers_of((None, 5), (("t", 1), 5), ("s", 5), (1, -(1 << 70)))
    assert [key for key, _ in timers.due(5)] == [1, None, ("t", 1), "s"]


@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 20)),
            st.tuples(st.just("take"), st.sampled_from("abc"), st.none()),
            st.tuples(st.just("due"), st.none(), st.integers(0, 20)),
        ),
        max_size=200,
    )
)
def test_timers_do_what_a_plain_list_does(operations: list[tuple[str, Any, Any]]) -> None:
    timers, plain = Timers(), list[tuple[str, int]]()
    for what, key, time in operations:
        if what == "set":
            timers.set(key, time)
            if (key, time) not in plain:
                plain.append((key, time))
        elif what == "take":
            assert timers.take(key) == sorted(at for other, at in plain if other == key)
            plain = [timer for timer in plain if timer[0] != key]
        else:
            due = sorted((timer for timer in plain if timer[1] <= time), key=lambda timer: timer[1])
            assert list(timers.due(time)) == due
            plain = [timer for timer in plain if timer[1] > time]
        assert len(timers) == len(plain)
        assert set(timers.keys()) == {other for other, _ in plain}


class Counted:
    """Counts how many entries the queue of timers is rebuilt of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = self.pushes = 0

        def rebuilt(queue: list[Any]) -> None:
            self.entries += len(queue)
            heapify(queue)

        def pushed(queue: list[Any], entry: Any) -> None:
            self.pushes += 1
            heappush(queue, entry)

        monkeypatch.setattr("malstrom_py.state.timers.heapify", rebuilt)
        monkeypatch.setattr("malstrom_py.state.timers.heappush", pushed)


def queue_of(timers: Timers) -> int:
    return len(timers._queue)


@pytest.mark.parametrize("keys", [1_000, 10_000])
def test_taking_many_keys_costs_a_few_steps_per_key(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    counted = Counted(monkeypatch)
    state = keyed_state(dict.fromkeys(range(keys), 1), {key: [5, 6] for key in range(keys)})
    moved = state.collect(range(keys))
    assert moved is not None
    assert counted.entries <= 2 * keys
    assert counted.pushes == 2 * keys
    assert queue_of(state.timers) <= 64
    taker = keyed_state()
    taker.acquire(moved)
    assert len(taker.timers) == 2 * keys


@pytest.mark.parametrize("change", [0, 1], ids=["to the same time", "to a later time"])
def test_moving_timers_about_again_and_again_costs_a_few_steps_each_and_no_memory(
    monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    counted, timers, rounds, keys = Counted(monkeypatch), Timers(), 40, 500
    for number in range(rounds):
        for key in range(keys):
            timers.take(key)
            timers.set(key, 100 + number * change)
            assert queue_of(timers) <= max(64, 4 * keys)
    assert counted.entries <= 2 * rounds * keys
    assert counted.pushes == rounds * keys


def test_keys_are_those_with_a_value_or_a_timer() -> None:
    state = keyed_state({"a": 0, "b": None, "c": ""}, {"d": [5], "b": [5]})
    assert state.keys() == {"a", "b", "c", "d"}
    assert keyed_state({"b": None}).keys() == set()


def test_interrogate_of_all_and_of_some_keys_says_what_a_predicate_would() -> None:
    state = keyed_state({"a": 0, "b": None, "c": ""}, {"d": [5], "b": [5]})
    everything = Interrogate()
    state.handle(everything)
    assert everything.keys == state.keys()
    some = Interrogate(AnyOf({"a", "d", "e", "b"}))
    state.handle(some)
    assert some.keys == {"a", "b", "d"}
    keyed_state({"b": None}).handle(nothing := Interrogate())
    keyed_state({"b": None}).handle(nothing_of := Interrogate(AnyOf({"b"})))
    assert nothing.keys == nothing_of.keys == set()
    assert [key for key in "abx" if AnyOf({"a", "b"})(key)] == ["a", "b"]


def test_values_are_not_compared_to_find_out_which_keys_have_any() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    state = keyed_state()
    state.values["a"] = Odd()
    for message in (Interrogate(), Interrogate(AnyOf({"a"}))):
        state.handle(message)
        assert message.keys == {"a"}


def test_collecting_keys_without_state_adds_nothing() -> None:
    message = Collect(frozenset({"a", "b"}))
    keyed_state({"b": None, "c": 1}).handle(message)
    assert message.states == {}
    assert keyed_state({"c": 1}).collect(()) is None


def test_what_is_not_for_this_step_is_left_alone() -> None:
    state = keyed_state({"a": 1})
    state.handle(Acquire({"another": b"not ours to read"}))
    state.handle(Rescale(2, (0, 1)))
    state.handle(SuspendMarker())
    assert contents(state) == {"a": (1, [])}


@pytest.mark.parametrize("here", [({"a": 0}, {}), ({}, {"a": [9]})], ids=["a value", "a timer"])
@pytest.mark.parametrize("comes", [({"a": 1}, {}), ({}, {"a": [5]})], ids=["a value", "a timer"])
def test_r5_acquiring_onto_state_of_its_own_is_our_bug(here: Any, comes: Any) -> None:
    moved = keyed_state(*comes).collect(["a"])
    assert moved is not None
    with pytest.raises(
        InternalError, match=r"'step': state of key 'a' was acquired, but the key already has state here"
    ):
        keyed_state(*here).acquire(moved)


def test_r5_a_value_of_none_is_no_state_to_acquire_onto() -> None:
    moved = keyed_state({"a": 1}).collect(["a"])
    assert moved is not None
    taker = keyed_state({"a": None})
    taker.acquire(moved)
    assert contents(taker) == {"a": (1, [])}


STATES = st.dictionaries(
    st.one_of(st.integers(), st.text(), st.none(), st.booleans(), st.tuples(st.integers(), st.text())),
    st.tuples(
        st.one_of(st.none(), st.integers(), st.lists(st.text()), st.tuples(st.integers()), st.sets(st.integers())),
        st.lists(st.integers(-(1 << 70), 1 << 70), max_size=3, unique=True),
    ),
    max_size=8,
)


@given(states=STATES, keep=st.sets(st.integers(0, 7)))
def test_what_is_persisted_comes_back_as_far_as_the_keys_are_owned(
    states: dict[Any, tuple[Any, list[int]]], keep: set[int]
) -> None:
    """S5: any number of workers restores what any other number wrote."""
    state = keyed_state({k: value for k, (value, _) in states.items()}, {k: times for k, (_, times) in states.items()})
    before = contents(state)
    backend = CapturingPersistenceBackend()
    state.handle(AbsBarrier("s", backend))
    assert contents(state) == before
    owned = {key for number, key in enumerate(states) if number in keep}
    mine, others = keyed_state(), keyed_state()
    mine.restore(backend.states["step"], owned.__contains__)
    others.restore(backend.states["step"], lambda key: key not in owned)
    assert contents(mine) == {key: both for key, both in before.items() if key in owned}
    assert contents(mine) | contents(others) == before
    everything = keyed_state()
    everything.restore(backend.states["step"])
    assert contents(everything) == before
    assert [type(value) for value in everything.values.values()] == [type(before[key][0]) for key in everything.values]


@given(states=STATES, away=st.sets(st.integers(0, 7)))
def test_keys_that_move_away_and_back_leave_everything_as_it_was(
    states: dict[Any, tuple[Any, list[int]]], away: set[int]
) -> None:
    state = keyed_state({k: value for k, (value, _) in states.items()}, {k: times for k, (_, times) in states.items()})
    before = contents(state)
    moved = state.collect([key for number, key in enumerate(states) if number in away])
    if moved is not None:
        state.acquire(moved)
    assert contents(state) == before


@pytest.mark.parametrize("how", ["collect", "snapshot"])
def test_what_cannot_be_encoded_names_step_and_key(how: str) -> None:
    state = keyed_state({"good": 1, "bad": (n for n in [1])})
    with pytest.raises(CodecError, match=r"'step'.*'bad'.*generator"):
        state.snapshot() if how == "snapshot" else state.collect(["good", "bad"])


def test_what_is_persisted_has_the_keys_in_the_order_they_came_in_whatever_their_hashes() -> None:
    words = [f"key-{number * 7919 % 1000}" for number in range(200)]
    state = keyed_state(dict.fromkeys(words, 1), {"only a timer": [5], words[7]: [6]})
    restored = keyed_state()
    restored.restore(state.snapshot())
    assert list(restored.values) == words
    assert restored.snapshot() == state.snapshot()
    assert [entry.key for entry in entries_in([state.snapshot()], Codec())] == [*words, "only a timer"]


def test_what_is_collected_comes_in_the_order_of_the_keys_that_are_asked_for() -> None:
    here, there = KeyedState("step", Codec()), KeyedState("step", Codec())
    keys = [f"key-{number}" for number in range(50)]
    here.values.update(dict.fromkeys(keys, 1))
    taken = here.collect(dict.fromkeys(reversed(keys)).keys())
    assert taken is not None
    there.acquire(taken)
    assert list(there.values) == keys[::-1]


def test_collecting_few_keys_looks_at_no_others() -> None:
    looked: list[int] = []

    class Looked(int):
        def __hash__(self) -> int:
            looked.append(int(self))
            return int(self)

        def __eq__(self, other: object) -> bool:
            return int(self) == other

    state = KeyedState("step", Codec())
    state.values.update((Looked(number), 1) for number in range(1000))
    looked.clear()
    state.collect([7, 8])
    assert set(looked) <= {7, 8}


class Plain:
    """A class that no snapshot can store."""


@dataclass
class Unregistered:
    """One that a snapshot can store once the job knows it."""

    number: int = 0


def keyed(job: mp.Job, numbers: Any) -> Any:
    return job.source("numbers", sources.Memory(numbers)).key_by("parity", lambda number: number % 2)


def run(step: Any, tmp_path: Path, numbers: Any = range(100), *, kept: bool = True) -> list[Any]:
    job, out = mp.Job("states"), sinks.Memory()
    step(keyed(job, numbers)).sink("out", out)
    # Nothing but the end of the job makes a snapshot.
    snapshots = mp.Snapshots(tmp_path, interval_s=None) if kept else None
    mp.run(job, batch=mp.Batching(rows_max=1), snapshots=snapshots)
    return out.items


class Batches(mp.KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        TRIED.append(values)
        state[keys[0]] = Plain()


TRIED: list[Any] = []


def kept(value: Any, state: Any) -> Any:
    TRIED.append(value)
    return state


STEPS = {
    "stateful_map": lambda s: s.stateful_map("keep", lambda key, value, state: (value, kept(value, Plain()))),
    "stateful_flat_map": lambda s: s.stateful_flat_map("keep", lambda key, value, state: ([], kept(value, Plain()))),
    "stateful_op": lambda s: s.stateful_op("keep", lambda message, state, output: kept(message.value, Plain())),
    "stateful_op of batches": lambda s: s.stateful_op("keep", Batches()),
    "reduce": lambda s: s.map("make", lambda value: kept(value, Plain())).reduce("keep", lambda one, other: other),
    "fold": lambda s: s.fold("keep", default=int, fn=lambda state, value: kept(value, Plain())),
    "collect": lambda s: s.map("make", lambda value: kept(value, Plain())).collect("keep", size=3),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_first_state_is_tried_when_it_is_kept(name: str, tmp_path: Path) -> None:
    TRIED.clear()
    with pytest.raises(CodecError, match=r"step 'keep' for key 0: a value of type .*Plain cannot be stored.*Make it a"):
        run(STEPS[name], tmp_path)
    assert len(TRIED) == 1, "the first record was the last"


@pytest.mark.parametrize("name", STEPS)
def test_without_snapshots_state_may_be_anything(name: str, tmp_path: Path) -> None:
    run(STEPS[name], tmp_path, range(2), kept=False)


def test_the_remedy_of_a_dataclass_is_to_register_it(tmp_path: Path) -> None:
    with pytest.raises(
        CodecError, match=r"Unregistered cannot be stored: .*job.register_type\(Unregistered\)"
    ) as caught:
        run(lambda s: s.stateful_map("keep", lambda key, value, state: (value, Unregistered(value))), tmp_path)
    assert (caught.value.step, caught.value.key) == ("keep", 0)


def test_what_fails_on_its_first_records_is_tried_with_the_first_that_it_keeps(tmp_path: Path) -> None:
    TRIED.clear()

    def late(key: int, value: int, state: Any) -> tuple[int, Any]:
        return value, None if value < 5 else kept(value, Plain())

    with pytest.raises(CodecError, match="for key 1"):
        run(lambda s: s.stateful_map("keep", late), tmp_path)
    assert TRIED == [5]


def test_state_that_can_no_longer_be_stored_later_is_reported_by_the_snapshot(tmp_path: Path) -> None:
    def grow(key: int, value: int, state: Any) -> tuple[int, Any]:
        return value, value if value < 50 else Plain()

    with pytest.raises(CodecError, match=r"step 'keep' for key 0: a value of type .*Plain cannot be stored"):
        run(lambda s: s.stateful_map("keep", grow), tmp_path)
    assert run(lambda s: s.stateful_map("keep", grow), tmp_path / "other", range(50)) == list(range(50))


class Unmeasurable:
    """A user's type that fails however it is measured."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no form")

    def __sizeof__(self) -> int:
        raise ValueError("no size")


def test_states_that_cannot_be_measured_fail_no_job() -> None:
    assert keyed_state({"a": Unmeasurable()}).sampled_bytes(64, 1000) == (0, 0)


def test_few_large_states_are_measured() -> None:
    """A worker processes nothing while they are encoded."""
    state = keyed_state(dict.fromkeys(range(64), b"x" * 1000000))
    sampled, size = state.sampled_bytes(64, 1_000_000)
    assert (sampled, size // sampled // 1000) == (1, 1000)
    small = keyed_state(dict.fromkeys(range(200), b"x" * 100))
    sampled, size = small.sampled_bytes(64, 1_000_000)
    assert (sampled, size // sampled // 10) == (64, 10)


# Expiry


@given(
    ttl=st.sampled_from([1, 3, 8, 50]),
    moves=st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), min_size=1, max_size=5),
            st.integers(1, 30),
            st.sampled_from(["take", "undated"]),
        ),
        max_size=30,
    ),
)
def test_each_key_expires_exactly_at_its_time(ttl: int, moves: list[Any]) -> None:
    expiry, frontier = Expiry(ttl), 0
    until: dict[str, int] = {}
    undated: set[str] = set()
    for move in moves:
        if isinstance(move, list):
            keys, times = [key for key, _ in move], [frontier + 1 + ahead for _, ahead in move]
            expiry.touch(keys, times)
            for key, time in zip(keys, times, strict=True):
                until[key] = max(time + ttl, until.get(key, 0))
            undated.difference_update(keys)
        elif move == "take":
            taken = {key: until.pop(key) for key in "ab" if key in until}
            expiry.forget(taken)
            expiry.put(taken)
            until |= taken
        elif move == "undated":
            undated |= {"x"} - until.keys()
            expiry.undated |= {"x"} - until.keys()
        else:
            frontier += move
            until |= dict.fromkeys(undated, frontier + 1 + ttl)
            undated = set()
            gone = {key for key, end in until.items() if end <= frontier}
            assert sorted(expiry.expired(frontier)) == sorted(gone)
            for key in gone:
                del until[key]
        assert expiry.until == until


def test_a_key_is_kept_in_few_buckets_however_many_records_it_has() -> None:
    expiry = Expiry(80)
    for time in range(10_000):
        expiry.touch(["a", "b"], [time, time])
        expiry.expired(time - 1)
    assert len(expiry.until) == 2
    assert sum(map(len, expiry._buckets.values())) <= 2 * 10
    assert len(expiry._due) <= 2
