"""Flat results of windows: their names, their times, and that rows and columns give the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sources, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.time import PER_SECOND, Unit, from_time
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.flat import FlatResults
from malstrom_py.windows import WINDOW_RESULT, WindowResult

YEAR_1_S: Final = -62_135_596_800
YEAR_10000_S: Final = 253_402_300_800
UNITS: Final = st.sampled_from(get_args(Unit))

SALES: Final = [
    {"article": "tea", "shop": 1, "at": -5, "paid": 3},
    {"article": "tea", "shop": 1, "at": 3, "paid": None},
    {"article": "jam", "shop": 2, "at": 70, "paid": 4},
]


def in_columns(results: Sequence[WindowResult[Any]], keys: Sequence[Any]) -> ColumnBatch:
    """Return ``results``, whose values are dicts with integers or integers, as a window sends columns."""
    values = [result.value for result in results]
    columns = pa.RecordBatch.from_pydict(
        {
            "start": pa.array([result.start for result in results], pa.int64()),
            "end": pa.array([result.end for result in results], pa.int64()),
            "value": pa.array(values, pa.struct([("n", pa.int64())]) if isinstance(values[0], dict) else pa.int64()),
            "update": pa.array([result.update for result in results], pa.bool_()),
        }
    )
    return ColumnBatch(columns, key_column=pa.array(keys, pa.string()), form=WINDOW_RESULT)


def moments(unit: Unit) -> st.SearchStrategy[int]:
    """Return instants of the years 1 to 9999, and integers that are none."""
    lowest, highest = YEAR_1_S * PER_SECOND[unit], YEAR_10000_S * PER_SECOND[unit] - 1
    low, high = max(lowest, -(2**63)), min(highest, 2**63 - 1)
    return st.integers(low, high) | st.sampled_from([low, high, -1, 0, 1, -1_001])


@given(st.data(), UNITS, st.booleans())
def test_rows_and_columns_give_the_same_rows(data: st.DataObject, unit: Unit, early: bool) -> None:
    values = st.one_of(st.none(), st.integers(-5, 5)).map(lambda n: {"n": n})
    result = st.builds(WindowResult, moments(unit), moments(unit), values, st.just(False))
    results = data.draw(st.lists(result, min_size=1, max_size=5))
    keys = data.draw(st.lists(st.sampled_from(["a", "", None]), min_size=len(results), max_size=len(results)))
    flat = FlatResults(("item",), unit, early)
    rows = flat.flat(Batch(list(results), keys=keys), "out")
    columns = flat.flat(in_columns(results, keys), "out")
    assert isinstance(columns, ColumnBatch)
    assert columns.keys is rows.keys is None
    assert columns.values == rows.values
    assert list(columns.values[0]) == list(rows.values[0])
    assert {columns.columns.field(name).type for name in ("window_start", "window_end")} == {pa.timestamp("us", "UTC")}


@pytest.mark.parametrize(
    ("unit", "time", "moment"),
    [
        ("s", YEAR_1_S, datetime(1, 1, 1, tzinfo=UTC)),
        ("s", YEAR_10000_S - 1, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("ms", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("us", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("ns", 1_999, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("ns", -1, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("ns", 2**63 - 1, from_time(2**63 - 1, "ns")),
    ],
)
def test_a_time_is_a_moment_in_utc_rounded_down_to_microseconds(unit: Unit, time: int, moment: datetime) -> None:
    results = [WindowResult(time, time, 1)]
    for batch in (Batch(list(results), keys=["a"]), in_columns(results, ["a"])):
        (row,) = FlatResults(("key",), unit, early=False).flat(batch, "out").values
        assert row == {"key": "a", "window_start": moment, "window_end": moment, "value": 1}


@pytest.mark.parametrize("time", [YEAR_1_S - 1, YEAR_10000_S, 2**63 - 1, -(2**63)])
def test_a_time_that_no_datetime_holds_is_an_error_that_names_the_unit(time: int) -> None:
    results = [WindowResult(0, 1, 1), WindowResult(0, time, 1)]
    for batch in (Batch(list(results), keys=["a", "a"]), in_columns(results, ["a", "a"])):
        with pytest.raises(OperatorError, match=r"'out': window_end .* years 1 to 9999, taken in 's'"):
            FlatResults(("key",), "s", early=False).flat(batch, "out")


@pytest.mark.parametrize("name", ["item", "window_start", "window_end", "update"])
def test_an_aggregate_that_is_called_as_another_column_takes_its_place(name: str) -> None:
    results = Batch([WindowResult(0, 1, {name: 5})], keys=["a"])
    made = in_columns([WindowResult(0, 1, 1)], ["a"])
    columns = made.columns.set_column(2, "value", pa.array([{name: 5}]))
    for batch in (results, ColumnBatch(columns, key_column=made.key_column, form=WINDOW_RESULT)):
        (row,) = FlatResults(("item",), "s", early=True).flat(batch, "out").values
        assert list(row) == ["item", "window_start", "window_end", "update"]
        assert row[name] == 5


def test_results_among_other_values_are_flat_and_the_order_stays() -> None:
    values = [1, WindowResult(0, 1, 5), WindowResult(1, 2, 6), {"a": 2}]
    pieces = FlatResults(("key",), None, early=False).pieces(Batch(list(values), keys=list("abcd")), "out")
    found = [(piece.keys, piece.values) for piece in pieces]
    assert found == [
        (["a"], [1]),
        (None, [{"key": "b", "value": 5}, {"key": "c", "value": 6}]),
        (["d"], [{"a": 2}]),
    ]


def on_time(unit: Unit = "s", *, columns: bool = False) -> Any:
    stream: Any = mp.Job("sales").source("sales", sources.Memory(SALES))
    if columns:
        stream = stream.select("columns", "article", "shop", "at", "paid")
    timed = stream.assign_timestamps("time", "at", unit=unit)
    return timed.generate_epochs("epochs", mp.limit_out_of_orderness(100))[0]


def by_start(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["window_start"], str(row)))


@pytest.mark.parametrize("columns", [False, True])
def test_a_row_has_the_key_by_its_name_the_times_and_the_aggregates(columns: bool) -> None:
    minutes = on_time(columns=columns).key_by("by-article", "article").window("minutes", windows.tumbling(60))
    rows = by_start(mp.collect(minutes.aggregate(n=agg.count(), paid=agg.sum("paid", skip_nulls=True)).flat("rows")))
    epoch, minute = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    before, later = datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime(1970, 1, 1, 0, 2, tzinfo=UTC)
    assert rows == [
        {"article": "tea", "window_start": before, "window_end": epoch, "n": 1, "paid": 3},
        {"article": "tea", "window_start": epoch, "window_end": minute, "n": 1, "paid": None},
        {"article": "jam", "window_start": minute, "window_end": later, "n": 1, "paid": 4},
    ]


def test_the_items_of_a_key_of_several_columns_have_their_names() -> None:
    keyed = on_time().key_by("pair", itemgetter("article", "shop"))
    rows = mp.collect(keyed.window("hours", windows.session(3600)).count().flat("rows"))
    assert sorted((row["article"], row["shop"], row["value"]) for row in rows) == [("jam", 2, 1), ("tea", 1, 2)]


def test_a_key_that_a_function_made_is_called_key() -> None:
    keyed = on_time().key_by("pair", lambda sale: (sale["article"], sale["shop"]))
    rows = mp.collect(keyed.window("hours", windows.session(3600)).count().flat("rows"))
    assert sorted((row["key"], row["value"]) for row in rows) == [(("jam", 2), 1), (("tea", 1), 2)]


def test_early_results_have_a_column_that_says_so() -> None:
    keyed = on_time().key_by("by-article", "article")
    rows = mp.collect(keyed.window("hours", windows.tumbling(3600), emit=1).count().flat("rows"))
    assert {row["update"] for row in rows} == {True, False}
    assert all(list(row)[-1] == "update" for row in rows)


def test_windows_of_a_number_of_records_have_the_times_that_their_records_have() -> None:
    timed = on_time().key_by("all", lambda sale: 0).window("pairs", windows.count(3)).count()
    (row,) = mp.collect(timed.flat("rows"))
    assert row["window_start"], row["window_end"] == (from_time(-5, "s"), from_time(71, "s"))
    untimed = mp.Job("numbers").source("numbers", sources.Memory([1, 2])).key_by("all", lambda number: 0)
    assert mp.collect(untimed.window("pairs", windows.count(2)).sum().flat("rows")) == [{"key": 0, "value": 3}]


def test_windows_by_the_clock_are_in_milliseconds() -> None:
    keyed = mp.Job("numbers").source("numbers", sources.Memory([1, 2])).key_by("all", lambda number: 0)
    started = datetime.now(UTC)
    rows = mp.collect(keyed.window("years", windows.tumbling(10**12, clock="processing")).count().flat("rows"))
    assert all(row["window_start"] <= started < row["window_end"] for row in rows)


def test_after_a_union_of_windows_with_other_times_there_is_no_flat() -> None:
    by_clock = windows.tumbling(1000, clock="processing")
    keyed = mp.Job("numbers").source("numbers", sources.Memory([1])).key_by("all", lambda number: 0)
    both = keyed.window("clock", by_clock).count().union("both", keyed.window("pairs", windows.count(2)).count())
    assert both.traits.flat is None
    alike = keyed.window("more", by_clock).count().union("alike", keyed.window("early", by_clock, emit=1).count())
    assert alike.traits.flat == FlatResults(("key",), "ms", early=True)


def test_flat_without_a_window_or_after_a_step_that_replaces_results_is_refused() -> None:
    keyed = on_time().key_by("by-article", "article")
    with pytest.raises(PlanError, match="'rows': flat takes the results of windows, and no window is before it"):
        keyed.flat("rows")
    counts = keyed.window("hours", windows.tumbling(3600)).count().map("numbers", lambda result: result.value)
    with pytest.raises(OperatorError, match="'rows': flat takes results of windows, got int"):
        mp.collect(counts.flat("rows"))
