"""The sending side of a worker: each rule alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import (
    Leave,
    PartHandedOver,
    PartMove,
    PartsPolled,
    PollParts,
    RescaleMove,
    SendReport,
    StartMove,
    Switched,
)

GIVEN, TAKEN = PartMove("S", "0", 0, 1), PartMove("S", "1", 1, 0)
MOVE = RescaleMove(1, (0, 1), (0, 1), (0, 1), (GIVEN, TAKEN))
CAME = sm.PartCame(PartHandedOver(1, TAKEN, 7))
PLAIN = RescaleMove(1, (0, 1), (0, 1), (1, 0))


@pytest.fixture
def switch() -> Iterator[sm.SendingMachine]:
    machine = sm.SendingMachine(0)
    yield machine
    machine.check()


def order(move: RescaleMove) -> sm.RescaleOrdered:
    return sm.RescaleOrdered(StartMove(move))


def test_r2_without_parts_it_flushes_and_switches_at_once(switch: sm.SendingMachine) -> None:
    assert switch.handle(order(PLAIN)) == [sm.FlushOutgoing(), sm.SwitchExchanges(PLAIN), SendReport(Switched(1, 0))]
    assert switch.version == 1


def test_r2_it_hands_over_before_it_waits(switch: sm.SendingMachine) -> None:
    assert switch.handle(order(MOVE)) == [sm.FlushOutgoing(), sm.HandOver(1, GIVEN)]
    assert switch.phase is sm.SendingPhase.AWAITING


def test_r2_nothing_is_polled_between_handing_over_and_marker(switch: sm.SendingMachine) -> None:
    assert switch.may_poll
    switch.handle(order(MOVE))
    assert not switch.may_poll
    switch.handle(CAME)
    assert switch.may_poll


def test_r2_what_was_gathered_while_it_waited_leaves_before_the_marker(switch: sm.SendingMachine) -> None:
    switch.handle(order(MOVE))
    assert switch.handle(CAME) == [
        sm.FlushOutgoing(),
        sm.TakePart(CAME.part),
        sm.SwitchExchanges(MOVE),
        SendReport(Switched(1, 0)),
    ]


def test_r2_a_part_may_come_before_the_order(switch: sm.SendingMachine) -> None:
    assert switch.handle(CAME) == []
    assert sm.TakePart(CAME.part) in switch.handle(order(MOVE))


def test_r2_it_waits_for_all_the_parts_that_it_gains() -> None:
    machine = sm.SendingMachine(0)
    other = PartMove("T", "0", 1, 0)
    machine.handle(order(RescaleMove(1, (0, 1), (0, 1), (0, 1), (TAKEN, other))))
    assert machine.handle(CAME) == []
    assert machine.handle(sm.PartCame(PartHandedOver(1, other, 3)))[-1] == SendReport(Switched(1, 0))


def test_r6_gained_parts_are_polled_when_the_coordinator_says_so(switch: sm.SendingMachine) -> None:
    polled = switch.handle(sm.PollOrdered(PollParts(1, "S")))
    assert polled == [sm.PollGained("S"), SendReport(PartsPolled(1, 0, "S"))]


def test_r6_leave_to_poll_that_comes_before_the_parts_waits_for_them(switch: sm.SendingMachine) -> None:
    switch.handle(order(MOVE))
    assert switch.handle(sm.PollOrdered(PollParts(1, "S"))) == []
    effects = switch.handle(CAME)
    assert effects[-2:] == [sm.PollGained("S"), SendReport(PartsPolled(1, 0, "S"))]
    assert effects.index(sm.SwitchExchanges(MOVE)) < effects.index(sm.PollGained("S"))


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
