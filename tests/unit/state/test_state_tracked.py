"""The keyed state of one step while it is tracked: what a barrier writes, and what comes of it at any scale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec, Limits
from malstrom_py.data.messages import AbsBarrier
from malstrom_py.errors import CodecError, InternalError, SnapshotError
from malstrom_py.state.artefact import artefact, contents, is_delta, merged
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import CapturingPersistenceBackend

SLOTS = 4


def slots_of(keys: Sequence[Any]) -> list[int]:
    return [int(key) % SLOTS if isinstance(key, int) else sum(repr(key).encode()) % SLOTS for key in keys]


def tracked(values: dict[Any, Any] | None = None, codec: Codec | None = None) -> KeyedState:
    state = KeyedState("step", codec or Codec())
    state.track(slots_of)
    assign(state, values or {})
    return state


def assign(state: KeyedState, values: dict[Any, Any]) -> None:
    state.note(values)
    state.values.update(values)


def drop(state: KeyedState, *keys: Any) -> None:
    state.note(keys)
    for key in keys:
        del state.values[key]


def barrier(state: KeyedState, snapshot: str, parent: str | None = None) -> bytes:
    backend = CapturingPersistenceBackend()
    state.handle(AbsBarrier(snapshot, backend, parent))
    return backend.states["step"]


def installed(*chain: bytes, slots: Sequence[int] = range(SLOTS), **options: Any) -> KeyedState:
    state = KeyedState("step", Codec())
    state.install(chain, slots, **options)
    return state


def image(state: KeyedState) -> dict[Any, Any]:
    return {key: (state.values.get(key), state.timers.times(key)) for key in sorted(state.keys(), key=repr)}


def count(data: bytes) -> int:
    return sum(len(keys) for _, (keys, _) in contents(data))


def test_s2_the_first_is_in_full_and_the_next_hold_what_changed() -> None:
    state = tracked({"a": 1, "b": (2, "x")})
    state.timers.set("b", 5)
    full = barrier(state, "s1")
    assign(state, {"a": 7, "c": None})
    state.timers.set("d", 9)
    delta = barrier(state, "s2", "s1")
    drop(state, "a")
    last = barrier(state, "s3", "s2")
    assert [(is_delta(data), count(data)) for data in (full, delta, last)] == [(False, 2), (True, 3), (True, 1)]
    assert image(installed(full)) == {"a": (1, []), "b": ((2, "x"), [5])}
    assert image(installed(full, delta)) == {"a": (7, []), "b": ((2, "x"), [5]), "d": (None, [9])}
    assert image(installed(full, delta, last)) == image(state) == image(installed(merged([full, delta, last])))


def test_s2_nothing_that_only_looks_is_a_change() -> None:
    state = tracked({"a": 1})
    barrier(state, "s1")
    state.timers.times("a")
    state.timers.take("a")
    state.interrogate(lambda key: True, set())
    assert state.collect(["b"]) is None
    assert count(barrier(state, "s2", "s1")) == 0


def test_s5_one_key_from_two_workers_is_an_internal_error() -> None:
    state, chain = tracked({"a": 1}), [barrier(tracked({"a": 2}), "s1")]
    with pytest.raises(InternalError, match="state of key 'a' was restored from two workers"):
        state.install(chain, range(SLOTS))


def test_what_was_restored_is_written_in_full_first() -> None:
    state = installed(barrier(tracked({"a": 1}), "s1"))
    state.track(slots_of)
    again = barrier(state, "s9", None)
    assert (is_delta(again), image(installed(again))) == (False, {"a": (1, [])})


def test_keys_that_are_equal_without_being_alike_are_one_in_a_chain() -> None:
    state = tracked({1: "int"})
    full = barrier(state, "s1")
    assign(state, {True: "bool"})
    mixed = barrier(state, "s2", "s1")
    assert not is_delta(mixed)  # a chain in which there are such keys begins with them
    drop(state, 1)
    gone = barrier(state, "s3", "s2")
    assign(state, {1.0: "float"})
    back = barrier(state, "s4", "s3")
    assert [is_delta(data) for data in (gone, back)] == [True, True]
    assert installed(full).values == {1: "int"}
    assert installed(mixed).values == {1: "bool"}
    assert installed(mixed, gone).values == {}
    assert installed(merged([mixed, gone, back])).values == {1: "float"}


def test_migrate_is_asked_once_per_key_with_a_value_and_may_drop_it() -> None:
    state = tracked({"a": 1, "b": 2})
    for key in "abc":
        state.timers.set(key, 5)
    asked: list[tuple[Any, Any]] = []

    def migrate(key: Any, value: Any) -> Any:
        asked.append((key, value))
        return None if key == "b" else [value]

    found = installed(barrier(state, "s1"), migrate=migrate)
    assert sorted(asked) == [("a", 1), ("b", 2)]
    assert image(found) == {"a": ([1], [5]), "c": (None, [5])}


def test_a_barrier_whose_state_cannot_be_stored_names_the_key_and_notes_nothing_as_written() -> None:
    state = tracked({"a": 1})
    full = barrier(state, "s1")
    assign(state, {"b": 2, "c": len})
    with pytest.raises(CodecError, match="step 'step' for key 'c'"):
        barrier(state, "s2", "s1")
    drop(state, "c")
    assert image(installed(full, barrier(state, "s3", "s1"))) == {"a": (1, []), "b": (2, [])}


def test_limits_of_one_value_are_none_of_all_state() -> None:
    codec = Codec(limits=Limits(bytes_max=100, items_max=10))
    state = tracked(dict.fromkeys(range(100), "x" * 50), codec)
    full = barrier(state, "s1")
    again = KeyedState("step", codec)
    again.install([full], range(SLOTS))
    assert (len(full) > 5_000, again.values) == (True, state.values)


def test_s4_every_flipped_byte_and_truncation_of_a_chain_is_refused() -> None:
    state = tracked({"a": 1, "b": [2, None]})
    state.timers.set("a", 5)
    chain = [barrier(state, "s1")]
    assign(state, {"b": {"x": 3.5}})
    chain.append(barrier(state, "s2", "s1"))
    for number, data in enumerate(chain):
        damaged = [data[:length] for length in range(len(data))]
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 0x10
            damaged.append(bytes(flipped))
        for one in damaged:
            with pytest.raises(SnapshotError):
                installed(*chain[:number], one, *chain[number + 1 :])


def forged(*entries: tuple[Any, bytes]) -> bytes:
    """An artefact whose checksums are right, of entries that no step has written."""
    codec = Codec()
    keys = [codec.encode_at_rest(key, step="step") for key, _ in entries]
    return artefact({0: (keys, [entry for _, entry in entries])}, delta=False)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([(["a"], b"\x10\x01")], "a key in it cannot be hashed"),
        ([(1, b"\x10\x01"), (True, b"\x10\x01")], "has a key twice"),
        ([("a", b"\x10\x01\x01")], "cannot be read"),
        ([("a", b"\x10")], "cannot be read"),
        ([("a", b"\x99\x01")], "cannot be read"),
        ([("a", b"\x01\x10\x01")], "it should be a value and times, and is not"),
        ([("a", b"\x01\x10\x92\xc0\x90")], "it should be a value and times, and is not"),
        ([("a", b"\x01\x10\x92\xc0\x91\xc3")], "it should be a value and times, and is not"),
        ([("a", b"\x01\x10\x93\xc0\x91\x01\x01")], "it should be a value and times, and is not"),
        ([("a", b"\x01")], "cannot be read"),
    ],
)
def test_s8_entries_that_nobody_wrote_are_refused_though_their_checksums_are_right(
    entries: list[tuple[Any, bytes]], said: str
) -> None:
    with pytest.raises((CodecError, SnapshotError), match=said):
        installed(forged(*entries))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 9), st.integers() | st.tuples(st.integers(), st.text())),
        st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
        st.tuples(st.just("timer"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("due"), st.none(), st.integers(0, 20)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
        st.tuples(st.just("barrier"), st.booleans(), st.none()),
    ),
    max_size=40,
)


@given(operations=OPERATIONS, workers=st.integers(1, 4))
def test_s5_whatever_happens_the_chain_of_what_was_committed_is_the_state_at_any_scale(
    operations: list[tuple[str, Any, Any]], workers: int
) -> None:
    state, chain, parent = tracked(), list[bytes](), None
    moves: list[tuple[str, Any, Any]] = [*operations, ("barrier", True, None)]
    for number, (what, key, value) in enumerate(moves):
        if what == "set":
            assign(state, {key: value})
        elif what == "drop":
            state.note((key,))
            state.values.pop(key, None)
        elif what == "timer":
            state.timers.set(key, value)
        elif what == "due":
            list(state.timers.due(value))
        elif what == "leave":
            state.collect([key])
        else:
            made = barrier(state, f"s{number}", parent)
            if key:  # it is committed
                chain, parent = [*chain, made] if is_delta(made) else [made], f"s{number}"
    found: dict[Any, Any] = {}
    for worker in range(workers):
        found |= image(installed(*chain, slots=range(worker, SLOTS, workers)))
    assert found == image(state)


TWICE = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
"""As a key of an earlier version, which took both readings for one."""


def test_a_stored_key_of_an_hour_that_comes_twice_is_its_first_reading() -> None:
    old = tracked({TWICE: 1, ("a", TWICE): 2, "b": 3})
    old.timers.set(TWICE, 5)
    first = TWICE.replace(fold=0).astimezone(UTC)
    for new in (installed(barrier(old, "s1")), restored(old.snapshot())):
        assert dict(new.values) == {first: 1, ("a", first): 2, "b": 3}
        assert new.timers.times(first) == [5]


def restored(data: bytes) -> KeyedState:
    state = KeyedState("step", Codec())
    state.restore(data)
    return state


def test_s2_the_chain_of_an_earlier_version_with_other_names_is_not_continued() -> None:
    old = barrier(tracked({TWICE: 1, "b": 3}), "s1")
    new = tracked()
    new.install([old], range(SLOTS))
    new.continue_chain("s1")
    assign(new, {"b": 4})
    full = barrier(new, "s2", "s1")
    assert not is_delta(full)
    assert dict(installed(full).values) == {TWICE.replace(fold=0).astimezone(UTC): 1, "b": 4}


def test_one_instant_that_an_earlier_version_stored_as_two_keys_is_refused() -> None:
    old = tracked({TWICE: 1, TWICE.replace(fold=0).astimezone(UTC): 2})
    with pytest.raises(SnapshotError, match="one instant as two keys"):
        installed(barrier(old, "s1"))
