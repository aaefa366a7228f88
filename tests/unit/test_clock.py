"""The clocks: what the machine says, and what a test says."""

from __future__ import annotations

import time

import pytest

from malstrom_py.clock import Clock, SystemClock


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
