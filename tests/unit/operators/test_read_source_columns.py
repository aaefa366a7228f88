"""`source`: how much a part that gives columns is asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.operators.read_source import ReadSource, batch_of
from malstrom_py.sources import Part
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped


class Wide:
    """A part of columns, 1 KiB to the row, that keeps how many rows it was asked for."""

    parts_open_max = 1

    def __init__(self) -> None:
        self.asked: list[int] = []

    def list_parts(self) -> list[Part]:
        return [Part("all")]

    def build_part(self, part: Part, state: Any) -> Wide:
        return self

    def poll(self, rows_max: int) -> pa.RecordBatch:
        self.asked.append(rows_max)
        return pa.RecordBatch.from_pydict({"text": ["x" * 1024] * rows_max})

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def test_a_batch_that_a_part_gives_is_not_written_to() -> None:
    mine = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), part="mine")
    sent = batch_of(mine, "in/all", None)
    assert isinstance(sent, ColumnBatch)
    assert (sent.part, sent.named, sent.columns) == ("in/all", True, mine.columns)
    assert (mine.part, mine.named) == ("mine", False)


@pytest.mark.parametrize("rows_max", [1, 1024])
def test_columns_are_bounded_by_bytes_however_many_rows_may_come(rows_max: int) -> None:
    source = Wide()
    step = Stepped(partial(ReadSource, source=source))
    operator = step.operator
    assert isinstance(operator, ReadSource)
    step.call(partial(operator.open, parts=source.list_parts()))
    poll = partial(operator.poll, linger_s=1.0, clock=VirtualClock(), bytes_max=1 << 16, columns_rows_max=131_072)
    for _ in range(20):
        step.call(partial(poll, rows_max=rows_max))
        operator.made(source.asked[-1], 0, took_s=0.0, limit_s=1.0, load=0.0)
    assert 512 <= max(source.asked) <= 16 * (1 << 16) // 1024
