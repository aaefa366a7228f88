"""`generate_epochs` on columns: the same answers as on rows, and no row is made for them."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.epochs import EpochGenerator, EpochTracker, limit_out_of_orderness
from malstrom_py.data.messages import PartOpened
from malstrom_py.data.time import Unit
from malstrom_py.operators.event_time import LATE, ON_TIME, GenerateEpochs
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped

BOUND = 5
GENERATOR = limit_out_of_orderness(BOUND)


def stepped(max_ahead: int | None = None, generator: EpochGenerator = GENERATOR) -> Stepped:
    factory = partial(GenerateEpochs, generator=generator, unit="ms", max_ahead=max_ahead)
    return Stepped(factory, ports=2, silent=[LATE], timed=True, clock=VirtualClock(0)).push(PartOpened("p"))


def columns_of(times: list[int], *, listed: bool = False) -> ColumnBatch:
    """A column batch at ``times``: a column of them, or a list."""
    values = pa.RecordBatch.from_pydict({"at": times})
    if listed:
        return ColumnBatch(values, timestamps=times, part="p")
    return ColumnBatch(values, time_column=pa.array(times, pa.int64()), part="p")


def test_rows_of_columns_are_not_made_nor_counted() -> None:
    step = stepped().push(columns_of([100, 1, 101]))
    assert step.counters.rows_made == 0
    assert [time for batch in step.batches(LATE) for time in batch.timestamps or ()] == [1]
    assert [batch.part for batch in (*step.batches(ON_TIME), *step.batches(LATE))] == ["p", "p"]


class Descending:
    """A generator of a user's: a record is late if it is not below the one before it."""

    def tracker(self, unit: Unit) -> EpochTracker:
        return DescendingTracker()


class DescendingTracker:
    epoch = -1_000

    def observe(self, timestamps: list[int]) -> list[int]:
        assert set(map(type, timestamps)) == {int}
        return [index for index in range(1, len(timestamps)) if timestamps[index] >= timestamps[index - 1]]

    def raise_to(self, epoch: int) -> None:
        """Keep the epoch."""

    def snapshot(self) -> None:
        return None

    def restore(self, state: object) -> None:
        """Keep the epoch."""


def test_a_tracker_of_a_users_is_given_lists_also_of_columns() -> None:
    step = stepped(generator=Descending()).push(columns_of([9, 8, 8, 7, 12]))
    assert [time for batch in step.batches(LATE) for time in batch.timestamps or ()] == [8, 12]
    assert [time for batch in step.batches(ON_TIME) for time in batch.timestamps or ()] == [9, 8, 7]
    assert step.counters.rows_made == 0
