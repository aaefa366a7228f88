"""The coordinator of a rescale: each rule alone. One source S feeds A, region R (fed by A) feeds B, region Q ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import DeadlineError, InternalError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.protocol import (
    BarrierPassed,
    ByesTaken,
    FindKeys,
    ForgetKeys,
    InjectBarrier,
    MarkersIn,
    PackAhead,
    PackedAhead,
    PartsPolled,
    RegionDone,
    Report,
    RescaleMove,
    ShippedIn,
    StartMove,
    Switched,
)
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import machine as cm
from malstrom_py.workers.coordinator.machine import Topology
from malstrom_py.workers.transport.messages import Connected

TOPOLOGY = Topology(("A", "B"), {"R": ("B",), "Q": ()}, {"S": ("A", "B")})


@pytest.fixture
def coordinator() -> Iterator[cm.CoordinatorMachine]:
    machine = made((0, 1), (0, 1, 0, 1), slots_max=8)
    yield machine
    machine.check()


def made(members: tuple[int, ...], table: tuple[int, ...], *, slots_max: int) -> cm.CoordinatorMachine:
    parts = {("S", str(number)): members[number % len(members)] for number in range(2)}
    pacing = Pacing.fixed(slots_max)
    return cm.CoordinatorMachine(TOPOLOGY, members=members, table=table, parts=parts, pacing=pacing)


def told(machine: cm.CoordinatorMachine, *reports: Report) -> list[ce.Effect]:
    return [effect for report in reports for effect in machine.handle(ce.ReportReceived(report))]


def move_of(effects: list[ce.Effect]) -> RescaleMove:
    return next(e.order.move for e in effects if isinstance(e, ce.Send) and isinstance(e.order, StartMove))


def all_reports(move: RescaleMove) -> list[Report]:
    """Everything that the workers report of a move, in an order that may be."""
    reports: list[Report] = [Switched(move.version, worker) for worker in move.everyone]
    reports += [MarkersIn(move.version, worker, exchange) for worker in move.everyone for exchange in ("A", "B")]
    reports += [ShippedIn(move.version, worker, "B") for worker in move.everyone]
    reports += [RegionDone(move.version, worker, region) for worker in move.everyone for region in ("R", "Q")]
    return reports + [PartsPolled(move.version, worker, "S") for worker in sorted({p.taker for p in move.parts})]


def request(machine: cm.CoordinatorMachine, *members: int) -> list[ce.Effect]:
    return machine.handle(ce.RescaleRequested(members))


def test_r1_joiners_are_started_from_the_old_table_before_the_first_move(coordinator: cm.CoordinatorMachine) -> None:
    started, *orders = request(coordinator, 0, 1, 2, 3)
    assert started == ce.StartWorkers((2, 3), (0, 1), (0, 1, 0, 1), 0)
    assert orders == [ce.Send(worker, FindKeys()) for worker in (0, 1)], "who will lose slots lists its keys first"
    assert coordinator.handle(Connected(3)) == []
    effects = coordinator.handle(Connected(2))
    assert [e.worker for e in effects if isinstance(e, ce.Send)] == [0, 1, 2, 3]
    assert move_of(effects).old == (0, 1)


@given(st.permutations(range(13)))
def test_the_order_of_reports_does_not_matter(order: list[int]) -> None:
    def after(numbers: list[int]) -> tuple[object, ...]:
        machine = made((0, 1), (0, 1, 0, 1), slots_max=8)
        reports = all_reports(move_of(request(machine, 0)))
        effects = told(machine, *(reports[number] for number in numbers))
        state = {name: value for name, value in vars(machine).items() if name not in ("_plan_moves", "_topology")}
        return state, sorted(map(repr, effects))

    assert after(order) == after(sorted(order))


def test_r7_the_next_move_is_planned_by_what_the_last_one_took() -> None:
    topology = Topology(("A",), {"R": (), "Q": ()}, {})
    slots = 1024
    machine = cm.CoordinatorMachine(topology, members=(0,), table=(0,) * slots, parts={}, pacing=Pacing.of(slots))
    request(machine, 0, 1)
    effects = machine.handle(Connected(1))
    taken: list[int] = []
    pauses_s = [0.01, 0.1]
    while machine.phase is cm.CoordinatorPhase.MOVING:
        move, before = move_of(effects), machine.table
        pause_s = pauses_s.pop(0) if pauses_s else 0.0
        # The slowest region of the slowest worker counts.
        done = [
            RegionDone(move.version, worker, region, paused_s=pause_s * (worker + 1) * share, keys=3, bytes=1 << 20)
            for worker in (0, 1)
            for region, share in (("R", 0.5), ("Q", 0.1))
        ]
        marked = [MarkersIn(move.version, worker, "A") for worker in (0, 1)]
        effects = told(machine, *(Switched(move.version, worker) for worker in (0, 1)), *marked, *done)
        taken.append(sum(was != now for was, now in zip(before, machine.table, strict=True)))
    assert taken[:3] == [16, 31, 6]
    assert sum(taken) == slots // 2
    assert max(taken) > 31
    assert (machine.moved.keys, machine.moved.bytes) == (len(taken) * 12, len(taken) * (4 << 20))
    # The next rescale starts with a small move again: state may have grown.
    opening = move_of(request(machine, 0))
    assert (opening.table, opening.more, opening.losing) == (machine.table, True, (1,))
    first = opening_ended(machine, opening)
    assert sum(was != now for was, now in zip(machine.table, first.table, strict=True)) == 16


def opening_ended(machine: cm.CoordinatorMachine, opening: RescaleMove) -> RescaleMove:
    """Return the move after one that has moved no slot."""
    reports: list[Any] = []
    for worker in opening.everyone:
        reports += [Switched(opening.version, worker), MarkersIn(opening.version, worker, "A")]
        reports += [RegionDone(opening.version, worker, region) for region in ("R", "Q")]
    return move_of(told(machine, *reports))


LATE = DeadlineError("worker 3 did not start")


def test_r1_a_rescale_whose_joiners_do_not_come_up_is_called_off_and_nothing_has_changed(
    coordinator: cm.CoordinatorMachine,
) -> None:
    before = (coordinator.members, coordinator.table, coordinator.version, coordinator.parts)
    request(coordinator, 0, 1, 2, 3)
    coordinator.handle(Connected(2))
    forgotten = [ce.Send(worker, ForgetKeys()) for worker in (0, 1)]
    assert coordinator.handle(ce.RescaleCalledOff(LATE)) == [ce.Ended((0, 1), 0, LATE), *forgotten]
    assert coordinator.phase is cm.CoordinatorPhase.STEADY
    assert (coordinator.members, coordinator.table, coordinator.version, coordinator.parts) == before
    assert (coordinator.target, coordinator.waiting_for()) == ((0, 1), "nothing")


def test_r1_a_joiner_that_connects_after_its_rescale_was_called_off_is_ignored(
    coordinator: cm.CoordinatorMachine,
) -> None:
    request(coordinator, 0, 1, 2)
    coordinator.handle(ce.RescaleCalledOff(LATE))
    assert coordinator.handle(Connected(2)) == []
    assert request(coordinator, 0, 1, 3)[0] == ce.StartWorkers((3,), (0, 1), (0, 1, 0, 1), 0)
    assert coordinator.handle(Connected(2)) == []
    assert coordinator.phase is cm.CoordinatorPhase.JOINING
    assert move_of(coordinator.handle(Connected(3))).everyone == (0, 1, 3)
    assert coordinator.handle(Connected(2)) == []


def test_r9_the_request_that_waits_begins_when_the_one_before_it_is_called_off(
    coordinator: cm.CoordinatorMachine,
) -> None:
    request(coordinator, 0, 1, 2)
    request(coordinator, 0, 1, 3)
    request(coordinator, 0)
    ended, *orders = coordinator.handle(ce.RescaleCalledOff(LATE))
    assert ended == ce.Ended((0, 1), 0, LATE)
    assert move_of(orders).new == (0,)


@pytest.mark.parametrize("phase", ["steady", "moving", "leaving"])
def test_only_what_joins_can_be_called_off(phase: str) -> None:
    machine = made((0, 1), (0, 1, 0, 1), slots_max=8)
    if phase != "steady":
        move = move_of(request(machine, 0))
        told(machine, *(all_reports(move) if phase == "leaving" else ()))
    assert machine.phase == phase
    with pytest.raises(InternalError, match=f"coordinator, {phase}: called off is not expected"):
        machine.handle(ce.RescaleCalledOff(LATE))


def test_a_report_while_nothing_moves_is_an_internal_error(coordinator: cm.CoordinatorMachine) -> None:
    with pytest.raises(InternalError, match="while nothing moves"):
        told(coordinator, Switched(1, 0))


def test_a_report_of_another_version_is_an_internal_error(coordinator: cm.CoordinatorMachine) -> None:
    request(coordinator, 0)
    with pytest.raises(InternalError, match="was not expected"):
        told(coordinator, Switched(2, 0))


def test_a_report_that_comes_twice_is_an_internal_error(coordinator: cm.CoordinatorMachine) -> None:
    request(coordinator, 0)
    with pytest.raises(InternalError, match="was not expected"):
        told(coordinator, Switched(1, 0), Switched(1, 0))


def test_r8_without_exchanges_leavers_go_at_once() -> None:
    topology = Topology((), {}, {"S": ()})
    machine = cm.CoordinatorMachine(topology, members=(0, 1), table=(0, 1), parts={}, pacing=Pacing.fixed(8))
    request(machine, 0)
    assert told(machine, Switched(1, 0), Switched(1, 1)) == [ce.Ended((0,), 1)]


def test_r7_it_says_what_it_waits_for_and_first_what_other_things_wait_for() -> None:
    coordinator = made((0, 1), (0, 1, 0, 1), slots_max=8)
    assert coordinator.waiting_for() == "nothing"
    coordinator.handle(ce.RescaleRequested((0, 12, 2)))
    assert coordinator.waiting_for() == "worker 2 to connect, worker 12 to connect"
    coordinator.handle(Connected(2))
    assert coordinator.waiting_for() == "worker 12 to connect"
    move = move_of(coordinator.handle(Connected(12)))
    assert coordinator.waiting_for() == (
        "worker 0 to switch to version 1, worker 1 to switch to version 1, worker 2 to switch to version 1, "
        "worker 12 to switch to version 1, and 21 more"
    )
    told(coordinator, *(Switched(1, worker) for worker in move.everyone))
    told(coordinator, *(MarkersIn(1, worker, "A") for worker in move.everyone))
    told(coordinator, *(MarkersIn(1, worker, "B") for worker in (0, 2, 12)))
    assert coordinator.waiting_for().startswith(
        "all markers on exchange 'B' at worker 1, Shipped of all workers on exchange 'B' at worker 0, "
    )


def test_r7_what_is_waited_for_is_what_has_not_been_reported() -> None:
    coordinator = made((0,), (0, 0, 0, 0), slots_max=8)
    coordinator.handle(ce.RescaleRequested((0, 1)))
    reports = all_reports(move_of(coordinator.handle(Connected(1))))
    told(coordinator, *reports[:-3])
    last = "worker 1 to read the partitions of 'S' that it gains"
    assert coordinator.waiting_for() == f"region 'Q' on worker 1, region 'R' on worker 1, {last}"
    told(coordinator, *reports[-3:-1])
    assert coordinator.waiting_for() == last
    told(coordinator, reports[-1])
    assert coordinator.waiting_for() == "nothing"


def test_r8_byes_are_named_with_who_takes_them_and_where() -> None:
    coordinator = made((0, 1, 2), (0, 1, 2, 0), slots_max=8)
    move = move_of(coordinator.handle(ce.RescaleRequested((0, 1))))
    told(coordinator, *all_reports(move), ByesTaken(1, 0, "A"), ByesTaken(1, 0, "B"), ByesTaken(1, 1, "B"))
    assert coordinator.waiting_for() == "Bye of all leavers on exchange 'A' at worker 1"


# -- barriers --


def test_s2_state_is_packed_while_moves_go_on_and_joiners_and_leavers_are_not_waited_for() -> None:
    machine = made((0, 1), (0, 1, 0, 1), slots_max=8)
    move = move_of(machine.handle(ce.RescaleRequested((1,))))
    order, wanted = PackAhead("one", "zero"), ce.SnapshotWanted("one", "zero", packs=True)
    assert machine.handle(wanted) == [ce.Send(worker, order) for worker in (0, 1)]
    assert told(machine, PackedAhead("one", 1)) == []
    machine.handle(ce.RescaleRequested((1, 2)))
    byes = told(machine, *all_reports(move), ByesTaken(1, 1, "A"), ByesTaken(1, 1, "B"))
    assert ce.BarrierBegun("one", (1,)) in byes, "the other one has left"


def test_s2_a_joiner_packs_its_state_before_a_barrier_that_waits_for_its_move() -> None:
    machine = made((0,), (0, 0), slots_max=8)
    machine.handle(ce.RescaleRequested((0, 1)))
    order = PackAhead("one", "zero")
    assert machine.handle(ce.SnapshotWanted("one", "zero", packs=True)) == [ce.Send(0, order)]
    assert told(machine, PackedAhead("one", 0)) == [], "it waits for the end of the rescale (R7)"
    assert machine.handle(Connected(1))[0] == ce.Send(1, order)
    assert told(machine, PackedAhead("one", 1)) == []


def test_s2_a_joiner_whose_rescale_was_called_off_packs_nothing(coordinator: cm.CoordinatorMachine) -> None:
    request(coordinator, 0, 1, 2, 3)
    coordinator.handle(Connected(2))
    order = PackAhead("one")
    assert coordinator.handle(ce.SnapshotWanted("one", packs=True)) == [ce.Send(worker, order) for worker in (0, 1, 2)]
    assert told(coordinator, PackedAhead("one", 0), PackedAhead("one", 1)) == []
    late = DeadlineError("they did not start", wait="the start", deadline_s=1.0)
    assert ce.BarrierBegun("one", (0, 1)) in coordinator.handle(ce.RescaleCalledOff(late))


def passed(snapshot: str, *workers: int) -> list[Report]:
    return [BarrierPassed(snapshot, worker, 0.5 * worker) for worker in workers]


def test_s1_the_barrier_of_a_snapshot_goes_to_all_members(coordinator: cm.CoordinatorMachine) -> None:
    begun, *orders = coordinator.handle(ce.SnapshotWanted("one", "zero"))
    assert begun == ce.BarrierBegun("one", (0, 1))
    assert orders == [ce.Send(worker, InjectBarrier("one", "zero")) for worker in (0, 1)]
    assert coordinator.phase is cm.CoordinatorPhase.BARRIER
    assert told(coordinator, *passed("one", 0)) == []
    assert told(coordinator, *passed("one", 1)) == [ce.CutMade("one", 0.5)]
    assert str(coordinator.phase) == "steady"


def test_r9_a_rescale_that_is_asked_for_while_a_barrier_passes_begins_behind_it(
    coordinator: cm.CoordinatorMachine,
) -> None:
    coordinator.handle(ce.SnapshotWanted("one"))
    assert coordinator.handle(ce.RescaleRequested((0,))) == []
    assert coordinator.target == (0, 1), "nothing moves yet"
    made, *orders = told(coordinator, *passed("one", 0, 1))
    assert isinstance(made, ce.CutMade)
    assert [type(order.order) for order in orders if isinstance(order, ce.Send)] == [StartMove, StartMove]


def test_r7_a_barrier_waits_for_joiners_and_for_the_end_of_a_move(coordinator: cm.CoordinatorMachine) -> None:
    coordinator.handle(ce.RescaleRequested((0, 1, 2)))
    assert coordinator.handle(ce.SnapshotWanted("one")) == []
    effects = coordinator.handle(Connected(2))
    assert not any(isinstance(effect, ce.BarrierBegun) for effect in effects)
    with pytest.raises(InternalError, match="one snapshot at a time"):
        coordinator.handle(ce.SnapshotWanted("two"))


def test_s3_behind_the_last_barrier_nothing_begins(coordinator: cm.CoordinatorMachine) -> None:
    _, *orders = coordinator.handle(ce.SnapshotWanted("one", last=True))
    assert orders == [ce.Send(worker, InjectBarrier("one", last=True)) for worker in (0, 1)]
    assert coordinator.handle(ce.RescaleRequested((0,))) == []
    assert told(coordinator, *passed("one", 0, 1)) == [ce.CutMade("one", 0.5)]
    assert coordinator.handle(ce.RescaleRequested((0, 1, 2))) == []
    assert coordinator.phase is cm.CoordinatorPhase.STEADY


def test_s3_the_last_barrier_waits_for_the_end_of_a_rescale() -> None:
    machine = made((0, 1), (0, 1, 0, 1), slots_max=1)
    move = move_of(machine.handle(ce.RescaleRequested((0,))))
    machine.handle(ce.SnapshotWanted("one", last=True))
    phases = []
    while machine.phase is cm.CoordinatorPhase.MOVING:
        effects = told(machine, *all_reports(move))
        phases.append(machine.phase)
        if machine.phase is cm.CoordinatorPhase.MOVING:
            move = move_of(effects)
    assert phases == [cm.CoordinatorPhase.MOVING, cm.CoordinatorPhase.LEAVING]
    byes = [ByesTaken(move.version, 0, exchange) for exchange in ("A", "B")]
    effects = told(machine, *byes)
    assert ce.Send(0, InjectBarrier("one", last=True)) in effects
    machine.check()


def test_s1_who_has_not_been_asked_does_not_report_a_barrier(coordinator: cm.CoordinatorMachine) -> None:
    with pytest.raises(InternalError, match="was not expected"):
        told(coordinator, *passed("one", 0))
    coordinator.handle(ce.SnapshotWanted("one"))
    with pytest.raises(InternalError, match="was not expected"):
        told(coordinator, *passed("two", 0))


class CountedTable(tuple[int, ...]):
    """A table that counts how often it is walked through."""

    __slots__ = ()
    walks = 0

    def __iter__(self) -> Iterator[int]:
        CountedTable.walks += 1
        return super().__iter__()


def test_the_number_of_walks_through_the_table_does_not_grow_with_the_reports_of_a_move() -> None:
    walks = []
    for workers in (4, 64):
        members = tuple(range(workers))
        machine = made(members, CountedTable(members), slots_max=8)
        CountedTable.walks = 0
        for report in all_reports(joined(machine, workers)):
            machine.handle(ce.ReportReceived(report))
            machine.check()
        walks.append(CountedTable.walks)
    assert walks[0] == walks[1]


def joined(machine: cm.CoordinatorMachine, workers: int) -> RescaleMove:
    """The first move to one worker more."""
    request(machine, *range(workers + 1))
    return move_of(machine.handle(Connected(workers)))


def test_r8_the_number_of_reports_of_byes_does_not_grow_with_the_leavers() -> None:
    for leavers in (1, 8):
        members = tuple(range(2 + leavers))
        machine = made(members, members, slots_max=64)
        effects = request(machine, 0, 1)
        while machine.phase is cm.CoordinatorPhase.MOVING:
            move = move_of(effects)
            effects = told(machine, *all_reports(move))
        byes = [ByesTaken(move.version, worker, exchange) for worker in (0, 1) for exchange in ("A", "B")]
        assert told(machine, *byes) == [ce.Ended((0, 1), move.version)]
