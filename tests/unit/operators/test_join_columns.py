"""Joins of columns of every kind: keys of two types, and what `migrate=` gets.

`tests/laws/test_forms.py` compares their pairs with those of rows.
"""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py import windows
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from tests.unit.operators.join_runs import KEYS, Run, as_of, as_rows, columns_of, near, tabled, windowed


@pytest.mark.parametrize(
    "join",
    [
        windowed("outer", windows.sliding(6, 4)),
        tabled(how="left", wait=True),
        near("outer"),
        as_of(direction="nearest"),
        windowed("outer", windows.session(3)),
    ],
    ids=["window", "table", "interval", "asof", "session"],
)
@pytest.mark.parametrize("left", KEYS)
@pytest.mark.parametrize("right", KEYS)
def test_keys_of_two_types_find_each_other_as_in_rows(join: Any, left: str, right: str) -> None:
    of_columns, of_rows = Run(join), Run(join)
    for base, disturb in ((0, of_columns.move), (5, of_columns.restore), (10, of_columns.move)):
        for side, kind in ((0, left), (1, right)):
            batch = columns_of([(key, n, base + n) for n, key in enumerate(KEYS[kind][0])], kind, scalar=side == 1)
            of_columns.take(batch, side)
            of_rows.take(as_rows(batch), side)
        for run in (of_columns, of_rows):
            run.take(Epoch(base))
        disturb()
    assert of_columns.take(Epoch(MAX_EPOCH)).found == of_rows.take(Epoch(MAX_EPOCH)).found


MIGRATED: list[Any] = []


def noting(key: Any, state: Any) -> Any:
    MIGRATED.append(state)
    return state


@pytest.mark.parametrize(
    ("join", "state"),
    [
        (windowed("outer", windows.tumbling(6)), {0: ([{"n": 1, "text": "1"}], [])}),
        (tabled(how="left", wait=True), [None, [({"n": 1, "text": "1"}, 3)]]),
        (near("outer"), [[3], [{"n": 1, "text": "1"}], [True], (), (), (), 6]),
        (as_of(), [[3], [{"n": 1, "text": "1"}], (), (), 3]),
        (windowed("outer", windows.session(3)), [[3, 3, ([{"n": 1, "text": "1"}], []), 0]]),
    ],
    ids=["window", "table", "interval", "asof", "session"],
)
def test_migrate_gets_the_state_of_rows(join: Any, state: Any) -> None:
    """It was called with the rows of an image of columns, by their numbers."""
    run = Run(join).take(columns_of([("a", 1, 3)], "texts"), 0)
    run.take(columns_of([("b", 2, 3)], "texts"), 1)
    persisted, restored = run.tester.barrier("snapshot"), Run(join)
    MIGRATED.clear()
    operator: Any = restored.tester._runner.operators["join"]
    operator.install([persisted.states["join"]], [0], migrate=noting)
    assert state in MIGRATED
    for one in (run, restored):
        one.take(columns_of([("a", 3, 5)], "texts"), 1).take(Epoch(MAX_EPOCH))
    assert restored.found == run.found
