"""State packed ahead of a barrier: what is stored is the state at the barrier, also if it changed in between (S2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py import agg
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier
from malstrom_py.errors import InternalError
from malstrom_py.operators.panes import Panes, keys_in
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state import change_log, group_values, groups
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, split
from malstrom_py.state.artefact import artefact, contents, entries_in, is_delta
from malstrom_py.state.figure_states import FigureStates, shape_of_one
from malstrom_py.state.group_index import GroupIndex
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.testing.disk import MemoryDisk

SLOTS = 4


def tracked(arrays: Callable[[], Any] | None = None) -> KeyedState:
    state = KeyedState("count", Codec())
    state.track(lambda keys: [hash(key) % SLOTS for key in keys])
    if arrays is not None:
        state.arrays = arrays
        state.to_arrays()
    return state


def put(state: KeyedState, key: Any, value: Any) -> None:
    state.note([key])
    if value is None:
        state.values.pop(key, None)
    else:
        state.values[key] = value


def artefacts(state: KeyedState, snapshot: str, parent: str | None) -> list[bytes]:
    made = state.artefact(AbsBarrier(snapshot, CapturingPersistenceBackend(), parent))
    return [b"".join(one.made()) for one in split(state.take_packed(), made)]


def stored(chain: Sequence[bytes]) -> dict[Any, Any]:
    return {one.key: (one.value, tuple(one.times.timers)) for one in entries_in(chain, Codec())}


def held(state: KeyedState) -> dict[Any, Any]:
    return stored([state.snapshot()])


def packed(ahead: AheadOfBarrier) -> int:
    steps = 0
    while ahead.under_way:
        ahead.next()
        steps += 1
    return steps


@pytest.mark.parametrize("seed", range(40))
def test_s2_what_is_stored_is_the_state_at_the_barrier(seed: int) -> None:
    rng = random.Random(seed)
    state, chain, parent = tracked(), list[bytes](), None
    keys: list[Any] = [*range(12), "a", "b", (1, "c"), *([True, 2.0, None] if seed % 3 == 0 else [])]
    for number in range(8):
        ahead = state.pack_ahead(f"s{number}", parent, keys_max=rng.choice((1, 2, 5)))
        for _ in range(rng.randrange(60)):
            key = rng.choice(keys)
            put(state, key, rng.choice((None, rng.random(), "x" * rng.randrange(9))))
            if rng.random() < 0.3:
                state.timers.set(key, rng.randrange(9))
            if rng.random() < 0.2:
                list(state.timers.due(rng.randrange(9)))
            if rng.random() < 0.1:
                state.collect([key])
            if rng.random() < 0.5 and ahead.under_way:
                ahead.next()
        made = artefacts(state, f"s{number}", parent)
        if rng.random() < 0.8:  # else it is never committed
            chain = made if not is_delta(made[0]) else [*chain, *made]
            parent = f"s{number}"
            assert stored(chain) == held(state)


@pytest.mark.parametrize("seed", range(60))
def test_s2_what_is_stored_is_the_state_in_memory_and_on_disk_at_the_barrier(seed: int) -> None:
    rng = random.Random(f"on disk {seed}")
    state, chain, parent = tracked(), list[bytes](), None
    memory = StateMemory(rng.choice((0, 1_500)), MemoryDisk, encode_key)
    state.memory = memory.keep(state)
    keys: list[Any] = [*range(20), "a", "b", (1, "c"), *([2.0, None, 0.5] if seed % 3 == 0 else [])]
    for number in range(8):
        ahead = state.pack_ahead(f"s{number}", parent, keys_max=rng.choice((1, 2, 5)))
        for _ in range(rng.randrange(60)):
            some = rng.sample(keys, rng.randrange(1, 4))
            state.bring(some)
            for key in some if rng.random() < 0.7 else ():
                put(state, key, rng.choice((None, rng.random(), "x" * rng.randrange(9))))
                if rng.random() < 0.2:
                    state.timers.set(key, rng.randrange(9))
            if rng.random() < 0.5:
                state.settle()
            if rng.random() < 0.1:
                state.collect(some)
            if rng.random() < 0.6 and ahead.under_way:
                ahead.next()
        made = artefacts(state, f"s{number}", parent)
        if rng.random() < 0.8:  # else it is never committed
            chain = made if not is_delta(made[0]) else [*chain, *made]
            parent = f"s{number}"
            assert stored(chain) == held(state)


def test_s2_state_on_disk_is_packed_some_keys_at_a_time_and_not_looked_up() -> None:
    read = list[bytes]()

    class Watched(MemoryDisk):
        def get(self, keys: list[bytes]) -> list[bytes | None]:
            assert not keys, "a key is looked up"
            return []

        def scan(self, *prefixes: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            return map(self._seen, super().scan(*prefixes, first=first))

        def _seen(self, entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
            read.append(entry[0])
            return entry

    state, memory = KeyedState("count", Codec()), StateMemory(0, Watched, encode_key)
    state.track(lambda keys: [key % 500 for key in keys])
    state.memory = memory.keep(state)
    state.values.update((key, "x" * 2_000) for key in range(4_000))
    state.arrived(4_000)
    ahead = state.pack_ahead("s0", None)
    while ahead.under_way:
        before = len(read)
        ahead.next()
        assert len(read) - before <= 8 + 1
    assert len(read) == 4_000
    ((_, pieces, _),) = split(ahead.parts, artefact({}, delta=True))
    assert max(map(len, pieces())) <= 1 << 20
    assert len(stored([b"".join(pieces())])) == 4_000


@pytest.mark.parametrize("seed", range(20))
def test_s5_what_is_restored_goes_to_disk_as_it_is_stored_once_memory_is_full(seed: int) -> None:
    rng = random.Random(f"restored {seed}")
    state = tracked()
    keys = [*range(200), "a", (1, "c"), *([0.5, 2.0] if seed % 3 == 0 else [])]
    for key in keys:
        put(state, key, "x" * rng.randrange(9))
        if rng.random() < 0.1:
            state.timers.set(key, rng.randrange(9))
    chain = artefacts(state, "s0", None)
    for key in rng.sample(keys, 30):
        put(state, key, rng.choice(("changed", None)))
    chain += artefacts(state, "s1", "s0")
    restored, memory = tracked(), StateMemory(rng.choice((0, 3_000)), MemoryDisk, encode_key)
    restored.memory = memory.keep(restored)
    assert [restored.install(chain, {slot})[0] for slot in range(SLOTS)] == [[]] * SLOTS  # all keys need no room
    assert held(restored) == held(state)
    with pytest.raises(InternalError, match="restored from two workers"):
        restored.install(chain, range(SLOTS))
    restored.continue_chain("s1")
    for key in [1, 2.0, 0.5, "a"]:
        restored.bring([key])
        put(restored, key, "later")
    ahead = restored.pack_ahead("s2", "s1", keys_max=2)
    packed(ahead)
    made = artefacts(restored, "s2", "s1")
    assert stored(made if not is_delta(made[0]) else [*chain, *made]) == held(restored)


def test_s2_many_changes_are_in_files() -> None:
    state, memory = tracked(), StateMemory(1 << 30, MemoryDisk, encode_key)
    state.memory = memory.keep(state)
    (chain,) = [artefacts(state, "s0", None)]
    ahead = state.pack_ahead("s1", "s0", keys_max=2)
    for key in range(300):
        put(state, key, "x" * 50)
    packed(ahead)
    assert sum(part.file is not None for part in ahead.parts) > 3
    for key in range(0, 300, 2):
        put(state, key, None)
    packed(ahead)
    chain += artefacts(state, "s1", "s0")
    assert stored(chain) == held(state)


def test_s2_arrays_are_packed_as_arrays_and_merged_as_such() -> None:
    state = tracked(lambda: FigureStates([agg.sum("n")], shape_of_one()))
    values: Any = state.values

    def add(first: int, last: int) -> None:
        column = pa.array(range(first, last))
        values.groups.fold(column, [column])

    add(0, 100)
    ahead = state.pack_ahead("s0", None, keys_max=10)
    ahead.next()
    add(90, 130)
    assert packed(ahead) > 9
    chain = artefacts(state, "s0", None)
    assert [is_delta(one) for one in chain] == [False, True]
    assert stored(chain) == held(state)
    ahead = state.pack_ahead("s1", "s0", keys_max=10)
    add(0, 70)
    assert packed(ahead) > 6
    add(60, 65)
    values.drop_keys(pa.array([3, 4, 99]))
    state.note([3, 4, 99])
    (delta,) = artefacts(state, "s1", "s0")
    assert is_delta(delta)
    assert len(list(contents(delta))) == SLOTS
    assert stored([*chain, delta]) == held(state)


def change_figures(state: KeyedState, rng: random.Random, *, become_rows: bool) -> None:
    chance = rng.random()
    if chance < 0.6:
        column = pa.array(rng.sample(range(40), rng.randrange(1, 9)))
        state.to_arrays().groups.fold(column, [column])
    elif chance < 0.9:
        state.collect(rng.sample(range(40), rng.choice((1, 2, 25))))
    elif become_rows:
        state.to_rows()


def change_panes(state: KeyedState, rng: random.Random, *, become_rows: bool) -> None:
    panes: Any = state.values
    chance, pane = rng.random(), rng.choice((0, 10, 20))
    if chance < 0.6:
        column = pa.array(rng.sample(range(40), rng.randrange(1, 9)))
        panes.fold(pane, panes.symbols.of(column), [None])
    elif chance < 0.8:
        state.collect(rng.sample(range(40), rng.choice((1, 2, 25))))
    elif chance < 0.9 and pane in panes.open:
        state.note(list(keys_in(panes.pop_pane(pane))))
        panes.forget_keys()
    elif become_rows and pane in panes.open:
        panes.rows_at(pane)


def panes_of(state: KeyedState) -> None:
    state.values = Panes([agg.count()], note=state.note_column)


def figures_of(state: KeyedState) -> None:
    state.arrays = lambda: FigureStates([agg.sum("n")], shape_of_one())
    state.to_arrays()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("begin", "change"), [(figures_of, change_figures), (panes_of, change_panes)])
def test_s2_what_is_stored_of_arrays_is_the_state_at_the_barrier(
    begin: Any, change: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_COMPACT_FROM", 8)
    monkeypatch.setattr(group_values, "_SCANNED", 7)
    rng = random.Random(seed)
    state, chain, parent = tracked(), list[bytes](), None
    begin(state)
    swept = 0
    for number in range(8):
        ahead = state.pack_ahead(f"s{number}", parent, keys_max=rng.choice((1, 2, 5)))
        for _ in range(rng.randrange(60)):
            if rng.random() < 0.5:
                change(state, rng, become_rows=bool(seed % 2))
            if ahead.under_way:
                ahead.next()
            elif rng.random() < 0.3:
                ahead.keep_small()
        made = artefacts(state, f"s{number}", parent)
        swept += len(ahead.parts)
        if rng.random() < 0.8:  # else it is never committed
            chain = made if not is_delta(made[0]) else [*chain, *made]
            parent = f"s{number}"
            assert stored(chain) == held(state)
    assert swept > 5


@pytest.mark.parametrize("kind", [int, str])
def test_s2_no_step_lists_more_keys_of_arrays_than_it_packs(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tracked(lambda: FigureStates([agg.sum("n")], shape_of_one()))
    figures: Any = state.values.groups  # type: ignore[union-attr]
    listed = 0

    def keys(self: GroupIndex, ids: Any = None, right: Any = GroupIndex.keys) -> Any:
        nonlocal listed
        made = right(self, ids)
        listed += len(made)
        return made

    def change(last: int) -> None:
        figures.fold(pa.array(map(kind, range(last))), [pa.array(range(last))])

    monkeypatch.setattr(GroupIndex, "keys", keys)
    change(1000)
    for number, parent in enumerate((None, "s0")):
        ahead = state.pack_ahead(f"s{number}", parent, keys_max=10)
        steps = 0
        while ahead.under_way:
            listed = 0
            ahead.next()
            assert listed <= 20, "the keys that are packed, and those whose slots are not known"
            steps += 1
            if steps == 50:
                change(500)
        assert steps > 120
        artefacts(state, f"s{number}", parent)
        change(800)


def test_s2_little_state_is_left_to_the_barrier() -> None:
    state = tracked()
    for key in range(100):
        put(state, key, key)
    assert packed(state.pack_ahead("s0", None)) == 1
    (full,) = artefacts(state, "s0", None)
    assert not is_delta(full)
    assert stored([full]) == held(state)


def test_s2_few_large_states_are_packed() -> None:
    state = tracked()
    for key in range(20):
        put(state, key, "x" * (1 << 19))
    assert packed(state.pack_ahead("s0", None)) >= 10
    (full,) = artefacts(state, "s0", None)  # nothing has changed since
    assert stored([full]) == held(state)


def test_s2_the_barrier_packs_what_has_changed_and_the_rounds_end() -> None:
    state = tracked()
    for key in range(10_000):
        put(state, key, key)
    ahead = state.pack_ahead("s0", None)
    while ahead.under_way:  # all change all the time: no round becomes smaller
        ahead.next()
        for key in range(10_000):
            put(state, key, -key)
    full, delta = artefacts(state, "s0", None)
    assert stored([full, delta]) == held(state)
    put(state, 5, None)
    (last,) = artefacts(state, "s1", "s0")
    assert sum(len(keys) for _, (keys, _) in contents(last)) == 1
    assert stored([full, delta, last]) == held(state)


def test_s2_changes_that_were_packed_are_older_than_all_state_that_was_packed_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_log, "SPARE", 30)
    state = tracked(lambda: FigureStates([agg.sum("n")], shape_of_one()))
    values: Any = state.values

    def add(first: int, last: int, number: int) -> None:
        column = pa.array(range(first, last))
        values.groups.fold(column, [pa.array([number] * len(column))])

    add(0, 20, 1)
    chain = artefacts(state, "s0", None)
    ahead = state.pack_ahead("s1", "s0", keys_max=1)
    add(0, 20, 10)
    assert packed(ahead) > 20
    for number in range(5):  # so many changes that all state is written
        add(0, 20, 100 + number)
        state.note_flagged()
    add(0, 20, 1000)
    ahead.keep_small()
    assert packed(ahead) > 20
    add(3, 4, 1)
    made = artefacts(state, "s1", "s0")
    assert [is_delta(one) for one in made] == [False, True], "and not what was packed first"
    assert stored(made) == held(state)
    assert stored(chain)


def test_s2_what_is_left_stays_small_while_the_barrier_waits_for_others() -> None:
    state = tracked()
    for key in range(5000):
        put(state, key, key)
    ahead = state.pack_ahead("s0", None, keys_max=100)
    packed(ahead)
    for number in range(300):
        for key in range(60):
            put(state, (50 * number + key) % 2000, number)
        ahead.keep_small()
        if ahead.under_way:
            ahead.next()
    assert len(ahead.parts) == 2, "rounds of changes are one part"
    assert state.changes.count <= 400
    full, delta = artefacts(state, "s0", None)
    assert stored([full, delta]) == held(state)
    assert sum(len(keys) for _, (keys, _) in contents(delta)) == 2000


def test_s2_rounds_that_were_given_up_begin_again_while_the_barrier_waits_long() -> None:
    state, keys = tracked(), iter(range(1 << 20))

    def grow(by: int) -> None:
        for key in islice(keys, by):
            put(state, key, key)

    grow(1000)
    ahead = state.pack_ahead("s0", None, keys_max=100)
    while ahead.under_way:
        ahead.next()
        grow(120)
    left = state.changes.count
    assert left > 1000, "more keys came than were packed"
    for _ in range(500):
        grow(30)
        ahead.keep_small()
        if ahead.under_way:
            ahead.next()
    assert state.changes.count < left / 2
    assert stored(artefacts(state, "s0", None)) == held(state)


def test_s2_state_that_comes_while_the_barrier_waits_is_packed() -> None:
    state = tracked()
    ahead = state.pack_ahead("s0", None, keys_max=10)
    assert packed(ahead) == 1
    for key in range(1000):
        put(state, key, key)
    ahead.keep_small()
    assert packed(ahead) > 100
    (full,) = artefacts(state, "s0", None)
    assert stored([full]) == held(state)


def test_s2_after_its_barrier_nothing_of_a_state_is_packed() -> None:
    state = tracked()
    for key in range(1000):
        put(state, key, key)
    ahead = state.pack_ahead("s0", None, keys_max=10)
    packed(ahead)
    chain = artefacts(state, "s0", None)
    for key in range(500):
        put(state, key, -key)
    ahead.keep_small()
    assert not ahead.under_way
    chain += artefacts(state, "s1", "s0")
    assert stored(chain) == held(state)
