"""What joins keep in columns: what of it is gone, and when it is counted."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from malstrom_py import windows
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.state.join_panes import JoinPanes
from tests.unit.operators.join_runs import Run, as_of, as_rows, columns_of, near, windowed


@pytest.mark.parametrize(
    "join",
    [windowed("outer", windows.sliding(6, 4)), windowed("left", windows.session(4)), near("inner"), as_of()],
)
def test_a_key_that_ends_before_it_is_asked_to_leave_is_gone_from_snapshots(join: Any) -> None:
    """Its state came back with the next restore: a move had let it be forgotten that the key had changed."""
    run = Run(join).take(columns_of([("a", 1, 3), ("b", 2, 50)], "texts"), 0)
    chain = [run.tester.barrier("s0")]
    run.take(Epoch(20))
    assert not run.tester.collect(["a"])
    chain.append(run.tester.barrier("s1", parent="s0"))
    restored = Run(join)
    restored.tester.install(chain, slots=[0])
    assert restored.tester.interrogate() == {"b"}


def test_keys_are_not_counted_at_each_batch_of_rows() -> None:
    """Of columns beside rows an estimate was made, which took ten times as long as the batch."""
    run = Run(windowed("inner", windows.tumbling(10)))
    run.take(columns_of([("a", 1, 103)], "texts"), 0)
    run.tester.barrier("s0")
    with patch.object(JoinPanes, "__len__", side_effect=AssertionError):
        run.take(as_rows(columns_of([("b", 2, 3)], "texts")), 1)
    assert len(run.panes) == 1
    run.take(Epoch(9))
    assert run.tester.interrogate() == {"a"}


def test_columns_that_change_from_batch_to_batch_note_a_key_once_each() -> None:
    """What was noted doubled with each change, and a job took hours after thirty."""
    run = Run(windowed("inner", windows.tumbling(10)))
    for number in range(12):
        run.take(columns_of([("a", number, 10 * number)], "texts", scalar=number % 2 == 1), 0)
    assert len(list(run.panes.changed_keys())) <= 12


@pytest.mark.parametrize("tolerance", [5, 1 << 58])
def test_an_epoch_before_all_times_drops_no_row_of_an_as_of_join(tolerance: int) -> None:
    """The tolerance was taken off it, and the result was no int64."""
    run = Run(as_of(tolerance=tolerance))
    run.take(columns_of([(key, key, 1) for key in range(5_000)], "other numbers"), 1).take(Epoch(MIN_EPOCH + 1))
    run.take(columns_of([(7, 0, 2)], "other numbers"), 0).take(Epoch(MAX_EPOCH))
    (((left, right), time),) = run.found[7]
    assert (left["n"], right["n"], time) == (0, 7, 2)
