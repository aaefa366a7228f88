"""R13: new parts get their workers while nothing moves, each one worker, before the next barrier or move."""

from __future__ import annotations

from typing import Any

from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import rebalanced_parts
from malstrom_py.rescale.moves.protocol import (
    AddParts,
    BarrierPassed,
    StartMove,
)
from malstrom_py.workers.coordinator.machine import (
    CoordinatorMachine,
    Effect,
    Event,
    PartsFound,
    ReportReceived,
    RescaleRequested,
    Send,
    SnapshotWanted,
    Topology,
)


def machine(workers: int = 2, **parts: int) -> CoordinatorMachine:
    owned = {("in", part): worker for part, worker in parts.items()}
    topology = Topology((), {}, {"in": (), "other": ()})
    members = range(workers)
    return CoordinatorMachine(topology, members=members, table=(0, workers - 1), parts=owned, pacing=Pacing.fixed(100))


def found(*parts: str, source: str = "in", position: Any = None) -> PartsFound:
    return PartsFound(source, tuple((part, position) for part in parts))


def added(effects: list[Effect]) -> list[tuple[int, AddParts]]:
    return [
        (effect.worker, effect.order)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.order, AddParts)
    ]


def names(effects: list[Effect]) -> list[tuple[int, tuple[str, ...]]]:
    return [(worker, tuple(part for part, _ in order.parts)) for worker, order in added(effects)]


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect.order) if isinstance(effect, Send) else type(effect) for effect in effects]


def reported(made: CoordinatorMachine, *reports: Any) -> list[Effect]:
    return [effect for report in reports for effect in made.handle(ReportReceived(report))]


def test_r13_a_new_part_goes_to_the_worker_with_the_fewest_of_its_source() -> None:
    made = machine(3, a=0, b=1)
    assert names(made.handle(found("c"))) == [(2, ("c",))]
    assert names(made.handle(found("d", "e", "f", "g"))) == [(0, ("d", "g")), (1, ("e",)), (2, ("f",))]
    assert names(made.handle(found("x", source="other"))) == [(0, ("x",))]
    assert made.parts["in", "g"] == 0
    assert rebalanced_parts(made.parts, made.members) == []


def test_r13_parts_that_appear_one_by_one_are_dealt_as_those_at_the_start() -> None:
    made, dealt = machine(3), [machine(3).handle(found(*"abcdefg"))]
    for part in "abcdefg":
        made.handle(found(part))
    together = {part: worker for worker, parts in names(dealt[0]) for part in parts}
    assert {part: worker for (_, part), worker in made.parts.items()} == together


def test_r13_parts_found_during_a_barrier_are_added_before_the_rescale_that_waits() -> None:
    made = machine(2, a=0)
    made.handle(SnapshotWanted("one"))
    made.handle(found("b"))
    made.handle(RescaleRequested((0,)))
    passed = reported(made, BarrierPassed("one", 0), BarrierPassed("one", 1))
    assert kinds(passed)[1:4] == [AddParts, StartMove, StartMove]
    assert len(added(passed)) == 1
    moves = [effect.order.move for effect in passed if isinstance(effect, Send) and isinstance(effect.order, StartMove)]
    assert [(part.part, part.giver, part.taker) for part in moves[0].parts] == [("b", 1, 0)]


def test_r13_after_the_last_barrier_of_a_stop_no_part_is_added() -> None:
    made = machine(2, a=0)
    made.handle(SnapshotWanted("one", last=True))
    events: list[Event] = [found("b"), ReportReceived(BarrierPassed("one", 0)), ReportReceived(BarrierPassed("one", 1))]
    effects = [effect for event in events for effect in made.handle(event)]
    assert added(effects) == []
    assert made.handle(found("c")) == []
