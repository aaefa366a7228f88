"""A job in the simulator, driven step by step from outside, from its start to the oracle.

Rule: nothing happens by itself. The driver decides who works, what arrives, when time passes, and which commands run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, TypeVar

import malstrom_py as mp
from malstrom_py.errors import MalstromError
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.reports.job_status import RescaleReport
from malstrom_py.workers.simulator.coverage import Coverage
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator, SimulatedCrash
from malstrom_py.workers.simulator.simulated_job import SimulatedJob
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.jobs import Case
from tests.simulation.jobs.layouts import Layout
from tests.simulation.jobs.verdicts import require

T = TypeVar("T", bound=Hashable)

TURNS_MAX: Final = 200_000
"""After so many turns a job that is fed no more must have ended."""


class Steered(RandomSchedule):
    """Chooses among those that are not made to wait, each as likely as the others.

    ``tick``: how probable it is that time passes in a turn though there is something to do. ``held_back``: who has to
    wait, as long as there are others.
    """

    def __init__(self, seed: int, *, slots_per_move: int | None = None, tick: float = 0.0) -> None:
        super().__init__(seed)
        self._tick = tick
        self.held_back: Callable[[Hashable], bool] = _nobody
        self._slots_per_move = slots_per_move
        self._turn = 0
        self._waits_until: dict[Hashable, int] = {}

    def slots_per_move(self, slots: int) -> int | None:
        return self._slots_per_move or super().slots_per_move(slots)

    def happens(self, probability: float) -> bool:
        return bool(self._tick) and super().happens(self._tick)

    def next_of(self, actions: Sequence[Hashable]) -> Hashable:
        return self.one_of(self.awake(actions))

    def awake(self, actions: Sequence[T]) -> Sequence[T]:
        """Those that are not made to wait, one turn later; all if there are no others."""
        self._turn += 1
        if not self._waits_until and self.held_back is _nobody:
            return actions
        return [action for action in actions if self._may(action)] or actions

    def _may(self, action: Hashable) -> bool:
        return self._waits_until.get(action, 0) <= self._turn and not self.held_back(action)

    def make_wait(self, action: Hashable, turns: int) -> None:
        """Choose ``action`` only if there is no other, for a while."""
        self._waits_until[action] = self._turn + turns

    def hurry(self) -> None:
        """End all waits."""
        self._waits_until.clear()
        self.held_back = _nobody


def _nobody(action: Hashable) -> bool:
    return False


def chosen(things: Sequence[T], number: int) -> T:
    """Return one of ``things`` for any ``number``."""
    return things[number % len(things)]


class Driven:
    """A job laid out as ``layout``, that reads ``feds``. ``coverage`` counts what was hard about it."""

    def __init__(
        self,
        layout: Layout,
        feds: Mapping[str, Fed],
        chance: Steered,
        *,
        workers: int,
        slots: int,
        batching: mp.Batching,
        coverage: Coverage | None = None,
        checks: bool = False,
        snapshots: mp.Snapshots | None = None,
    ) -> None:
        self.feds = feds
        self.chance = chance
        self.coverage = coverage or Coverage()
        self.reports: list[RescaleReport] = []
        self.asked: list[int] = []
        self._case = Case("driven", layout, feds, slots)
        self.plan = self._case.job(kept=snapshots is not None).plan()
        self._job = SimulatedJob(self.plan, chance, self._case.clock, batching, self.coverage, checks=checks)
        self._job.snapshot_use = None if snapshots is None else SnapshotUse(snapshots)
        self.coordinator = self._started(workers)

    @property
    def actions(self) -> list[Hashable]:
        """Who may work, by number, the ways on which something is, and what is to be done for snapshots."""
        return [*self.coordinator.busy, *self.coordinator.ways, *self.coordinator.chores]

    @property
    def incarnation(self) -> int:
        """The number of the start of the job."""
        return self._job.incarnation

    def turn(self) -> None:
        """Let chance decide on one thing."""
        self.coordinator.step()

    def work(self, number: int) -> None:
        """Let one of those work that may."""
        self.coordinator.work(chosen(self.chance.awake(self.coordinator.busy), number))

    def deliver(self, number: int) -> None:
        """Let something arrive, on one of the ways on which something is."""
        self.coordinator.arrive(chosen(self.chance.awake(self.coordinator.ways), number))

    def write(self, number: int) -> None:
        """Let one thing be done for snapshots."""
        self.coordinator.do(chosen(self.chance.awake(self.coordinator.chores), number))

    def snapshot(self) -> None:
        """Ask for a snapshot."""
        self.coordinator.snapshot(lambda ended: None)

    def rescale(self, size: int) -> None:
        """Ask for ``size`` workers; the youngest leave first."""
        self.asked.append(size)
        self.coordinator.rescale(size, self._done)

    def replace(self, kept: Sequence[int], size: int) -> None:
        """Ask for ``size`` workers: ``kept`` of those that are there or will be, and new ones."""
        self.asked.append(size)
        self.coordinator.replace(kept, size, self._done)

    def _done(self, ended: RescaleReport | MalstromError) -> None:
        assert isinstance(ended, RescaleReport)
        self.reports.append(ended)

    def crash(self, who: str, workers: int) -> None:
        """Lose ``who``; the job resumes from its last snapshot, or starts over, with ``workers`` workers."""
        self._begin_again(lambda: self.coordinator.crash(who), workers)

    def stop(self, workers: int) -> None:
        """Stop the job after one more snapshot; it resumes from there with ``workers`` workers."""
        self.coordinator.stop()

        def turns() -> None:
            for _ in range(TURNS_MAX):
                self.turn()

        self._begin_again(turns, workers)

    def _begin_again(self, ends: Callable[[], None], workers: int) -> None:
        try:
            ends()
        except SimulatedCrash:
            errors = self.coordinator.commit.abort()
            self.coordinator.close()
            require(not errors, f"closing after the end of a run: {errors}")
        else:
            require(False, f"{TURNS_MAX} turns, and the job has not stopped: {self.coordinator.phase}")
        self.reports, self.asked = [], []
        self._job.incarnation, self._job.zombies = self._job.incarnation + 1, self.coordinator.on_its_way
        self.coordinator = self._started(workers)

    def end(self) -> None:
        """Feed nothing more, let the job finish, and compare its output with the oracle."""
        for fed in self.feds.values():
            fed.end()
        self.chance.hurry()
        for _ in range(TURNS_MAX):
            if self.coordinator.finished:
                break
            self.turn()
        require(self.coordinator.finished, f"{TURNS_MAX} turns without an end (P8): {self.coordinator.phase}")
        self._commit()
        self.check()

    def check(self) -> None:
        """`Violation` if what came out of it cannot be."""
        told = {name: fed.told() for name, fed in self.feds.items()}
        layout, outcome = self._case.layout, self._case.seen.outcome()
        Case(self._case.shape, layout, told, self._case.slots).check(outcome)
        late, fired = (
            [f"{head.name}-late" for head in layout.heads],
            [f"{stage.name}-windows" for stage in layout.stages],
        )
        self.coverage.hits["late record"] += sum(len(outcome.rows.get(sink, ())) for sink in late)
        self.coverage.hits["window fired"] += sum(len(outcome.rows.get(sink, ())) for sink in fired)
        require(len(self.reports) == len(self.asked), f"{len(self.asked)} requests, {len(self.reports)} reports (R9)")
        if self.asked:
            members = self.coordinator.members
            require(len(members) == self.asked[-1], f"workers {members}, though {self.asked[-1]} were asked for (R9)")

    def _commit(self) -> None:
        """What a run does when it has ended."""
        coordinator = self.coordinator
        if self._job.snapshot_use is not None:
            coordinator.finish()
            while coordinator.kept is None:
                self.turn()
            coordinator.close()
            return
        coordinator.pre_commit()
        coordinator.commit.commit()
        coordinator.close()

    def _started(self, workers: int) -> SimulatedCoordinator:
        coordinator = SimulatedCoordinator(self._job, workers=workers)
        coordinator.begin()
        coordinator.open()
        return coordinator
