"""``filter`` by an expression: what it keeps, and what it refuses."""

from __future__ import annotations

from functools import partial

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.columns import FilterColumns
from tests.unit.operators.stepping import Stepped, rows_of_batch


def keep(predicate: pl.Expr) -> Stepped:
    return Stepped(partial(FilterColumns, predicate=predicate))


def test_keys_and_timestamps_go_with_their_rows_as_lists_and_as_columns() -> None:
    values = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    lists = ColumnBatch(values, keys=["a", "b", "c"], timestamps=[10, 20, 30], part="in/0")
    arrays = ColumnBatch(values, key_column=pa.array(["a", "b", "c"]), time_column=pa.array([10, 20, 30]), part="in/0")
    for given in (lists, arrays, Batch([{"n": 1}, {"n": 2}, {"n": 3}], keys=["a", "b", "c"], timestamps=[10, 20, 30])):
        step = keep(pl.col("n") != 2).push(given)
        (batch,) = step.batches()
        assert rows_of_batch(batch) == [("a", {"n": 1}, 10), ("c", {"n": 3}, 30)]
        assert batch.part == given.part
        assert step.counters.filtered == 1


def test_null_is_not_true() -> None:
    step = keep(pl.col("n") > 1).push(Batch([{"n": None}, {"n": 2}]))
    assert step.batches()[0].values == [{"n": 2}]
    assert step.counters.filtered == 1


def test_a_predicate_that_is_null_everywhere_keeps_nothing() -> None:
    step = keep(pl.lit(None)).push(Batch([{"n": 1}, {"n": 2}]))
    assert step.batches() == []
    assert step.counters.filtered == 2


def test_nothing_kept_sends_nothing() -> None:
    assert keep(pl.col("n") > 5).push(Batch([{"n": 1}])).batches() == []


def test_what_gives_no_booleans_is_an_error() -> None:
    with pytest.raises(OperatorError, match=r"'under-test': filter takes one expression that gives booleans.*Int64"):
        keep(pl.col("n") + 1).push(Batch([{"n": 1}]))
    with pytest.raises(OperatorError, match="gave Boolean, Boolean"):
        keep(pl.col("n", "m") > 0).push(Batch([{"n": 1, "m": 1}]))


def test_a_policy_is_refused_for_an_expression() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="'f': an expression takes whole batches, so on_error='skip'"):
        stream.filter("f", pl.col("n") > 1, on_error="skip")


def test_rows_stay_the_very_rows_they_were() -> None:
    pairs = [(1, 2), (3, 4)]
    (batch,) = keep(pl.col("value").list.get(0) > 1).push(Batch(list(pairs))).batches()
    assert batch.values[0] is pairs[1]
