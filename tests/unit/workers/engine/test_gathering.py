"""When the turns of a worker begin, in virtual time: a trickle gathers, and much work does not wait."""

from __future__ import annotations

import pytest

from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.gathering import AWAKE_S, GATHER_S, ROWS_BUSY, Gathering

TURN_S = 0.001


def waits_of(rows: list[int], *, batching: Batching | None = None, urgent: int = -1) -> list[float]:
    """Return, in ms, how long each turn after one with ``rows`` may wait; the turn ``urgent`` has had an order."""
    clock, gathering = VirtualClock(), Gathering(batching or Batching())
    clock.advance(1.0)
    waits = []
    for turn, polled in enumerate(rows):
        gathering.begins(clock.monotonic_s(), 0, urgent=turn == urgent)
        clock.advance(TURN_S)
        gathering.ended(clock.monotonic_s(), polled, waits=False)
        waits.append(pause_s := gathering.pause_s(clock.monotonic_s(), gathering.turn_s))
        clock.advance(pause_s)
    return [round(1000 * wait_s, 3) for wait_s in waits]


def test_turns_with_few_rows_begin_some_milliseconds_apart() -> None:
    assert waits_of([1, 5, 0, ROWS_BUSY - 1]) == [10.0] * 4, "the whole wait is slept through: it is short"


def test_a_turn_after_a_longer_rest_is_not_held_back() -> None:
    gathering = Gathering(Batching())
    assert gathering.begins(1.0, 1)
    assert gathering.pause_s(1.002, 0.5) == pytest.approx(GATHER_S - 0.002), "then messages end the wait"
    assert gathering.pause_s(1.0 + GATHER_S, 0.5) == 0.0


def test_many_rows_end_the_waits_for_a_while() -> None:
    waits = waits_of([ROWS_BUSY] + [0] * 100)
    without = waits.index(next(filter(None, waits)))
    assert AWAKE_S <= without * TURN_S <= AWAKE_S + GATHER_S + TURN_S + 1e-9


def test_rows_of_several_turns_count_together() -> None:
    """A worker with much to do has few rows in each turn, but many in the time between two turns of a trickle."""
    gathering = Gathering(Batching())
    for turn in range(4):
        gathering.begins(1.0 + turn * TURN_S, ROWS_BUSY // 4)
        gathering.ended(1.0 + (turn + 0.5) * TURN_S, 0, waits=False)
    assert gathering.pause_s(1.0 + 4 * TURN_S, 1.0) == 0.0


def test_after_an_order_no_turn_waits_for_a_while() -> None:
    assert waits_of([1] * 4, urgent=1)[0] > 0
    assert waits_of([1] * 4, urgent=1)[1:] == [0.0] * 3


def test_rows_that_wait_for_credit_or_a_call_are_not_held_back() -> None:
    gathering = Gathering(Batching())
    gathering.begins(1.0, 1)
    gathering.ended(1.001, 0, waits=True)
    assert gathering.pause_s(1.001, 1.0) == 0.0


def test_half_the_credit_is_much() -> None:
    """A channel with little credit would else send so much in each turn only."""
    assert waits_of([4], batching=Batching(credit=Credit(rows=8))) == [0.0]


def test_without_linger_nothing_gathers_and_a_long_one_holds_nothing_back_for_longer() -> None:
    gathering = Gathering(Batching(linger_s=0))
    assert not gathering.begins(1.0, 1)
    assert gathering.pause_s(1.0, 1.0) == 0.0
    assert Gathering(Batching(linger_s=60)).turn_s == GATHER_S
    assert Gathering(Batching(linger_s=0.002)).turn_s == 0.004
