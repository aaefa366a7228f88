"""Runs of joins by an `OperatorTester`, over columns or rows, with moves and restores."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from malstrom_py import windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import DataMessage, Epoch
from malstrom_py.data.row_form import DICTS, SCALAR
from malstrom_py.operators.join import Pair
from malstrom_py.state.column_table import ColumnTable
from malstrom_py.state.join_panes import JoinPanes
from malstrom_py.state.time_join_rows import TimeJoinRows
from malstrom_py.testing import OperatorTester

Row = tuple[Any, Any, int]
"""A key, a value and a time."""

KEYS: Final[dict[str, tuple[list[Any], pa.DataType]]] = {
    "texts": (["", "a", "ä", "\x00", None], pa.string()),
    "large texts": (["", "a", "ä", "a" * 20, None], pa.large_string()),
    "numbers": ([None, 0, 1, -1, 127], pa.int8()),
    "other numbers": ([None, 0, 1, 127, 2**40], pa.int64()),
    "floats": ([None, 0.0, 1.0, 127.0, 0.5], pa.float64()),
}


SMALL_BATCHES_STAY: Final = patch("malstrom_py.operators.batch_sizing.SMALL_IN_A_ROW", 1 << 30)
"""Joins by time keep columns, however many batches are small."""


def columns_of(batch: list[Row], kind: str, *, scalar: bool = False, timed: bool = True) -> ColumnBatch:
    keys, values, times = zip(*batch, strict=True)
    data: Any = {"value": list(values)} if scalar else {"n": list(values), "text": [str(value) for value in values]}
    return ColumnBatch(
        pa.RecordBatch.from_pydict(data),
        key_column=pa.array(keys, KEYS[kind][1]),
        time_column=pa.array(times, pa.int64()) if timed else None,
        form=SCALAR if scalar else DICTS,
    )


untimed = partial(columns_of, timed=False)


def as_rows(batch: ColumnBatch) -> Batch:
    times = batch.timestamps
    return Batch(list(batch.values), keys=list(batch.keys or []), timestamps=None if times is None else list(times))


def windowed(how: Any, window: windows.Windows) -> Any:
    return lambda a, b: a.join("join", b, window=window, how=how)


def tabled(**options: Any) -> Any:
    return lambda a, b: a.join_table("join", b, **options)


def near(how: Any) -> Any:
    return lambda a, b: a.join_interval("join", b, lower=-2, upper=3, how=how)


def as_of(**options: Any) -> Any:
    return lambda a, b: a.join_asof("join", b, **options)


class Run:
    """One tester after another, with all messages that they have sent, by key."""

    def __init__(self, join: Any, *, timed: bool = True) -> None:
        self.join, self.timed = join, timed
        self.tester = self.new()
        self.found: dict[Any, list[Any]] = defaultdict(list)

    def new(self) -> OperatorTester:
        tester = OperatorTester(self.join, keyed=True, timed=self.timed, inputs=2, checks=False)
        return tester.track(lambda keys: [0] * len(keys))

    def take(self, batch: Batch | Epoch, side: int | None = None) -> Run:
        self.tester.send_local(batch, input=side).step()
        for message in self.tester.receive_local():
            if isinstance(message, DataMessage):
                assert isinstance(message.value, Pair)
                self.found[message.key].append((message.value, message.timestamp))
        return self

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

    @property
    def panes(self) -> JoinPanes:
        panes: Any = self.tester.states["join"].values
        assert isinstance(panes, JoinPanes)
        return panes

    @property
    def times(self) -> TimeJoinRows:
        rows: Any = self.tester.states["join"].values
        assert isinstance(rows, TimeJoinRows)
        return rows

    @property
    def table(self) -> ColumnTable:
        table: Any = self.tester.states["join"].values
        assert isinstance(table, ColumnTable)
        return table
