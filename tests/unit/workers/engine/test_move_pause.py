"""How long the keys of a move are held: what grows with the move, and nothing else."""

from __future__ import annotations

import pytest

from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.region_input import MovePause


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_what_leaves_is_held_from_the_last_marker_until_all_has_left(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    clock.advance(10.0)
    pause.marked()
    clock.advance(0.5)
    pause.shipped()
    clock.advance(10.0)
    assert pause.taken() == 0.5


def test_what_comes_is_held_from_the_first_parcel_until_the_last_is_in(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    clock.advance(10.0)
    for _ in range(3):
        pause.begins()
        clock.advance(0.25)
        pause.put_in()
    clock.advance(10.0)
    assert pause.taken() == 0.75


def test_the_longer_one_counts_and_the_next_move_begins_with_nothing(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    pause.begins()
    clock.advance(0.25)
    pause.put_in()
    clock.advance(0.5)
    pause.shipped()
    assert (pause.taken(), pause.taken()) == (0.75, 0.0)
    pause.begins()
    clock.advance(0.125)
    pause.put_in()
    assert pause.taken() == 0.125
