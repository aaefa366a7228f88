"""The coordinator has state sent ahead of each move that is worth it (R12)."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.protocol import (
    BarrierPassed,
    InjectBarrier,
    RegionDone,
    RescaleMove,
    SendAhead,
    SentAhead,
    StartMove,
    Switched,
)
from malstrom_py.workers.coordinator import machine as cm
from malstrom_py.workers.coordinator.machine import Topology


def made(
    members: tuple[int, ...], table: tuple[int, ...], *, least: int | None = 0, slots: int = 1
) -> cm.CoordinatorMachine:
    """A coordinator of a job with one region."""
    return cm.CoordinatorMachine(
        Topology((), {"R": ()}, {}),
        members=members,
        table=table,
        parts={},
        pacing=Pacing.fixed(slots),
        ahead_least=least,
    )


def request(machine: cm.CoordinatorMachine, *members: int) -> list[cm.Effect]:
    return checked(machine, machine.handle(cm.RescaleRequested(members)))


def checked(machine: cm.CoordinatorMachine, effects: list[cm.Effect]) -> list[cm.Effect]:
    machine.check()
    return effects


def report(machine: cm.CoordinatorMachine, *reports: object) -> list[cm.Effect]:
    return checked(machine, [effect for each in reports for effect in machine.handle(cm.ReportReceived(each))])  # type: ignore[arg-type]


def orders(effects: list[cm.Effect], kind: type) -> list[tuple[int, RescaleMove]]:
    sent = [(effect.worker, effect.order) for effect in effects if isinstance(effect, cm.Send)]
    return [
        (worker, order.move)
        for worker, order in sent
        if isinstance(order, kind) and isinstance(order, SendAhead | StartMove)
    ]


def ended(move: RescaleMove, *, size: int = 0) -> list[object]:
    """All reports of a move that took ``size`` bytes."""
    done = [RegionDone(move.version, worker, "R", bytes=size if worker else 0) for worker in move.everyone]
    return [*(Switched(move.version, worker) for worker in move.everyone), *done]


def test_r12_only_those_who_lose_slots_send_ahead_and_the_move_begins_after_the_last() -> None:
    machine = made((0, 1, 2), (0, 1, 2, 0, 1, 2), slots=8)
    effects = request(machine, 0)
    assert [worker for worker, _ in orders(effects, SendAhead)] == [1, 2]
    assert orders(effects, StartMove) == []
    assert machine.phase == "copying"
    assert report(machine, SentAhead(1, 2)) == []
    move = orders(report(machine, SentAhead(1, 1)), StartMove)
    assert [worker for worker, _ in move] == [0, 1, 2]
    assert machine.phase == "moving"


def test_r12_every_move_of_a_rescale_has_its_copies() -> None:
    machine = made((0, 1), (0, 1, 0, 1))
    ((_, first),) = orders(request(machine, 0), SendAhead)
    report(machine, SentAhead(1, 1))
    ((_, second),) = orders(report(machine, *ended(first)), SendAhead)
    assert (first.version, second.version) == (1, 2)


def test_r12_a_job_without_it_moves_immediately() -> None:
    machine = made((0, 1), (0, 1), least=None)
    assert orders(request(machine, 0), StartMove) != []


def test_r12_after_a_move_with_little_state_nothing_is_sent_ahead_until_a_move_has_more() -> None:
    machine = made((0, 1), (1, 1, 1, 1, 0), least=100)
    ((_, move),) = orders(request(machine, 0), SendAhead)
    sizes, ahead = (99, 100, 5), []
    report(machine, SentAhead(1, 1))
    for size in sizes:
        effects = report(machine, *ended(move, size=size))
        sent = orders(effects, SendAhead)
        ahead.append(bool(sent))
        ((_, move), *_) = sent or orders(effects, StartMove)
        if sent:
            report(machine, SentAhead(move.version, 1))
    assert ahead == [False, True, False]


def test_r12_a_report_that_no_copy_is_of_is_an_error() -> None:
    machine = made((0, 1), (0, 1))
    request(machine, 0)
    with pytest.raises(InternalError, match="was not expected"):
        report(machine, SentAhead(1, 0))


def test_r12_it_is_said_who_has_yet_to_send_ahead() -> None:
    machine = made((0, 1), (0, 1))
    request(machine, 0)
    assert machine.waiting_for() == "worker 1 to send state ahead of version 1"


def test_s1_a_barrier_waits_for_the_copy_and_its_move_and_goes_before_the_next_copy() -> None:
    machine = made((0, 1), (0, 1, 0, 1))
    ((_, move),) = orders(request(machine, 0), SendAhead)
    assert checked(machine, machine.handle(cm.SnapshotWanted("1"))) == []
    assert machine.barrier_waits
    report(machine, SentAhead(1, 1))
    effects = report(machine, *ended(move))
    assert cm.Send(1, InjectBarrier("1", None, False)) in effects
    assert orders(effects, SendAhead) == []
    ((_, second),) = orders(report(machine, BarrierPassed("1", 0), BarrierPassed("1", 1)), SendAhead)
    assert second.version == 2


def test_r9_a_request_during_a_copy_begins_after_the_rescale_that_copies() -> None:
    machine = made((0, 1), (0, 1))
    ((_, move),) = orders(request(machine, 0), SendAhead)
    assert request(machine, 0, 1, 2) == request(machine, 0, 3) == []
    report(machine, SentAhead(1, 1))
    effects = report(machine, *ended(move))
    assert cm.StartWorkers((3,), (0,), (0, 0), 1) in effects
    assert cm.Ended((0,), 1) in effects
