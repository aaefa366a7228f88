"""Batches: rows as parallel lists, or columns, that no operation changes; and the messages between steps."""

from __future__ import annotations

import ast
import copy
import dataclasses
import datetime as dt
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch, place_of
from malstrom_py.data.messages import (
    MAX_EPOCH,
    AbsBarrier,
    Acquire,
    AnyOf,
    Collect,
    DataMessage,
    DeadLetter,
    Epoch,
    Interrogate,
    PartFinished,
    PartOpened,
    PartQuiet,
    PartReleased,
    Rescale,
    SuspendMarker,
    every_key,
)
from malstrom_py.data.row_form import python_values, rows_of
from malstrom_py.errors import CodecError
from malstrom_py.testing import CapturingPersistenceBackend
from tests.ids import shown
from tests.tree import modules, tree_of

Columns = tuple[list[Any], list[Any] | None, list[int] | None, str | None]


def columns_of(batch: Batch) -> Columns:
    return batch.values, batch.keys, batch.timestamps, batch.part


def full() -> Batch:
    return Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (full().with_values([7, 8, 9]), ([7, 8, 9], ["a", "b", "c"], [10, 20, 30], "p")),
        (full().with_keys([7, 8, 9]), ([1, 2, 3], [7, 8, 9], [10, 20, 30], None)),
        (full().with_timestamps([7, 8, 9]), ([1, 2, 3], ["a", "b", "c"], [7, 8, 9], "p")),
        (full().compress([True, 0, "yes"]), ([1, 3], ["a", "c"], [10, 30], "p")),
        (full().take([2, 0, 2]), ([3, 1, 3], ["c", "a", "c"], [30, 10, 30], "p")),
        (full().drop([0, 2, 2]), ([2], ["b"], [20], "p")),
        (full().drop([]), ([1, 2, 3], ["a", "b", "c"], [10, 20, 30], "p")),
        (full().take([]), ([], [], [], "p")),
    ],
)
def test_operations_keep_columns_in_step(changed: Batch, expected: Columns) -> None:
    assert columns_of(changed) == expected


ROWS = st.lists(st.tuples(st.integers(), st.text(max_size=2), st.integers(-9, 9)), max_size=10)


@given(rows=ROWS, data=st.data())
def test_no_operation_changes_the_batch_it_is_called_on(rows: list[tuple[int, str, int]], data: st.DataObject) -> None:
    values, keys, times = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    batch = Batch(values, keys=keys, timestamps=times, part="p")
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    for changed in (batch.compress(mask), batch.take(indices), batch.drop(indices)):
        for column in columns_of(changed)[:3]:
            assert column is not None
            column.append(0)
    for changed in (batch.with_values([]), batch.with_keys([]), batch.with_timestamps([])):
        assert changed is not batch
    assert [tuple(row) for row in zip(batch.values, batch.keys or (), batch.timestamps or (), strict=True)] == rows


@given(rows=ROWS, data=st.data())
def test_drop_is_what_take_leaves(rows: list[tuple[int, str, int]], data: st.DataObject) -> None:
    batch = Batch([row[0] for row in rows], keys=[row[1] for row in rows])
    dropped = data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else set()
    kept = [index for index in range(len(rows)) if index not in dropped]
    assert columns_of(batch.drop(dropped)) == columns_of(batch.take(kept))


def test_the_span_of_the_times_stays_with_the_same_rows_only() -> None:
    batch = Batch([1, 2, 3], timestamps=[5, 9, 7])
    assert batch.span == (5, 9)
    assert batch.with_values(["a", "b", "c"]).with_keys([0, 0, 0]).span == (5, 9)
    assert batch.drop([1]).span == (5, 7)
    assert batch.with_timestamps([1, 2, 0]).span == (0, 2)


def test_no_module_sets_an_attribute_of_a_batch() -> None:
    """What another branch of the graph sees must not change; test mode finds what steps change in the lists."""
    found: list[str] = []
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found += [
                f"{path}:{target.lineno}: {ast.unparse(target)}"
                for outer in targets
                for target in (outer.elts if isinstance(outer, ast.Tuple) else [outer])
                if isinstance(target, ast.Attribute)
                and target.attr in ("values", "keys", "timestamps", "part", "named", "time_column")
                and ast.unparse(target.value) not in ("self", "self.state", "self._state")
            ]
    assert found == []


def test_a_batch_has_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        full().extra = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "made", [Batch([1], keys=["a"]), ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}))], ids=shown
)
def test_a_batch_can_be_copied_and_pickled(made: Batch) -> None:
    for other in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert columns_of(other) == columns_of(made)


def test_the_text_of_a_batch_tells_columns_and_no_values() -> None:
    assert repr(Batch(["secret"], keys=["hidden"])) == "Batch(1 rows of keys, values)"
    assert repr(Batch([])) == "Batch(0 rows of values)"


def test_arrow_columns_become_dicts_with_none_for_null() -> None:
    columns = pa.RecordBatch.from_pydict({"n": [1, None], "list": [[1, None], []]})
    assert rows_of(columns) == [{"n": 1, "list": [1, None]}, {"n": None, "list": []}]


def test_a_batch_of_columns_goes_to_another_process_and_back() -> None:
    batch = ColumnBatch(
        pa.RecordBatch.from_pydict({"n": [1, 2]}), key_column=pa.array(["a", None]), timestamps=[5, 6], part="p"
    )
    assert batch.values  # rows that were made are kept
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.rows_made, copy.columns, copy.keys, copy.timestamps, copy.part) == (
        *(False, batch.columns, ["a", None], [5, 6], "p"),
    )
    assert copy.values == batch.values


PAIRS = st.lists(st.tuples(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1) | st.none()), max_size=8)


def both(rows: list[tuple[str, int | None]], *, arrays: bool, shared: bool = False) -> tuple[Batch, ColumnBatch]:
    """The same rows as lists and as columns. ``arrays``: keys and times are columns; ``shared``: one of the values."""
    keys = [key for key, _ in rows]
    times = list(range(len(rows)))
    values = [{"n": n, "k": key} for key, n in rows]
    schema = pa.schema([("n", pa.int64()), ("k", pa.string())])
    columns = pa.RecordBatch.from_pylist(values, schema=schema)
    if arrays:
        key_column, time_column = pa.array(keys, pa.string()), pa.array(times, pa.int64())
        key_column = columns.column("k") if shared else key_column
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


@given(rows=PAIRS, arrays=st.booleans(), shared=st.booleans(), made=st.booleans(), data=st.data())
def test_picking_rows_gives_the_same_as_of_rows(
    rows: list[tuple[str, int | None]], arrays: bool, shared: bool, made: bool, data: st.DataObject
) -> None:
    lists, columns = both(rows, arrays=arrays, shared=shared)
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


def test_keys_that_are_a_column_of_the_values_stay_one() -> None:
    _, batch = both([("a", 1), ("b", 2), ("a", 3)], arrays=True, shared=True)
    for picked in (batch.take([2, 0]), batch.cut(1, 3), batch.compress([1, 0, 1])):
        assert picked.key_column is not None
        assert place_of(picked.key_column, picked.columns) == 1


class Word(pa.ExtensionType):  # type: ignore[misc]
    """A type of users, of words in a dictionary."""

    def __init__(self) -> None:
        super().__init__(pa.dictionary(pa.int8(), pa.string()), "test.word")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_only_the_same_memory_is_the_same_column() -> None:
    codes = pa.array([0, 1, 0], pa.int8())
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"]))
    columns = pa.record_batch({"d": words, "n": pa.array([1, 2, 3]), "e": pa.array(["", "", ""])})
    assert place_of(columns.column("n"), columns) == 1
    assert place_of(columns.column("n").slice(1), columns) is None
    assert place_of(pa.array([1, 2, 3]), columns) is None
    # Other words by the same codes, in the same memory.
    others = pa.DictionaryArray.from_arrays(codes, pa.array(["c", "d"]))
    assert place_of(others, columns) is None
    word = Word()
    named = pa.record_batch({"d": pa.ExtensionArray.from_storage(word, words)})
    assert place_of(pa.ExtensionArray.from_storage(word, others), named) is None


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


# Messages


MESSAGES = [
    DataMessage("a", 1, 2),
    Epoch(5),
    PartOpened("p", {"epoch": 5}),
    PartReleased("p", {"epoch": 5}),
    PartFinished("p"),
    PartQuiet("p", 0.5),
    Interrogate(every_key, {"a"}),
    Interrogate(AnyOf({"a", "b"})),
    Collect({"a", "b"}, {"total": b"state"}),
    Collect({"x": None, "y": None}.keys(), {"total": b"state"}),
    Acquire({"total": b"state"}),
    AbsBarrier("20261122T042242123456Z-1a2b3c4d", CapturingPersistenceBackend(), "20261122T042241123456Z-1a2b3c4d", 2),
    Rescale(2, (0, 1, 0)),
    SuspendMarker(),
    DeadLetter("step", "a", 1, 2, "ValueError: no"),
]
FROZEN = [message for message in MESSAGES if not isinstance(message, DataMessage | SuspendMarker)]


@pytest.mark.parametrize("message", FROZEN, ids=lambda message: type(message).__name__)
def test_a_message_cannot_be_changed(message: object) -> None:
    field = dataclasses.fields(message)[0].name  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, field, "other")
    assert not hasattr(message, "__dict__")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_equals_the_one_that_was_sent_to_another_process(message: object) -> None:
    received = cloudpickle.loads(cloudpickle.dumps(message))
    assert received is not message
    assert received == message
    assert len([other for other in MESSAGES if other == received]) == 1
    if not isinstance(message, PartOpened):
        assert hash(received) == hash(message)


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy])
def test_the_order_of_the_keys_of_a_dict_survives_a_copy(copied: Callable[[Collect], Collect]) -> None:
    names = [f"key {number}" for number in range(100)]
    received = copied(Collect(dict.fromkeys(names).keys(), {"total": b"state"}))
    assert list(received.keys) == names
    assert received.states == {"total": b"state"}
    assert type(copied(Collect(frozenset(names))).keys) is frozenset


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Interrogate(), Interrogate(keys={"a"})),
        (Interrogate(), Interrogate(AnyOf({"a"}))),
        (Interrogate(AnyOf({"a"})), Interrogate(AnyOf({"b"}))),
        (Collect({"a"}), Collect({"b"})),
        (Collect({"a"}), Collect({"a"}, {"total": b""})),
        (Acquire({}), Acquire({"total": b""})),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("two", CapturingPersistenceBackend())),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("one", CapturingPersistenceBackend(), "zero")),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("one", CapturingPersistenceBackend(), None, 2)),
        (Rescale(1, (0, 1)), Rescale(2, (0, 1))),
        (Rescale(1, (0, 1)), Rescale(1, (1, 0))),
        (PartReleased("p"), PartReleased("p", {"epoch": 5})),
        (SuspendMarker(), Epoch(MAX_EPOCH)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_that_say_something_else_are_not_equal(one: object, other: object) -> None:
    assert one != other
