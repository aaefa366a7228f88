"""The state of slots leaves parcel by parcel, complete and once, and comes in elsewhere as it was (R4, R5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Acquire, AnyOf, Collect, Epoch, InMemory, Interrogate, StateMessage
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship
from malstrom_py.state.many_values import Values
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing.disk import MemoryDisk
from malstrom_py.testing.single_step import Recorder
from malstrom_py.workers.engine import state_transfer as shipping
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer

SLOTS = 8


def slots_of(keys: Sequence[Any]) -> list[int]:
    """Integers by their value, everything else in slot 0."""
    return [key % SLOTS if isinstance(key, int) else 0 for key in keys]


class Kept(StatefulOperator):
    """Keeps the values of each key, and sends them on."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        for key, value in zip(batch.keys or [], batch.values, strict=True):
            self.state.values[key] = [*self.state.values.get(key, []), value]
        out.send(batch)


class Holding(Operator):
    """Holds every record until control messages come: those of the keys that leave, or all (what `Enrich` does)."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.held: list[tuple[Any, Any]] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.held += zip(batch.keys or [], batch.values, strict=True)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Interrogate):
            message.keys.update(key for key, _ in self.held)
        elif isinstance(message, Collect | Acquire):
            keys = {key for key, _ in self.held} if isinstance(message, Acquire) else message.keys
            leaving = [pair for pair in self.held if pair[0] in keys]
            self.held = [pair for pair in self.held if pair[0] not in keys]
            if leaving:
                out.send(Batch([value for _, value in leaving], keys=[key for key, _ in leaving]))
                out.forward(Epoch(7))
        out.forward(message)


class Heard(Operator):
    """Passes everything on and writes down every message that acts on state."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.heard: list[StateMessage] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self.heard.append(message)
        out.forward(message)


class Region:
    """A chain of steps with keys, and a recorder after them."""

    def __init__(self, *kinds: Callable[[StepContext], Operator], worker: int = 0, **options: Any) -> None:
        self.operators = [kind(StepContext("test", f"step-{rank}", keyed=True)) for rank, kind in enumerate(kinds)]
        self.recorder = Recorder(StepContext("test", "recorder"))
        specs = [
            NodeSpec(operator.context.step, operator, ((rank - 1, 0),) if rank else ())
            for rank, operator in enumerate([*self.operators, self.recorder])
        ]
        self.executor = Executor(specs)
        keyed = [KeyedSteps(range(len(kinds)), slots_of, ("in",))]
        self.shipping = StateTransfer("R", worker, self.executor, keyed, **options)

    def push(self, keys: Sequence[Any], values: Iterable[Any]) -> Region:
        if keys:
            self.executor.push(0, Batch(list(values), keys=list(keys)))
            self.executor.run()
        return self

    def ship(self, owners: Mapping[int, int], version: int = 1) -> list[tuple[int, StateChunk]]:
        """Send the slots to their new ``owners``: each parcel, and whose it is."""
        self.shipping.start(Ship(version, tuple(sorted(owners.items()))))
        parcels = []
        while self.shipping.under_way:
            parcels.append(self.shipping.next())
        return parcels

    def values(self, rank: int = 0) -> Values:
        operator = self.operators[rank]
        assert isinstance(operator, StatefulOperator)
        return operator.state.values


def keys_in(parcel: StateChunk) -> set[Any]:
    """The keys of a parcel, as its receiver finds them."""
    receiver = Region(Kept)
    receiver.shipping.install(parcel)
    return set(receiver.values())


def blob(number: int) -> bytes:
    """A hundred bytes that are like no others."""
    return Random(number).randbytes(100)


def test_r4_a_parcel_is_about_a_chunk_large() -> None:
    """The first chunk measures the size of keys; later chunks are sized by it, and grow at most fourfold."""
    region = Region(Kept, chunk_bytes=2_000, keys_first=2).push(range(0, 800, 8), map(blob, range(100)))
    parcels = [parcel for _, parcel in region.ship({0: 1})]
    sizes = [sum(map(len, parcel.states.values())) for parcel in parcels]
    counts = [len(keys_in(parcel)) for parcel in parcels]
    assert counts[:2] == [2, 8]
    assert sum(counts) == 100
    assert max(sizes) <= 2_000
    assert min(sizes[2:-1]) > 1_000


def test_r4_behind_a_large_key_parcels_become_small_and_then_grow_again() -> None:
    """A key that is larger than a chunk goes with as many others as would have made one at most."""
    keys = range(0, 8 * 40, 8)
    values = [b"x" * 50_000 if key == 80 else blob(key)[:4] for key in keys]
    region = Region(Kept, chunk_bytes=10_000, keys_first=4).push(keys, values)
    parcels = [keys_in(parcel) for _, parcel in region.ship({0: 1})]
    (large,) = (number for number, parcel in enumerate(parcels) if 80 in parcel)
    counts = list(map(len, parcels))
    assert counts[large : large + 3] == [16, 3, 12]
    assert sum(counts) == 40


def test_r4_the_next_move_starts_with_what_the_last_one_has_learnt_and_counts_on() -> None:
    region = Region(Kept, keys_first=1).push(range(64), ["x"] * 64)
    first = region.ship({0: 1})
    second = region.ship({1: 1}, version=2)
    assert [len(keys_in(parcel)) for _, parcel in first] == [1, 4, 3]
    assert [len(keys_in(parcel)) for _, parcel in second] == [8]
    assert {parcel.version for _, parcel in second} == {2}
    assert region.shipping.keys_moved == 16
    assert region.shipping.bytes_moved == sum(len(data) for _, p in first + second for data in p.states.values())


@pytest.mark.parametrize("order", [range(40), range(39, -1, -1)])
def test_r4_what_is_sent_does_not_hang_on_the_order_in_which_keys_came(order: Sequence[int]) -> None:
    region = Region(Kept, keys_first=3, chunk_bytes=30)
    for number in order:
        region.push([f"key-{number}"], [number])
    receiver = Region(Kept)
    for _, parcel in region.ship({0: 1}):
        receiver.shipping.install(parcel)
    assert list(receiver.values()) == sorted(receiver.values())
    assert len(receiver.values()) == 40


def test_r4_each_step_is_told_once_of_each_message() -> None:
    region = Region(Heard, Kept, Heard, keys_first=1).push([1, 9], "ab")
    ((_, first), (_, second)) = region.ship({1: 1})
    region.shipping.install(StateChunk("R", 2, 1, (1,), first.states))
    for rank in (0, 2):
        operator = region.operators[rank]
        assert isinstance(operator, Heard)
        assert [type(message) for message in operator.heard] == [Interrogate, Collect, Collect, Acquire]
        assert len(set(map(id, operator.heard))) == 4
    assert second.slots == (1,)


def test_r4_epochs_and_records_that_leave_go_on_and_other_messages_do_not() -> None:
    region = Region(Holding, Heard).push([1], "a")
    region.ship({1: 1})
    messages = region.recorder.take()
    assert [message.values if isinstance(message, Batch) else message for message in messages] == [["a"], Epoch(7)]


def test_a_place_without_a_step_is_our_bug() -> None:
    executor = Executor([NodeSpec("nothing", None)])
    shipping = StateTransfer("R", 0, executor, [KeyedSteps([0], slots_of)])
    with pytest.raises(InternalError, match="region 'R' has no step at node 0"):
        shipping.start(Ship(1, ((0, 1),)))


def test_r4_steps_with_keys_of_different_partitioners_each_go_by_their_own() -> None:
    first, second = (Kept(StepContext("test", name, keyed=True)) for name in ("first", "second"))
    executor = Executor([NodeSpec("first", first), NodeSpec("second", second)])
    groups = [KeyedSteps([0], slots_of), KeyedSteps([1], lambda keys: [(key + 1) % SLOTS for key in keys])]
    shipping = StateTransfer("R", 0, executor, groups)
    for node in (0, 1):
        executor.push(node, Batch(["a", "b"], keys=[1, 2]))
    executor.run()
    shipping.start(Ship(1, ((2, 1),)))
    _, parcel = shipping.next()
    assert not shipping.under_way
    assert set(parcel.states) == {"first", "second"}
    assert (first.state.values, second.state.values) == ({1: ["a"]}, {2: ["b"]})


KEYS = st.integers(0, 200) | st.text(max_size=3) | st.booleans() | st.none() | st.tuples(st.integers(0, 3))


@given(
    rows=st.lists(st.tuples(KEYS, st.binary(max_size=40)), max_size=60),
    owners=st.dictionaries(st.integers(0, SLOTS - 1), st.integers(1, 3), min_size=1),
    chunk_bytes=st.integers(1, 400),
    keys_first=st.integers(1, 40),
)
def test_r4_nothing_is_lost_and_nothing_comes_twice_however_it_is_cut(
    rows: list[tuple[Any, bytes]], owners: dict[int, int], chunk_bytes: int, keys_first: int
) -> None:
    giver = Region(Kept, Kept, chunk_bytes=chunk_bytes, keys_first=keys_first)
    for key, value in rows:
        giver.push([key], [value])
    before = dict(giver.values())
    takers = {owner: Region(Kept, Kept) for owner in owners.values()}
    complete: list[int] = []
    for owner, parcel in giver.ship(owners):
        for key in keys_in(parcel):
            assert owners[slots_of([key])[0]] == owner
            assert slots_of([key])[0] not in complete, "a key was sent after its slot was complete"
        assert all(owners[slot] == owner for slot in parcel.slots)
        complete += parcel.slots
        takers[owner].shipping.install(parcel)
    assert Counter(complete) == Counter(owners.keys())
    for rank in (0, 1):
        places = [giver.values(rank), *(taker.values(rank) for taker in takers.values())]
        assert sum(map(len, places)) == len(before)
        assert {key: values for place in places for key, values in place.items()} == before
    assert not any(slot in owners for slot in slots_of(list(giver.values())))
    assert [owner for owner, _ in groupby(owner for owner, _ in Region(Kept).ship(owners))] == sorted(takers)


def within(region: Region, limit: int) -> Region:
    """Let the steps of ``region`` keep at most ``limit`` bytes in memory."""
    memory = StateMemory(limit, MemoryDisk, encode_key)
    for operator in region.operators:
        if isinstance(operator, StatefulOperator):
            operator.keep_within(memory)
            assert operator.state.memory is not None
            operator.state.memory.cold.slots_of = slots_of
    return region


def states(region: Region) -> list[dict[Any, Any]]:
    kept = [operator.state for operator in region.operators if isinstance(operator, StatefulOperator)]
    return [dict(zip(keys, state.values_of(keys), strict=True)) for state in kept if (keys := list(state.keys()))]


@pytest.mark.parametrize("seed", range(60))
def test_r4_nothing_is_lost_and_nothing_comes_twice_with_state_on_disk(seed: int) -> None:
    """Rows of other keys come between chunks; what a step before has held comes when its key leaves."""
    draw = Random(seed)
    kinds = draw.choice([(Kept, Kept), (Holding, Kept), (Kept, Holding, Kept)])
    options = {"chunk_bytes": draw.choice([1, 200, 1_000]), "keys_first": draw.choice([1, 5]), "keys_indexed": 7}
    giver, taker = (within(Region(*kinds, **options), limit) for limit in draw.choices([0, 2_000, 5_000], k=2))
    expected = Region(*kinds)
    left = set(range(SLOTS))

    def come() -> None:
        keys = [key for key in draw.choices(range(60), k=draw.randrange(6)) if key % SLOTS in left]
        for region in (giver, expected):
            if region.shipping.watching:
                region.shipping.saw("in", Batch(list(keys), keys=keys))
            region.push(keys, [f"row {key}" for key in keys])

    for _ in range(30):
        come()
    while left:
        if draw.random() < 0.7:
            giver.shipping.prepare()
            come()
        slots = draw.sample(sorted(left), draw.randrange(1, len(left) + 1))
        left.difference_update(slots)
        giver.shipping.start(Ship(1, tuple((slot, 1) for slot in sorted(slots))))
        complete: list[int] = []
        while giver.shipping.under_way:
            parcel = giver.shipping.next()[1]
            complete += parcel.slots
            taker.shipping.install(parcel)
            come()
        assert complete == sorted(slots)
    in_memory = Region(*kinds)
    for _, parcel in expected.ship(dict.fromkeys(range(SLOTS), 1)):
        in_memory.shipping.install(parcel)
    assert (states(giver), states(taker)) == ([], states(in_memory))


def seen(region: Region, keys: Sequence[Any], values: Iterable[Any]) -> None:
    """Records arrive on an exchange during a rescale."""
    values = list(values)
    region.shipping.saw("in", Batch(values, keys=list(keys)))
    region.push(keys, values)


def asked(region: Region) -> list[Interrogate]:
    heard = [operator.heard for operator in region.operators if isinstance(operator, Heard)]
    return [message for message in heard[0] if isinstance(message, Interrogate)]


def test_r4_the_moves_of_a_rescale_ask_for_all_keys_once_and_then_for_those_that_may_leave() -> None:
    region = Region(Kept, Heard).push(range(40), ["x"] * 40)
    region.shipping.prepare()
    first = region.ship({1: 1})
    region.shipping.prepare()
    seen(region, [42], "y")
    second = region.ship({2: 1, 3: 1}, version=2)
    assert [keys_in(parcel) for _, parcel in first + second] == [
        set(range(1, 40, 8)),
        {*range(2, 40, 8), *range(3, 40, 8), 42},
    ]
    everything, *others = asked(region)
    assert isinstance(everything.predicate, InMemory)
    assert [sorted(other.predicate.keys) for other in others if isinstance(other.predicate, AnyOf)] == [
        [*range(1, 40, 8)],
        [*range(2, 40, 8), 42],
        [*range(3, 40, 8)],
    ]
    region.shipping.forget()
    assert not region.shipping.watching
    region.push([4], "z").ship({4: 1}, version=3)
    assert isinstance(asked(region)[-1].predicate, InMemory)


def test_r4_keys_are_put_into_the_index_in_portions_and_the_rest_when_it_is_needed() -> None:
    portions: list[int] = []

    def counted(keys: Sequence[Any]) -> list[int]:
        portions.append(len(keys))
        return slots_of(keys)

    region = Region(Kept, keys_indexed=10).push(range(32), ["x"] * 32)
    region.shipping._keyed = [KeyedSteps([0], counted, ("in",))]
    region.shipping.prepare()
    region.shipping.index()
    seen(region, [5, 100], "yz")
    parcels = region.ship({5: 1, 4: 1})
    assert portions == [10, 1, 10, 10, 2]
    assert [keys_in(parcel) for _, parcel in parcels] == [{4, 12, 20, 28, 5, 13, 21, 29, 100}]


def test_an_index_that_keys_without_state_have_made_large_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_INDEX_SPARE", 10)
    region = Region(Kept, Heard).push([1, 2], "ab")
    region.shipping.prepare()
    region.shipping.saw("in", Batch(["x"] * 12, keys=list(range(100, 112))))
    region.shipping.prepare()
    assert len(asked(region)) == 1
    region.shipping.saw("in", Batch(["x"] * 12, keys=list(range(200, 212))))
    region.shipping.prepare()
    assert len(asked(region)) == 2
    assert [keys_in(parcel) for _, parcel in region.ship({1: 1})] == [{1}]


@given(st.data())
def test_r4_an_index_brought_up_to_date_finds_what_asking_for_all_would(data: st.DataObject) -> None:
    keys = st.lists(st.integers(0, 40), max_size=20)
    first = data.draw(keys)
    region = Region(Kept, keys_first=3, keys_indexed=data.draw(st.integers(1, 9))).push(first, map(str, first))
    region.shipping.prepare()
    left = set(range(SLOTS))
    version = 0
    while left:
        for _ in range(data.draw(st.integers(0, 3))):
            region.shipping.index()
            come = [key for key in data.draw(keys) if key % SLOTS in left]
            seen(region, come, map(str, come))
            for gone in data.draw(keys):
                region.values().pop(gone, None)
        slots = set(data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1)))
        expected = {key for key in region.values() if key % SLOTS in slots}
        version += 1
        parcels = region.ship(dict.fromkeys(slots, 1), version=version)
        assert set().union(*(keys_in(parcel) for _, parcel in parcels)) == expected
        assert sorted(slot for _, parcel in parcels for slot in parcel.slots) == sorted(slots)
        left -= slots
        region.shipping.prepare()
    assert region.values() == {}
