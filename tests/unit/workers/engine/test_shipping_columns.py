"""Moves of state in arrays: by slot, without a list of keys; and what happens when a step goes back to rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py import agg
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Interrogate, StateMessage
from malstrom_py.operators.aggregate import Count, Mean, Sum
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import gather_one
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.validation import field_getter
from malstrom_py.workers.engine import state_transfer
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer

SLOTS = 8
SLOTS_OF = StableSlots(SLOTS).slots_of
KEYS = [f"key {number}" for number in range(60)]
WINDOWS = partial(TimeWindows, gather=partial(gather_one, agg.sum("v")), size=10, step=10)


class Passing(Operator):
    """A step without state."""

    takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)


class Listening(Passing):
    """A step that acts on control messages, so that it must get them."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        out.forward(message)


class Region:
    """Steps that all get the same records."""

    def __init__(self, *kinds: Callable[..., Operator]) -> None:
        contexts = [StepContext("test", f"step-{rank}", keyed=True, timed=True) for rank in range(len(kinds))]
        self.operators = [kind(context) for kind, context in zip(kinds, contexts, strict=True)]
        executor = Executor([NodeSpec(one.context.step, one, ()) for one in self.operators])
        self.executor = executor
        self.shipping = StateTransfer("R", 0, executor, [KeyedSteps(range(len(kinds)), SLOTS_OF, ("in",))])

    def push(self, keys: Sequence[Any], *, as_rows: bool = False, values: Sequence[Any] | None = None) -> Region:
        numbers = list(range(len(keys))) if values is None else list(values)
        times = [number % 30 for number in range(len(keys))]
        batch: Batch = ColumnBatch(
            pa.RecordBatch.from_pydict({"v": numbers}), key_column=pa.array(keys), time_column=pa.array(times)
        )
        if as_rows:
            batch = Batch([{"v": number} for number in numbers], keys=list(keys), timestamps=times)
        for node in range(len(self.operators)):
            self.executor.push(node, batch)
        self.executor.run()
        return self

    def ship(
        self, owners: Mapping[int, int], during: Callable[[], object] = lambda: None
    ) -> list[tuple[int, StateChunk]]:
        self.shipping.start(Ship(1, tuple(sorted(owners.items()))))
        chunks = []
        while self.shipping.under_way:
            chunks.append(self.shipping.next())
            during()
        return chunks

    def values(self) -> list[dict[Any, Any]]:
        return [dict(one.state.values) for one in self.operators if isinstance(one, StatefulOperator)]


def by(kind: Callable[..., Operator]) -> Callable[..., Operator]:
    return partial(kind, by=field_getter("v", "step"))


STEPS = (by(Sum), Passing, by(Mean), Count, WINDOWS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Interrogate]:
    """The messages that list keys."""
    found: list[Interrogate] = []

    def heard(*args: Any) -> Interrogate:
        found.append(Interrogate(*args))
        return found[-1]

    monkeypatch.setattr(state_transfer, "Interrogate", heard)
    return found


@pytest.mark.parametrize("keys_max", [1, 7, 1 << 14])
def test_r4_arrays_are_taken_by_slot_without_a_list_of_keys(
    keys_max: int, asked: list[Interrogate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "COLUMN_KEYS_MAX", keys_max)
    giver, takers = Region(*STEPS).push(KEYS), {1: Region(*STEPS).push(["x"]), 2: Region(*STEPS)}
    whole = giver.values()
    giver.shipping.prepare()
    assert not giver.shipping.watching
    owners = {slot: 1 + slot % 2 for slot in range(SLOTS) if slot != 3}
    chunks = giver.ship(owners)
    assert asked == []
    assert [(owner, slot) for owner, chunk in chunks for slot in chunk.slots] == sorted(
        (owner, slot) for slot, owner in owners.items()
    )
    for owner, chunk in chunks:
        takers[owner].shipping.install(chunk)
    for rank, values in enumerate(whole):
        assert giver.values()[rank] == {key: value for key, value in values.items() if SLOTS_OF([key]) == [3]}
        for owner, taker in takers.items():
            expected = {key: value for key, value in values.items() if owners.get(SLOTS_OF([key])[0]) == owner}
            assert {key: value for key, value in taker.values()[rank].items() if key != "x"} == expected
    assert len(chunks) >= giver.shipping.keys_moved / keys_max
    assert giver.shipping.keys_moved == sum(1 for values in whole for key in values if SLOTS_OF([key]) != [3])
    assert giver.shipping.bytes_moved == sum(len(state) for _, chunk in chunks for state in chunk.states.values())


@pytest.mark.parametrize("when", ["before", "between chunks", "between moves"])
def test_r4_a_step_that_goes_back_to_rows_is_listed(
    when: str, asked: list[Interrogate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "COLUMN_KEYS_MAX", 5)
    giver, taker, whole = (Region(*STEPS) for _ in range(3))
    staying = [key for key in KEYS if SLOTS_OF([key])[0] >= 6]
    for one in (giver, whole):
        one.push(KEYS)
    giver.shipping.prepare()

    def to_rows() -> None:
        for one in (giver, whole):
            one.push(staying[:1], as_rows=True)

    if when == "before":
        to_rows()
    chunks = giver.ship(dict.fromkeys(range(3), 1), to_rows if when == "between chunks" else lambda: None)
    if when == "between moves":
        to_rows()
    chunks += giver.ship(dict.fromkeys(range(3, 6), 1))
    assert asked
    for _, chunk in chunks:
        taker.shipping.install(chunk)
    together = [{**left, **right} for left, right in zip(giver.values(), taker.values(), strict=True)]
    if when != "between chunks":
        assert together == whole.values()
    assert [set(values) for values in giver.values()] == [set(staying)] * 4
    assert [set(values) for values in taker.values()] == [set(KEYS) - set(staying)] * 4
    giver.shipping.forget()
    assert not giver.shipping.watching


@pytest.mark.parametrize("kind", [Listening, Count])
def test_r4_with_a_step_that_has_to_get_the_messages_keys_are_listed(kind: Any, asked: list[Interrogate]) -> None:
    giver = Region(by(Sum), kind)
    giver.executor.push(0, ColumnBatch(pa.RecordBatch.from_pydict({"v": [1, 2]}), key_column=pa.array(["a", "b"])))
    giver.executor.run()
    giver.shipping.prepare()
    assert len(asked) == 1
    assert giver.shipping.watching
    taker = Region(by(Sum), kind)
    for _, chunk in giver.ship(dict.fromkeys(range(SLOTS), 1)):
        taker.shipping.install(chunk)
    assert taker.values()[0] == {"a": 1, "b": 2}


def test_r4_panes_with_keys_or_states_of_several_types(asked: list[Interrogate]) -> None:
    for keys, values in (([1, 2], [1, 2]), (KEYS[:2], [0.5, 1.5])):
        giver, taker, whole = (Region(WINDOWS) for _ in range(3))
        for one in (giver, whole):
            one.push(KEYS[:3])  # the last at another time
            one.executor.push(
                0,
                ColumnBatch(
                    pa.RecordBatch.from_pydict({"v": values}),
                    key_column=pa.array(keys),
                    time_column=pa.array([25, 25]),
                ),
            )
            one.executor.run()
        giver.shipping.prepare()
        for _, chunk in giver.ship(dict.fromkeys(range(SLOTS), 1)):
            taker.shipping.install(chunk)
        assert (giver.values(), taker.values()) == ([{}], whole.values())
