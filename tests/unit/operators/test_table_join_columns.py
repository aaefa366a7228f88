"""Joins of columns with a table: what stays columns, and what is dropped."""

from __future__ import annotations

import pytest

from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.state.column_table import ColumnTable
from tests.unit.operators.join_runs import Run, columns_of, tabled, untimed


def test_a_table_stays_columns_and_does_not_grow_with_its_changes() -> None:
    run = Run(tabled(), timed=False)
    for change in range(100):
        rows = [(key, change, 0) for key in range(change * 7, change * 7 + 500)]
        run.take(untimed([(key % 900, n, 0) for key, n, _ in rows], "other numbers"), 1)
    run.take(untimed([(key, 0, 0) for key in (*range(900), 901)], "other numbers"), 0)
    latest = {key % 900: change for change in range(100) for key in range(change * 7, change * 7 + 500)}
    assert {key: pair.right["n"] for key, ((pair, _),) in run.found.items()} == latest
    assert len(run.table.sides[1]) < 5_000


def test_replaced_values_are_dropped_while_a_row_waits() -> None:
    run = Run(tabled(wait=True), timed=False)
    run.take(untimed([(2**40, 0, 0)], "other numbers"), 0)
    for change in range(60):
        run.take(untimed([(key, change, 0) for key in range(300)], "other numbers"), 1)
    run.take(untimed([(2**40, 7, 0)], "other numbers"), 1)
    ((pair, _),) = run.found.pop(2**40)
    assert (pair.right["n"], run.found) == (7, {})
    assert len(run.table.sides[1]) < 5_000


def test_a_waiting_row_is_kept_once() -> None:
    run = Run(tabled(wait=True), timed=False)
    run.take(untimed([(key, key, 0) for key in range(9)], "numbers"), 0)
    for key in range(8):
        run.take(untimed([(key, key, 0)] * 2, "numbers"), 1)
    assert {key: [pair.left["n"] for pair, _ in pairs] for key, pairs in run.found.items()} == {
        key: [key] for key in range(8)
    }
    table = run.table
    assert len(table) == 9
    assert len(table.sides[0]) == 1
    assert sum(block.held for block in table.sides[0].blocks) <= 4


@pytest.mark.parametrize("what", ["move", "restore"])
def test_a_table_is_columns_after_a_move_and_a_restore(what: str) -> None:
    run = Run(tabled(how="left", wait=True))
    run.take(columns_of([("a", 1, 0), ("b", 2, 0), ("c", 3, 1)], "texts"), 0)
    run.take(columns_of([("a", 7, 0), ("d", 8, 0)], "texts"), 1)
    getattr(run, what)()
    table = run.table
    assert len(table) == 4
    run.take(columns_of([("d", 4, 1), ("a", 5, 1)], "texts"), 0)
    run.take(columns_of([("b", 9, 2)], "texts"), 1)
    run.take(Epoch(MAX_EPOCH))
    assert len(run.table) == 3
    found = {key: [(pair.left["n"], pair.right and pair.right["n"]) for pair, _ in of] for key, of in run.found.items()}
    assert found == {"a": [(1, 7), (5, 7)], "d": [(4, 8)], "b": [(2, 9)], "c": [(3, None)]}


def test_a_delta_has_only_what_changed() -> None:
    run = Run(tabled(how="left", wait=True), timed=False)
    run.take(untimed([(key, 1, 0) for key in range(500)], "other numbers"), 1)
    full = run.tester.barrier("s0").states["join"]
    run.take(untimed([(3, 2, 0)], "other numbers"), 1)
    run.take(untimed([(901, 1, 0)], "other numbers"), 0)
    assert len(run.tester.barrier("s1", parent="s0").states["join"]) * 10 < len(full)


def test_keys_without_state_are_forgotten() -> None:
    table = ColumnTable(timed=False)
    for start in range(0, 40_000, 5_000):
        keys = list(range(start, start + 5_000))
        table.change(untimed([(key, key, 0) for key in keys], "other numbers"))
        gone = keys[7:]
        assert [state[0]["n"] for state in table.take(gone)] == gone
    assert len(table.index) < 9_000
    assert sorted(table) == [start + place for start in range(0, 40_000, 5_000) for place in range(7)]
    assert table[15_003] == [{"n": 15_003, "text": "15003"}, ()]
