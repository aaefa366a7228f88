"""T2: parts that have nothing to read, and never end, do not hold event time back, through every rescale. T7: not even
if all of them are silent.

Rule: nothing here ends before it is checked. In the jobs of seeds all parts end, so there a lost idleness only delays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.idle_sources import IdleSource
from malstrom_py.workers.engine.worker_loop import IDLE_S
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import Head, Layout, Stage, Timing, Way
from tests.simulation.jobs.restoring import until
from tests.simulation.jobs.verdicts import Violation, require
from tests.simulation.jobs.wrong_protocols import Change, Right, nothing

BOUND: Final = 4
ROUNDS: Final = 4
KEYS: Final = 5
LAG: Final = 25
WIDTH: Final = 10
SILENCE: Final = 2_000
AHEAD: Final = 30
"""How far event time has to get in a round."""
SEEDS: Final = 25

LAYOUT: Final = Layout(
    (Head("s", ("s",), Timing(BOUND, "ms", idle_s=0.05)), Head("t", ("t",), Timing(BOUND, "ms", idle_s=0.05))),
    (
        Stage("a", (Way("s"), Way("t")), kind="windows", window=WIDTH),
        Stage("b", (Way("a"),), key="number", ttl=30),
    ),
).finished()


class Busy:
    """Feeds each part that is ``read``, whenever it has nothing left, with a record that is later than all before.

    A part may lag by `LAG`, also after it was silent.
    """

    def __init__(self, rng: random.Random) -> None:
        self.read: dict[tuple[str, str], int] = {}
        self.time = 0
        self._rng = rng

    def choose(self, feds: Mapping[str, Fed]) -> None:
        """Choose which parts are read, at least one of each source and never all."""
        rng = self._rng
        chosen = [
            (name, part)
            for name, fed in feds.items()
            for part in rng.sample(fed.open, rng.randint(1, len(fed.open) - 1))
        ]
        self.read = {part: rng.choice((0, 0, LAG)) for part in chosen}

    def more(self, fed: Fed, part: str) -> None:
        """Feed one record."""
        lag = self.read.get((fed.name, part))
        if lag is not None:
            self.time += 1
            fed.feed(part, self.time % KEYS, self.time - lag)


def check(seed: int) -> None:
    """In each round some parts of both sources are read, the others are silent; then the job is rescaled."""
    rng = random.Random(seed)
    busy = Busy(rng)
    feds = {
        name: Fed(name, parts={str(part): () for part in range(rng.randint(2, 4))}, more=busy.more) for name in "st"
    }
    batching = mp.Batching(rows_max=rng.choice((2, 50)))
    driven = Driven(LAYOUT, feds, Steered(seed, tick=0.05), workers=rng.randint(1, 3), slots=16, batching=batching)
    for _ in range(ROUNDS):
        busy.choose(feds)
        until(driven, partial(have_reached, driven, busy.time + AHEAD))
        driven.rescale(rng.randint(1, 4))
        until(driven, lambda: len(driven.reports) == len(driven.asked))
    busy.read.clear()
    driven.end()


class Punctual(Busy):
    """Feeds records that are above every epoch so far, which ``furthest`` returns: such a record may not be late."""

    furthest: Callable[[], int]

    def more(self, fed: Fed, part: str) -> None:
        if (fed.name, part) in self.read:
            self.time = max(self.time, self.furthest()) + 1
            fed.feed(part, self.time % KEYS, self.time)


def check_silence(seed: int) -> None:
    """In each round all parts fall silent, some workers come or go then, and the last windows close."""
    rng = random.Random(seed)
    busy = Punctual(rng)
    feds = {
        name: Fed(name, parts={str(part): () for part in range(rng.randint(2, 4))}, more=busy.more) for name in "st"
    }
    batching = mp.Batching(rows_max=rng.choice((2, 50)))
    driven = Driven(LAYOUT, feds, Steered(seed, tick=0.05), workers=rng.randint(1, 3), slots=16, batching=batching)
    busy.furthest = partial(furthest_of, driven)
    for _ in range(ROUNDS):
        busy.choose(feds)
        until(driven, partial(have_reached, driven, busy.time + AHEAD))
        busy.read.clear()
        began_s, furthest = driven._case.clock.monotonic_s(), max(busy.time, furthest_of(driven))
        until(driven, partial(have_reached, driven, busy.time + WIDTH))
        driven.rescale(rng.randint(1, 4))
        until(driven, lambda: len(driven.reports) == len(driven.asked))
        until(driven, partial(have_reached, driven, busy.time + SILENCE))
        passed_s = driven._case.clock.monotonic_s() - began_s
        # The last epoch before may be as old as the last poll.
        require(
            furthest_of(driven) <= furthest + 1_000 * (passed_s + IDLE_S),
            "in a silence event time ran ahead of the clock",
        )
    driven.end()
    outcome = driven._case.seen.outcome()
    require(not any(outcome.rows[f"{name}-late"] for name in "st"), "a record above all epochs was late")


def furthest_of(driven: Driven) -> int:
    """Return the largest epoch of all steps so far, below the maximum."""
    frontiers = driven._case.seen.frontiers.values()
    return max((time for times in frontiers for time in times if time != MAX_EPOCH), default=0)


@pytest.mark.long("1*", "2*")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_t7_windows_close_although_all_parts_are_silent_for_ever(seed: int) -> None:
    check_silence(seed)


def have_reached(driven: Driven, time: int) -> bool:
    """Whether both stages have reached ``time`` on all workers."""
    frontiers = driven._case.seen.frontiers
    return all(
        frontiers.get((stage, worker), [-1])[-1] >= time
        for stage in ("a-in", "b-in")
        for worker in driven.coordinator.members
    )


@pytest.mark.long("1*", "2*")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_t2_time_passes_although_parts_are_silent_for_ever(seed: int) -> None:
    check(seed)


def awake_in_markers(right: Right) -> Right:
    """The marker of an idle worker says that it is not idle."""
    return lambda exchange, move, *, before, after, idle: right(exchange, move, before=before, after=after, idle=False)


def awake_while_held(right: Right) -> Right:
    """An epoch that waits for the cut loses its idle flag."""

    def epoch(machine: Any, exchange: str, sender: int, time: int, idle: bool = False) -> Any:
        return right(machine, exchange, sender, time, idle and sender not in machine._sides[exchange].before)

    return epoch


def as_before_the_cut(right: Right) -> Right:
    """Who was idle before the cut is so after it: markers are ignored."""

    def cut(machine: Any, move: Any) -> Any:
        idle = {name: set(side.idle) for name, side in machine._sides.items()}
        effects = right(machine, move)
        for name, side in machine._sides.items():
            side.idle = idle[name]
        return effects

    return cut


def idle_ones_count(right: Right) -> Right:
    """An idle worker follows idle ones too."""

    def active(machine: Any, exchange: str) -> int | None:
        return min((time for time in machine._sides[exchange].frontier.values() if time != MAX_EPOCH), default=None)

    return active


WRONG: Final[dict[str, tuple[int, Change]]] = {
    "idle workers do not follow": (0, (IdleSource, "follow", nothing)),
    "idle workers follow idle ones": (0, (ReceivingMachine, "active", idle_ones_count)),
    "idleness is lost in markers": (42, (Exchange, "switch", awake_in_markers)),
    "idleness is lost in held epochs": (4, (ReceivingMachine, "epoch", awake_while_held)),
    "idleness is that before the cut": (42, (ReceivingMachine, "_cut", as_before_the_cut)),
}
"""Wrong protocols, with a seed that shows each."""


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_t2_time_stands_still_if(name: str) -> None:
    seed, (place, method, wrong) = WRONG[name]
    with patch.object(place, method, wrong(getattr(place, method))), pytest.raises(Violation, match="P8"):
        check(seed)


def still(right: Right) -> Right:
    """In a silence time does not pass."""
    return lambda source, epoch: None


def from_the_last_epoch(right: Right) -> Right:
    """Each epoch of a silence adds all the time since its beginning to the one before."""

    def by_clock(source: Any, epoch: int | None) -> int | None:
        time: int | None = right(source, epoch)
        if source._silence is not None and time is not None:
            source._silence = (source._silence[0], time)
        return time

    return by_clock


def not_after_a_move(right: Right) -> Right:
    """Who has had a rescale does not see a silence any more."""
    return lambda machine, exchange: right(machine, exchange) if machine.version == 0 else None


WRONG_IN_SILENCE: Final[dict[str, tuple[str, int, Change]]] = {
    "time does not pass": ("P8", 0, (IdleSource, "_by_clock", still)),
    "each epoch adds to the one before": ("ahead of the clock", 1, (IdleSource, "_by_clock", from_the_last_epoch)),
    "it is not seen after a rescale": ("P8", 0, (ReceivingMachine, "silent", not_after_a_move)),
}
"""Wrong silences: what shows each, and a seed."""


@pytest.mark.parametrize("name", WRONG_IN_SILENCE)
def test_t7_it_is_seen_if_in_a_silence(name: str) -> None:
    shows, seed, (place, method, wrong) = WRONG_IN_SILENCE[name]
    with patch.object(place, method, wrong(getattr(place, method))), pytest.raises(Violation, match=shows):
        check_silence(seed)


def late_of_one_that_wakes() -> int:
    """Three workers read a part each: one is far ahead, one is slow, and one wakes between both. Who is late then?"""
    fed = Fed("s", parts={"0": (), "1": (), "2": ()})
    layout = Layout((LAYOUT.heads[0],), (Stage("a", (Way("s"),), kind="windows", window=WIDTH),)).finished()
    driven = Driven(layout, {"s": fed}, Steered(1, tick=0.05), workers=3, slots=16, batching=mp.Batching())
    readers = {worker: part for (_, part), worker in driven.coordinator.readers.items()}
    assert len(readers) == 3
    for time in range(100, 200):
        fed.feed(readers[0], 0, time)
        fed.feed(readers[1], 1, time - 100 if time < 150 else 50)
    slow = 50 - BOUND - 1
    frontiers = driven._case.seen.frontiers
    until(driven, lambda: all(frontiers.get(("a-in", worker), [-1])[-1] >= slow for worker in range(3)))
    fed.feed(readers[2], 2, slow + 1)
    driven.end()
    return len(driven._case.seen.outcome().rows.get("s-late", ()))


def test_t2_an_idle_worker_follows_the_slowest() -> None:
    assert late_of_one_that_wakes() == 0


def test_t2_one_that_follows_the_fastest_is_falsely_late() -> None:
    def fastest(machine: Any, exchange: str) -> int | None:
        side = machine._sides[exchange]
        times = [time for sender, time in side.frontier.items() if sender not in side.idle and time != MAX_EPOCH]
        return max(times, default=None)

    with patch.object(ReceivingMachine, "active", fastest):
        assert late_of_one_that_wakes() == 1


def late_in_a_silence() -> int:
    """Three workers read a part each: one is far ahead, another goes by the clock, and falls silent after it. The third
    has nothing until all are silent, and keeps to the clock then.
    """

    def more(fed: Fed, part: str) -> None:
        if part == readers.get(1) and now_ms() < SILENCE:
            fed.feed(part, 1, now_ms())

    def now_ms() -> int:
        return round(1_000 * driven._case.clock.monotonic_s())

    readers: dict[int, str] = {}
    fed = Fed("s", parts={"0": (), "1": (), "2": ()}, more=more)
    layout = Layout((LAYOUT.heads[0],), (Stage("a", (Way("s"),), kind="windows", window=WIDTH),)).finished()
    driven = Driven(layout, {"s": fed}, Steered(1, tick=0.05), workers=3, slots=16, batching=mp.Batching())
    readers |= {worker: part for (_, part), worker in driven.coordinator.readers.items()}
    fed.feed(readers[0], 0, 1_000_000)
    until(driven, partial(all_at, driven, 2 * SILENCE))
    fed.feed(readers[2], 2, now_ms())
    until(driven, lambda: fed.silences[readers[2], 1] > 0)
    driven.end()
    return len(driven._case.seen.outcome().rows.get("s-late", ()))


def all_at(driven: Driven, time: int) -> bool:
    """Whether the first stage has reached ``time`` on all workers."""
    return all(driven._case.seen.frontiers.get(("a-in", worker), [-1])[-1] >= time for worker in range(3))


def test_t7_who_keeps_to_the_clock_is_on_time_although_another_part_was_far_ahead() -> None:
    assert late_in_a_silence() == 0


def test_t7_a_silence_that_goes_on_from_the_fastest_makes_falsely_late() -> None:
    def fastest(machine: Any, exchange: str) -> int | None:
        side = machine._sides[exchange]
        return max((side.frontier[sender] for sender in side.idle), default=None)

    with patch.object(ReceivingMachine, "silent", fastest):
        assert late_in_a_silence() == 1
