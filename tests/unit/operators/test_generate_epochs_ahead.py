"""`generate_epochs(max_ahead=)`: a time far in the future goes to the late stream and cannot race the frontier (T4)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import Epoch, PartOpened, PartQuiet
from malstrom_py.data.time import Unit
from malstrom_py.operators.event_time import LATE, ON_TIME, GenerateEpochs
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped

BOUND = 5
AHEAD = 100


def stepped(clock: VirtualClock, *, unit: Unit = "ms", max_ahead: int = AHEAD, **options: Any) -> Stepped:
    generator = limit_out_of_orderness(BOUND)
    factory = partial(GenerateEpochs, generator=generator, unit=unit, max_ahead=max_ahead, **options)
    return Stepped(factory, ports=2, silent=[LATE], timed=True, clock=clock).push(PartOpened("p"))


def batch_of(*times: int) -> Batch:
    return Batch([f"v{time}" for time in times], timestamps=list(times), part="p")


def times(step: Stepped, port: int) -> list[int | None]:
    return [time for _, _, time in step.rows(port)]


def test_t4_exactly_at_the_bound_is_on_time_and_one_more_is_not() -> None:
    step = stepped(VirtualClock(2.0)).push(batch_of(2_100, 2_101, 2_099))
    assert (times(step, ON_TIME), times(step, LATE)) == ([2_100, 2_099], [2_101])
    assert (step.counters.late, step.counters.ahead) == (1, 1)


def test_t4_a_record_too_far_ahead_moves_no_epoch() -> None:
    step = stepped(VirtualClock(2.0)).push(batch_of(10**15), batch_of(10**15, 2_000), batch_of(2_000))
    assert step.epochs(ON_TIME) == [1_994]
    assert times(step, LATE) == [10**15, 10**15]


def test_t4_what_is_too_far_ahead_today_is_on_time_when_the_clock_has_got_there() -> None:
    clock = VirtualClock(2.0)
    step = stepped(clock).push(batch_of(2_200))
    clock.advance(0.1)
    assert times(step.push(batch_of(2_200)), ON_TIME) == [2_200]


def test_t4_late_and_ahead_keep_their_order_on_the_late_stream_and_are_counted_apart() -> None:
    step = stepped(VirtualClock(2.0)).push(batch_of(2_000, 9_000, 1, 2_050, 8_000, 2))
    assert (times(step, ON_TIME), times(step, LATE)) == ([2_000, 2_050], [9_000, 1, 8_000, 2])
    assert (step.counters.late, step.counters.ahead) == (4, 2)


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_t4_the_clock_is_read_in_the_streams_unit(unit: Unit, per_second: int) -> None:
    limit = 1_700_000_000 * per_second + 7
    step = stepped(VirtualClock(1_700_000_000.0), unit=unit, max_ahead=7).push(batch_of(limit, limit + 1))
    assert (times(step, ON_TIME), times(step, LATE)) == ([limit], [limit + 1])


def test_t4_a_bound_of_nothing_is_the_clock_itself() -> None:
    step = stepped(VirtualClock(2.0), max_ahead=0).push(batch_of(2_000, 2_001))
    assert times(step, LATE) == [2_001]


def test_t4_a_part_that_wakes_with_nothing_but_the_future_is_awake() -> None:
    step = stepped(VirtualClock(2.0), idle_after_s=1.0).push(batch_of(2_000), PartQuiet("p", 1.0), batch_of(9_000))
    assert step.messages(ON_TIME)[1:] == [Epoch(1_994), Epoch(1_994, idle=True), Epoch(1_994)]


@given(moments=st.lists(st.integers(-20, 150), min_size=1, max_size=30), columns=st.booleans())
def test_t4_it_is_as_if_those_too_far_ahead_had_never_come(moments: list[int], columns: bool) -> None:
    batch = batch_of(*moments)
    if columns:
        values = pa.RecordBatch.from_pydict({"n": list(range(len(moments)))})
        batch = ColumnBatch(values, time_column=pa.array(moments, pa.int64()), part="p")
    step = stepped(VirtualClock()).push(batch)
    without = Stepped(
        partial(GenerateEpochs, generator=limit_out_of_orderness(BOUND), unit="ms"), ports=2, silent=[LATE]
    ).push(PartOpened("p"))
    near = [moment for moment in moments if moment <= AHEAD]
    if near:
        without.push(batch_of(*near))
    assert times(step, ON_TIME) == times(without, ON_TIME)
    assert step.epochs(ON_TIME) == without.epochs(ON_TIME)
    assert [time for time in times(step, LATE) if time is None or time <= AHEAD] == times(without, LATE)
    assert step.counters.ahead == len(moments) - len(near)


class OneByOne:
    """A tracker of a user's, without spans: late is what is below the last one."""

    def __init__(self) -> None:
        self.epoch = -(10**9)
        self.seen: list[list[int]] = []

    def tracker(self, unit: str) -> Any:
        return self

    def observe(self, timestamps: list[int]) -> list[int]:
        self.seen.append(timestamps)
        late = []
        for index, time in enumerate(timestamps):
            if time <= self.epoch:
                late.append(index)
            self.epoch = max(self.epoch, time)
        return late

    def raise_to(self, epoch: int) -> None:
        """It starts where it starts."""


def test_t4_a_tracker_of_a_users_is_not_shown_the_future() -> None:
    mine = OneByOne()
    factory = partial(GenerateEpochs, generator=mine, unit="ms", max_ahead=AHEAD)
    step = Stepped(factory, ports=2, silent=[LATE], clock=VirtualClock()).push(PartOpened("p"))
    step.push(batch_of(50, 500, 40), batch_of(501), batch_of(60))
    assert mine.seen == [[50, 40], [60]]
    assert (times(step, ON_TIME), times(step, LATE)) == ([50, 60], [500, 40, 501])


@pytest.mark.parametrize("workers", [1, 3])
def test_t4_a_run_counts_them_by_its_own_clock(workers: int) -> None:
    job, far = mp.Job("a"), sinks.Memory()
    timed = job.source("in", sources.Memory([1_000, 99_000, 2_000, 98_000], parts=2)).assign_timestamps("at", int)
    on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND), max_ahead=5_000)
    on_time.key_by("key", lambda n: n).sink("out", sinks.Memory())
    late.sink("late", far)
    result = mp.run(job, workers, clock=VirtualClock(60.0))
    assert sorted(far.items) == [98_000, 99_000]
    assert (result.late, result.ahead, result.steps["epochs"].ahead) == (2, 2, 2)
    assert "2 late, 2 ahead, 0 skipped" in str(result)
