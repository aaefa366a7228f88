"""`limit_out_of_orderness`: the running epoch of one part, and which records are late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.epochs import ArrayTracker, idle_after_s, limit_out_of_orderness, max_ahead_of
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.time import Unit
from malstrom_py.errors import PlanError

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


def test_t1_with_a_bound_of_0_only_the_largest_and_its_equals_are_on_time() -> None:
    assert limit_out_of_orderness(0).tracker("ms").observe([5, 5, 4, 6, 5]) == [2, 4]


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


def test_t1_a_raised_epoch_does_not_sink_within_a_batch() -> None:
    tracker = limit_out_of_orderness(30).tracker("ms")
    tracker.raise_to(20)
    assert tracker.observe([21, 15, 60, 29]) == [1, 3]
    assert tracker.epoch == 29


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
    assert idle_after_s(None, "epochs") is None
    assert idle_after_s(timedelta(milliseconds=1), "epochs") == 0.001


@pytest.mark.parametrize("idle_after", [timedelta(0), timedelta(seconds=-1), 5, 0.5, "5s", True], ids=repr)
def test_t2_what_is_no_time_above_nothing_is_refused_as_idle_after(idle_after: Any) -> None:
    with pytest.raises(PlanError, match="step 'epochs': idle_after must be a timedelta above 0, got "):
        idle_after_s(idle_after, "epochs")


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
