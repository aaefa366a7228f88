"""`Callable`: a function of the user takes each value, or each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.base import StatelessSink
from malstrom_py.sinks.callable import Callable
from malstrom_py.worker_context import WorkerId, WorkerInfo

WORKER = WorkerInfo("job", "out", WorkerId(3))


def picky(value: Any) -> None:
    if value == 2:
        raise KeyError("two")


def test_each_value_is_passed_without_its_key() -> None:
    taken: list[Any] = []
    sink = Callable(taken.append)
    assert isinstance(sink, StatelessSink)
    writer = sink.build(WORKER)
    writer.write(Batch([1, 2], keys=["a", "b"]))
    writer.close()
    assert taken == [1, 2]


def test_a_batch_has_keys_values_and_timestamps() -> None:
    taken: list[Batch] = []
    batch = Batch([1, 2], keys=["a", "b"], timestamps=[10, 20])
    Callable(taken.append, batch=True).build(WORKER).write(batch)
    assert taken == [batch]


@pytest.mark.parametrize("batch", [False, True])
def test_an_error_names_worker_and_function(batch: bool) -> None:
    def fails(value: Any) -> None:
        picky(2)

    with pytest.raises(SinkError) as raised:
        Callable(fails, batch=batch).build(WORKER).write(Batch([1]))
    message = str(raised.value)
    assert "on worker 3" in message
    assert f"fails at {Path(__file__)}:{fails.__code__.co_firstlineno}" in message
    assert isinstance(raised.value.__cause__, KeyError)


def test_values_before_the_one_that_fails_were_taken() -> None:
    taken: list[Any] = []

    def take(value: Any) -> None:
        picky(value)
        taken.append(value)

    with pytest.raises(SinkError):
        Callable(take).build(WORKER).write(Batch([1, 2, 3]))
    assert taken == [1]


def test_what_cannot_be_called_is_refused() -> None:
    not_callable: Any = []
    with pytest.raises(PlanError, match="list"):
        Callable(not_callable)


def test_columns_come_as_rows_one_by_one_and_as_columns_whole() -> None:
    seen: list[Any] = []
    batch = ColumnBatch(pa.record_batch({"n": [1, 2]}))
    Callable(seen.append, batch=True).build(WORKER).write(batch)
    assert seen == [batch]
    assert not batch.rows_made
    Callable(seen.append).build(WORKER).write(batch)
    assert seen[1:] == [{"n": 1}, {"n": 2}]
