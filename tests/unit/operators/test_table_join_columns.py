"""A table of columns gives the pairs of a table of rows, key by key in order, also after moves and snapshots."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.join import Pair
from malstrom_py.state.column_table import ColumnTable
from malstrom_py.testing import OperatorTester

Row = tuple[Any, int, int]
"""A key, a value and a time."""

KEYS: Final = {
    "texts": (st.sampled_from(["", "a", "ä", "\x00", None]), pa.string()),
    "numbers": (st.sampled_from([None, 0, 1, -1, 127]), pa.int8()),
    "other numbers": (st.sampled_from([None, 0, 1, 127, 2**40]), pa.int64()),
    "floats": (st.sampled_from([0.0, 1.0, 127.0]), pa.float64()),
}


def columns_of(batch: list[Row], kind: str, base: int, *, timed: bool) -> ColumnBatch:
    keys, values, times = zip(*batch, strict=True)
    return ColumnBatch(
        pa.RecordBatch.from_pydict({"n": list(values), "text": [f"{value}" for value in values]}),
        key_column=pa.array(keys, KEYS[kind][1]),
        time_column=pa.array([base + time for time in times], pa.int64()) if timed else None,
    )


def as_rows(batch: ColumnBatch) -> Batch:
    times = batch.timestamps
    return Batch(list(batch.values), keys=list(batch.keys or []), timestamps=None if times is None else list(times))


class Run:
    """One tester after another, with all messages that they have sent, by key."""

    def __init__(self, *, timed: bool, **options: Any) -> None:
        self.timed, self.options = timed, options
        self.tester = self.new()
        self.found: dict[Any, list[Any]] = defaultdict(list)

    def new(self) -> OperatorTester:
        return OperatorTester(
            lambda a, b: a.join_table("join", b, **self.options),
            keyed=True,
            timed=self.timed,
            inputs=2,
            checks=False,
        ).track(lambda keys: [0] * len(keys))

    def take(self, batch: Batch | Epoch, side: int | None = None) -> None:
        self.tester.send_local(batch, input=side).step()
        for message in self.tester.receive_local():
            if isinstance(message, DataMessage):
                assert isinstance(message.value, Pair)
                self.found[message.key].append((message.value, message.timestamp))

    def move(self) -> None:
        """Move half of the keys to another tester and back."""
        other = self.new()
        taken = self.tester.collect(sorted(self.tester.interrogate(), key=repr)[::2])
        if taken:
            other.acquire(taken)
            self.tester.acquire(other.collect(other.interrogate()))

    def restore(self) -> None:
        """Persist, and continue with another tester."""
        persisted = self.tester.barrier("snapshot")
        self.tester = self.new()
        self.tester.install([persisted], slots=[0])


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), wait=st.booleans(), timed=st.booleans())
def test_pairs_with_a_table_of_columns_are_those_of_rows(how: str, data: Any, wait: bool, timed: bool) -> None:
    kinds = data.draw(st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(KEYS))))
    of_columns, of_rows = Run(timed=timed, how=how, wait=wait), Run(timed=timed, how=how, wait=wait)
    base = 0
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["batch", "batch", "batch", "batch", "rows", "epoch", "move", "restore"]))
        if what in ("batch", "rows"):
            side = data.draw(st.integers(0, 1))
            row = st.tuples(KEYS[kinds[side]][0], st.integers(-9, 9), st.integers(0, 9))
            batch = columns_of(data.draw(st.lists(row, min_size=1, max_size=8)), kinds[side], base, timed=timed)
            of_rows.take(as_rows(batch), side)
            of_columns.take(batch if what == "batch" else as_rows(batch), side)
        elif what == "epoch":
            if timed:
                base += data.draw(st.integers(1, 8))
                of_rows.take(Epoch(base - 1))
                of_columns.take(Epoch(base - 1))
        else:
            getattr(of_columns, what)()
    of_rows.take(Epoch(MAX_EPOCH))
    of_columns.take(Epoch(MAX_EPOCH))
    assert of_columns.found == of_rows.found


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("disturbed", [None, "move", "restore"])
def test_a_wait_of_some_span_ends_for_columns_as_for_rows(how: str, disturbed: str | None) -> None:
    of_columns, of_rows = Run(timed=True, how=how, wait=6), Run(timed=True, how=how, wait=6)
    for run in (of_columns, of_rows):
        for batch, side in (
            (columns_of([("a", 1, 0), ("ä", 2, 4)], "texts", 0, timed=True), 0),
            (Epoch(7), None),
            (columns_of([("a", 3, 8), ("ä", 4, 8)], "texts", 0, timed=True), 1),
            (columns_of([("", 5, 9)], "texts", 0, timed=True), 0),
            (Epoch(MAX_EPOCH), None),
        ):
            run.take(as_rows(batch) if run is of_rows and isinstance(batch, ColumnBatch) else batch, side)
            if disturbed and run is of_columns and batch != Epoch(MAX_EPOCH):
                getattr(run, disturbed)()
    left = {"": [(Pair({"n": 5, "text": "5"}, None), 15)], "a": [(Pair({"n": 1, "text": "1"}, None), 6)]}
    both = {"ä": [(Pair({"n": 2, "text": "2"}, {"n": 4, "text": "4"}), 8)]}
    assert of_columns.found == of_rows.found == (both | left if how == "left" else both)


def table_of(run: OperatorTester) -> ColumnTable:
    table: Any = run.states["join"].values
    assert isinstance(table, ColumnTable)
    return table


def test_a_table_stays_columns_and_does_not_grow_with_its_changes() -> None:
    run = OperatorTester(lambda a, b: a.join_table("join", b), keyed=True, inputs=2, checks=False)
    for change in range(100):
        rows = [(key, change, 0) for key in range(change * 7, change * 7 + 500)]
        run.send_local(columns_of([(key % 900, n, 0) for key, n, _ in rows], "other numbers", 0, timed=False), input=1)
    run.send_local(columns_of([(key, 0, 0) for key in (*range(900), 901)], "other numbers", 0, timed=False)).step()
    latest = {key % 900: change for change in range(100) for key in range(change * 7, change * 7 + 500)}
    received: list[Any] = run.receive_local()
    assert {message.key: message.value.right["n"] for message in received} == latest
    assert table_of(run).rows is None
    assert table_of(run)._rows_end < 5_000


def test_replaced_values_are_dropped_while_a_row_waits() -> None:
    run = OperatorTester(lambda a, b: a.join_table("join", b, wait=True), keyed=True, inputs=2, checks=False)
    run.send_local(columns_of([(2**40, 0, 0)], "other numbers", 0, timed=False), input=0)
    for change in range(60):
        run.send_local(columns_of([(key, change, 0) for key in range(300)], "other numbers", 0, timed=False), input=1)
    run.send_local(columns_of([(2**40, 7, 0)], "other numbers", 0, timed=False), input=1).step()
    (received,) = [message for message in run.receive_local() if isinstance(message, DataMessage)]
    assert (received.key, received.value.right["n"]) == (2**40, 7)
    assert table_of(run)._rows_end < 5_000


def test_a_waiting_row_is_kept_once() -> None:
    run = OperatorTester(lambda a, b: a.join_table("join", b, wait=True), keyed=True, inputs=2, checks=False)
    run.send_local(columns_of([(key, key, 0) for key in range(9)], "numbers", 0, timed=False)).step()
    for key in range(8):
        run.send_local(columns_of([(key, key, 0)] * 2, "numbers", 0, timed=False), input=1).step()
    received: list[Any] = run.receive_local()
    assert [(message.key, message.value.left["n"]) for message in received] == [(key, key) for key in range(8)]
    table = table_of(run)
    assert (table.rows, len(table)) == (None, 9)
    assert sum(len(waiting.ids) for waiting in table._waiting) <= 3


@pytest.mark.parametrize("what", ["move", "restore"])
def test_a_table_is_columns_after_a_move_and_a_restore(what: str) -> None:
    run = Run(timed=True, how="left", wait=True)
    run.take(columns_of([("a", 1, 0), ("b", 2, 0), ("c", 3, 1)], "texts", 0, timed=True), 0)
    run.take(columns_of([("a", 7, 0), ("d", 8, 0)], "texts", 0, timed=True), 1)
    getattr(run, what)()
    table = table_of(run.tester)
    assert (table.rows, len(table)) == (None, 4)
    run.take(columns_of([("d", 4, 1), ("a", 5, 1)], "texts", 0, timed=True), 0)
    run.take(columns_of([("b", 9, 2)], "texts", 0, timed=True), 1)
    run.take(Epoch(MAX_EPOCH))
    assert table_of(run.tester).rows is None
    found = {key: [(pair.left["n"], pair.right and pair.right["n"]) for pair, _ in of] for key, of in run.found.items()}
    assert found == {"a": [(1, 7), (5, 7)], "d": [(4, 8)], "b": [(2, 9)], "c": [(3, None)]}


def test_a_delta_has_only_what_changed() -> None:
    run = Run(timed=False, how="left", wait=True)
    run.take(columns_of([(key, 1, 0) for key in range(500)], "other numbers", 0, timed=False), 1)
    full = run.tester.barrier("s0").states["join"]
    run.take(columns_of([(3, 2, 0)], "other numbers", 0, timed=False), 1)
    run.take(columns_of([(901, 1, 0)], "other numbers", 0, timed=False), 0)
    assert len(run.tester.barrier("s1", parent="s0").states["join"]) * 10 < len(full)


def test_keys_without_state_are_forgotten() -> None:
    table = ColumnTable(timed=False)
    for start in range(0, 40_000, 5_000):
        keys = list(range(start, start + 5_000))
        list(table.change(columns_of([(key, key, 0) for key in keys], "other numbers", 0, timed=False)))
        gone = keys[7:]
        assert [state[0]["n"] for state in table.take(gone)] == gone
    assert len(table._index) < 9_000
    assert sorted(table) == [start + place for start in range(0, 40_000, 5_000) for place in range(7)]
    assert table[15_003] == [{"n": 15_003, "text": "15003"}, ()]
