"""``with_columns``: columns that are added or replaced, for rows and for columns."""

from __future__ import annotations

from functools import partial

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError
from malstrom_py.operators.columns import WithColumns, expressions_of
from tests.unit.operators.stepping import Stepped


def with_columns(*expressions: pl.Expr | str, **named: pl.Expr | str) -> Stepped:
    return Stepped(partial(WithColumns, expressions=expressions_of(expressions, named, "under-test")))


def test_columns_are_added_behind_the_others_and_no_row_is_made() -> None:
    step = with_columns(m=pl.col("n") * 2).push(ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]})))
    assert step.counters.rows_made == 0
    assert step.batches()[0].values == [{"n": 1, "m": 2}, {"n": 2, "m": 4}]


def test_a_column_of_the_same_name_is_replaced_where_it_stands() -> None:
    batch = with_columns(a=pl.col("a") + 1).push(Batch([{"a": 1, "b": 2}])).batches()[0]
    assert [list(row.items()) for row in batch.values] == [[("a", 2), ("b", 2)]]


def test_a_keyed_stream_stays_keyed() -> None:
    rows = sources.Memory([{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}])
    keyed = mp.Job("test").source("in", rows).key_by("k", "k").with_columns("m", m=pl.col("n") * 10)
    assert mp.collect(keyed.sum("sum", by="m")) == [10, 20, 40]


def test_an_aggregate_is_refused() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="more than its own row"):
        stream.with_columns("share", share=pl.col("n") / pl.col("n").sum())
