"""Whose turn it is while slots move: the move's first, then that of the sources, which catch up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.codec import Codec
from malstrom_py.rescale.moves.protocol import PartHandedOver, PartMove, RegionDone, RescaleMove, StartMove, Switched
from malstrom_py.sources import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import MOVE_FIRST_S, Batching, MoveTurns
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.engine.routing_switch import PartPosition
from malstrom_py.workers.engine.worker import Worker

SLOTS = 4
SAME = RescaleMove(1, (0,), (0,), (0,) * SLOTS)


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
    assert turns.owes_sources
    assert not step(clock, turns, 0.01)
    turns.end(may_read=True)
    assert turns.owes_sources
    clock.advance(0.01)
    turns.end(may_read=True)
    assert not turns.under_way


def test_sources_that_have_nothing_more_have_caught_up() -> None:
    clock, turns = begun()
    step(clock, turns, 0.02)
    turns.sources_caught_up()
    assert turns.under_way, "the move is not over"
    turns.end(may_read=True)
    turns.sources_caught_up()
    assert not turns.under_way


def test_nothing_is_owed_to_sources_that_have_not_waited_or_must_not_be_read() -> None:
    _, turns = begun()
    assert not turns.owes_sources
    turns.end(may_read=True)
    assert not turns.under_way
    clock, turns = begun()
    step(clock, turns, 0.02)
    turns.end(may_read=False)
    assert not turns.under_way


def test_what_a_step_did_before_the_switch_is_not_owed() -> None:
    clock = VirtualClock()
    turns = MoveTurns(clock)
    began_s = clock.monotonic_s()
    clock.advance(10.0)
    turns.begin()
    clock.advance(0.01)
    assert turns.comes_first(began_s, 1)
    turns.end(may_read=True)
    clock.advance(0.011)
    turns.end(may_read=True)
    assert not turns.under_way


class Ticking(VirtualClock):
    """A clock that advances by half a millisecond with each look at it."""

    def monotonic_s(self) -> float:
        self.advance(0.0005)
        return super().monotonic_s()


class Numbers:
    """A part named "empty" never has anything; any other has 8 rows at each poll."""

    def __init__(self, *parts: str) -> None:
        self._parts = [Part(part) for part in parts]

    def list_parts(self) -> Sequence[Part]:
        return self._parts

    def build_part(self, part: Part, state: Any) -> NumbersPart:
        return NumbersPart(0 if part == "empty" else 8)


class NumbersPart:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.polls = 0

    def poll(self, rows_max: int) -> list[int] | None:
        self.polls += 1
        return list(range(self._rows)) or None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self.polls

    def close(self) -> None:
        """Nothing is open."""


def alone(*parts: str, reads: bool = True) -> Worker:
    """Return the only worker of a job, at work; ``reads``: with these parts, else without."""
    job = mp.Job("turns", slots=SLOTS)
    numbers = job.source("in", Numbers(*parts)).key_by("key", lambda n: n)
    numbers.stateful_map("sum", lambda key, value, state: (value, (state or 0) + 1)).sink("out", sinks.Memory())
    member = Membership(0, (0,), (0,) * SLOTS)
    worker = Worker(job.plan(), member, batching=Batching(), clock=Ticking(), codec=Codec())
    worker.open_sinks()
    worker.open_sources({"in": [Part(part) for part in parts] if reads else []})
    for _ in range(20):
        worker.step()
    return worker


def ends(messages: Sequence[tuple[int, Any]]) -> list[Any]:
    return [message for _, message in messages if isinstance(message, RegionDone)]


@pytest.mark.parametrize(
    ("parts", "is_held"), [(("endless",), True), (("empty", "endless"), True), (("empty",), False)]
)
def test_the_end_of_a_move_is_reported_once_when_the_sources_have_caught_up(
    parts: tuple[str, ...], is_held: bool
) -> None:
    worker = alone(*parts)
    assert not ends(worker.receive(StartMove(SAME)))
    held, reported = 0, list[Any]()
    for _ in range(2_000):
        _, outgoing = worker.step()
        reported += ends(outgoing)
        held += worker.turns.owes_sources and worker.region_input("sum").machine.version == 1
        assert not worker.turns.owes_sources or worker.ready or not reported
    assert [(end.version, end.region) for end in reported] == [(1, "sum")]
    assert (held > 0) == is_held
    assert not worker.turns.under_way


def test_a_worker_that_waits_for_a_part_has_its_turn_after_the_switch() -> None:
    worker = alone("endless", reads=False)
    move = RescaleMove(1, (0, 1), (0, 1), (0,) * SLOTS, (PartMove("in", "endless", 1, 0),))
    worker.connect(1)
    worker.receive(StartMove(move))
    for _ in range(3):
        worker.step()
    assert not worker.turns.under_way
    outgoing = worker.receive(PartHandedOver(1, move.parts[0], PartPosition(0, False)))
    assert Switched(1, 0) in [message for _, message in outgoing]
    assert worker.turns.under_way
