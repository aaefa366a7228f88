"""Figures, `distinct` and `top_n` over columns of any type: what rows give; and when rows take over from arrays.

`tests/laws/test_forms.py` compares them over generated batches, with moves and restores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py import agg
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, Acquire, AnyOf, Collect, Epoch, Interrogate
from malstrom_py.data.row_form import SCALAR
from malstrom_py.errors import InternalError
from malstrom_py.operators.aggregate import Aggregate, Count, Distinct, Fold, Max, Mean, Min, Sum, TopN
from malstrom_py.operators.final import Final
from malstrom_py.operators.keyed import StatefulOperator, expiring
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.state.artefact import Opened, contents, entries_in, is_delta, merged
from malstrom_py.state.figure_states import FigureStates, shape_of_one
from malstrom_py.state.seen_values import SeenValues
from malstrom_py.state.top_lane import top
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped
from tests.unit.state.test_groups import same

Factory = Callable[..., Any]
BY = field_getter("v", "step")
FIGURES = {"z": agg.count(), "a": agg.sum("v"), "m": agg.mean("v", skip_nulls=True), "l": agg.last("v")}

STEPS: dict[str, Factory] = {
    "count": Count,
    "sum": partial(Sum, by=BY),
    "sum of some": partial(Sum, by=BY, skip_nulls=True),
    "min": partial(Min, by=BY),
    "max": partial(Max, by=BY, skip_nulls=True),
    "mean": partial(Mean, by=BY),
    "aggregate": partial(Aggregate, aggregations=FIGURES),
    "final": Final,
    "fold": partial(Fold, fn=lambda total, row: total + row["v"], default=int),
    "largest": partial(Fold, fn=lambda best, row: max(best, row["v"]), default=lambda: -3),
    "newest": partial(Fold, fn=lambda _, row: row["v"], default=int),
    "fields": partial(
        Fold,
        fn=lambda state, row: {"n": state["n"] + 1, "least": min(row["v"], state["least"])},
        default=lambda: {"least": float("inf"), "n": 0},
    ),
}
"""Steps whose states are figures."""

ALL: dict[str, Factory] = {**STEPS, "distinct": partial(Distinct, by=BY), "top_n": partial(TopN, n=2, by=BY)}


def columns(keys: list[Any], values: list[Any], type_: pa.DataType, *, listed: bool = False) -> ColumnBatch:
    """Columns with keys as a column, or ``listed``."""
    batch = pa.RecordBatch.from_pydict({"v": pa.array(values, type_)})
    if listed:
        return ColumnBatch(batch, keys=keys)
    return ColumnBatch(batch, key_column=pa.array(keys, pa.string()))


def scalars(keys: list[Any], values: list[Any], type_: pa.DataType) -> ColumnBatch:
    return ColumnBatch(
        pa.RecordBatch.from_pydict({"value": pa.array(values, type_)}),
        key_column=pa.array(keys, pa.string()),
        form=SCALAR,
    )


def rows(keys: list[Any], values: list[Any]) -> Batch:
    return Batch([{"v": value} for value in values], keys=keys)


def states(step: Stepped) -> Any:
    operator = step.operator
    assert isinstance(operator, StatefulOperator)
    return operator.state.values


def in_arrays(step: Stepped) -> bool:
    return isinstance(states(step), FigureStates | SeenValues)


def shown(step: Stepped) -> dict[Any, Any]:
    """The state by key: values of a set have no order, and the first state of rows of `top_n` is made of tuples."""

    def plain(state: Any) -> Any:
        if isinstance(state, set):
            return sorted(map(repr, state))
        return list(map(plain, state)) if isinstance(state, list | tuple) else same(state)

    return {key: plain(state) for key, state in states(step).items()}


NAN = float("nan")
MOMENTS = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [2**63 - 1, 1, -(2**63), None, 1]),
    (pa.int8(), [1, -3, 1, 0]),
    (pa.uint64(), [0, 2**63, 2**64 - 1, 1, 1]),
    (pa.float64(), [0.1, -0.0, 0.0, NAN, 1e17, NAN]),
    (pa.float32(), [0.5, -0.0, NAN, None]),
    (pa.string(), ["", "b", "ü", "日本", "b"]),
    (pa.dictionary(pa.int8(), pa.string()), ["", "b", None, "b"]),
    (pa.binary(), [b"", b"\xff", None, b""]),
    (pa.bool_(), [True, False, None, True]),
    (pa.null(), [None, None]),
    (pa.timestamp("us", "UTC"), [*MOMENTS, MOMENTS[0]]),
    (pa.date32(), [date(2024, 1, 2), date(1, 1, 1), None]),
    (pa.decimal128(5, 2), [Decimal("1.50"), Decimal(0), None]),
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("type_", "values"), VALUES, ids=lambda one: str(one) if isinstance(one, pa.DataType) else "")
def test_columns_of_every_type_give_what_rows_give(name: str, type_: pa.DataType, values: list[Any]) -> None:
    one, other = (Stepped(ALL[name], on_error="skip") for _ in range(2))
    keys: list[Any] = ["a", "b", "a", None, "ü", "a"][: len(values)]
    for number, drawn in enumerate((values, values[::-1], [*values[1:], *values[:1]])):
        given = pa.array(drawn, type_).to_pylist()  # each NaN is an object that others lack
        one.push(columns(keys, given, type_, listed=number == 2))
        other.push(rows(keys, given))
        assert same(one.rows()) == same(other.rows())
        assert shown(one) == shown(other)
        for step in (one, other):
            moved = Collect(dict.fromkeys(["a", None, 1.0]).keys())
            found = Interrogate(AnyOf(moved.keys))
            step.push(found, moved)
            assert found.keys.isdisjoint(states(step))
            if number == 0:
                step.push(Acquire(moved.states))
        assert shown(one) == shown(other)
    for step in (one, other):
        step.push(Epoch(MAX_EPOCH))
    assert same(sorted(one.rows(), key=repr)) == same(sorted(other.rows(), key=repr))
    assert (one.counters.skipped, one.counters.filtered) == (other.counters.skipped, other.counters.filtered)


@pytest.mark.parametrize("name", [name for name in ALL if name != "final"])
def test_columns_remain_columns(name: str) -> None:
    step = Stepped(ALL[name])
    for _ in range(3):
        step.push(columns(["a", "b", "a"], [1, 2, 3], pa.int64()))
    assert in_arrays(step)
    assert all(isinstance(batch, ColumnBatch) for batch in step.batches())
    assert step.counters.rows_made == 0


def test_values_themselves_may_be_a_column() -> None:
    for factory, expected in ((Sum, [4, 9, 13]), (partial(Distinct, by=None), [4, 5])):
        step = Stepped(factory).push(scalars(["a"] * 3, [4, 5, 4], pa.int64()))
        assert step.values() == expected
        assert in_arrays(step)


def test_the_last_of_columns_are_columns() -> None:
    step = Stepped(Final).push(columns(["a", "b", "a"], [1, 2, 3], pa.int64()), Epoch(MAX_EPOCH))
    (batch,) = step.batches()
    assert isinstance(batch, ColumnBatch)
    assert step.rows() == [("a", {"v": 3}, None), ("b", {"v": 2}, None)]
    assert Stepped(Final).push(scalars(["a", "a"], [4, 5], pa.int64()), Epoch(MAX_EPOCH)).values() == [5]


OTHER_FORMS = {
    "rows": rows(["a"], [5]),
    "beyond 64 bits": columns(["a"], [2**63], pa.uint64()),
    "floats": columns(["a"], [0.5], pa.float64()),
    "float keys": ColumnBatch(pa.RecordBatch.from_pydict({"v": [5]}), key_column=pa.array([1.0])),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("name", ["sum", "distinct", "top_n"])
def test_rows_take_over_where_arrays_end(name: str, form: str) -> None:
    step, by_rows = Stepped(ALL[name]).push(columns(["a"], [1], pa.int64())), Stepped(ALL[name])
    assert in_arrays(step)
    other = OTHER_FORMS[form]
    step.push(other)
    assert not in_arrays(step)
    by_rows.push(rows(["a"], [1]), Batch(list(other.values), keys=list(other.keys or [])))
    assert step.rows() == by_rows.rows()


@pytest.mark.parametrize("name", ["mean", "distinct", "top_n"])
def test_states_are_arrays_again_once_as_many_rows_have_come_as_columns(name: str) -> None:
    """And twice as many where arrays have not lasted as long."""
    step, by_rows = Stepped(ALL[name]), Stepped(ALL[name])
    first, some, more = (
        columns(list(keys), list(range(len(keys))), pa.int64()) for keys in ("abcdefgh", "ab", "abcdefg")
    )
    other, forms = rows(["a"], [5]), []
    for batch in (first, other, some, more, some, other, some, more, more, other, more, more, more):
        step.push(batch)
        by_rows.push(Batch(list(batch.values), keys=list(batch.keys or [])))
        forms.append(in_arrays(step))
        assert shown(step) == shown(by_rows)
    assert step.rows() == by_rows.rows()
    assert "".join("-+"[one] for one in forms) == "+--++---+----"


def test_a_state_of_rows_becomes_arrays_with_the_first_columns() -> None:
    step = Stepped(STEPS["sum"]).push(rows(["a"], [4]), columns(["a"], [1], pa.int64()))
    assert in_arrays(step)
    assert step.values() == [4, 5]


@pytest.mark.parametrize("first", [[], [1]])
@pytest.mark.parametrize("rank", [0.1, datetime(2024, 1, 1, tzinfo=UTC), 2**63])
def test_rows_of_another_type_are_not_cast_to_that_of_arrays_that_are_empty_again(first: list[int], rank: Any) -> None:
    """All keys have moved away since, or the batch was empty: the arrays have a type, and no state."""
    step = Stepped(partial(TopN, n=1, by=None))
    step.push(scalars(["a"] * len(first), first, pa.int64()))
    step.push(Collect({"a": None}.keys()))
    step.push(Batch([rank], keys=["a"]))
    assert step.rows()[-1][1] == [rank]
    assert {key: tuple(map(list, state)) for key, state in states(step).items()} == {"a": ([rank], [rank])}


def test_state_that_expires_is_in_rows() -> None:
    step = Stepped(partial(expiring, factory=ALL["distinct"], ttl=3, by_clock=False), timed=True)
    batch = columns(["a", "a"], [1, 1], pa.int64()).with_timestamps([1, 2])
    assert len(step.push(batch).rows()) == 1
    assert not in_arrays(step)


def test_values_of_top_n_are_large_and_few_of_them_enter() -> None:
    """Most rows cannot enter: they get what is there."""
    step, model = Stepped(partial(TopN, n=3, by=None)), dict[str, list[int]]()
    for start in range(0, 30_000, 10_000):
        values = [number * 7919 % 30_011 for number in range(start, start + 10_000)]
        keys = [f"k{value % 13}" for value in values]
        step.push(scalars(keys, values, pa.int64()))
        for key, value in zip(keys, values, strict=True):
            model[key] = sorted([*model.get(key, []), value], reverse=True)[:3]
    assert in_arrays(step)
    assert {key: best[::-1] for key, (_, best) in states(step).items()} == model


def test_the_aggregation_of_top_n_adds_and_merges_as_the_step_does() -> None:
    largest = top(2, None)
    left, right = largest.init(), largest.init()
    for value in (3, 1, 2):
        left = largest.add(left, value)
    for value in (2, 5):
        right = largest.add(right, value)
    assert largest.finish(left) == [3, 2]
    assert largest.finish(largest.merge(left, right)) == [5, 3]


# Snapshots and moves


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


def test_s5_states_of_two_workers_come_together_in_arrays() -> None:
    givers = [tracked(STEPS["mean"]).push(columns(keys, [1, 2], pa.int64())) for keys in (["a", "b"], ["c", "d"])]
    chains = [[barrier(giver, "s1")] for giver in givers]
    taker = restored(STEPS["mean"], chains)
    assert in_arrays(taker)
    assert held(taker) == held(*givers)
    with pytest.raises(InternalError, match="restored from two workers"):
        restored(STEPS["mean"], [chains[0], chains[0]])


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
    values = FigureStates([agg.sum()], shape_of_one())
    values.update({1: 5})
    state.values = values
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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [name for name in ALL if name != "final"])
def test_s2_s5_states_change_over_between_barriers_moves_and_restores(name: str, seed: int) -> None:
    random, chain, parent = Random(seed), list[bytes](), None
    step, by_rows = tracked(ALL[name]), Stepped(ALL[name])
    for turn in range(20):
        keys = random.choices("abcdefgh", k=random.choice([2, 5, 20]))
        values = [random.randrange(5) for _ in keys]
        before = len(step.rows()), len(by_rows.rows())
        step.push(columns(keys, values, pa.int64()) if random.random() < 0.7 else rows(keys, values))
        by_rows.push(rows(keys, values))
        assert same(step.rows()[before[0] :]) == same(by_rows.rows()[before[1] :])
        if random.random() < 0.5:
            moved = Collect(dict.fromkeys(random.sample("abcdefgh", k=3)).keys())
            step.push(moved)
            step.push(Acquire(moved.states))
        if random.random() < 0.5:
            chain.append(barrier(step, f"s{turn}", parent))
            parent = f"s{turn}"
            again = restored(ALL[name], [chain])
            assert shown(again) == shown(step)
            if random.random() < 0.5:
                step = again
                operator_of(step).continue_chain(parent)
        assert shown(step) == shown(by_rows)


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
