"""The clocks: what the machine says, and what a test says."""

from __future__ import annotations

import time

import pytest

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.testing import VirtualClock


def test_the_system_clock_is_that_of_the_machine() -> None:
    clock: Clock = SystemClock()
    before = time.time(), time.monotonic()
    now = clock.now_s(), clock.monotonic_s()
    after = time.time(), time.monotonic()
    assert before[0] <= now[0] <= after[0]
    assert before[1] <= now[1] <= after[1]


def test_the_system_clock_sleeps_through_the_system() -> None:
    with pytest.raises(AssertionError, match=r"time\.sleep is forbidden"):
        SystemClock().sleep_s(0)


# A virtual clock


def test_it_is_a_clock_that_begins_where_it_is_told() -> None:
    clock: Clock = VirtualClock(start_s=1_000.0)
    assert (clock.now_s(), clock.monotonic_s()) == (1_000.0, 0.0)


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = VirtualClock(10.0)
    clock.advance(2.5)
    clock.sleep_s(1.5)
    assert (clock.now_s(), clock.monotonic_s()) == (14.0, 4.0)
    assert clock.slept_s == [1.5]


@pytest.mark.parametrize("duration_s", [-1.0, float("nan")])
def test_time_does_not_go_back(duration_s: float) -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(duration_s)
    with pytest.raises(ValueError, match="time does not go back"):
        clock.sleep_s(duration_s)
    assert (clock.monotonic_s(), clock.slept_s) == (0.0, [])


def test_a_sleep_of_nothing_is_allowed() -> None:
    clock = VirtualClock()
    clock.sleep_s(0)
    assert clock.monotonic_s() == 0.0
