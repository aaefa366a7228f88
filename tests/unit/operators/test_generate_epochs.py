"""`assign_timestamps` and `generate_epochs`: lateness per record and part, epochs of open parts, the far future."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.epochs import EpochGenerator, EpochTracker, limit_out_of_orderness
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch, PartFinished, PartOpened, PartQuiet
from malstrom_py.data.time import Unit
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.event_time import LATE, ON_TIME, AssignTimestamps, GenerateEpochs
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped

BOUND = 5


def stepped(bound: int = BOUND) -> Stepped:
    factory = partial(GenerateEpochs, generator=limit_out_of_orderness(bound), unit="ms")
    return Stepped(factory, ports=2, silent=[LATE], timed=True)


def batch_of(times: list[int], part: str = "p") -> Batch:
    return Batch([f"v{time}" for time in times], timestamps=times, part=part)


@dataclass
class Oracle:
    """One part, judged record by record by the words of the rule."""

    epoch: int = MIN_EPOCH
    largest: int = MIN_EPOCH
    on_time: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def take(self, time: int) -> None:
        (self.late if time <= self.epoch else self.on_time).append(time)
        self.largest = max(self.largest, time)
        self.epoch = max(self.epoch, self.largest - BOUND - 1)


@st.composite
def interleavings(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    """Batches of up to four parts in any order, each part's times wandering upwards with jumps back."""
    parts = draw(st.integers(1, 4))
    batches = draw(
        st.lists(
            st.tuples(st.integers(0, parts - 1), st.lists(st.integers(-12, 12), min_size=1, max_size=6)), max_size=15
        )
    )
    base = dict.fromkeys(range(parts), 0)
    result = []
    for part, steps in batches:
        times = []
        for step in steps:
            base[part] += 2
            times.append(base[part] + step)
        result.append((f"p{part}", times))
    return result


@given(batches=interleavings())
def test_t1_lateness_is_judged_per_record_whatever_the_parts_and_cuts(batches: list[tuple[str, list[int]]]) -> None:
    parts = [f"p{n}" for n in range(4)]
    step = stepped().push(*(PartOpened(part) for part in parts))
    oracles = {part: Oracle() for part in parts}
    for part, times in batches:
        step.push(batch_of(times, part))
        for time in times:
            oracles[part].take(time)
    for port, expected in ((ON_TIME, "on_time"), (LATE, "late")):
        for part, oracle in oracles.items():
            got = [time for batch in step.batches(port) if batch.part == part for time in batch.timestamps or ()]
            assert got == getattr(oracle, expected)
    late = sum(len(oracle.late) for oracle in oracles.values())
    assert (step.counters.late, len(step.rows(LATE))) == (late, late)


@given(batches=interleavings(), finish_after=st.lists(st.integers(0, 15), min_size=4, max_size=4))
def test_t1_downstream_never_sees_a_record_at_or_below_its_frontier(
    batches: list[tuple[str, list[int]]], finish_after: list[int]
) -> None:
    step = stepped().push(*(PartOpened(f"p{n}") for n in range(4)))
    for turn, (part, times) in enumerate(batches):
        if turn < finish_after[int(part[1:])]:
            step.push(batch_of(times, part))
        for n in range(4):
            if turn == finish_after[n]:
                step.push(PartFinished(f"p{n}"))
    frontier = MIN_EPOCH
    for message in step.messages(ON_TIME):
        if isinstance(message, Epoch):
            assert message.time > frontier
            frontier = message.time
        elif isinstance(message, Batch):
            assert message.timestamps is not None
            assert min(message.timestamps) > frontier
    assert step.epochs(LATE) == []


@given(batches=interleavings())
def test_t2_the_epoch_is_the_minimum_over_the_open_parts(batches: list[tuple[str, list[int]]]) -> None:
    step = stepped().push(*(PartOpened(f"p{n}") for n in range(4)))
    oracles = {f"p{n}": Oracle() for n in range(4)}
    for part, times in batches:
        step.push(batch_of(times, part))
        for time in times:
            oracles[part].take(time)
        lowest = min(oracle.epoch for oracle in oracles.values())
        assert (step.epochs(ON_TIME) or [MIN_EPOCH])[-1] == lowest


def test_t2_the_last_part_to_finish_sends_no_epoch_of_its_own() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartFinished("p"))
    assert step.epochs(ON_TIME) == [94]


def test_t2_a_part_opened_later_is_judged_by_the_epoch_already_sent() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartOpened("q"), batch_of([94, 95, 60], "q"))
    assert step.rows(LATE) == [(None, "v94", 94), (None, "v60", 60)]
    assert step.rows(ON_TIME)[-1] == (None, "v95", 95)


def test_t5_the_maximum_epoch_goes_to_both_streams() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartFinished("p"), Epoch(MAX_EPOCH))
    assert step.epochs(ON_TIME) == [94, MAX_EPOCH]
    assert step.epochs(LATE) == [MAX_EPOCH]


def test_a_batch_of_a_part_that_is_not_open_is_our_bug() -> None:
    with pytest.raises(InternalError, match="'under-test'"):
        stepped().push(PartOpened("p"), Batch([1], timestamps=[1], part="unknown"))


def test_records_that_come_from_no_part_are_an_error_of_the_step_that_made_them() -> None:
    with pytest.raises(OperatorError, match="'under-test' received records that come from no partition"):
        stepped().push(PartOpened("p"), Batch([1], timestamps=[1]))


class Broken:
    """A generator of a user's, whose trackers fail."""

    epoch = MIN_EPOCH

    def tracker(self, unit: str) -> Any:
        return self

    def observe(self, timestamps: list[int]) -> list[int]:
        raise ValueError("secret")

    def raise_to(self, epoch: int) -> None:
        """Takes no notice."""


def test_an_error_of_a_users_generator_names_step_and_place() -> None:
    step = Stepped(partial(GenerateEpochs, generator=Broken(), unit="ms"), ports=2, silent=[LATE])
    with pytest.raises(OperatorError, match=r"'under-test'.*Broken\.observe at .*test_generate_epochs\.py") as caught:
        step.push(PartOpened("p"), batch_of([1]))
    assert isinstance(caught.value.__cause__, ValueError)
    assert "secret" in str(caught.value)


def test_a_generator_that_makes_no_tracker_is_named() -> None:
    class Useless:
        def tracker(self, unit: str) -> Any:
            raise LookupError

    step = Stepped(partial(GenerateEpochs, generator=Useless(), unit="ms"), ports=2, silent=[LATE])
    with pytest.raises(OperatorError, match=r"'under-test'.*Useless\.tracker at "):
        step.push(PartOpened("p"))


# Records too far ahead


AHEAD = 100


def bounded(clock: VirtualClock, *, unit: Unit = "ms", max_ahead: int = AHEAD, **options: Any) -> Stepped:
    generator = limit_out_of_orderness(BOUND)
    factory = partial(GenerateEpochs, generator=generator, unit=unit, max_ahead=max_ahead, **options)
    return Stepped(factory, ports=2, silent=[LATE], timed=True, clock=clock).push(PartOpened("p"))


def part_p(*times: int) -> Batch:
    return Batch([f"v{time}" for time in times], timestamps=list(times), part="p")


def times(step: Stepped, port: int) -> list[int | None]:
    return [time for _, _, time in step.rows(port)]


def test_t4_exactly_at_the_bound_is_on_time_and_one_more_is_not() -> None:
    step = bounded(VirtualClock(2.0)).push(part_p(2_100, 2_101, 2_099))
    assert (times(step, ON_TIME), times(step, LATE)) == ([2_100, 2_099], [2_101])
    assert (step.counters.late, step.counters.ahead) == (1, 1)


def test_t4_late_and_ahead_keep_their_order_on_the_late_stream_and_are_counted_apart() -> None:
    step = bounded(VirtualClock(2.0)).push(part_p(2_000, 9_000, 1, 2_050, 8_000, 2))
    assert (times(step, ON_TIME), times(step, LATE)) == ([2_000, 2_050], [9_000, 1, 8_000, 2])
    assert (step.counters.late, step.counters.ahead) == (4, 2)


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_t4_the_clock_is_read_in_the_streams_unit(unit: Unit, per_second: int) -> None:
    limit = 1_700_000_000 * per_second + 7
    step = bounded(VirtualClock(1_700_000_000.0), unit=unit, max_ahead=7).push(part_p(limit, limit + 1))
    assert (times(step, ON_TIME), times(step, LATE)) == ([limit], [limit + 1])


def test_t4_a_part_that_wakes_with_nothing_but_the_future_is_awake() -> None:
    step = bounded(VirtualClock(2.0), idle_after_s=1.0).push(part_p(2_000), PartQuiet("p", 1.0), part_p(9_000))
    assert step.messages(ON_TIME)[1:] == [Epoch(1_994), Epoch(1_994, idle=True), Epoch(1_994)]


@given(moments=st.lists(st.integers(-20, 150), min_size=1, max_size=30), columns=st.booleans())
def test_t4_it_is_as_if_those_too_far_ahead_had_never_come(moments: list[int], columns: bool) -> None:
    batch = part_p(*moments)
    if columns:
        values = pa.RecordBatch.from_pydict({"n": list(range(len(moments)))})
        batch = ColumnBatch(values, time_column=pa.array(moments, pa.int64()), part="p")
    step = bounded(VirtualClock()).push(batch)
    without = Stepped(
        partial(GenerateEpochs, generator=limit_out_of_orderness(BOUND), unit="ms"), ports=2, silent=[LATE]
    ).push(PartOpened("p"))
    near = [moment for moment in moments if moment <= AHEAD]
    if near:
        without.push(part_p(*near))
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
    step.push(part_p(50, 500, 40), part_p(501), part_p(60))
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


# Columns


GENERATOR = limit_out_of_orderness(BOUND)


def over_columns(max_ahead: int | None = None, generator: EpochGenerator = GENERATOR) -> Stepped:
    factory = partial(GenerateEpochs, generator=generator, unit="ms", max_ahead=max_ahead)
    return Stepped(factory, ports=2, silent=[LATE], timed=True, clock=VirtualClock(0)).push(PartOpened("p"))


def columns_of(times: list[int], *, listed: bool = False) -> ColumnBatch:
    """A column batch at ``times``: a column of them, or a list."""
    values = pa.RecordBatch.from_pydict({"at": times})
    if listed:
        return ColumnBatch(values, timestamps=times, part="p")
    return ColumnBatch(values, time_column=pa.array(times, pa.int64()), part="p")


def test_rows_of_columns_are_not_made_nor_counted() -> None:
    step = over_columns().push(columns_of([100, 1, 101]))
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
    step = over_columns(generator=Descending()).push(columns_of([9, 8, 8, 7, 12]))
    assert [time for batch in step.batches(LATE) for time in batch.timestamps or ()] == [8, 12]
    assert [time for batch in step.batches(ON_TIME) for time in batch.timestamps or ()] == [9, 8, 7]
    assert step.counters.rows_made == 0


# assign_timestamps


NEWYEAR_MS = 1_356_998_400_000


class Moment(IntEnum):
    NOON = 12


def assigned(values: list[Any], unit: Unit = "ms") -> list[int]:
    step = Stepped(partial(AssignTimestamps, fn=lambda value: value, unit=unit)).push(Batch(values))
    timestamps = step.batches()[0].timestamps
    assert timestamps is not None
    assert {type(timestamp) for timestamp in timestamps} == {int}
    return timestamps


def test_values_keys_and_part_stay_and_former_times_are_replaced() -> None:
    step = Stepped(partial(AssignTimestamps, fn=lambda n: n * 10, unit="ms"))
    step.push(Batch([1, 2], keys=["a", "b"], timestamps=[7, 7], part="p"))
    assert step.rows() == [("a", 1, 10), ("b", 2, 20)]
    assert step.batches()[0].part == "p"


def test_aware_datetimes_are_converted_whatever_their_zone() -> None:
    new_york = datetime(2012, 12, 31, 19, tzinfo=timezone(timedelta(hours=-5)))
    assert assigned([datetime(2013, 1, 1, tzinfo=UTC), new_york]) == [NEWYEAR_MS, NEWYEAR_MS]


def test_kinds_of_moments_may_be_mixed() -> None:
    moments = [np.int64(5), 7, Moment.NOON, datetime(1970, 1, 1, tzinfo=UTC), np.uint8(3)]
    assert assigned(moments, "s") == [5, 7, 12, 0, 3]


@pytest.mark.parametrize(
    "moment",
    [
        None,
        datetime(2013, 1, 1),  # noqa: DTZ001  naive on purpose
        True,
        np.bool_(True),
        1.0,
        np.float64(1),
        "2013-01-01",
        np.datetime64(0, "ms"),
        MAX_EPOCH,
        MIN_EPOCH,
        1 << 70,
        float("nan"),
    ],
    ids=repr,
)
def test_what_is_no_moment_follows_on_error(moment: Any) -> None:
    step = Stepped(partial(AssignTimestamps, fn=lambda value: value, unit="ms"), on_error="dead-letter")
    step.push(Batch([1, moment, 3], keys=["a", "b", "c"]))
    assert step.rows() == [("a", 1, 1), ("c", 3, 3)]
    assert [letter.key for letter in step.dead_letters] == ["b"]
    with pytest.raises(OperatorError, match="'under-test'") as caught:
        assigned([moment])
    assert isinstance(caught.value.__cause__, TypeError | ValueError)


def test_the_function_is_called_once_per_record_also_when_times_must_be_converted() -> None:
    calls: list[Any] = []

    def at(value: Any) -> Any:
        calls.append(value)
        return value

    step = Stepped(partial(AssignTimestamps, fn=at, unit="ms"), on_error="skip")
    step.push(Batch([1, None, np.int64(3)]))
    assert calls == [1, None, 3]
    assert step.values() == [1, 3]


def test_an_index_that_raises_what_it_likes_follows_on_error() -> None:
    class Odd:
        def __index__(self) -> int:
            raise RuntimeError("no index today")

    step = Stepped(partial(AssignTimestamps, fn=lambda value: value, unit="ms"), on_error="skip").push(
        Batch([Odd(), 1])
    )
    assert step.values() == [1]


def test_failures_of_the_function_and_of_the_conversion_in_one_batch_leave_rows_and_times_in_step() -> None:
    def at(value: str) -> Any:
        return None if value == "none" else int(value)

    step = Stepped(partial(AssignTimestamps, fn=at, unit="ms"), on_error="skip")
    step.push(Batch(["1", "x", "none", "4", "y"]))
    assert step.rows() == [(None, "1", 1), (None, "4", 4)]
    assert step.counters.skipped == 3
