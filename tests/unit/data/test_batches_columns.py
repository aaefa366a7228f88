"""`ColumnBatch`: the same rows as a `Batch` after any operation, and no row made before it is read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.columns_to_rows import python_values, rows_of
from malstrom_py.errors import CodecError

ROWS = st.lists(st.tuples(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1) | st.none()), max_size=8)


def both(rows: list[tuple[str, int | None]], *, arrays: bool) -> tuple[Batch, ColumnBatch]:
    keys = [key for key, _ in rows]
    times = list(range(len(rows)))
    values = [{"n": n, "k": key} for key, n in rows]
    schema = pa.schema([("n", pa.int64()), ("k", pa.string())])
    columns = pa.RecordBatch.from_pylist(values, schema=schema)
    if arrays:
        key_column, time_column = pa.array(keys, pa.string()), pa.array(times, pa.int64())
        return (
            Batch(values, keys=keys, timestamps=times, part="p"),
            ColumnBatch(columns, key_column=key_column, time_column=time_column, part="p"),
        )
    return (
        Batch(values, keys=keys, timestamps=times, part="p"),
        ColumnBatch(columns, keys=keys, timestamps=times, part="p"),
    )


def seen(batch: Batch) -> tuple[Any, ...]:
    return batch.values, batch.keys, batch.timestamps, batch.part, len(batch)


@given(rows=ROWS, arrays=st.booleans(), made=st.booleans(), data=st.data())
def test_picking_rows_gives_the_same_as_of_rows(
    rows: list[tuple[str, int | None]], arrays: bool, made: bool, data: st.DataObject
) -> None:
    lists, columns = both(rows, arrays=arrays)
    if made:
        assert columns.values == lists.values
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    start, end = sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    dropped = sorted(set(indices))
    assert seen(columns.compress(mask)) == seen(lists.compress(mask))
    assert seen(columns.take(indices)) == seen(lists.take(indices))
    assert seen(columns.cut(start, end)) == seen(lists.cut(start, end))
    assert seen(columns.drop(dropped)) == seen(lists.drop(dropped))
    assert seen(columns.where(pl.Series(mask, dtype=pl.Boolean))) == seen(lists.compress(mask))
    assert [row for piece in columns.pieces(3) for row in piece.values] == lists.values
    assert all(len(piece) <= 3 for piece in columns.pieces(3))


def test_no_row_is_made_before_it_is_asked_for() -> None:
    _, batch = both([("a", 1), ("b", 2), ("a", 3)], arrays=True)
    picked = batch.compress([1, 0, 1]).take([0, 1]).cut(0, 2).where(pl.Series([True, True]))
    assert (len(picked), picked.keys, picked.timestamps) == (2, ["a", "a"], [0, 2])
    assert not picked.rows_made
    assert picked.values == [{"n": 1, "k": "a"}, {"n": 3, "k": "a"}]
    assert picked.rows_made


def test_rows_once_made_are_not_made_again() -> None:
    _, batch = both([("a", 1), ("b", 2)], arrays=False)
    first = batch.values[1]
    assert batch.values[1] is first
    assert batch.take([1]).values[0] is first
    assert batch.with_keys([1, 2]).values[1] is first
    assert batch.with_timestamps([1, 2]).rows_made


def test_pieces_are_the_same_each_time_so_that_branches_share_rows() -> None:
    _, batch = both([("a", n) for n in range(5)], arrays=False)
    rows = [piece.values for piece in batch.pieces(2)]
    assert all(one is other for one, other in zip(rows, [piece.values for piece in batch.pieces(2)], strict=True))
    assert batch.pieces(5) == [batch]


def test_other_values_are_rows_and_other_columns_are_columns() -> None:
    _, batch = both([("a", 1), ("b", 2)], arrays=True)
    rows = batch.with_values([10, 20])
    assert type(rows) is Batch
    assert seen(rows) == ([10, 20], ["a", "b"], [0, 1], "p", 2)
    columns = batch.with_frame(pl.DataFrame({"x": [5, 6]}))
    assert seen(columns) == ([{"x": 5}, {"x": 6}], ["a", "b"], [0, 1], "p", 2)
    again = batch.with_columns(pa.RecordBatch.from_pydict({"y": [7, 8]}))
    assert seen(again) == ([{"y": 7}, {"y": 8}], ["a", "b"], [0, 1], "p", 2)


def test_new_keys_forget_the_part_and_new_timestamps_do_not() -> None:
    _, batch = both([("a", 1)], arrays=True)
    assert batch.with_keys([9]).part is None
    assert batch.with_key_column(pa.array([9])).keys == [9]
    assert batch.with_timestamps([4]).part == "p"
    assert batch.with_time_column(pa.array([4])).timestamps == [4]


def test_columns_and_frame_are_two_faces_of_the_same() -> None:
    frame = pl.DataFrame({"n": [1, None], "s": ["é", None]})
    batch = ColumnBatch(None, frame=frame)
    assert batch.columns.to_pylist() == [{"n": 1, "s": "é"}, {"n": None, "s": None}]
    assert ColumnBatch(batch.columns).frame.equals(frame)
    assert len(ColumnBatch(None, frame=frame.clear())) == 0
    assert ColumnBatch(None, frame=frame.clear()).columns.schema.names == ["n", "s"]


def test_nanoseconds_come_as_python_s_own_types_or_not_at_all() -> None:
    moment = pa.array([1_500_000_000_000_001_000], pa.timestamp("ns", "UTC"))
    assert python_values(moment, "x") == [dt.datetime(2017, 7, 14, 2, 40, 0, 1, tzinfo=dt.UTC)]
    assert python_values(pa.array([1000], pa.time64("ns")), "x") == [dt.time(0, 0, 0, 1)]
    assert python_values(pa.array([1000], pa.duration("ns")), "x") == [dt.timedelta(microseconds=1)]
    fine = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], names=["at"])
    with pytest.raises(CodecError, match=r"column 'at' of Arrow type timestamp\[ns\]"):
        rows_of(fine)


def test_it_is_shown_without_asking_polars() -> None:
    odd = pa.RecordBatch.from_arrays([pa.array([10**40], pa.decimal256(50, 0))], names=["n"])
    assert repr(ColumnBatch(odd)) == "ColumnBatch(1 rows of n)"
