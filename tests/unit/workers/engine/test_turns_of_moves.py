"""Whose turn it is while slots move: the move's first, then that of the sources, which catch up."""

from __future__ import annotations

from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import MOVE_FIRST_S, MoveTurns


def begun() -> tuple[VirtualClock, MoveTurns]:
    clock = VirtualClock()
    turns = MoveTurns(clock)
    turns.begin()
    return clock, turns


def step(clock: VirtualClock, turns: MoveTurns, seconds: float, *, done: int = 1) -> bool:
    """Return whether a step of so many seconds, which has done other work, reads no source."""
    began_s = clock.monotonic_s()
    clock.advance(seconds)
    return turns.comes_first(began_s, done)


def test_a_move_comes_first_for_a_bounded_time() -> None:
    clock, turns = begun()
    assert step(clock, turns, MOVE_FIRST_S / 2)
    assert not step(clock, turns, MOVE_FIRST_S / 4, done=0), "a step without other work reads"
    assert not step(clock, turns, MOVE_FIRST_S / 4), "the time is over"


def test_sources_catch_up_for_as_long_as_they_have_waited() -> None:
    clock, turns = begun()
    step(clock, turns, 0.02)
    turns.end(may_read=True)
    assert turns.are_owed
    assert not step(clock, turns, 0.01)
    turns.was_read(1_000)
    turns.end(may_read=True)
    assert turns.are_owed
    clock.advance(0.01)
    turns.end(may_read=True)
    assert not turns.under_way


def test_sources_that_have_nothing_more_have_caught_up() -> None:
    clock, turns = begun()
    step(clock, turns, 0.02)
    turns.was_read(0)
    assert turns.under_way, "the move is not over"
    turns.end(may_read=True)
    turns.was_read(0)
    assert not turns.under_way


def test_nothing_is_owed_to_sources_that_have_not_waited_or_must_not_be_read() -> None:
    _, turns = begun()
    assert not turns.are_owed
    turns.end(may_read=True)
    assert not turns.under_way
    clock, turns = begun()
    step(clock, turns, 0.02)
    turns.end(may_read=False)
    assert not turns.under_way
