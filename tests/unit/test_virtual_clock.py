"""`VirtualClock`: time passes when a test advances it, immediately, and never goes back."""

from __future__ import annotations

import pytest

from malstrom_py.clock import Clock
from malstrom_py.testing import VirtualClock


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
