"""The state of steps on columns in snapshots and moves equals that of steps on rows, also in chains of mixed forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from malstrom_py import agg
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, Acquire, Collect
from malstrom_py.errors import InternalError
from malstrom_py.operators.aggregate import Aggregate, Sum
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.state.artefact import Opened, contents, entries_in, is_delta, merged
from malstrom_py.state.column_image import storable
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.testing import CapturingPersistenceBackend
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_figures import BY, STEPS, columns, in_arrays, rows, states
from tests.unit.state.test_groups import same

SLOTS = 6
SLOTS_OF = StableSlots(SLOTS).slots_of


def tracked(factory: Any) -> Stepped:
    step = Stepped(factory)
    operator_of(step).track(SLOTS_OF)
    return step


def operator_of(step: Stepped) -> StatefulOperator:
    operator = step.operator
    assert isinstance(operator, StatefulOperator)
    return operator


def barrier(step: Stepped, snapshot: str, parent: str | None = None) -> bytes:
    backend = CapturingPersistenceBackend()
    step.push(AbsBarrier(snapshot, backend, parent))
    (made,) = backend.states.values()
    return made


def restored(factory: Any, chains: Sequence[Sequence[bytes]], slots: Sequence[int] = range(SLOTS)) -> Stepped:
    step = tracked(factory)
    for chain in chains:
        operator_of(step).install(chain, slots)
    return step


def content(chain: Sequence[bytes]) -> list[Any]:
    return sorted(([key, value, slot] for slot, key, value, _ in entries_in(chain, Codec())), key=repr)


def held(*steps: Stepped) -> list[Any]:
    """Return what the steps hold, as `content` does."""
    found = [(key, value) for step in steps for key, value in states(step).items() if value is not None]
    return sorted(([key, value, SLOTS_OF([key])[0]] for key, value in found), key=repr)


def is_columns(data: bytes) -> bool:
    blocks = Opened(data).blocks.values()
    return bool(blocks) and all(block.form is not None for block in blocks)


@pytest.mark.parametrize("name", [name for name in STEPS if name != "final"])
def test_columns_are_persisted_and_restored_as_columns(name: str) -> None:
    """Without an object per key: in arrays before and after."""
    step = tracked(STEPS[name]).push(columns(list("abc"), [1, 2, 3], pa.int64()))
    full = barrier(step, "s1")
    step.push(columns(["a", "d"], [1, 2], pa.int64()), Collect({"b": None}.keys()))
    delta = barrier(step, "s2", "s1")
    assert [is_columns(data) for data in (full, delta, merged([full, delta]))] == [True, True, True]
    assert sum(len(keys) for _, (keys, _) in contents(delta)) == 3
    for chain in ([full, delta], [merged([full, delta])]):
        again = restored(STEPS[name], [chain])
        assert in_arrays(again)
        assert same(held(again)) == same(held(step))
        more = columns(["a", "e"], [5, 6], pa.int64())
        assert same(again.push(more).rows()) == same(step.push(more).rows()[-2:])
        step = restored(STEPS[name], [[full, delta]])


def test_s2_only_what_changed_after_a_restore_is_in_the_next_delta() -> None:
    step = tracked(STEPS["sum"]).push(columns(list("abc"), [1, 2, 3], pa.int64()))
    chain = [barrier(step, "s1")]
    again = restored(STEPS["sum"], [chain])
    operator_of(again).continue_chain("s1")
    again.push(columns(["c"], [4], pa.int64()))
    delta = barrier(again, "s2", "s1")
    assert content([delta_as_full(delta)]) == [["c", 7, SLOTS_OF(["c"])[0]]]
    assert held(restored(STEPS["sum"], [[*chain, delta]])) == held(again)


def delta_as_full(delta: bytes) -> bytes:
    step = tracked(STEPS["sum"])
    return merged([barrier(step, "s"), delta])


def test_s5_states_of_two_workers_come_together_in_arrays() -> None:
    givers = [tracked(STEPS["mean"]).push(columns(keys, [1, 2], pa.int64())) for keys in (["a", "b"], ["c", "d"])]
    chains = [[barrier(giver, "s1")] for giver in givers]
    taker = restored(STEPS["mean"], chains)
    assert in_arrays(taker)
    assert held(taker) == held(*givers)
    with pytest.raises(InternalError, match="restored from two workers"):
        restored(STEPS["mean"], [chains[0], chains[0]])


def test_s5_arrays_and_rows_of_two_workers_come_together() -> None:
    by_rows = tracked(STEPS["sum"]).push(rows(["a", "b"], [2**70, 1]))
    by_columns = tracked(STEPS["sum"]).push(columns(["c"], [2], pa.int64()))
    chains = [[barrier(by_rows, "s1")], [barrier(by_columns, "s1")]]
    for several in (chains, chains[::-1]):
        assert held(restored(STEPS["sum"], several)) == held(by_rows, by_columns)


@pytest.mark.parametrize(
    "first", [rows(["z"], [1]), columns(["z"], [1], pa.int64()), None], ids=["rows", "columns", ""]
)
def test_r4_r5_columns_move_to_steps_of_either_form(first: Any) -> None:
    giver, taker = tracked(STEPS["sum"]), tracked(STEPS["sum"])
    giver.push(columns(list("abc"), [1, 2, 3], pa.int64()))
    if first is not None:
        taker.push(first)
    before = held(giver, taker)
    chains = [[barrier(giver, "s1")], [barrier(taker, "s1")]]
    message = Collect(dict.fromkeys(["a", "c", "unknown"]).keys())
    giver.push(message)
    taker.push(Acquire(message.states))
    assert [key for key, *_ in held(giver)] == ["b"]
    assert held(giver, taker) == before
    for step, chain in zip((giver, taker), chains, strict=True):
        chain.append(barrier(step, "s2", "s1"))
        assert is_delta(chain[1])
        assert content(chain) == held(step)
    with pytest.raises(InternalError, match="the key already has state here"):
        taker.push(Acquire(message.states))
    empty = Collect({"unknown": None}.keys())
    giver.push(empty)
    assert empty.states == {}


def test_r5_columns_of_another_type_than_those_here_are_installed_as_rows() -> None:
    giver, taker = (tracked(STEPS["sum"]) for _ in range(2))
    giver.push(columns(["a"], [1], pa.int64()))
    taker.push(columns(["b"], [0.5], pa.float64()))
    message = Collect({"a": None}.keys())
    giver.push(message)
    taker.push(Acquire(message.states))
    assert same(held(taker)) == same([["a", 1, SLOTS_OF(["a"])[0]], ["b", 0.5, SLOTS_OF(["b"])[0]]])


def test_a_step_with_timers_is_persisted_as_rows() -> None:
    step = tracked(STEPS["sum"]).push(columns(["a"], [1], pa.int64()))
    operator_of(step).state.timers.set("b", 7)
    full = barrier(step, "s1")
    assert not is_columns(full)
    found = {entry.key: (entry.value, list(entry.times.timers)) for entry in entries_in([full], Codec())}
    assert found == {"a": (1, []), "b": (None, [7])}


def test_a_chain_with_a_key_in_another_form_is_continued_as_rows() -> None:
    """The chain has 1.0: a delta of columns would add 1 beside it."""
    state = operator_of(tracked(STEPS["sum"])).state
    state.note([1.0])
    state.values.update({1.0: 5})
    chain = [state.artefact(AbsBarrier("s1", CapturingPersistenceBackend()))]
    values = FigureStates([agg.sum()], operator_of(Stepped(Sum))._over_columns._shape)  # type: ignore[attr-defined]
    values.update({1: 5})
    state.values = values  # type: ignore[assignment]
    chain.append(state.artefact(AbsBarrier("s2", CapturingPersistenceBackend(), "s1")))
    assert not is_columns(chain[1])
    assert [(entry.key, entry.value) for entry in entries_in(chain, Codec())] == [(1.0, 5)]
    assert len([1 for _, (keys, _) in contents(merged(chain)) for _ in keys]) == 1
    state.values.clear()


def test_keys_that_are_all_none() -> None:
    step = tracked(STEPS["count"]).push(columns([None, None], [1, 2], pa.int64()))
    full = barrier(step, "s1")
    assert is_columns(full)
    again = restored(STEPS["count"], [[full]])
    assert (in_arrays(again), held(again)) == (True, held(step))
    again.push(columns([None, "a"], [1, 2], pa.int64()))
    assert [value for _, value, _ in held(again)] == [1, 3]


def test_slots_are_asked_for_each_key_once() -> None:
    asked: list[Any] = []

    def slots_of(keys: Sequence[Any]) -> list[int]:
        asked.extend(keys)
        return SLOTS_OF(keys)

    step = Stepped(partial(Sum, by=BY))
    operator_of(step).track(slots_of)
    step.push(columns(list("abc"), [1, 2, 3], pa.int64()))
    barrier(step, "s1")
    step.push(columns(list("bd"), [1, 2], pa.int64()))
    barrier(step, "s2", "s1")
    assert asked == ["a", "b", "c", "d"]


def test_figures_of_every_kind_go_through_an_image() -> None:
    """States that are absent too: no values yet of a key, where None is skipped."""
    kinds = [agg.count, agg.sum, agg.mean, agg.min, agg.max, agg.first, agg.last]
    figures = {
        f"{kind.__name__}{skips}": kind("v", skip_nulls=skips) if skips or kind is not agg.count else kind()
        for kind in kinds
        for skips in (False, True)
        if skips or kind in (agg.count, agg.first, agg.last)
    }
    step = tracked(partial(Aggregate, aggregations=figures))
    step.push(columns(list("abca"), [None, 2, None, 5], pa.int64()))
    assert in_arrays(step)
    values = states(step)
    image = storable(values.image(None, SLOTS_OF))
    assert image is not None
    assert np.array_equal(image.slots, SLOTS_OF(image.keys.to_pylist()))
    again = restored(partial(Aggregate, aggregations=figures), [[barrier(step, "s1")]])
    assert in_arrays(again)
    assert same(held(again)) == same(held(step))
    more = columns(list("cab"), [1, None, 3], pa.int64())
    assert same(again.push(more).rows()[-3:]) == same(step.push(more).rows()[-3:])
