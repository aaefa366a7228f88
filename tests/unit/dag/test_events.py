"""Events become batches: wholly timed or untimed, always keyed, never empty; late records are separated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.dag import DagExecutor
from malstrom_py.dag.events import batches_of, batches_of_all, time_of
from malstrom_py.dag.running import split_late
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage
from malstrom_py.errors import DagError
from tests.unit.dag.graphs import at, line

Row = tuple[Any, Any, int | None]


def rows(batches: list[Batch]) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        assert len(batch)
        assert batch.keys is not None
        nothing: list[Any] = [None] * len(batch)
        found.extend(zip(batch.keys, batch.values, batch.timestamps or nothing, strict=True))
    return found


@given(events=st.lists(st.tuples(st.sampled_from(["a", None]), st.integers(), st.none() | st.integers(-9, 9))))
def test_messages_come_as_they_are_in_runs_that_are_timed_or_not(events: list[Row]) -> None:
    batches = batches_of_all([DataMessage(*event) for event in events], "n", "p")
    assert rows(batches) == events
    timed = [batch.timestamps is None for batch in batches]
    assert all(here is not there for here, there in pairwise(timed))
    assert {batch.part for batch in batches} <= {"p"}


def test_values_and_messages_may_be_mixed() -> None:
    assert rows(batches_of_all([1, DataMessage("k", 2, 5), [3]], "n", None)) == [
        (None, 1, None),
        ("k", 2, 5),
        (None, [3], None),
    ]
    assert batches_of_all((), "n", None) == []
    assert batches_of_all(Batch([]), "n", None) == []


def test_a_list_of_messages_is_many_events_and_any_other_list_is_one() -> None:
    assert rows(batches_of([DataMessage("a", 1), DataMessage("b", 2)], "n", None)) == [("a", 1, None), ("b", 2, None)]
    assert rows(batches_of([], "n", None)) == [(None, [], None)]
    assert rows(batches_of((DataMessage("a", 1),), "n", None)) == [(None, (DataMessage("a", 1),), None)]


def test_a_batch_keeps_its_part_where_the_node_gives_none() -> None:
    batch = Batch([1], keys=["a"], timestamps=[5], part="theirs")
    assert batches_of(batch, "n", None)[0].part == "theirs"
    assert batches_of(batch, "n", "ours")[0].part == "ours"
    columns = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}), part="theirs")
    assert batches_of(columns, "n", None)[0].part == "theirs"
    assert batches_of(columns, "n", "ours")[0].part == "ours"
    assert columns.part == "theirs"


def test_columns_stay_columns() -> None:
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), key_column=pa.array(["a", "b"]))
    (taken,) = batches_of(batch, "n", "p")
    assert isinstance(taken, ColumnBatch)
    assert (taken.rows_made, taken.keys) == (False, ["a", "b"])
    assert rows(batches_of(ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]})), "n", "p")) == [(None, {"n": 1}, None)]


def test_a_column_of_times_with_a_null_is_refused() -> None:
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), time_column=pa.array([1, None]))
    with pytest.raises(DagError, match="node 'n': a timestamp must be an int"):
        batches_of(batch, "n", "p")


@pytest.mark.parametrize("time", [MIN_EPOCH + 1, -1, 0, MAX_EPOCH])
def test_times_are_those_that_an_epoch_can_have(time: int) -> None:
    assert time_of(time, "it") == time


@given(
    times=st.lists(st.integers(-9, 9), min_size=1),
    frontier=st.integers(-10, 10) | st.sampled_from([MIN_EPOCH, MAX_EPOCH]),
)
def test_late_is_what_lies_at_or_below_the_frontier(times: list[int], frontier: int) -> None:
    batch = Batch(list(range(len(times))), keys=times, timestamps=times)
    on_time, late = split_late(batch, frontier)
    assert (on_time.timestamps if on_time else []) == [time for time in times if time > frontier]
    assert (late.timestamps if late else []) == [time for time in times if time <= frontier]
    assert on_time is None or len(on_time)
    assert late is None or len(late)


def test_untimed_records_are_late_behind_the_end_only() -> None:
    batch = Batch([1], keys=[None])
    assert split_late(batch, 100) == (batch, None)
    assert split_late(batch, MAX_EPOCH) == (None, batch)


def test_columns_are_split_without_making_rows() -> None:
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), keys=[1, 2, 3], time_column=pa.array([5, 9, 6]))
    on_time, late = split_late(batch, 6)
    assert isinstance(on_time, ColumnBatch)
    assert isinstance(late, ColumnBatch)
    assert (on_time.rows_made, late.rows_made, batch.rows_made) == (False, False, False)
    assert (on_time.values, late.values) == ([{"n": 2}], [{"n": 1}, {"n": 3}])


@pytest.mark.parametrize("call", [DagExecutor.process_events, DagExecutor.inject_events])
def test_many_events_that_are_none_are_told(call: Callable[[DagExecutor, str, Any], None]) -> None:
    with pytest.raises(DagError, match=r"node 'in': events must be a list of .*, got int: write \[event\]"):
        call(line(None), "in", 5)


def test_a_batch_that_was_handed_in_is_not_shared_with_the_caller() -> None:
    values, keys, times = [1, 2], ["a", "b"], [5, 6]
    executor = line(None)
    executor.inject_events("a", Batch(values, keys=keys, timestamps=times))
    values.clear()
    keys.clear()
    times.clear()
    executor.run()
    assert executor.take_sink_outputs("out", messages=True) == [at(1, 5, "a"), at(2, 6, "b")]
