"""The times of keys are on disk with their values: what is due is the same as with all of it in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.cold import ColdStates
from malstrom_py.state.entries import BY_CLOCK, ENDS, NEEDED, TIMERS, Held, Times, decoded_entries, encoded_entries
from malstrom_py.state.expiry import Expiry
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing.disk import MemoryDisk

TTL = 6


class ScannedDisk(MemoryDisk):
    """A `MemoryDisk` that counts scans and the entries they pass."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = self.passed = 0

    def scan(self, *prefixes: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        for entry in super().scan(*prefixes, first=first):
            self.passed += 1
            yield entry


def kept(*, limit: int | None, ttl: int | None, disk: MemoryDisk | None = None) -> KeyedState:
    state = KeyedState("step", Codec())
    state.expiry = None if ttl is None else Expiry(ttl)
    if limit is not None:
        state.memory = StateMemory(limit, lambda: disk or MemoryDisk(), encode_key).keep(state)
    return state


def held(state: KeyedState) -> dict[Any, Any]:
    """All that is kept of each key."""
    keys = sorted(state.keys())
    values, times = state.states_of(keys)
    found = zip(keys, values, (times.get(key, Times()) for key in keys), strict=True)
    return {key: (value, list(timers), list(by_clock), until) for key, value, (timers, by_clock, until) in found}


def record(state: KeyedState, rng: random.Random, now: int) -> None:
    """A batch of records, each of which may set timers or drop the state."""
    keys = sorted({rng.randrange(20) for _ in range(4)})
    state.bring(keys)
    dropped = []
    for key in keys:
        what = rng.random()
        if what < 0.8:
            state.values[key] = ["state", key, now]
        elif state.values.pop(key, None) is not None:
            dropped.append(key)
        if what < 0.3:
            state.timers.set(key, now + rng.randrange(1, 9))
        if what < 0.15:
            state.clock_timers.set(key, now + rng.randrange(1, 9))
    if state.expiry is not None:
        state.expiry.forget(dropped)
        state.touch(keys, [now] * len(keys))


def fire(state: KeyedState, rng: random.Random, reached: int, *, by_clock: bool) -> list[tuple[Any, int, Any]]:
    """Fire what is due; a timer may drop its state, make one, or set the next timer. As it does, states end."""
    timers, seen = state.clock_timers if by_clock else state.timers, list[tuple[Any, int, Any]]()
    for key, time in state.fired(timers, reached):
        if state.expiry is not None and not by_clock:
            state.expire(time - 1)
        seen.append((key, time, state.values.get(key)))
        what = (hash((key, time)) * 2654435761 >> 7) % 4
        if what == 0:
            state.values.pop(key, None)
            if state.expiry is not None:
                state.expiry.forget([key])
        elif what == 1 and not by_clock:
            state.values[key] = ["made", key, time]
            if state.expiry is not None:  # the next that fires at this time does so: which one that is differs
                state.date(key, None)
                state.expire(time - 1)
        elif what == 2:
            timers.set(key, time + 2)
    assert [time for _, time, _ in seen] == sorted(time for _, time, _ in seen)
    return sorted(seen)


def move_stored(state: KeyedState) -> None:
    """Let all that is on disk leave, and come back."""
    memory = state.memory
    if memory is not None:
        for _, piece in list(iter(partial(memory.collect_stored, 0, 100), (0, b""))):
            memory.acquire_stored(piece)


@pytest.mark.parametrize("ttl", [None, TTL])
@pytest.mark.parametrize("seed", range(60))
def test_states_on_disk_end_and_fire_as_in_memory(seed: int, ttl: int | None) -> None:
    limit = random.Random(seed).choice([0, 0, 2_000, 5_000])
    states = kept(limit=None, ttl=ttl), kept(limit=limit, ttl=ttl)
    on_disk = 0
    for now in range(0, 60, 2):
        ways = [random.Random(f"{seed} {now}") for _ in states]
        seen = []
        for state, rng in zip(states, ways, strict=True):
            what, found = rng.random(), list[Any]()
            record(state, rng, now)
            if what < 0.5:
                found.append(fire(state, rng, now, by_clock=False))
                if ttl is not None:
                    state.expire(now)
            elif what < 0.7:
                found.append(fire(state, rng, now + 3, by_clock=True))
            elif what < 0.8:
                keys = rng.sample(range(20), 4)
                taken = state.collect(keys)
                found.append(held(state))
                if taken is not None:
                    state.acquire(taken)
            elif what < 0.9:
                move_stored(state)
            state.settle()
            seen.append((found, held(state), sorted(state.with_values()), state.has_times))
        assert seen[0] == seen[1]
        on_disk += 0 if states[1].cold is None else len(states[1].cold)
    assert on_disk


@pytest.mark.parametrize("seed", range(20))
def test_a_step_gets_what_it_needs_at_a_time_and_each_key_once(seed: int) -> None:
    rng = random.Random(seed)
    state = kept(limit=0, ttl=None)
    state.due_at = lambda key, value: value[0] if value else None
    expected = {key: sorted(rng.randrange(-50, 50) for _ in range(rng.randrange(3))) for key in range(3_000)}
    state.bring(expected)
    state.values.update({key: list(times) for key, times in expected.items()})
    state.settle()
    for reached in range(-60, 60, 7):
        due = {key for key, times in expected.items() if times and times[0] <= reached}
        seen = list[Any]()
        for keys in state.bring_due(reached):
            assert len(state.values) < 3_000
            assert set(keys) <= state.values.keys()
            seen += keys
            for key in keys:
                if key % 5:  # the others are due again
                    state.values[key] = expected[key] = [time for time in expected[key] if time > reached]
        assert sorted(seen) == sorted(due)


def test_what_is_not_due_costs_no_look_at_the_disk_and_no_entry_is_passed_twice() -> None:
    disk = ScannedDisk()
    state = kept(limit=0, ttl=100, disk=disk)
    for start in range(0, 10_000, 100):
        keys = list(range(start, start + 100))
        state.bring(keys)
        state.values.update(dict.fromkeys(keys, "state"))
        state.touch(keys, [start] * 100)
        state.settle()
    for limit in range(100):
        state.expire(limit)
        assert list(state.fired(state.timers, limit)) == []
    assert disk.scans == 0
    for limit in range(100, 10_100):
        state.expire(limit)
    assert (state.count, state.cold) == (0, None)
    assert disk.scans <= 100
    assert disk.passed <= 10_000 + disk.scans


def test_states_without_an_end_get_one_at_the_next_epoch_on_disk_too() -> None:
    old = kept(limit=None, ttl=None)
    old.values.update(dict.fromkeys(range(50), "old"))
    old.timers.set(7, 12)
    state = kept(limit=0, ttl=TTL)
    state.restore(old.snapshot())
    state.arrived(50)
    assert state.expiry is not None
    assert (len(state.values), state.expiry.undated) == (0, set())
    state.expire(9)
    times = state.states_of([3, 7])[1]
    assert (times[3].until, list(times[7].timers), times[7].until) == (16, [12], 16)
    state.expire(15)
    assert state.count == 50
    state.expire(16)
    assert (state.count, state.timers.times(7)) == (0, [12])


def test_a_move_between_memory_and_disk_is_no_change() -> None:
    state = kept(limit=0, ttl=TTL)
    state.track(lambda keys: [0] * len(keys))
    state.bring(["a"])
    state.note(["a"])
    state.values["a"] = 1
    state.timers.set("a", 5)
    state.clock_timers.set("a", 5)
    state.touch(["a"], [1])
    state.round_begun("s1")
    state.settle()
    assert not state.values
    state.bring(["a"])
    assert (state.timers.times("a"), state.clock_timers.times("a"), state.values) == ([5], [5], {"a": 1})
    assert not state.changes.noted


def test_what_goes_to_disk_is_forgotten_in_memory() -> None:
    state = kept(limit=0, ttl=1_000)
    assert state.expiry is not None
    for now in range(0, 900, 10):
        keys = list(range(now, now + 30))
        state.bring(keys)
        state.values.update(dict.fromkeys(keys, 1))
        state.touch(keys, [now] * 30)
        state.settle()
    assert (state.values, state.expiry.until, state.bytes_of_times) == ({}, {}, 0)
    assert not any(state.expiry._buckets.values())


def test_keys_without_a_state_do_not_go_to_disk() -> None:
    state = kept(limit=0, ttl=None)
    state.due_at = lambda key, value: 1
    state.values.update(dict.fromkeys(range(2_000)))
    state.arrived(2_000)
    assert (len(state.values), state.cold) == (0, None)


@pytest.mark.parametrize("value", [7, "text", ("a", 1), [1, [2]], {"a": (1,)}, b"\x90\x90\x05", {1, 2}, "\ud800"])
@pytest.mark.parametrize(
    "times",
    [
        *(
            Times(until=until)
            for until in (0, 5, -5, 128, 70_000, 1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63), 1 << 70)
        ),
        *(Times([3]), Times([], [4]), Times([1, 2], [3], 4), Times(list(range(20)), [], None)),
    ],
)
def test_an_entry_is_that_of_both_encoded_together(value: Any, times: Times) -> None:
    codec = Codec()
    (entry,) = encoded_entries(codec, ["a"], [value], {"a": times}, step="s")
    timers, by_clock, until = times
    whole = [value, list(timers), list(by_clock), until] if by_clock or until is not None else [value, list(timers)]
    assert entry[1:] == codec.encode_each_at_rest([whole], step="s", keys=["a"])[0]
    assert decoded_entries(codec, ["a"], [entry], step="s")[0] == [value]
    disk = MemoryDisk()
    cold = ColdStates(lambda: disk, b"s", codec, "s", encode_key)
    cold.put(Held(["a", "b"], [value, value], {"a": times}), needed=lambda key, value: 9 if key == "b" else None)
    keys, values, found, _ = cold.peek(["a", "b", "c"])
    assert (values, {key: Times(*map(_listed, of_key)) for key, of_key in found.items()}) == (
        [value, value, None],
        {"a": Times(*map(_listed, times))},
    )
    assert [index.count for index in cold.indexes] == [bool(timers), bool(by_clock), until is not None, 1]
    cold.take(keys)
    assert not disk._stored
    assert [cold.indexes[kind].count for kind in (TIMERS, BY_CLOCK, ENDS, NEEDED)] == [0, 0, 0, 0]


def _listed(times: Any) -> Any:
    return times if times is None or type(times) is int else list(times)
