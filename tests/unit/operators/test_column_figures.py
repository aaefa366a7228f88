"""Running figures over columns: what the same steps give over rows; and when rows take over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, Acquire, AnyOf, Collect, Epoch, Interrogate
from malstrom_py.data.row_form import SCALAR
from malstrom_py.operators.aggregate import Aggregate, Count, Final, Max, Mean, Min, Sum
from malstrom_py.operators.keyed import StatefulOperator, expiring
from malstrom_py.state.figure_states import FigureStates
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
}


def columns(keys: list[Any], values: list[Any], type_: pa.DataType, *, listed: bool = False) -> ColumnBatch:
    """Columns with keys as a column, or ``listed``."""
    batch = pa.RecordBatch.from_pydict({"v": pa.array(values, type_)})
    if listed:
        return ColumnBatch(batch, keys=keys)
    return ColumnBatch(batch, key_column=pa.array(keys, pa.string()))


def rows(keys: list[Any], values: list[Any]) -> Batch:
    return Batch([{"v": value} for value in values], keys=keys)


def states(step: Stepped) -> Any:
    operator = step.operator
    assert isinstance(operator, StatefulOperator)
    return operator.state.values


def in_arrays(step: Stepped) -> bool:
    values = states(step)
    return isinstance(values, FigureStates) and values.groups is not None


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_columns_give_what_rows_give(data: st.DataObject) -> None:
    factory = STEPS[data.draw(st.sampled_from(sorted(STEPS)))]
    type_, value = data.draw(
        st.sampled_from(
            [
                (pa.int64(), st.none() | st.integers(-3, 3) | st.sampled_from([2**62, -(2**63)])),
                (pa.int32(), st.integers(-3, 3)),
                (pa.float64(), st.integers(0, 4).map(lambda n: [0.1, -0.0, 0.0, float("nan"), 1e17][n])),
                (pa.string(), st.sampled_from(["", "b"])),
            ]
        )
    )
    one, other = (Stepped(factory, on_error="skip") for _ in range(2))
    for _ in range(data.draw(st.integers(1, 5))):
        pairs = data.draw(st.lists(st.tuples(st.sampled_from(["a", "b", "", None, "ü"]), value), max_size=12))
        keys, values = [key for key, _ in pairs], [each for _, each in pairs]
        kind = data.draw(st.sampled_from(["columns", "columns", "columns", "listed", "rows"]))
        one.push(rows(keys, values) if kind == "rows" else columns(keys, values, type_, listed=kind == "listed"))
        other.push(rows(keys, values))
        assert same(one.rows()) == same(other.rows())
        assert same(list(states(one).items())) == same(list(states(other).items()))
        if data.draw(st.integers(0, 3)) == 0:
            nothing = [key for key, state in states(other).items() if state is None]
            for step in (one, other):
                moved = Collect(dict.fromkeys(["a", None, "ü", 1.0]).keys())
                found = Interrogate(AnyOf(moved.keys))
                step.push(found, moved)
                assert found.keys.isdisjoint(states(step))
                step.push(Acquire(moved.states))
            assert same(sorted(states(one).items(), key=repr)) == same(sorted(states(other).items(), key=repr))
            if list(states(one)) != list(states(other)) or moved.keys & set(nothing):
                return  # keys that come back have another place: fine, and the rest compares places
    for step in (one, other):
        step.push(Epoch(MAX_EPOCH))
    assert same(one.rows()) == same(other.rows())
    assert one.counters.skipped == other.counters.skipped


@pytest.mark.parametrize("name", [name for name in STEPS if name != "final"])
def test_columns_remain_columns(name: str) -> None:
    step = Stepped(STEPS[name])
    for _ in range(3):
        step.push(columns(["a", "b", "a"], [1, 2, 3], pa.int64()))
    assert in_arrays(step)
    assert all(isinstance(batch, ColumnBatch) for batch in step.batches())
    assert step.counters.rows_made == 0


def test_the_last_of_columns_are_columns() -> None:
    step = Stepped(Final).push(columns(["a", "b", "a"], [1, 2, 3], pa.int64()), Epoch(MAX_EPOCH))
    (batch,) = step.batches()
    assert isinstance(batch, ColumnBatch)
    assert step.rows() == [("a", {"v": 3}, None), ("b", {"v": 2}, None)]
    scalars = ColumnBatch(pa.RecordBatch.from_pydict({"value": [4, 5]}), key_column=pa.array(["a", "a"]), form=SCALAR)
    assert Stepped(Final).push(scalars, Epoch(MAX_EPOCH)).values() == [5]
    assert Stepped(Sum).push(scalars).values() == [4, 9]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (rows(["a"], [5]), [1, 6]),
        (columns(["a"], [2**63 - 1], pa.int64()), [1, 2**63]),
        (columns(["a"], [0.5], pa.float64()), [1, 1.5]),
        (ColumnBatch(pa.RecordBatch.from_pydict({"v": [5]}), key_column=pa.array([1.0])), [1, 5]),
    ],
    ids=["rows", "beyond 64 bits", "floats", "float keys"],
)
def test_rows_take_over_where_arrays_end(second: Batch, expected: list[Any]) -> None:
    step = Stepped(partial(Sum, by=BY)).push(columns(["a"], [1], pa.int64()))
    assert in_arrays(step)
    step.push(second)
    assert not in_arrays(step)
    assert type(states(step)) is dict
    assert step.values() == expected


def test_a_state_of_rows_becomes_arrays_with_the_first_columns() -> None:
    step = Stepped(partial(Sum, by=BY)).push(rows(["a"], [4]), columns(["a"], [1], pa.int64()))
    assert in_arrays(step)
    assert step.values() == [4, 5]


def test_a_record_that_fails_is_handled_as_in_rows() -> None:
    step = Stepped(partial(Sum, by=BY), on_error="dead-letter").push(columns(["a", "a", "b"], [1, None, 2], pa.int64()))
    assert step.values() == [1, 2]
    assert [letter.value for letter in step.dead_letters] == [{"v": None}]


def test_a_delta_has_the_keys_that_changed_in_columns() -> None:
    step, backend = Stepped(partial(Sum, by=BY)), CapturingPersistenceBackend()
    operator = step.operator
    assert isinstance(operator, StatefulOperator)
    operator.track(lambda keys: [0] * len(keys))
    chain = []
    for number, keys in enumerate((["a", "b", "c"], ["b", "d"], ["d", "d"])):
        step.push(columns(keys, [1] * len(keys), pa.int64()))
        if number == 2:
            step.push(rows(["e"], [7]))  # the flags of changed ids are not lost with the arrays
        step.push(AbsBarrier(f"s{number}", backend, parent=f"s{number - 1}" if number else None))
        chain.append(backend.states["under-test"])
    restored = Stepped(partial(Sum, by=BY))
    assert isinstance(restored.operator, StatefulOperator)
    restored.operator.install(chain, [0])
    assert states(restored) == {"a": 1, "b": 2, "c": 1, "d": 3, "e": 7}
    assert max(map(len, chain)) == len(chain[0])


@pytest.mark.long
def test_moves_and_losses_change_no_figure() -> None:
    items: list[dict[str, Any]] = [{"key": f"k{n % 23}", "v": n * 7919 % 100} for n in range(300)]
    expected: dict[str, int] = {}
    for item in items:
        expected[item["key"]] = expected.get(item["key"], 0) + item["v"]
    moved = lost = 0
    for seed in range(4):
        job, out = mp.Job("figures"), sinks.Memory()
        stream = job.source("in", sources.Memory(items, parts=3)).select("columns", pl.col("key"), pl.col("v"))
        sums = stream.key_by("key", "key").aggregate("sums", total=agg.sum("v"), n=agg.count())
        sums.final("last").sink("out", out)
        result = mp.Simulation(workers=2, seed=seed, rescales=2, crashes=seed % 2).run(job)
        assert {key: value["total"] for key, (value,) in out.by_key.items()} == expected
        assert sum(value["n"] for value in out.items) == len(items)
        moved += result.hits.get("keys moved", 0)
        lost += result.incarnations - 1
    assert moved
    assert lost


def test_states_that_expire_are_those_of_rows() -> None:
    found = []
    for in_columns in (True, False):
        step = Stepped(partial(expiring, factory=partial(Sum, by=BY), ttl=5, by_clock=False), timed=True, keyed=True)
        for time in (0, 3, 20):
            keys, values, times = ["a", "b"], [1, 2], [time, time + 1]
            batch = columns(keys, values, pa.int64()) if in_columns else rows(keys, values)
            step.push(Epoch(time - 1), batch.with_timestamps(times))
        found.append(step.rows())
    assert found[0] == found[1]
    assert [value for _, value, _ in found[0]] == [1, 2, 2, 4, 1, 2]
