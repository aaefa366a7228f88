"""Times: conversions are exact or rounded as documented; frontiers never decrease; trackers judge each record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.epochs import ArrayTracker, after_s, limit_out_of_orderness, max_ahead_of
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.time import Frontier, Unit, check_unit, from_clock, from_time, to_span, to_time
from malstrom_py.errors import PlanError

UNITS = get_args(Unit)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize(("unit", "time"), [("s", 1), ("ms", 1_234), ("us", 1_234_567), ("ns", 1_234_567_000)])
def test_a_datetime_is_rounded_down_to_the_unit(unit: Unit, time: int) -> None:
    assert to_time(datetime(1970, 1, 1, 0, 0, 1, 234_567, tzinfo=UTC), unit) == time


@pytest.mark.parametrize(("unit", "time"), [("s", -1), ("ms", -1), ("us", -1), ("ns", -1_000)])
def test_a_moment_before_1970_is_rounded_down_too(unit: Unit, time: int) -> None:
    assert to_time(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), unit) == time


@given(moment=st.datetimes(timezones=ZONES), other=ZONES, unit=st.sampled_from(UNITS))
def test_the_zone_of_a_moment_does_not_matter(moment: datetime, other: tzinfo, unit: Unit) -> None:
    try:
        elsewhere = moment.astimezone(other)
    except OverflowError:
        return
    outcomes: list[int | None] = []
    for same in (moment, elsewhere):
        try:
            outcomes.append(to_time(same, unit))
        except ValueError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


@given(moment=st.datetimes(timezones=ZONES))
def test_microseconds_survive_the_way_there_and_back(moment: datetime) -> None:
    assert from_time(to_time(moment, "us"), "us") == moment


@given(time=st.integers(-(10**10), 10**10), unit=st.sampled_from(["s", "ms", "us"]))
def test_a_time_survives_being_shown(time: int, unit: Unit) -> None:
    assert to_time(from_time(time, unit), unit) == time


def test_a_time_beyond_the_years_of_datetime_cannot_be_shown() -> None:
    with pytest.raises(OverflowError):
        from_time(MAX_EPOCH, "s")


@pytest.mark.parametrize("time", [0, -1, 1, MIN_EPOCH + 1, MAX_EPOCH - 1])
def test_an_int_is_taken_as_it_is(time: int) -> None:
    assert [to_time(time, unit) for unit in UNITS] == [time] * 4


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16, np.array])
def test_numbers_of_numpy_become_ints(kind: Any) -> None:
    time = to_time(kind(7), "ms")
    assert (time, type(time)) == (7, int)


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (None, "the timestamp is None"),
        (True, "got bool"),
        (np.bool_(False), "got bool"),
        (1.0, "got float"),
        (np.float64(1), "got float64"),
        ("2013-01-01", r"got str: parse it, with datetime\.fromisoformat"),
        (np.datetime64(0, "s"), "got datetime64"),
        (timedelta(1), "got timedelta"),
        (datetime(2013, 1, 1), "the datetime has no time zone: add one"),  # noqa: DTZ001  on purpose
    ],
)
def test_what_is_no_moment_is_refused(moment: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        to_time(moment, "ms")


def test_a_datetime_whose_zone_knows_no_offset_is_refused() -> None:
    class Nowhere(tzinfo):
        def utcoffset(self, moment: datetime | None) -> None:
            return None

        dst = tzname = utcoffset

    with pytest.raises(TypeError, match="naive"):
        to_time(datetime(2013, 1, 1, tzinfo=Nowhere()), "ms")


@pytest.mark.parametrize("time", [MIN_EPOCH, MAX_EPOCH, MIN_EPOCH - 1, MAX_EPOCH + 1, 10**100])
def test_what_does_not_fit_is_refused(time: int) -> None:
    with pytest.raises(ValueError, match="does not fit an int64"):
        to_time(time, "ms")


def test_a_far_datetime_does_not_fit_nanoseconds() -> None:
    far = datetime(2300, 1, 1, tzinfo=UTC)
    assert to_time(far, "us") > 0
    with pytest.raises(ValueError, match="does not fit an int64 in unit 'ns'"):
        to_time(far, "ns")


@pytest.mark.parametrize(
    ("span", "unit", "expected"),
    [
        (timedelta(hours=24), "ms", 86_400_000),
        (timedelta(microseconds=1), "s", 1),
        (timedelta(microseconds=1), "ms", 1),
        (timedelta(seconds=1, microseconds=1), "s", 2),
        (timedelta(microseconds=1), "ns", 1_000),
        (timedelta(0), "s", 0),
        (7, "s", 7),
    ],
)
def test_a_span_is_rounded_up_so_that_no_bound_shrinks(span: timedelta | int, unit: Unit, expected: int) -> None:
    assert to_span(span, unit) == expected


@given(span=st.timedeltas(timedelta(0), timedelta(days=10**5)), unit=st.sampled_from(UNITS))
def test_a_span_is_never_shorter_than_it_was_and_less_than_a_unit_longer(span: timedelta, unit: Unit) -> None:
    microseconds = span // timedelta(microseconds=1)
    units = to_span(span, unit)
    assert units * 10**6 >= microseconds * PER_SECOND[unit] > (units - 1) * 10**6


@pytest.mark.parametrize("unit", ["", "m", "S", "seconds", None, 1])
def test_an_unknown_unit_names_the_step_and_the_known_ones(unit: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'at': unit .* is not one of 's', 'ms', 'us', 'ns'"):
        check_unit(unit, "at")


@given(advances=st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 9)), max_size=30))
def test_a_frontier_is_the_minimum_and_never_goes_back(advances: list[tuple[int, int]]) -> None:
    frontier, reached = Frontier(3), [MIN_EPOCH] * 3
    for index, time in advances:
        before = frontier.time
        moved = frontier.advance(index, time)
        reached[index] = max(reached[index], time)
        assert frontier.time == min(reached) >= before
        assert moved == (frontier.time if frontier.time > before else None)


ADVANCES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-9, 9) | st.just(MAX_EPOCH), st.booleans()).map(
        lambda advance: (advance[0], advance[1], advance[2] and advance[1] != MAX_EPOCH)
    ),
    max_size=30,
)
"""(input, time, idle); no input is idle at the end."""


@given(advances=ADVANCES)
def test_t2_idle_inputs_hold_back_nobody_but_are_never_the_end(advances: list[tuple[int, int, bool]]) -> None:
    frontier, inputs = Frontier(3), [(MIN_EPOCH, False)] * 3
    time = MIN_EPOCH
    for index, reached, idle in advances:
        inputs[index] = (max(reached, inputs[index][0]), idle and max(reached, inputs[index][0]) != MAX_EPOCH)
        before, was_idle = frontier.time, frontier.idle
        moved = frontier.advance(index, inputs[index][0], idle=inputs[index][1])
        unfinished = [(at, at_rest) for at, at_rest in inputs if at != MAX_EPOCH]
        waited_for = [at for at, at_rest in unfinished if not at_rest] or [at for at, _ in unfinished]
        time = max(time, min(waited_for, default=MAX_EPOCH))
        assert frontier.time == time
        assert frontier.idle == (bool(unfinished) and all(at_rest for _, at_rest in unfinished))
        assert frontier.active() == min((at for at, at_rest in unfinished if not at_rest), default=None)
        assert moved == (None if (before, was_idle) == (frontier.time, frontier.idle) else frontier.time)


def test_t2_an_input_that_wakes_is_waited_for_again_and_nothing_is_taken_back() -> None:
    frontier = Frontier(2)
    moves = [
        frontier.advance(0, 5, idle=True),
        frontier.advance(1, 100),
        frontier.advance(0, 5),
        frontier.advance(1, 200),
    ]
    assert moves == [None, 100, None, None]
    assert (frontier.advance(0, 150), frontier.time) == (150, 150)
    frontier = Frontier(2)
    frontier.advance(0, 9)
    assert frontier.advance(1, -5, idle=True) == 9
    assert (frontier.advance(0, MAX_EPOCH), frontier.time, frontier.idle) == (9, 9, True)


@pytest.mark.parametrize(
    ("now_s", "unit", "expected"),
    [
        (0.0, "ms", 0),
        (1.9999, "s", 1),
        (-0.5, "s", -1),
        (4.35, "ms", 4_350),  # slightly less as a float
        (1_700_000_000.123457, "us", 1_700_000_000_123_457),
        (1_700_000_000.25, "ns", 1_700_000_000_250_000_000),
    ],
)
def test_t4_a_clock_is_read_to_the_microsecond_and_rounded_down_to_the_unit(
    now_s: float, unit: Unit, expected: int
) -> None:
    assert from_clock(now_s, unit) == expected


# Epochs


TIMES = st.lists(st.integers(-50, 50), min_size=1, max_size=20)


def oracle(times: list[int], bound: int, epoch: int = MIN_EPOCH) -> tuple[list[int], int]:
    """Return the late records and the epoch, computed record by record."""
    late, largest = [], None
    for index, time in enumerate(times):
        if time <= epoch:
            late.append(index)
        largest = time if largest is None else max(largest, time)
        epoch = max(epoch, largest - bound - 1)
    return late, epoch


@given(batches=st.lists(TIMES, max_size=6), bound=st.integers(0, 30))
def test_t1_batches_are_judged_as_one_record_after_the_other(batches: list[list[int]], bound: int) -> None:
    tracker = limit_out_of_orderness(bound).tracker("ms")
    late, seen = [], 0
    for times in batches:
        late += [seen + index for index in tracker.observe(times)]
        seen += len(times)
    flat = [time for times in batches for time in times]
    assert (late, tracker.epoch) == oracle(flat, bound)


@given(first=TIMES, raised=st.integers(-60, 60), second=TIMES, bound=st.integers(0, 30))
def test_t1_a_raised_epoch_is_what_later_records_are_judged_by(
    first: list[int], raised: int, second: list[int], bound: int
) -> None:
    tracker = limit_out_of_orderness(bound).tracker("ms")
    tracker.observe(first)
    before = tracker.epoch
    tracker.raise_to(raised)
    epoch = max(before, raised)
    assert tracker.epoch == epoch
    late = tracker.observe(second)
    largest = max(first)
    expected = []
    for index, time in enumerate(second):
        if time <= epoch:
            expected.append(index)
        largest = max(largest, time)
        epoch = max(epoch, largest - bound - 1)
    assert (late, tracker.epoch) == (expected, epoch)


@pytest.mark.parametrize(("unit", "epoch"), [("s", 97), ("ms", -1_401), ("us", -1_499_901), ("ns", -1_499_999_901)])
def test_a_timedelta_counts_in_the_unit_of_the_stream_rounded_up(unit: Unit, epoch: int) -> None:
    tracker = limit_out_of_orderness(timedelta(seconds=1.5)).tracker(unit)
    tracker.observe([100])
    assert tracker.epoch == epoch


def test_trackers_of_one_generator_share_nothing() -> None:
    generator = limit_out_of_orderness(0)
    generator.tracker("ms").observe([100])
    assert generator.tracker("ms").epoch == MIN_EPOCH


@pytest.mark.parametrize("bound", [None, 1.5, "1h", True])
def test_a_bound_that_is_no_time_is_refused(bound: Any) -> None:
    with pytest.raises(PlanError, match="limit_out_of_orderness takes a timedelta, or an int in the stream's unit"):
        limit_out_of_orderness(bound)


@pytest.mark.parametrize("bound", [-1, timedelta(microseconds=-1)])
def test_a_negative_bound_is_refused(bound: Any) -> None:
    with pytest.raises(PlanError, match="the bound cannot be negative"):
        limit_out_of_orderness(bound)


def test_the_generator_reads_like_its_call() -> None:
    assert repr(limit_out_of_orderness(timedelta(hours=24))) == "limit_out_of_orderness(1 day, 0:00:00)"


EXTREMES = st.sampled_from([MIN_EPOCH + 1, MIN_EPOCH + 9, -1, 0, MAX_EPOCH - 9, MAX_EPOCH - 1])
WIDE = st.lists(st.one_of(st.integers(-50, 50), EXTREMES), min_size=1, max_size=12)


@given(
    batches=st.lists(st.one_of(TIMES, WIDE), min_size=1, max_size=5),
    bound=st.one_of(st.integers(0, 30), st.sampled_from([MAX_EPOCH - 1, MAX_EPOCH, 2**64, 2**70])),
    raised=st.one_of(st.none(), st.integers(-60, 60), EXTREMES),
)
def test_t1_an_array_is_judged_as_a_list(batches: list[list[int]], bound: int, raised: int | None) -> None:
    by_list, by_array = (limit_out_of_orderness(bound).tracker("ms") for _ in range(2))
    assert isinstance(by_array, ArrayTracker)
    for times in batches:
        late = by_array.observe_array(np.array(times, np.int64))
        assert by_list.observe(times) == ([] if late is None else late.nonzero()[0].tolist())
        assert late is None or late.any()
        assert (by_list.epoch, int) == (by_array.epoch, type(by_array.epoch))
        if raised is not None:
            by_list.raise_to(raised)
            by_array.raise_to(raised)


def test_arrays_are_given_only_to_trackers_that_take_them() -> None:
    class Plain:
        epoch = 0

        def observe(self, timestamps: list[int]) -> list[int]:
            return []

        def raise_to(self, epoch: int) -> None:
            """Do nothing."""

        def snapshot(self) -> Any:
            return None

        def restore(self, state: Any) -> None:
            """Return no state."""

    assert not isinstance(Plain(), ArrayTracker)


def test_idle_after_is_a_time_above_nothing() -> None:
    assert after_s(None, "epochs", "idle_after") is None
    assert after_s(timedelta(milliseconds=1), "epochs", "idle_after") == 0.001


@pytest.mark.parametrize("idle_after", [timedelta(0), timedelta(seconds=-1), 5, 0.5, "5s", True], ids=repr)
def test_t2_what_is_no_time_above_nothing_is_refused_as_idle_after(idle_after: Any) -> None:
    with pytest.raises(PlanError, match="step 'epochs': idle_after must be a timedelta above 0, got "):
        after_s(idle_after, "epochs", "idle_after")


@pytest.mark.parametrize(
    ("max_ahead", "unit", "expected"),
    [
        (None, "ms", None),
        (0, "ms", 0),
        (7, "ns", 7),
        (timedelta(seconds=2), "ms", 2_000),
        (timedelta(microseconds=1), "s", 1),
    ],
)
def test_max_ahead_is_in_the_streams_unit(max_ahead: Any, unit: Unit, expected: int | None) -> None:
    assert max_ahead_of(max_ahead, unit, "epochs") == expected


@pytest.mark.parametrize("max_ahead", [0.5, "5s", True, object()], ids=lambda value: type(value).__name__)
def test_t4_what_is_no_length_of_time_is_refused_as_max_ahead(max_ahead: Any) -> None:
    with pytest.raises(
        PlanError, match="step 'epochs': max_ahead must be a timedelta, or an int in the stream's unit, got "
    ):
        max_ahead_of(max_ahead, "ms", "epochs")


@pytest.mark.parametrize("max_ahead", [-1, timedelta(microseconds=-1_001)], ids=repr)
def test_t4_max_ahead_is_not_negative(max_ahead: Any) -> None:
    with pytest.raises(PlanError, match="step 'epochs': max_ahead cannot be negative, got "):
        max_ahead_of(max_ahead, "ms", "epochs")
