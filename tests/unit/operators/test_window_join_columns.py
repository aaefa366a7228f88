"""Joins of columns give the pairs of joins of rows, key by key in the same order, also after moves and snapshots."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py import windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.data.row_form import DICTS, SCALAR
from malstrom_py.operators.join import How, Pair
from malstrom_py.state.join_panes import JoinPanes, Pane
from malstrom_py.testing import OperatorTester

Row = tuple[Any, Any, int]
"""A key, a value and a time."""

VALUES: Final = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
TEXTS: Final = st.sampled_from(["", "a", "b", "ä", "\x00", "a" * 20])
KEYS: Final = {
    "texts": (TEXTS, pa.string()),
    "large texts": (TEXTS, pa.large_string()),
    "numbers": (st.sampled_from([None, 0, 1, -1, 127]), pa.int8()),
    "other numbers": (st.sampled_from([None, 0, 1, 127, 2**40]), pa.int64()),
    "floats": (st.sampled_from([None, 0.0, 1.0, 127.0]), pa.float64()),
}
FORM: Final = pa.schema({"n": pa.int64(), "text": pa.string()})


def rows(kind: str) -> Any:
    return st.lists(st.tuples(KEYS[kind][0], st.none() | st.integers(-9, 9), st.integers(0, 9)), max_size=8)


def columns_of(batch: list[Row], kind: str, base: int, *, scalar: bool) -> ColumnBatch:
    """Return rows as columns; times from ``base`` on."""
    keys, values, times = zip(*batch, strict=True)
    data: Any = {"n": list(values), "text": [str(value) for value in values]}
    made = pa.RecordBatch.from_pydict({"value": list(values)}) if scalar else pa.RecordBatch.from_pydict(data, FORM)
    return ColumnBatch(
        made,
        key_column=pa.array(keys, KEYS[kind][1]),
        time_column=pa.array([base + time for time in times], pa.int64()),
        form=SCALAR if scalar else DICTS,
    )


def as_rows(batch: ColumnBatch) -> Batch:
    return Batch(list(batch.values), keys=list(batch.keys or []), timestamps=list(batch.timestamps or []))


def panes_of(run: OperatorTester) -> dict[int, Pane]:
    panes: Any = run.states["join"].values
    assert isinstance(panes, JoinPanes)
    return panes.open


class Run:
    """One tester after another, with all messages that they have sent, by key."""

    def __init__(self, how: How, window: windows.Windows) -> None:
        self.how, self.window = how, window
        self.tester = self.new()
        self.found: dict[Any, list[Any]] = defaultdict(list)

    def new(self) -> OperatorTester:
        return OperatorTester(
            lambda a, b: a.join("join", b, window=self.window, how=self.how),
            keyed=True,
            timed=True,
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
        keys = sorted(self.tester.interrogate(), key=repr)
        taken = self.tester.collect(keys[::2])
        if taken:
            other.acquire(taken)
            self.tester.acquire(other.collect(other.interrogate()))

    def restore(self) -> None:
        """Persist, and continue with another tester."""
        persisted = self.tester.barrier("snapshot")
        self.tester = self.new()
        self.tester.install([persisted], slots=[0])


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), window=st.sampled_from([windows.tumbling(6), windows.sliding(6, 4), windows.tumbling(50)]))
def test_pairs_of_columns_are_those_of_rows(how: How, data: Any, window: windows.Windows) -> None:
    kinds = data.draw(st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(KEYS))))
    of_columns, of_rows = Run(how, window), Run(how, window)
    scalar = data.draw(st.booleans())
    base = 0
    for _ in range(data.draw(st.integers(1, 6))):
        what = data.draw(st.sampled_from(["batch", "batch", "batch", "rows", "epoch", "move", "restore", "barrier"]))
        if what in ("batch", "rows"):
            side = data.draw(st.integers(0, 1))
            drawn = data.draw(rows(kinds[side]))
            if drawn:
                batch = columns_of(drawn, kinds[side], base, scalar=scalar and side == 1)
                of_rows.take(as_rows(batch), side)
                of_columns.take(batch if what == "batch" else as_rows(batch), side)
        elif what == "epoch":
            base += data.draw(st.integers(1, 8))
            of_rows.take(Epoch(base - 1))
            of_columns.take(Epoch(base - 1))
        elif what == "barrier":
            of_columns.tester.barrier("some")
        else:
            getattr(of_columns, what)()
    of_rows.take(Epoch(MAX_EPOCH))
    of_columns.take(Epoch(MAX_EPOCH))
    assert of_columns.found == of_rows.found


def test_columns_are_joined_without_rows() -> None:
    run = OperatorTester(
        lambda a, b: a.join("join", b, window=windows.sliding(6, 4), how="outer"),
        keyed=True,
        timed=True,
        inputs=2,
        checks=False,
    )
    batches = [
        columns_of([("a", n, n) for n in range(9)], "texts", 0, scalar=False),
        columns_of([("a", 1, 3), ("b", 2, 4)], "large texts", 0, scalar=True),
    ]
    run.send_local(batches[0], input=0).send_local(batches[1], input=1)
    run.step()
    assert not any(batch.rows_made for batch in batches)
    sides = [side for pane in panes_of(run).values() for side in pane]
    assert sum(len(block) for side in sides for block in side.blocks) == 11
    assert not any(block.rows_made for side in sides for block in side.blocks)


@pytest.mark.parametrize("scalar", [False, True])
def test_columns_stay_columns_through_barriers_moves_and_restores(scalar: bool) -> None:
    run = Run("outer", windows.sliding(6, 4))
    for number in range(3):
        for side in (0, 1):
            drawn: list[Row] = [(key, number, number * 3 + side) for key in ("a", "b", "ä")]
            run.take(columns_of(drawn, "texts", 0, scalar=scalar), side)
        run.move()
        run.tester.barrier("some")
        run.restore()
    run.tester.states["join"].untried = False  # the first state is encoded as rows
    for side in (0, 1):
        run.take(columns_of([("a", 0, 9)], "texts", 0, scalar=scalar), side)
    sides = [side for pane in panes_of(run.tester).values() for side in pane]
    assert sum(len(block) for side in sides for block in side.blocks) == 20
    assert not any(block.rows_made for side in sides for block in side.blocks)
    assert {str(kind) for side in sides for block in side.blocks for kind in block.columns.schema.types} <= (
        {"int64"} if scalar else {"int64", "string"}
    )


def test_values_that_no_image_stores_are_rows_for_a_move_only() -> None:
    """Lists are written as rows; a barrier leaves the columns, and panes that begin after a move have columns."""
    run = Run("inner", windows.tumbling(6))
    for base in (0, 6):
        for side in (0, 1):
            batch = pa.RecordBatch.from_pydict({"list": [[base], [side]]})
            times = pa.array([base, base + 1])
            run.take(ColumnBatch(batch, key_column=pa.array(["a", "b"]), time_column=times), side)
        run.tester.barrier("some")
        assert all(side.blocks for side in panes_of(run.tester)[base])
        run.move()
        run.restore()
        assert not any(side.blocks for side in panes_of(run.tester)[base])
    run.take(Epoch(MAX_EPOCH))
    assert {key: len(pairs) for key, pairs in run.found.items()} == {"a": 2, "b": 2}


def test_s2_what_came_with_a_move_is_in_the_next_delta() -> None:
    run, other = Run("inner", windows.tumbling(6)), Run("inner", windows.tumbling(6))
    for side in (0, 1):
        run.take(columns_of([("a", side, 1)], "texts", 0, scalar=False), side)
        other.take(columns_of([("b", side, 1)], "texts", 0, scalar=False), side)
    first = run.tester.barrier("first")
    run.tester.acquire(other.tester.collect(["b"]))
    second = run.tester.barrier("second", parent="first")
    run.tester.collect(["a"])
    third = run.tester.barrier("third", parent="second")
    for chain, keys in (([first], "a"), ([first, second], "ab"), ([first, second, third], "b")):
        restored = Run("inner", windows.tumbling(6))
        restored.tester.install(chain, slots=[0])
        restored.take(Epoch(MAX_EPOCH))
        assert sorted(restored.found) == [*keys]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("window", [windows.tumbling(6), windows.sliding(6, 4)])
def test_s2_panes_that_closed_are_gone_from_the_next_delta(window: windows.Windows, *, columns: bool) -> None:
    """A job resumed from a chain with a closed pane failed with `StopIteration` at its next epoch."""
    run = Run("outer", window)
    for side in (0, 1):
        batch = columns_of([("a", side, 1), ("b", side, 2)], "texts", 0, scalar=False)
        run.take(batch if columns else as_rows(batch), side)
    first = run.tester.barrier("first")
    run.take(Epoch(20))
    second = run.tester.barrier("second", parent="first")
    restored = Run("outer", window)
    restored.tester.install([first, second], slots=[0])
    assert not panes_of(restored.tester)
    restored.take(columns_of([("a", 5, 30)], "texts", 0, scalar=False), 0)
    restored.take(Epoch(MAX_EPOCH))
    assert {key: {pair.left["n"] for pair, _ in pairs} for key, pairs in restored.found.items()} == {"a": {5}}
