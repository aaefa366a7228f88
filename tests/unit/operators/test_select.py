"""``select``: what the expressions make, for rows and for columns."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.errors.text import redacting
from malstrom_py.operators.columns import Select, expressions_of
from tests.unit.operators.stepping import Stepped


def select(*expressions: pl.Expr | str, **named: pl.Expr | str) -> Stepped:
    return Stepped(partial(Select, expressions=expressions_of(expressions, named, "under-test")))


def columns(**values: list[Any]) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(values))


def test_columns_stay_columns_and_no_row_is_made() -> None:
    step = select("item", euros=pl.col("price") * 0.5).push(columns(price=[10, 20], item=["a", "b"]))
    (batch,) = step.batches()
    assert isinstance(batch, ColumnBatch)
    assert not batch.rows_made
    assert (step.counters.rows_made, step.counters.columns_made) == (0, 0)
    assert batch.values == [{"item": "a", "euros": 5.0}, {"item": "b", "euros": 10.0}]


def test_rows_become_columns_which_is_counted() -> None:
    step = select("item").push(Batch([{"item": "a", "price": 1}, {"item": None, "price": 2}]))
    assert step.batches()[0].values == [{"item": "a"}, {"item": None}]
    assert step.counters.columns_made == 2


def test_keys_timestamps_and_part_stay() -> None:
    given = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), keys=["a", "b"], timestamps=[5, 6], part="in/0")
    (batch,) = select(pl.col("n") + 1).push(given).batches()
    assert (batch.keys, batch.timestamps, batch.part) == (["a", "b"], [5, 6], "in/0")


def test_values_that_are_no_dicts_are_the_column_value() -> None:
    assert select(pl.col("value") * 2).push(Batch([1, 2])).batches()[0].values == [{"value": 2}, {"value": 4}]


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("n").sum(),
        pl.col("n") - pl.col("n").mean(),
        pl.col("n").shift(1),
        pl.col("n").cum_sum(),
        pl.col("n").sort(),
        pl.col("n").sum().over("s"),
        pl.len(),
        pl.when(pl.col("n") > 1).then(pl.col("n").max()).otherwise(0),
        pl.struct("s", pl.col("n").max()),
    ],
    ids=str,
)
def test_an_expression_of_more_than_its_row_is_refused_when_the_job_is_built(expression: pl.Expr) -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1, "s": "a"}]))
    with pytest.raises(PlanError, match="step 'wrong': an expression looks at more than its own row"):
        stream.select("wrong", expression.alias("x"))


@pytest.mark.parametrize(
    "expression", [pl.all().sum(), pl.col("n").map_batches(lambda s: s - s.sum(), return_dtype=pl.Int64)], ids=str
)
def test_one_that_cannot_be_told_before_is_found_on_the_first_batch(expression: pl.Expr) -> None:
    with pytest.raises(OperatorError, match="'under-test': an expression looks at more than its own row"):
        select(expression).push(columns(n=[1, 2, 3]))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pl.all() * 2, [{"n": 2, "m": 6}, {"n": 4, "m": 8}]),
        (pl.col("n", "m"), [{"n": 1, "m": 3}, {"n": 2, "m": 4}]),
        (pl.all().exclude("n"), [{"m": 3}, {"m": 4}]),
        (pl.selectors.by_name("m"), [{"m": 3}, {"m": 4}]),
        (pl.col("n").map_elements(lambda n: int(str(n)) + 1, return_dtype=pl.Int64), [{"n": 2}, {"n": 3}]),
        (pl.sum_horizontal("n", "m"), [{"n": 4}, {"n": 6}]),
    ],
    ids=str,
)
def test_selectors_and_functions_of_elements_work(expression: pl.Expr, expected: list[dict[str, int]]) -> None:
    assert select(expression).push(columns(n=[1, 2], m=[3, 4])).batches()[0].values == expected


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(OperatorError, match=r"step 'under-test': .*not there, only 'n', 's'\."):
        select("price").push(columns(n=[1], s=["x"]))


def test_an_expression_that_fails_says_why_unless_texts_are_hidden() -> None:
    step = select(pl.col("s").cast(pl.Int64))
    failed = "an expression failed on columns 's': String: InvalidOperationError"
    with pytest.raises(OperatorError, match=f"{failed}: conversion .*secret"):
        step.push(columns(s=["secret"]))
    with redacting(True), pytest.raises(OperatorError, match=rf"{failed}\. Correct"):
        step.push(columns(s=["secret"]))


def test_wrong_arguments_are_plan_errors() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="'a': pass at least one"):
        stream.select("a")
    with pytest.raises(PlanError, match=r"'b': expected Polars expressions .* got int: write pl.lit"):
        stream.select("b", 1)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"'c': expected Polars expressions .* got function"):
        stream.select("c", lambda row: row)  # type: ignore[arg-type]


def test_times_and_dates_come_back_as_they_were() -> None:
    moment = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    row = {"at": moment, "day": moment.date(), "time": dt.time(1, 2, 3, 4), "took": dt.timedelta(seconds=1)}
    assert select(pl.all()).push(Batch([row])).batches()[0].values == [row]


@pytest.mark.parametrize("name", ["*", "^n$", "^.*$"])
def test_a_name_is_no_pattern(name: str) -> None:
    step = select(name).push(ColumnBatch(pa.RecordBatch.from_pydict({name: [1], "n": [2]})))
    assert step.batches()[0].values == [{name: 1}]


def test_an_error_of_a_function_inside_an_expression_names_the_step() -> None:
    def fails(value: int) -> int:
        raise ZeroDivisionError(value)

    with pytest.raises(OperatorError, match=r"'under-test': .* failed in fails at .*: ZeroDivisionError: 1 "):
        select(pl.col("n").map_elements(fails, return_dtype=pl.Int64)).push(columns(n=[1, 2]))


def test_a_function_of_whole_columns_is_found_behind_batches_that_do_not_show_it() -> None:
    running = pl.struct("n").map_batches(lambda s: s.struct.field("n").cum_sum(), return_dtype=pl.Int64)
    step = select(running)
    step.push(columns(n=[0, 0, 0]))
    with pytest.raises(OperatorError, match="more than its own row"):
        step.push(columns(n=[1, 2, 3]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**40], pa.decimal256(50, 0)),
        pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
        pa.array([0], pa.timestamp("us", "No/Where")),
    ],
    ids=["decimal256", "fixed-size list", "zone"],
)
def test_a_type_that_polars_cannot_have_is_an_error_that_names_the_column(column: pa.Array) -> None:
    try:
        step = select("n").push(ColumnBatch(pa.RecordBatch.from_arrays([column], names=["n"])))
    except OperatorError as error:
        assert "column 'n' of Arrow type" in str(error)  # noqa: PT017  newer versions of Polars may have it
    else:
        assert [row["n"] for row in step.batches()[0].values] == column.to_pylist()


def test_small_decimals_and_zones_that_are_offsets_keep_their_values() -> None:
    money = pa.array(["1.50", "-2.25"]).cast(pa.decimal128(12, 2)).cast(pa.decimal64(12, 2))
    moments = pa.array([0, 1], pa.timestamp("us", "+05:30"))
    given = ColumnBatch(pa.RecordBatch.from_arrays([money, moments], names=["v", "at"]))
    kept = select("v", "at").push(given).batches()[0].values
    assert [(row["v"], row["at"]) for row in kept] == list(zip(money.to_pylist(), moments.to_pylist(), strict=True))


def test_rows_with_moments_of_any_zone_are_one_column() -> None:
    zones = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Oslo")]
    rows = [{"at": dt.datetime(2024, 5, 1, 12, tzinfo=zone)} for zone in zones]
    for batches in ([Batch(rows)], [Batch([row]) for row in rows]):
        step = select("at").push(*batches)
        assert [row for batch in step.batches() for row in batch.values] == rows


def test_all_fields_of_a_struct_become_columns() -> None:
    rows = [{"figures": {"n": 1, "total": 5}, "day": 3}, {"figures": {"n": 2, "total": 9}, "day": 4}]
    stream = mp.Job("job").source("rows", sources.Memory(rows))
    fields = stream.select("fields", pl.col("figures").struct.field("*"), day="day")
    assert mp.collect(fields) == [{"n": 1, "total": 5, "day": 3}, {"n": 2, "total": 9, "day": 4}]
