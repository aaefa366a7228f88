"""`distinct` over columns: what it passes and stores equals that of rows; and when rows take over."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.accelerator import library
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import Acquire, AnyOf, Collect, Interrogate
from malstrom_py.data.row_form import SCALAR
from malstrom_py.operators.aggregate import Distinct
from malstrom_py.operators.keyed import expiring
from malstrom_py.state.seen_values import SeenValues
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_figures import BY, columns, rows, states
from tests.unit.operators.test_column_snapshots import barrier, content, held, restored, tracked
from tests.unit.state.test_groups import same

DISTINCT = partial(Distinct, by=BY)
KEYS = st.sampled_from(["a", "b", "", None, "ü"])
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.none() | st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)])),
    (pa.int8(), st.integers(-3, 3)),
    (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    (pa.float64(), st.sampled_from([0.1, -0.0, 0.0, 1.0, float("nan"), 1e17, None])),
    (pa.string(), st.sampled_from(["", "b", "ü", "日本", None])),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "b", None])),
    (pa.binary(), st.sampled_from([b"", b"\xff", None])),
    (pa.bool_(), st.booleans() | st.none()),
    (pa.null(), st.none()),
]


def in_arrays(step: Stepped) -> bool:
    values = states(step)
    return isinstance(values, SeenValues) and values._rows is None


def seen_by(step: Stepped) -> dict[Any, Any]:
    """The values seen by key; NaN equals NaN. The order of keys says nothing: a move changes it."""
    return {key: sorted(map(repr, seen)) for key, seen in states(step).items()}


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_columns_pass_and_store_what_rows_do(data: st.DataObject) -> None:
    few = data.draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=2))
    one, other = (Stepped(DISTINCT, on_error="skip") for _ in range(2))
    for _ in range(data.draw(st.integers(1, 6))):
        type_, value = data.draw(st.sampled_from(few))
        pairs = data.draw(st.lists(st.tuples(KEYS, value), max_size=12))
        keys = [key for key, _ in pairs]
        values = pa.array([each for _, each in pairs], type_).to_pylist()  # each NaN is an object that others lack
        kind = data.draw(st.sampled_from(["columns", "columns", "columns", "columns", "listed", "rows"]))
        one.push(rows(keys, values) if kind == "rows" else columns(keys, values, type_, listed=kind == "listed"))
        other.push(rows(keys, values))
        assert same(one.rows()) == same(other.rows())
        assert one.counters.filtered == other.counters.filtered
        assert seen_by(one) == seen_by(other)
        if data.draw(st.integers(0, 2)) == 0:
            comes_back = data.draw(st.booleans())
            for step in (one, other):
                moved = Collect(dict.fromkeys(["a", None, "ü", 1.0]).keys())
                found = Interrogate(AnyOf(moved.keys))
                step.push(found, moved)
                assert found.keys.isdisjoint(states(step))
                if comes_back:
                    step.push(Acquire(moved.states))
            assert seen_by(one) == seen_by(other)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_chain_of_snapshots_is_the_state(data: st.DataObject) -> None:
    type_, value = data.draw(st.sampled_from([VALUES[0], VALUES[4], VALUES[7]]))
    step, chain, parent = tracked(DISTINCT), list[bytes](), None
    for number in range(data.draw(st.integers(1, 5))):
        pairs = data.draw(st.lists(st.tuples(KEYS, value), min_size=1, max_size=8))
        step.push(columns([key for key, _ in pairs], [each for _, each in pairs], type_))
        if data.draw(st.booleans()):
            step.push(Collect({"a": None}.keys()))
        name = f"s{number}"
        made = barrier(step, name, parent)
        chain = [*chain, made] if parent else [made]
        parent = name
        assert content(chain) == held(step)
    again = restored(DISTINCT, [chain])
    assert held(again) == held(step)
    pairs = data.draw(st.lists(st.tuples(KEYS, value), min_size=1, max_size=8))
    batch = columns([key for key, _ in pairs], [each for _, each in pairs], type_)
    sent = len(step.rows())
    assert again.push(batch).rows() == step.push(batch).rows()[sent:]


@pytest.mark.parametrize("accelerated", [True, False])
def test_columns_remain_columns(accelerated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not accelerated:
        monkeypatch.setattr("malstrom_py.accelerator.library", lambda: None)
    step = Stepped(DISTINCT)
    for _ in range(3):
        step.push(columns(["a", "b", "a", "a"], [1, 1, 1, 2], pa.int64()))
    assert in_arrays(step)
    assert all(isinstance(batch, ColumnBatch) for batch in step.batches())
    assert (step.counters.rows_made, step.counters.filtered) == (0, 9)
    assert states(step) == {"a": {1, 2}, "b": {1}}


def test_values_themselves_may_be_a_column() -> None:
    numbers = ColumnBatch(pa.RecordBatch.from_pydict({"value": [4, 5, 4]}), key_column=pa.array(["a"] * 3), form=SCALAR)
    step = Stepped(partial(Distinct, by=None)).push(numbers)
    assert step.values() == [4, 5]
    assert in_arrays(step)


@pytest.mark.parametrize(
    "second",
    [
        rows(["a"], [5]),
        columns(["a"], [5.0], pa.float64()),
        columns(["a"], [2**63], pa.uint64()),
        ColumnBatch(pa.RecordBatch.from_pydict({"v": [5]}), key_column=pa.array([1.0])),
    ],
    ids=["rows", "floats", "beyond 64 bits", "float keys"],
)
def test_rows_take_over_where_arrays_end(second: Any) -> None:
    step = Stepped(DISTINCT).push(columns(["a"], [1], pa.int64()))
    assert in_arrays(step)
    step.push(second, columns(["a"], [1], pa.int64()))
    assert not in_arrays(step)
    assert len(step.rows()) == 2


def test_state_that_expires_is_in_rows() -> None:
    step = Stepped(partial(expiring, factory=DISTINCT, ttl=3, by_clock=False), timed=True)
    batch = columns(["a", "a"], [1, 1], pa.int64()).with_timestamps([1, 2])
    assert len(step.push(batch).rows()) == 1
    assert not in_arrays(step)


def test_many_keys_come_and_go() -> None:
    """Keys that have gone are forgotten, and come back without what they had seen."""
    seen, model = SeenValues(), dict[Any, set[Any]]()
    for start in range(0, 12_000, 3_000):
        keys = [key // 2 for key in range(start, start + 9_000)]
        values = [str(key % 5) for key in range(9_000)]
        first = seen.add(pa.array(keys), pa.array(values)).tolist()
        new = []
        for place, (key, value) in enumerate(zip(keys, values, strict=True)):
            if value not in model.setdefault(key, set()):
                model[key].add(value)
                new.append(place)
        assert first == new
        gone = [key for key in model if key % 7]
        assert seen.take(gone) == [model.pop(key) for key in gone]
        assert list(seen.items()) == list(model.items())
        assert len(seen) == len(model)
        assert sorted(seen.changed_keys()) == sorted({keys[place] for place in first if keys[place] in model})


@pytest.mark.parametrize("accelerated", [True, False])
def test_rows_take_over_from_numpy_where_sets_are_faster(accelerated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not accelerated:
        monkeypatch.setattr("malstrom_py.accelerator.library", lambda: None)
    elif library() is None:
        accelerated = False
    many = columns(["a"] * 70_000, list(range(70_000)), pa.int64())
    step = Stepped(DISTINCT).push(many)
    assert in_arrays(step)
    step.push(many, columns(["a", "b"], [70_000, 1], pa.int64()))
    assert in_arrays(step) == accelerated
    assert len(step.rows()) == 70_002


def test_a_job_passes_columns() -> None:
    table = [{"user": name, "page": page} for name, page in [("ann", 1), ("bob", 1), ("ann", 1), ("ann", 2)]]
    visits = mp.Job("visits").source("visits", sources.Memory(table)).key_by("user", "user")
    assert mp.collect(visits.distinct("pages", by="page")) == [table[0], table[1], table[3]]
