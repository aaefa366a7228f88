"""`top_n` over columns: what it sends and stores equals that of rows; and when rows take over."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Acquire, AnyOf, Collect, Interrogate
from malstrom_py.data.row_form import SCALAR
from malstrom_py.operators.aggregate import TopN
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.state.top_lane import top
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_figures import states
from tests.unit.operators.test_column_snapshots import barrier, content, held, restored, tracked
from tests.unit.state.test_groups import same

KEYS = st.sampled_from(["a", "b", "", None, "ü"])
UTC_TIME = pa.timestamp("us", "UTC")
RANKS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-2, 2) | st.sampled_from([2**63 - 1, -(2**63)])),
    (pa.int64(), st.integers(-2, 2) | st.none()),
    (pa.int8(), st.integers(-3, 3)),
    (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    (pa.float64(), st.sampled_from([0.1, -0.0, 0.0, 1.0, float("inf"), -float("inf"), 1e17])),
    (pa.float64(), st.sampled_from([0.1, -0.0, 0.0, float("nan")])),
    (pa.string(), st.sampled_from(["", "b", "ü", "日本"])),
    (pa.bool_(), st.booleans()),
    (UTC_TIME, st.sampled_from([datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)])),
    (pa.decimal128(5, 2), st.sampled_from([None, *map(int, range(3))])),
]
FIELDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-9, 9) | st.none()),
    (pa.float32(), st.sampled_from([0.5, -0.0, float("nan"), None])),
    (pa.bool_(), st.booleans() | st.none()),
    (pa.null(), st.none()),
    (pa.string(), st.sampled_from(["x", ""])),
]


def top_n(n: int, by: str | None) -> Any:
    return partial(TopN, n=n, by=None if by is None else field_getter(by, "under-test"))


def in_arrays(step: Stepped) -> bool:
    values = states(step)
    return isinstance(values, FigureStates) and values.groups is not None


def values_in(keys: list[Any], values: list[Any], type_: pa.DataType) -> ColumnBatch:
    columns = pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["value"])
    return ColumnBatch(columns, key_column=pa.array(keys, pa.string()), form=SCALAR)


def records_in(keys: list[Any], records: list[tuple[Any, Any]], types: list[pa.DataType]) -> ColumnBatch:
    columns = zip(*records, strict=True) if records else ((), ())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return ColumnBatch(pa.RecordBatch.from_arrays(arrays, names=["v", "w"]), key_column=pa.array(keys, pa.string()))


def as_rows(batch: ColumnBatch) -> Batch:
    fresh = ColumnBatch(batch.columns, key_column=batch.key_column, form=batch.form)
    return Batch(fresh.values, keys=fresh.keys)


def shown_states(step: Stepped) -> dict[Any, str]:
    """The states by key; NaN equals NaN. The first state of rows is made of tuples."""
    return {key: repr(tuple(map(list, state))) for key, state in states(step).items()}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_columns_send_and_store_what_rows_do(data: st.DataObject) -> None:
    n, by = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, "v"]))
    few = data.draw(st.lists(st.sampled_from(RANKS), min_size=1, max_size=2))
    field_type, field = data.draw(st.sampled_from(FIELDS))
    one, other = (Stepped(top_n(n, by), on_error="skip") for _ in range(2))
    for _ in range(data.draw(st.integers(1, 5))):
        type_, rank = data.draw(st.sampled_from(few))
        drawn = data.draw(st.lists(st.tuples(KEYS, rank, field), max_size=12))
        keys = [key for key, *_ in drawn]
        if by is None:
            batch = values_in(keys, [value for _, value, _ in drawn], type_)
        else:
            batch = records_in(keys, [(value, beside) for _, value, beside in drawn], [type_, field_type])
        one.push(batch if data.draw(st.integers(0, 6)) else as_rows(batch))
        other.push(as_rows(batch))
        assert same(one.rows()) == same(other.rows())
        assert shown_states(one) == shown_states(other)
        if data.draw(st.integers(0, 2)) == 0:
            comes_back = data.draw(st.booleans())
            for step in (one, other):
                moved = Collect(dict.fromkeys(["a", None, "ü", "z"]).keys())
                found = Interrogate(AnyOf(moved.keys))
                step.push(found, moved)
                assert found.keys.isdisjoint(states(step))
                if comes_back:
                    step.push(Acquire(moved.states))


@pytest.mark.parametrize("first", [[], [1]])
@pytest.mark.parametrize("rank", [0.1, datetime(2024, 1, 1, tzinfo=UTC), 2**63])
def test_rows_of_another_type_are_not_cast_to_that_of_arrays_that_are_empty_again(first: list[int], rank: Any) -> None:
    """All keys have moved away since, or the batch was empty: the arrays have a type, and no state."""
    step = Stepped(top_n(1, None))
    step.push(values_in(["a"] * len(first), first, pa.int64()))
    step.push(Collect({"a": None}.keys()))
    step.push(Batch([rank], keys=["a"]))
    assert step.rows()[-1][1] == [rank]
    assert shown_states(step) == {"a": repr(([rank], [rank]))}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_chain_of_snapshots_is_the_state(data: st.DataObject) -> None:
    by = data.draw(st.sampled_from([None, "v"]))
    factory = top_n(data.draw(st.integers(1, 3)), by)

    def drawn() -> ColumnBatch:
        rows = data.draw(st.lists(st.tuples(KEYS, st.integers(0, 3), st.none() | st.integers(0, 9)), min_size=1))
        keys, ranks, fields = (list(column) for column in zip(*rows, strict=True))
        if by is None:
            return values_in(keys, ranks, pa.int64())
        return records_in(keys, list(zip(ranks, fields, strict=True)), [pa.int64(), pa.int64()])

    step, chain, parent = tracked(factory), list[bytes](), None
    for number in range(data.draw(st.integers(1, 5))):
        step.push(drawn())
        if data.draw(st.booleans()):
            step.push(Collect({"a": None}.keys()))
        name = f"s{number}"
        made = barrier(step, name, parent)
        chain = [*chain, made] if parent else [made]
        parent = name
        assert content(chain) == held(step)
    again = restored(factory, [chain])
    assert held(again) == held(step)
    batch, sent = drawn(), len(step.rows())
    assert again.push(batch).rows() == step.push(batch).rows()[sent:]
    assert in_arrays(again)


def test_columns_remain_columns() -> None:
    step = Stepped(top_n(2, "v"))
    for _ in range(3):
        step.push(records_in(["a", "b", "a"], [(1, 1), (2, 2), (3, 3)], [pa.int64(), pa.int64()]))
    assert in_arrays(step)
    assert all(isinstance(batch, ColumnBatch) for batch in step.batches())
    assert step.counters.rows_made == 0
    assert step.values()[-1] == [{"v": 3, "w": 3}, {"v": 3, "w": 3}]


def test_values_are_large_and_few_of_them_enter() -> None:
    """Most rows cannot enter: they get what is there."""
    step, model = Stepped(top_n(3, None)), dict[str, list[int]]()
    for start in range(0, 30_000, 10_000):
        values = [number * 7919 % 30_011 for number in range(start, start + 10_000)]
        keys = [f"k{value % 13}" for value in values]
        step.push(values_in(keys, values, pa.int64()))
        for key, value in zip(keys, values, strict=True):
            model[key] = sorted([*model.get(key, []), value], reverse=True)[:3]
    assert in_arrays(step)
    assert {key: best[::-1] for key, (_, best) in states(step).items()} == model


@pytest.mark.parametrize(
    "second",
    [
        Batch([5], keys=["a"]),
        values_in(["a"], [5.0], pa.float64()),
        values_in(["a"], [2**63], pa.uint64()),
    ],
    ids=["rows", "floats", "beyond 64 bits"],
)
def test_rows_take_over_where_arrays_end(second: Any) -> None:
    step = Stepped(top_n(2, None)).push(values_in(["a"], [1], pa.int64()))
    assert in_arrays(step)
    step.push(second, values_in(["a"], [1], pa.int64()))
    assert not in_arrays(step)
    assert [len(value) for value in step.values()] == [1, 2, 2]


def test_the_aggregation_adds_and_merges_as_the_step_does() -> None:
    largest = top(2, None)
    left, right = largest.init(), largest.init()
    for value in (3, 1, 2):
        left = largest.add(left, value)
    for value in (2, 5):
        right = largest.add(right, value)
    assert largest.finish(left) == [3, 2]
    assert largest.finish(largest.merge(left, right)) == [5, 3]


def test_the_last_of_columns_is_one_line() -> None:
    table = [{"shop": shop, "paid": paid} for shop, paid in [("tea", 3), ("jam", 9), ("tea", 5), ("tea", 4)]]
    sales = mp.Job("sales").source("sales", sources.Memory(table)).select("columns", "shop", "paid")
    best = mp.collect(sales.key_by("shop", "shop").top_n("best", 2, by="paid").final())
    assert best == [[table[2], table[3]], [table[1]]]
