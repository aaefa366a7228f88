"""Windows over columns: gathered before the exchange, persisted and moved as columns; and when rows take over."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py import agg
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Acquire, Collect, Epoch
from malstrom_py.data.row_form import PARTIALS, RowForm
from malstrom_py.operators.panes import Panes
from malstrom_py.operators.pre_aggregation import PreAggregation
from malstrom_py.operators.run_panes import RunPanes
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import Gathering, gather_all, gather_one
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.artefact import contents, entries_in, is_delta, merged
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing.disk import MemoryDisk
from malstrom_py.testing.exact import same
from malstrom_py.windows import WindowResult
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_figures import SLOTS, SLOTS_OF, barrier, is_columns, operator_of

Cell = tuple[Any, int, Any]
"""A key, a time, and a value."""

HOW: Final[dict[str, Callable[[], Gathering]]] = {
    "count": partial(gather_one, agg.count()),
    "sum": partial(gather_one, agg.sum("v")),
    "max": partial(gather_one, agg.max("v")),
    "mean": partial(gather_one, agg.mean("v")),
    "several": partial(
        gather_all,
        {
            "n": agg.count(),
            "least": agg.min("v"),
            "first": agg.first("v"),
            "last": agg.last("v"),
            "total": agg.sum("v"),
        },
    ),
    "in any order": partial(gather_all, {"n": agg.count(), "least": agg.min("v"), "total": agg.sum("v")}),
    "without nulls": partial(
        gather_all,
        {
            "n": agg.count("v", skip_nulls=True),
            "total": agg.sum("v", skip_nulls=True),
            "mean": agg.mean("v", skip_nulls=True),
        },
    ),
    "two sums": partial(gather_all, {"n": agg.count(), "total": agg.sum("v")}),
    "not in arrays": partial(gather_all, {"n": agg.count(), "spread": agg.std("v")}),
}
SIZES: Final = {"tumbling": (10, 10, 0), "odd": (7, 7, 3), "sliding": (12, 4, 0), "sliding, odd": (5, 2, 1)}
EXTREME_INTS: Final = (2**62, -(2**62), 2**63 - 1, -(2**63), 2**53 + 1, 0, 1, -1)
INTS = st.one_of(st.integers(-9, 9), st.sampled_from(EXTREME_INTS))
FLOATS = st.one_of(st.floats(width=64), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 1e300]))
VALUES = {
    "int": INTS,
    "float": FLOATS,
    "null or int": st.one_of(st.none(), INTS),
    "null or float": st.one_of(st.none(), FLOATS),
    "bool": st.booleans(),
}
KEYS = {
    "text": st.sampled_from(["", "a", "ä", "日本", "a\x00b", "🐜", None]),
    "int": st.sampled_from([0, -1, 7, 2**63 - 1, -(2**63), None]),
    "bytes": st.sampled_from([b"", b"a", b"\xff"]),
    "bool": st.booleans(),
}
TIMES = st.integers(-40, 60)
FAR = st.sampled_from([-(2**63) + 1, -(2**63) + 30, 2**63 - 30, 2**63 - 2])
TYPES: Final = {
    "text": pa.string(),
    "int": pa.int64(),
    "bytes": pa.binary(),
    "bool": pa.bool_(),
    "null or int": pa.int64(),
    "float": pa.float64(),
    "null or float": pa.float64(),
}


@st.composite
def runs(draw: st.DrawFn, times: st.SearchStrategy[int] = TIMES) -> tuple[str, str, list[list[Cell]]]:
    """Draw the types of keys and values, and batches of them."""
    keys, values = draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(sorted(VALUES)))
    cells = st.tuples(KEYS[keys], times, VALUES[values])
    return keys, values, draw(st.lists(st.lists(cells, min_size=1, max_size=12), min_size=1, max_size=5))


def stepped(how: str, size: str, on_error: Any = "dead-letter", *, runs: bool = True) -> Stepped:
    """``runs``: whether the order of arrival is kept; not so before."""
    length, step, origin = SIZES[size]

    def gather() -> Gathering:
        return HOW[how]() if runs else replace(HOW[how](), in_order=False)

    factory = partial(TimeWindows, gather=gather, size=length, step=step, origin=origin)
    return Stepped(factory, timed=True, keyed=True, on_error=on_error)


def rows_of(cells: list[Cell]) -> Batch:
    keys, times, values = (list(column) for column in zip(*cells, strict=True))
    return Batch([{"v": value} for value in values], keys=keys, timestamps=times)


def columns_of(cells: list[Cell], keys: str, values: str) -> ColumnBatch:
    of_keys, times, of_values = (list(column) for column in zip(*cells, strict=True))
    columns = pa.RecordBatch.from_pydict({"v": pa.array(of_values, TYPES[values])})
    return ColumnBatch(columns, key_column=pa.array(of_keys, TYPES[keys]), time_column=pa.array(times, pa.int64()))


def form_of(batch: Batch) -> RowForm | None:
    return batch.form if isinstance(batch, ColumnBatch) else None


def one_nan(value: Any) -> Any:
    """Return ``value`` with the same NaN for all: the sign of a sum that is NaN differs by processor instruction."""
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, dict):
        return {name: one_nan(of_name) for name, of_name in value.items()}
    return value._replace(value=one_nan(value.value)) if isinstance(value, WindowResult) else value


def results(step: Stepped) -> dict[Any, list[Any]]:
    """Return the results of each key, in order."""
    by_key = defaultdict[Any, list[Any]](list)
    for key, value, time in step.rows():
        by_key[type(key), key].append((time, one_nan(value)))
    return {key: sorted(of_key, key=lambda result: result[1][:2]) for key, of_key in by_key.items()}


def alike(one: Stepped, *others: Stepped) -> None:
    """Check that one sent what the others sent together, key by key, and the same to the dead letters."""
    ours, theirs = results(one), {key: of_key for other in others for key, of_key in results(other).items()}
    assert ours.keys() == theirs.keys()
    for key, of_key in ours.items():
        assert same(of_key, theirs[key]), (key, of_key, theirs[key])
    letters = sorted(repr(letter.value) for letter in one.dead_letters)
    assert letters == sorted(repr(letter.value) for other in others for letter in other.dead_letters)


@settings(max_examples=30, deadline=None)
@given(run=runs(st.one_of(TIMES, FAR)), size=st.sampled_from(sorted(SIZES)))
def test_times_at_the_ends_of_64_bits_go_by_rows(run: tuple[str, str, list[list[Cell]]], size: str) -> None:
    keys, values, batches = run
    rows, columns = stepped("count", size), stepped("count", size)
    for cells in batches:
        rows.push(rows_of(cells))
        columns.push(columns_of(cells, keys, values))
    rows.push(Epoch(2**62))
    columns.push(Epoch(2**62))
    alike(rows, columns)


LAYOUTS = st.lists(st.sampled_from(["rows", "columns"]), min_size=8, max_size=8)


def test_results_are_columns_in_the_order_of_first_arrival() -> None:
    step = stepped("two sums", "sliding")
    step.push(columns_of([("b", 1, 3), ("a", 9, 4), ("b", 2, 5)], "text", "int"), Epoch(11))
    (batch,) = step.batches()
    assert isinstance(batch, ColumnBatch)
    assert batch.columns.schema.names == ["start", "end", "value", "update"]
    assert (batch.keys, batch.timestamps) == (["b", "b", "b", "a"], [3, 7, 11, 11])
    assert batch.values == [
        *(WindowResult(start, start + 12, {"n": 2, "total": 8}) for start in (-8, -4, 0)),
        WindowResult(0, 12, {"n": 1, "total": 4}),
    ]


def test_results_of_other_types_or_of_rows_are_a_batch_of_their_own() -> None:
    step = stepped("max", "tumbling")
    step.push(columns_of([("a", 1, 3), ("a", 11, 4)], "text", "int"), columns_of([("a", 21, 0.5)], "text", "float"))
    step.push(rows_of([("a", 31, 7)]), columns_of([("a", 41, 8), ("a", 51, 9)], "text", "int"), Epoch(MAX_EPOCH))
    found = [[(result.start, result.value) for result in batch.values] for batch in step.batches()]
    assert found == [[(0, 3), (10, 4)], [(20, 0.5)], [(30, 7)], [(40, 8), (50, 9)]]


def test_a_pane_that_had_rows_is_arrays_again_for_the_next_window() -> None:
    step = stepped("sum", "tumbling")
    step.push(
        columns_of([("a", 1, 3)], "text", "int"), rows_of([("a", 2, 4)]), columns_of([("a", 3, 5)], "text", "int")
    )
    step.push(columns_of([("a", 11, 1)], "text", "int"), Epoch(MAX_EPOCH))
    rows, columns = step.batches()
    assert (rows.values, columns.values) == ([WindowResult(0, 10, 12)], [WindowResult(10, 20, 1)])
    assert [isinstance(batch, ColumnBatch) for batch in (rows, columns)] == [False, True]


def combined(how: str, size: str, batch: Batch) -> Batch:
    """Return what the step gathers of ``batch`` before an exchange, also of few rows."""
    step = stepped(how, size).operator
    assert isinstance(step, TimeWindows)
    with (
        patch("malstrom_py.operators.pre_aggregation._ROWS_MIN", 0),
        patch("malstrom_py.operators.pre_aggregation._WORTH", 1),
    ):
        return step.combine(batch) if step.combines else batch


@pytest.mark.parametrize("one", [agg.sum, agg.min, agg.max, agg.mean], ids=lambda one: one.__name__)
@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()], ids=str)
def test_f5_a_span_of_nothing_but_none_is_gathered_with_others(one: Any, type_: pa.DataType) -> None:
    """Its states have no type yet, which are those of integers, beside those of the other spans."""
    numbers = pa.array([None] * 100 + [5] * 100, pa.int64()).cast(type_)
    keys, times = pa.array(["a", "b"] * 100), pa.array([1] * 100 + [11] * 100)
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"v": numbers}), key_column=keys, time_column=times)
    factory = partial(TimeWindows, gather=partial(gather_one, one("v", skip_nulls=True)), size=10, step=10, origin=0)
    steps = [Stepped(factory, timed=True, keyed=True) for _ in range(2)]
    operator = steps[0].operator
    assert isinstance(operator, TimeWindows)
    made = operator.combine(batch)
    assert len(made) == 4 or (pa.types.is_floating(type_) and one in (agg.sum, agg.mean))
    whole, parts = (step.push(given, Epoch(MAX_EPOCH)).rows() for step, given in zip(steps, (batch, made), strict=True))
    assert sorted(map(repr, parts)) == sorted(map(repr, whole))


@settings(max_examples=30, deadline=None)
@given(run=runs(), how=st.sampled_from(sorted(HOW)), size=st.sampled_from(sorted(SIZES)), layouts=LAYOUTS)
def test_f5_what_is_gathered_before_the_exchange_gives_the_same_results(
    run: tuple[str, str, list[list[Cell]]], how: str, size: str, layouts: list[str]
) -> None:
    keys, values, batches = run
    rows, ours = stepped(how, size), stepped(how, size)
    for layout, cells in zip(layouts, batches, strict=False):
        rows.push(rows_of(cells))
        batch = rows_of(cells) if layout == "rows" else columns_of(cells, keys, values)
        made = combined(how, size, batch)
        assert len(made) <= len(batch)
        ours.push(made)
    rows.push(Epoch(MAX_EPOCH))
    ours.push(Epoch(MAX_EPOCH))
    alike(rows, ours)


def test_f5_sums_of_floats_and_the_least_beside_nan_are_not_gathered() -> None:
    floats = columns_of([("a", 1, 0.1), ("a", 2, 0.2)], "text", "float")
    with_nan = columns_of([("a", 1, math.nan), ("a", 2, 0.2)], "text", "float")
    ints = columns_of([("a", 1, 1), ("a", 2, 2)], "text", "int")
    for how, batch, rows in (
        ("sum", floats, 2),
        ("mean", floats, 2),
        ("count", floats, 1),
        ("max", floats, 1),
        ("max", with_nan, 2),
        ("sum", ints, 1),
        ("mean", ints, 1),
        ("not in arrays", ints, 2),
    ):
        assert len(combined(how, "tumbling", batch)) == rows, how


def test_f5_rows_that_columns_hold_are_gathered_and_others_stay_rows() -> None:
    def gathered(how: str, values: list[Any], keys: Sequence[Any] = ("a",)) -> bool:
        cells = [(key, 1, value) for key in keys for value in values]
        return isinstance(combined(how, "tumbling", rows_of(cells)), ColumnBatch)

    assert gathered("sum", [1, 2])
    assert gathered("count", [1, "two", None, 1 << 80])
    assert gathered("max", [0.5, 1.5])
    others: dict[str, list[Any]] = {"sum": [1, 0.5], "max": [1, None], "mean": [1 << 80, 1], "several": [True, False]}
    for how, values in others.items():
        assert not gathered(how, values), how
    assert not gathered("sum", [1, 2], keys=["a", 1])


def test_f5_integers_are_not_summed_up_once_floats_have_come_among_them() -> None:
    combine = PreAggregation([agg.sum("v"), agg.sum("w")], 10, 0, 10)

    def pairs(*values: Any, rows: int = 1000) -> Batch:
        return Batch([{"v": value, "w": 1} for value in values] * rows, keys=["a"] * rows, timestamps=[1] * rows)

    assert len(combine(pairs(1))) == 1
    few = pairs(0.5, rows=1)
    assert combine(few) is few
    assert len(combine(pairs(1))) == 1000


def test_f5_rows_without_the_field_are_left_to_the_step_that_reads_it() -> None:
    assert combined("sum", "tumbling", batch := Batch([{"w": 1}] * 9, keys=["a"] * 9, timestamps=[1] * 9)) is batch


def test_f5_few_rows_and_rows_of_many_keys_travel_as_they_are() -> None:
    combine = PreAggregation([agg.count()], 10, 0, 10)
    few, alike = rows_of([("a", 1, 0)] * 100), rows_of([("a", 1, 0)] * 1000)
    apart = rows_of([(number, 1, 0) for number in range(1000)])
    assert combine(few) is few
    assert len(combine(alike)) == 1
    assert combine(apart) is apart


def test_f5_a_batch_that_does_not_get_far_smaller_is_not_gathered_nor_tried_again_soon() -> None:
    combine = PreAggregation([agg.count()], 10, 0, 10)
    apart = columns_of([(f"k{number}", 1, 0) for number in range(100)], "text", "int")
    alike = columns_of([("a", 1, 0)] * 100, "text", "int")
    assert form_of(combine(alike)) is PARTIALS
    assert combine(apart) is apart
    assert [combine(alike) is alike for _ in range(16)] == [True] * 15 + [False]


# Snapshots and moves


def tracked(how: str, size: str) -> Stepped:
    step = stepped(how, size)
    operator_of(step).track(SLOTS_OF)
    return step


def in_order(states: Sequence[tuple[Any, Any]]) -> list[Any]:
    return sorted(([key, sorted(panes.items())] for key, panes in states), key=repr)


def held(*steps: Stepped) -> list[Any]:
    return in_order([(key, panes) for step in steps for key, panes in operator_of(step).state.values.items()])


def content(chain: Sequence[bytes]) -> list[Any]:
    return in_order([(key, panes) for _, key, panes, _ in entries_in(chain, Codec())])


def restored(how: str, size: str, chain: Sequence[bytes], slots: Sequence[int] = range(SLOTS)) -> Stepped:
    step = tracked(how, size)
    operator_of(step).install(chain, slots)
    return step


def panes_of(step: Stepped) -> Panes:
    panes: Any = operator_of(step).state.values
    assert isinstance(panes, Panes)
    return panes


def test_panes_are_persisted_and_restored_as_columns() -> None:
    step = tracked("in any order", "sliding")
    step.push(columns_of([("a", 1, 5), ("b", 2, 6), ("a", 9, 7)], "text", "int"))
    full = barrier(step, "s1")
    step.push(columns_of([("b", 9, 1), ("c", 13, 2)], "text", "int"), Epoch(13))
    delta = barrier(step, "s2", "s1")
    assert [is_columns(full), is_columns(delta), is_columns(merged([full, delta]))] == [True, True, True]
    again = restored("in any order", "sliding", [full, delta])
    assert panes_of(again).in_arrays
    assert len(panes_of(again)) > 0
    assert same(held(again), held(step))
    operator_of(again).continue_chain("s2")
    again.push(columns_of([("c", 14, 2)], "text", "int"))
    assert sum(len(keys) for _, (keys, _) in contents(barrier(again, "s3", "s2"))) == 1


def test_r5_a_pane_of_another_type_takes_what_comes_as_rows() -> None:
    giver, taker = (tracked("sum", "tumbling") for _ in range(2))
    giver.push(columns_of([("a", 1, 5), ("a", 12, 7)], "text", "int"))
    taker.push(columns_of([("b", 1, 0.5)], "text", "float"))
    message = Collect({"a": None}.keys())
    giver.push(message)
    taker.push(Acquire(message.states))
    assert same(held(taker), [["a", [(0, 5), (10, 7)]], ["b", [(0, 0.5)]]])
    assert not panes_of(taker).in_arrays


def test_panes_with_keys_or_states_of_several_types_are_persisted_as_rows() -> None:
    for keys, values, value in (("int", "int", 1), ("text", "float", 0.5)):
        step = tracked("sum", "tumbling").push(columns_of([("a", 1, 5)], "text", "int"))
        full = barrier(step, "s1")
        step.push(columns_of([(7 if keys == "int" else "a", 11, value)], keys, values), Epoch(0))
        delta = barrier(step, "s2", "s1")
        assert (is_columns(full), is_columns(delta), is_delta(delta)) == (True, False, True)
        assert same(content([full, delta]), held(step))


def test_panes_of_keys_that_are_all_none_or_gone() -> None:
    step = tracked("count", "tumbling").push(columns_of([(None, 1, 5)], "int", "int"))
    chain = [barrier(step, "s1")]
    step.push(columns_of([(7, 12, 5)], "int", "int"), Epoch(9))
    chain.append(barrier(step, "s2", "s1"))
    step.push(Epoch(19))
    chain.append(barrier(step, "s3", "s2"))
    assert [content(chain[:length]) for length in (1, 2, 3)] == [[[None, [(0, 1)]]], [[7, [(10, 1)]]], []]
    assert held(restored("count", "tumbling", chain)) == []
    assert panes_of(step).changed_columns() == []


@pytest.mark.parametrize("columns", [False, True])
def test_panes_of_a_snapshot_without_runs_are_read_and_continue(*, columns: bool) -> None:
    """Sliding windows with `agg.first` and `agg.last` were kept in arrays: their order was that of panes."""
    old = stepped("several", "sliding", runs=False)
    operator_of(old).track(SLOTS_OF)
    rows = [("a", 1, 5), ("b", 2, 6), ("a", 9, 7)]
    old.push(columns_of(rows, "text", "int") if columns else rows_of(rows))
    chain = [barrier(old, "s1")]
    assert is_columns(chain[0]) is columns
    step = restored("several", "sliding", chain)
    step.push(rows_of([("a", 3, 8)]), Epoch(MAX_EPOCH))
    found = {(key, value.start): value.value for key, value, _ in step.rows()}
    figures = [found["a", start] for start in (-8, -4, 0, 4, 8)]
    assert [(one["first"], one["last"], one["n"]) for one in figures] == [
        (5, 8, 2),
        (5, 8, 2),
        (5, 8, 3),
        (7, 7, 1),
        (7, 7, 1),
    ]


# Panes


def test_changed_keys_of_arrays_that_become_a_dict_are_noted_once() -> None:
    noted: list[list[str]] = []
    panes = Panes([agg.count()], note=lambda keys: noted.append(keys.to_pylist()))
    panes.fold(0, panes.symbols.of(pa.array(["ant", "bee"])), [None])
    assert sorted(panes.changed_keys()) == ["ant", "bee"]
    panes.fold(0, panes.symbols.of(pa.array(["bee", "cat"])), [None])
    assert panes.rows_at(0) == {"ant": 1, "bee": 2, "cat": 1}
    assert noted == [["bee", "cat"]]
    assert list(panes.changed_keys()) == []


def test_keys_in_several_panes_are_counted_about_once() -> None:
    rows, columns = Panes(), Panes([agg.count()])
    for pane in range(0, 40, 10):
        keys = [f"key-{number}" for number in range(pane, pane + 100)]
        rows.set_many(keys, [{pane: 1} for _ in keys])
        columns.fold(pane, columns.symbols.of(pa.array(keys)), [None])
    assert (list(rows), list(columns)) == ([f"key-{number}" for number in range(130)],) * 2
    assert 100 <= rows.keys_about == columns.keys_about <= 400
    assert columns.objects(["key-99"]) is None
    assert rows.objects(["key-99", "key-5"]) == [1] * 5
    runs = RunPanes(own=list)
    runs.set_many(["ant", "bee"], [{(0, 0): [1], (0, 2): [3], (10, 1): [2]}, {(0, 0): [4]}])
    assert runs.keys_about == 2


def test_panes_without_a_key_are_gone() -> None:
    panes = Panes([agg.count()])
    panes.fold(0, panes.symbols.of(pa.array(["ant", "bee"])), [None])
    panes.set_many(["ant"], [{10: 5}])
    assert panes.take(["ant", "cat"]) == [{0: 1, 10: 5}, None]
    assert list(panes.open) == [0]


# State on disk


def within(step: Stepped, limit: int) -> Stepped:
    operator_of(step).keep_within(StateMemory(limit, MemoryDisk, encode_key))
    return step


def test_windows_of_columns_that_memory_has_room_for_remain_columns() -> None:
    step = within(stepped("two sums", "sliding"), 1 << 30)
    for start in range(0, 8, 4):
        step.push(columns_of([(f"key-{number}", start, number) for number in range(500)], "text", "int"))
    assert panes_of(step).in_arrays
    assert all(isinstance(batch, ColumnBatch) for batch in step.push(Epoch(MAX_EPOCH)).batches())
    assert operator_of(step).state.memory.cold.bytes == 0  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(
    run=runs(),
    how=st.sampled_from(sorted(HOW)),
    size=st.sampled_from(sorted(SIZES)),
    layouts=st.lists(st.sampled_from(["rows", "columns", "partials"]), min_size=8, max_size=8),
    limit=st.sampled_from([0, 300, 500, 800]),
)
def test_windows_of_columns_give_the_same_with_state_on_disk(
    run: tuple[str, str, list[list[Cell]]], how: str, size: str, layouts: list[str], limit: int
) -> None:
    keys, values, batches = run
    one, other = stepped(how, size), within(stepped(how, size), limit)
    for number, (cells, layout) in enumerate(zip(batches, layouts, strict=False)):
        epoch = Epoch(10 * number - 20)
        timely = [cell for cell in cells if cell[1] > epoch.time - 10]
        for step in (one, other) if timely else ():
            batch = rows_of(timely) if layout == "rows" else columns_of(timely, keys, values)
            step.push(combined(how, size, batch) if layout == "partials" else batch)
        for step in (one, other):
            step.push(epoch)
    one.push(Epoch(MAX_EPOCH))
    other.push(Epoch(MAX_EPOCH))
    alike(one, other)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("how", ["two sums", "several"])
def test_windows_that_overlap_are_sent_once_for_keys_in_memory_and_on_disk(how: str, *, columns: bool) -> None:
    one, other = stepped(how, "sliding"), within(stepped(how, "sliding"), 20_000)
    in_both = 0
    for start in range(0, 40, 4):
        cells = [(f"key-{number % 200}", start + number % 4, number) for number in range(7 * start, 7 * start + 100)]
        batch = columns_of(cells, "text", "int") if columns else rows_of(cells)
        for step in (one, other):
            step.push(batch, Epoch(start + 3))
        state = operator_of(other).state
        in_both += len(state.values) > 10 and state.cold is not None
    assert in_both  # how often differs with the order of a set of keys
    alike(one.push(Epoch(MAX_EPOCH)), other.push(Epoch(MAX_EPOCH)))
