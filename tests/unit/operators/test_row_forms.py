"""Steps and file sinks do the same with columns of any row form as with the rows of that form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from malstrom_py import agg
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import DICTS, SCALAR, TUPLES, RowForm, form_of
from malstrom_py.errors import OperatorError, SinkError
from malstrom_py.operators.aggregate import Aggregate, Distinct, Sum, TopN
from malstrom_py.operators.columns import FilterColumns, MapBatches, Select, WithColumns
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.operators.stateless import Filter, Map
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sources import Files
from malstrom_py.windows import WINDOW_RESULT
from malstrom_py.worker_context import WorkerInfo
from tests.unit.operators.stepping import Stepped
from tests.unit.sinks.writing import Format, visible, write
from tests.unit.sources.reading import read_source


class Sale(msgspec.Struct, frozen=True, order=True):
    key: str
    value: int
    start: int


@dataclass(frozen=True, order=True)
class SaleData:
    key: str
    value: int
    start: int


class SaleTuple(NamedTuple):
    key: str
    value: int
    start: int


class Doubled(msgspec.Struct, order=True):
    key: str
    value: int
    start: int

    def __post_init__(self) -> None:
        self.value *= 2


SALES = pa.RecordBatch.from_pydict({"key": ["a", "b", "a", "c"], "value": [5, 1, 5, 7], "start": [10, 20, 30, 40]})
NUMBERS = SALES.select(["value"])
WINDOWS = pa.RecordBatch.from_pydict({
    "start": [0, 0, 10, 10], "end": [10, 10, 20, 20], "value": [5, 1, 5, 7], "update": [False, True, False, True]
})  # fmt: skip
FORMS: list[tuple[RowForm, pa.RecordBatch]] = [
    (DICTS, SALES),
    (SCALAR, NUMBERS),
    (TUPLES, SALES),
    (WINDOW_RESULT, WINDOWS),
    *((form_of(kind), SALES) for kind in (Sale, SaleData, SaleTuple, Doubled)),
]

value: Any = itemgetter("value")
STEPS: dict[str, Callable[..., Any]] = {
    "map": partial(Map, fn=repr),
    "map by name": partial(Map, fn=value),
    "filter": partial(Filter, predicate=lambda row: "5" in repr(row)),
    "filter by name": partial(Filter, predicate=value),
    "key_by": partial(KeyBy, fn=value, column="value"),
    "assign_timestamps": partial(AssignTimestamps, fn=itemgetter("start"), unit="s", column="start"),
    "sum": partial(Sum, by=value),
    "sum of values": partial(Sum, by=None),
    "aggregate": partial(
        Aggregate, aggregations={"n": agg.count(), "most": agg.max("value"), "first": agg.first("start")}
    ),
    "aggregate by function": partial(
        Aggregate, aggregations={"n": agg.sum(lambda row: row.value), "m": agg.sum("value")}
    ),
    "distinct": partial(Distinct, by=value),
    "top_n": partial(TopN, n=2, by=value),
    "select": partial(Select, expressions=[pl.col("value") + 1]),
    "with_columns": partial(WithColumns, expressions=[(pl.col("value") * 2).alias("double")]),
    "filter by expression": partial(FilterColumns, predicate=pl.col("value") > 4),
    "map_batches": partial(MapBatches, fn=lambda columns: columns.select(columns.schema.names[-1:])),
}
CASES = [(form, columns, step) for form, columns in FORMS for step in STEPS]


def outcome(step: str, batches: list[Batch], on_error: Any) -> Any:
    """What a step makes of batches, or the type of its error."""
    if on_error != "fail" and step in {"select", "with_columns", "filter by expression", "map_batches"}:
        on_error = "fail"  # it takes whole batches
    stepped = Stepped(STEPS[step], on_error=on_error, keyed=step not in {"key_by", "assign_timestamps"})
    try:
        stepped.push(*batches)
    except OperatorError as error:
        return str(error).replace("the batch of columns", "").split(":")[0], type(error.__cause__)
    return stepped.rows(), stepped.counters.skipped, stepped.counters.filtered


@pytest.mark.parametrize(("form", "columns", "step"), CASES, ids=[f"{form.name}-{step}" for form, _, step in CASES])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_step_does_the_same_with_columns_as_with_their_rows(
    form: RowForm, columns: pa.RecordBatch, step: str, on_error: str
) -> None:
    keys: list[Any] | None = None if step in {"key_by", "assign_timestamps"} else ["x", "y", "x", "x"]
    batches = [
        ColumnBatch(columns, keys=keys, form=form),
        ColumnBatch(columns.slice(0, 2), keys=keys and keys[:2], form=form),
    ]
    rows = [Batch(form.rows(batch.columns), keys=batch.keys) for batch in batches]
    framed = [ColumnBatch(None, frame=batch.frame, keys=batch.keys, form=form) for batch in batches]
    expected = outcome(step, list(rows), on_error)
    assert outcome(step, list(batches), on_error) == expected
    assert outcome(step, list(framed), on_error) == expected


def test_names_read_columns_of_typed_rows_without_making_rows() -> None:
    for form in (form_of(Sale), form_of(SaleTuple), WINDOW_RESULT):
        columns = WINDOWS if form is WINDOW_RESULT else SALES
        for step in ("key_by", "assign_timestamps", "sum", "aggregate"):
            keys: list[Any] | None = None if step in {"key_by", "assign_timestamps"} else ["x"] * 4
            batch = ColumnBatch(columns, keys=keys, form=form)
            Stepped(STEPS[step], keyed=keys is not None).push(batch)
            assert not batch.rows_made, (form, step)


def test_rows_of_several_classes_in_one_batch_are_looked_up_each_by_its_class() -> None:
    rows: list[Any] = [Sale("a", 1, 0), {"value": 2}, SaleTuple("a", 3, 0), SaleData("a", 4, 0), {"value": None}]
    for mixed in (rows, rows[::-1]):
        stepped = Stepped(partial(Map, fn=value)).push(Batch(mixed))
        assert stepped.values() == [row["value"] if isinstance(row, dict) else row.value for row in mixed]
    skipping = Stepped(partial(Map, fn=value), on_error="skip").push(Batch([Sale("a", 1, 0), 5, {}, {"value": 2}]))
    assert (skipping.values(), skipping.counters.skipped) == ([1, 2], 2)


def test_an_error_names_the_fields_of_a_class() -> None:
    with pytest.raises(OperatorError, match=r"no column 'price', only 'key', 'value', 'start'\. Name one that it has"):
        Stepped(partial(Sum, by=itemgetter("price")), keyed=True).push(Batch([Sale("a", 1, 0)], keys=["x"]))
    batch = ColumnBatch(NUMBERS, keys=["x"] * 4, form=SCALAR)
    with pytest.raises(OperatorError, match="a value of type int has no columns to look up by name"):
        Stepped(partial(Sum, by=itemgetter("value")), keyed=True).push(batch)


class Recording:
    """A sink that takes columns, and its writer."""

    takes_columns = True

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def build(self, worker: WorkerInfo) -> Recording:
        return self

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)

    def close(self) -> None:
        """Nothing is open."""


def written(batch: Batch, folder: Path, format: Format) -> Any:
    """What files of the batches that reach a sink's writer hold."""
    sink = Recording()
    step = Stepped(partial(WriteSink, sink=sink), ports=0)
    step.operator.open()  # type: ignore[attr-defined]
    step.push(batch)
    try:
        write(folder, *sink.batches, format=format)
    except SinkError as error:
        return str(error)
    return [path.name for path in visible(folder)] and read_source(Files(f"{folder}/*", format=format))


@pytest.mark.parametrize(("form", "columns"), FORMS, ids=[form.name for form, _ in FORMS])
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("keys", [None, ["x", "y", "x", "x"]], ids=["unkeyed", "keyed"])
def test_files_of_columns_equal_files_of_their_rows(
    form: RowForm, columns: pa.RecordBatch, format: Format, keys: list[Any] | None, tmp_path: Path
) -> None:
    rows = Batch(form.rows(columns), keys=keys)
    expected = written(rows, tmp_path / "rows", format)
    assert written(ColumnBatch(columns, keys=keys, form=form), tmp_path / "columns", format) == expected
