"""`assign_timestamps`: event time from ints in the unit or aware datetimes; anything else follows `on_error`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.time import Unit
from malstrom_py.errors import OperatorError
from malstrom_py.operators.event_time import AssignTimestamps
from tests.unit.operators.stepping import Stepped

NEWYEAR_MS = 1_356_998_400_000


class Moment(IntEnum):
    NOON = 12


def times(values: list[Any], unit: Unit = "ms") -> list[int]:
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
    assert times([datetime(2013, 1, 1, tzinfo=UTC), new_york]) == [NEWYEAR_MS, NEWYEAR_MS]


def test_kinds_of_moments_may_be_mixed() -> None:
    moments = [np.int64(5), 7, Moment.NOON, datetime(1970, 1, 1, tzinfo=UTC), np.uint8(3)]
    assert times(moments, "s") == [5, 7, 12, 0, 3]


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
        times([moment])
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
