"""Joins of columns by window: what stays columns through barriers, moves and restores."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from malstrom_py import windows
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.operators import window_join
from malstrom_py.state.join_panes import JoinPanes
from tests.unit.operators.join_runs import Row, Run, as_rows, columns_of, tabled, windowed


def test_columns_are_joined_without_rows() -> None:
    run = Run(windowed("outer", windows.sliding(6, 4)))
    run.tester.states["join"].untried = False  # the first state is encoded as rows
    batches = [
        columns_of([("a", n, n) for n in range(9)], "texts"),
        columns_of([("a", 1, 3), ("b", 2, 4)], "large texts", scalar=True),
    ]
    run.take(batches[0], 0).take(batches[1], 1)
    assert not any(batch.rows_made for batch in batches)
    blocks = [block.batch for side in run.panes.sides for block in side.blocks]
    assert sum(map(len, blocks)) == 11
    assert not any(block.rows_made for block in blocks)
    assert not run.panes.rows


@pytest.mark.parametrize("window", [windows.tumbling(6), windows.sliding(6, 4), windows.sliding(9, 2)])
def test_windows_of_columns_that_close_together_are_joined_together(window: windows.Windows) -> None:
    of_columns, of_rows = Run(windowed("outer", window)), Run(windowed("outer", window))
    drawn: list[Row] = [("ab"[n % 2], n, n) for n in (0, 3, 4, 5, 6, 11, 30, 31, 3_000_000_000_000, 7)]
    with patch("malstrom_py.operators.window_join.joined", side_effect=window_join.joined) as joined:
        for reached in (-1, 20, MAX_EPOCH):
            for run in (of_columns, of_rows):
                run.take(Epoch(reached))
            for side in (0, 1) if reached < 20 else ():
                of_columns.take(columns_of(drawn[side:], "texts"), side)
                of_rows.take(as_rows(columns_of(drawn[side:], "texts")), side)
    assert of_columns.found == of_rows.found
    assert joined.call_count == 2


@pytest.mark.parametrize("scalar", [False, True])
def test_columns_stay_columns_through_barriers_moves_and_restores(scalar: bool) -> None:
    run = Run(windowed("outer", windows.sliding(6, 4)))
    for number in range(3):
        for side in (0, 1):
            drawn: list[Row] = [(key, number, number * 3 + side) for key in ("a", "b", "ä")]
            run.take(columns_of(drawn, "texts", scalar=scalar), side)
        run.move()
        run.tester.barrier("some")
        run.restore()
    run.tester.states["join"].untried = False
    for side in (0, 1):
        run.take(columns_of([("a", 0, 9)], "texts", scalar=scalar), side)
    blocks = [block.batch for side in run.panes.sides for block in side.blocks]
    assert sum(map(len, blocks)) == 20
    assert not any(block.rows_made for block in blocks)
    assert {str(kind) for block in blocks for kind in block.columns.schema.types} <= (
        {"int64"} if scalar else {"int64", "string"}
    )


def test_values_that_no_image_stores_are_rows_for_a_move_only() -> None:
    """Lists are written as rows; a barrier leaves the columns, and panes that begin after a move have columns."""
    run = Run(windowed("inner", windows.tumbling(6)))
    for base in (0, 6):
        for side in (0, 1):
            batch = pa.RecordBatch.from_pydict({"list": [[base], [side]]})
            times = pa.array([base, base + 1])
            run.take(ColumnBatch(batch, key_column=pa.array(["a", "b"]), time_column=times), side)
        run.tester.barrier("some")
        assert base in run.panes.columns
        run.move()
        run.restore()
        assert base in run.panes.rows
    run.take(Epoch(MAX_EPOCH))
    assert {key: len(pairs) for key, pairs in run.found.items()} == {"a": 2, "b": 2}


def test_s2_a_delta_has_only_the_keys_that_changed() -> None:
    run = Run(windowed("outer", windows.tumbling(60)))
    run.take(columns_of([(key, key, 1) for key in range(500)], "other numbers"), 0)
    full = run.tester.barrier("s0").states["join"]
    run.take(columns_of([(3, 1, 2), (901, 2, 2)], "other numbers"), 1)
    delta = run.tester.barrier("s1", parent="s0").states["join"]
    assert len(delta) * 10 < len(full)
    assert len(run.tester.barrier("s2", parent="s1").states["join"]) < len(delta)


def test_changed_keys_are_noted_once_though_they_come_often() -> None:
    panes = JoinPanes(60, tracked=lambda: True)
    for _ in range(40):
        panes.add_columns(0, columns_of([(key, key, 1) for key in range(10_000)], "other numbers"))
    assert sum(len(noted) for noted, _ in panes._changed) < 120_000
    (changed,) = panes.changed_columns()
    assert sorted(changed.to_pylist()) == list(range(10_000))
    assert panes.changed_columns() == []


@pytest.mark.parametrize("keys", [100, 50_000, 300_000])
def test_the_number_of_keys_is_about_right_without_a_look_at_all_rows(keys: int) -> None:
    panes = JoinPanes(60)
    for start in range(0, 300_000, 50_000):
        rows = range(start, start + 50_000)
        panes.add_columns(0, columns_of([(row * 7919 % keys, row, 1) for row in rows], "other numbers"))
    assert keys / 2 < len(panes) <= min(2 * keys, 300_000)
    assert sum(1 for _ in panes) == keys


def test_text_that_is_not_utf_8_is_no_key_of_columns() -> None:
    panes = JoinPanes(60)
    keys = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}), key_column=keys, time_column=pa.array([1]))
    assert not panes.add_columns(0, batch)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("window", [windows.tumbling(6), windows.sliding(6, 4)])
def test_s2_panes_that_closed_are_gone_from_the_next_delta(window: windows.Windows, *, columns: bool) -> None:
    """A job resumed from a chain with a closed pane failed with `StopIteration` at its next epoch."""
    run = Run(windowed("outer", window))
    for side in (0, 1):
        batch = columns_of([("a", side, 1), ("b", side, 2)], "texts")
        run.take(batch if columns else as_rows(batch), side)
    first = run.tester.barrier("first")
    run.take(Epoch(20))
    second = run.tester.barrier("second", parent="first")
    restored = Run(windowed("outer", window))
    restored.tester.install([first, second], slots=[0])
    assert not restored.panes.starts()
    restored.take(columns_of([("a", 5, 30)], "texts"), 0)
    restored.take(Epoch(MAX_EPOCH))
    assert {key: {pair.left["n"] for pair, _ in pairs} for key, pairs in restored.found.items()} == {"a": {5}}


def test_numbers_after_texts_on_the_other_side_become_rows_though_none_had_come_as_a_number() -> None:
    run = Run(windowed("outer", windows.tumbling(6)))
    run.take(columns_of([(None, 1, 1)], "other numbers"), 0)
    run.take(columns_of([("a", 2, 2)], "texts"), 1)
    run.take(columns_of([(2**40, 3, 3)], "other numbers"), 0)
    run.take(Epoch(MAX_EPOCH))
    assert {key: [pair.left or pair.right for pair, _ in pairs] for key, pairs in run.found.items()} == {
        None: [{"n": 1, "text": "1"}],
        "a": [{"n": 2, "text": "2"}],
        2**40: [{"n": 3, "text": "3"}],
    }


@pytest.mark.parametrize("disturb", [Run.move, Run.restore])
@pytest.mark.parametrize("join", [windowed("left", windows.tumbling(6)), tabled(how="left", wait=True)])
def test_a_none_that_came_back_alone_is_a_key_beside_numbers(join: Any, disturb: Any) -> None:
    """An image of nothing but None does not say of which type its keys are."""
    run = Run(join)
    run.take(columns_of([(None, 1, 1)], "other numbers"), 0)
    disturb(run)
    run.take(columns_of([(2**40, 2, 2), (None, 3, 3)], "other numbers"), 0)
    run.take(Epoch(MAX_EPOCH))
    found = {key: [pair.left["n"] for pair, _ in pairs] for key, pairs in run.found.items()}
    assert found == {None: [1, 3], 2**40: [2]}
