"""The sending side of a worker: what it refuses. tests/simulation/protocol_model has a wrong one for each rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import (
    Leave,
    PartMove,
    RescaleMove,
    StartMove,
)

GIVEN, TAKEN = PartMove("S", "0", 0, 1), PartMove("S", "1", 1, 0)
MOVE = RescaleMove(1, (0, 1), (0, 1), (0, 1), (GIVEN, TAKEN))
PLAIN = RescaleMove(1, (0, 1), (0, 1), (1, 0))


@pytest.fixture
def switch() -> Iterator[sm.SendingMachine]:
    machine = sm.SendingMachine(0)
    yield machine
    machine.check()


def order(move: RescaleMove) -> sm.RescaleOrdered:
    return sm.RescaleOrdered(StartMove(move))


def test_r7_a_second_move_while_parts_are_awaited_is_an_internal_error(switch: sm.SendingMachine) -> None:
    switch.handle(order(MOVE))
    with pytest.raises(InternalError, match="a move during another move"):
        switch.handle(order(PLAIN))


def test_r7_a_version_that_is_not_next_is_an_internal_error(switch: sm.SendingMachine) -> None:
    with pytest.raises(InternalError, match="to version 3 from 0"):
        switch.handle(order(RescaleMove(3, (0, 1), (0, 1), (1, 0))))


def test_r8_bye_is_the_last(switch: sm.SendingMachine) -> None:
    assert switch.handle(sm.LeaveOrdered(Leave())) == [sm.SayBye()]
    assert not switch.may_poll
    with pytest.raises(InternalError):
        switch.handle(order(PLAIN))


def test_r8_leaving_while_parts_are_awaited_is_an_internal_error(switch: sm.SendingMachine) -> None:
    switch.handle(order(MOVE))
    with pytest.raises(InternalError, match="leave is not expected"):
        switch.handle(sm.LeaveOrdered(Leave()))
