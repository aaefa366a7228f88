"""The coordinator of a simulated run: the schedule decides what happens next, and what is requested or crashes."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from malstrom_py.errors import InternalError, MalstromError, PeerError, PlanError, StateError
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.load import Weights
from malstrom_py.rescale.moves.protocol import BarrierPassed, StateChunk
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.job_machine import Event
from malstrom_py.workers.coordinator.machine import PartsFound
from malstrom_py.workers.coordinator.recovery import RunStart
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.job_events import PlannedEnd
from malstrom_py.workers.reports.job_status import RescaleReport
from malstrom_py.workers.simulator.direct_background import DirectBackground
from malstrom_py.workers.simulator.random_schedule import ScheduledCrash, ScheduledRescale, ScheduledSnapshot
from malstrom_py.workers.simulator.simulated_job import Queues, SimulatedJob
from malstrom_py.workers.simulator.simulated_snapshots import SimulatedCommits, SimulatedSnapshots
from malstrom_py.workers.simulator.simulated_workers import SimulatedWorkers
from malstrom_py.workers.transport.messages import COORDINATOR

_TICKS_S: Final = (0.001, 0.01, 0.2)
_TICK: Final = 0.02
"""How probable it is that time passes in a turn, though there is something to do."""


COORDINATE: Final = ("coordinator",)
"""The coordinator takes in what has been written, or has a barrier go."""

LIST: Final = ("list",)
"""The coordinator has sources listed again."""

LISTED_IN_VAIN: Final = 2
"""A job that has read everything is drained when each of its sources has been listed so often in vain (R13)."""

QUIET_S: Final = 10.0
"""The same when its open parts have had no records for so long."""


class SimulatedCrash(PeerError):
    """The simulator has made a worker or the coordinator crash. Without snapshots the job ends by it (S6)."""


class SimulatedStop(SimulatedCrash, PlannedEnd):
    """The simulator has stopped the job after a last snapshot, from which the job resumes."""


class SimulatedCoordinator(Coordinator[SimulatedWorkers]):
    """The coordinator of the present run of ``job``, with ``workers`` workers: in each step the schedule lets one thing
    happen, or crash.
    """

    commit: SimulatedCommits

    def __init__(self, job: SimulatedJob, *, workers: int) -> None:
        saving = None if job.snapshot_use is None else SimulatedSnapshots(job, job.snapshot_use)
        slots_per_move = job.schedule.slots_per_move(job.plan.slots)
        super().__init__(
            job.plan,
            SimulatedWorkers(job),
            workers=workers,
            clock=job.clock,
            snapshot_use=None if saving is None else saving.snapshot_use,
            commits=SimulatedCommits(job.plan.job, build_sinks(job.plan, job.clock), job.clock.now_s()),
            background=None if saving is None else lambda: saving.background,
            calling=DirectBackground,
            slots_per_move=slots_per_move,
            ahead_least=job.schedule.ahead_least(),
            log=job.events,
        )
        self._schedule = job.schedule
        self._coverage = job.coverage
        self._asked = job.rescales
        self._crashes = job.crashes
        self._saving = saving
        self._wanted = job.wanted
        self._turn = 0
        self._digest = hashlib.sha256()
        self._stops = False
        self._tick = 0.0 if job.row_cost_s else _TICK
        self._read = (-1, 0.0)
        self._copied: tuple[int, type] | None = None

    @property
    def trace(self) -> str:
        """A hash of all that has happened here, in order."""
        return self._digest.hexdigest()

    @property
    def on_its_way(self) -> Queues:
        """The messages in flight: after a crash, the zombies of the next incarnation."""
        return self.group.on_its_way

    def begin(self) -> RunStart | None:
        saving, crashes = self._saving, self._crashes
        if saving is None:
            return super().begin()
        saving.begins()
        if saving.is_recovery and crashes and crashes[0].when == "recovering":
            crash = crashes.pop(0)
            saving.tear(self._schedule.one_of(range(25)), lambda: self.crash(crash.who))
        start = super().begin()
        if start is not None and start.resumption is not None:
            self._coverage.resumed(start.resumption.manifest, len(self.members), again=saving.is_recovery)
        return start

    def open(self, pins: Mapping[str, Any] | None = None) -> None:
        with self._disks():
            super().open(pins)
        if self._saving is not None:
            self._saving.has_begun()
            self._coverage.opened(self.group.hosted, self.readers)

    @property
    def finished(self) -> bool:
        return not self._asked and not self._wanted and self._at_end

    def step(self, *, until_s: float | None = None) -> None:
        """Let one thing happen."""
        self._turn += 1
        if self._stops and self.suspended:
            self._stop()
        self._break()
        self._ask()
        action = self._next()
        if action is None:
            return
        self._digest.update(repr((self._turn, action)).encode())
        with self._disks():
            self.act(action)

    # What can happen, one by one: for those who want to decide it themselves.

    @property
    def ways(self) -> list[Hashable]:
        """The ways on which something is."""
        return self.group.ways

    @property
    def busy(self) -> list[int]:
        """The workers that may have something to do."""
        return self.group.awake

    @property
    def chores(self) -> list[Hashable]:
        """The pending work of snapshots: of the coordinator, of its background, and of dead incarnations."""
        snapshotting, saving = self.snapshotting, self._saving
        if snapshotting is None or saving is None:
            return [LIST] if self._lists_now else []
        chores: list[Hashable] = [COORDINATE] if saving.background.is_back or snapshotting.is_due else []
        return [*chores, *([LIST] if self._lists_now else []), *saving.writes]

    @property
    def _lists_now(self) -> bool:
        due_s = self._source_calls.due_s if self.may_find_parts else None
        return due_s is not None and self._clock.monotonic_s() >= due_s

    def act(self, action: Hashable) -> None:
        """Let one thing happen: a worker's step, by its number, a chore, or an arrival."""
        if isinstance(action, int):
            self.work(action)
        elif action in self.chores:
            self.do(action)
        else:
            self.arrive(action)

    def do(self, chore: Hashable) -> None:
        """Let one of the `chores` be done."""
        if chore == LIST:
            self.find_parts()
            return
        saving, made = self._saving, self.snapshots
        assert saving is not None
        assert made is not None
        if chore == COORDINATE:
            self.turn()
            now = self.snapshots
            self._coverage.hit("snapshot completed", 0 if now is None else now.made - made.made)
        else:
            saving.write(chore)

    def work(self, worker: int) -> None:
        """Let a worker take one step."""
        self.group.work(worker)
        self.take(self.group.arrived())

    def arrive(self, way: Hashable) -> None:
        """Deliver the first message on ``way``."""
        between = self.is_between_moves
        if isinstance(self.group.arrive(way), BarrierPassed) and between:
            self._coverage.hit("snapshot inside a rescale")
        self.take(self.group.arrived())

    def handle(self, event: Event) -> None:
        if isinstance(event, PartsFound):
            self._coverage.appeared(event.source, [part for part, _ in event.parts], is_moving=self._is_moving)
        super().handle(event)
        if self.phase != "copying":
            self._copied = None
        elif self._machine.moves.barrier_waits:
            self._coverage.hit("snapshot wanted while state goes ahead")

    def pass_s(self, duration_s: float) -> None:
        """Let time pass."""
        self._clock.sleep_s(duration_s)

    @contextmanager
    def _disks(self) -> Iterator[None]:
        """Lose the worker whose disk fails."""
        try:
            yield
        except StateError:
            if self._saving is None:
                raise
            self.crash("worker")

    def crash(self, who: str) -> NoReturn:
        """Lose a worker or the coordinator, as ``who`` says."""
        if self.phase == "copying":
            self._coverage.hit("state ahead of a move that was never made")
        self._coverage.hit(f"{who} crash" + (" inside a rescale" if self._is_moving else ""))
        lost = self.members[self._turn % len(self.members)] if who == "worker" else COORDINATOR
        if self._saving is None:
            raise SimulatedCrash(
                f"job {self._plan.job!r}: a {who} was lost, and the job has no snapshots. Start it from the beginning.",
                peer=lost,
            )
        self._saving.lost(self.snapshotting)
        self.commit.is_lost = self._schedule.happens(0.5)
        raise SimulatedCrash(
            f"job {self._plan.job!r}: a {who} was lost. The job resumes from its last snapshot.", peer=lost
        )

    def stop(self) -> None:
        """Stop the job after one more snapshot: then a step raises `SimulatedStop`."""
        self._stops = True
        self.suspend()

    def weigh(self) -> Weights | None:
        return self._schedule.weights(self._plan.slots)

    def measured(self, figures: Mapping[int, WorkerFigures]) -> None:
        """What is measured takes real time: the seed decides what slots weigh, and no key is hot."""

    def request(self, members: Sequence[int], done: Done, *, evens_out: bool = False) -> None:
        self._coverage.asked(self.phase, self.group)
        super().request(members, done, evens_out=evens_out)

    def replace(self, kept: Sequence[int], size: int, done: Done) -> None:
        """Go to ``size`` workers: ``kept`` of those that are there, and new ones."""
        self.request((*sorted(kept), *self.new_workers(size - len(kept))), done)

    def _next(self) -> Hashable | None:
        """What happens next: a worker's step, by its number, or the arrival on a way. None: time has passed."""
        if self._schedule.happens(self._tick):
            self.pass_s(self._schedule.one_of(_TICKS_S))
        actions = [*self.ways, *self.busy, *self.chores]
        if not actions:
            self._rest()
            return None
        return self._schedule.next_of(self._unhurried(actions) if self.phase == "copying" else actions)

    def _unhurried(self, actions: list[Hashable]) -> list[Hashable]:
        """Return ``actions`` while state goes ahead (R12): that takes some turns, in which state changes."""
        if self._copied is None:
            self._copied = self._turn + self._schedule.ahead_turns(), self._schedule.ahead_held()
        until, held = self._copied
        if self._turn >= until:
            return actions
        return [way for way in actions if not self.group.brings(way, held)] or actions

    def _rest(self) -> None:
        """Advance the time to the next timer: no message is in flight, and no worker has work."""
        if self._lists_in_vain:
            self.drain()
            return
        if not self._rests() and not self._at_end:
            raise InternalError(
                f"the job makes no progress: the workers wait, but no message is in flight (P8). The coordinator is "
                f"{self.phase} and waits for {self.waiting_for() or 'nothing'}"
            )

    @property
    def _lists_in_vain(self) -> bool:
        """Whether no part has appeared while the job had nothing to do: it would never end."""
        calls = self._source_calls
        if calls.in_vain < LISTED_IN_VAIN or not self.may_find_parts:
            return False
        operators = (operator for worker in self.group.hosted for operator in worker.operators.values())
        sources = [operator for operator in operators if isinstance(operator, ReadSource)]
        rows, now_s = sum(source.counters.rows_in for source in sources), self._clock.monotonic_s()
        if rows != self._read[0]:
            self._read = rows, now_s
        return not any(source.parts_left for source in sources) or now_s - self._read[1] >= QUIET_S

    def _rests(self) -> bool:
        """Pass the time to the next timer of a worker, or to the next listing if that may find more. Return whether
        there was any.
        """
        calls = self._source_calls
        if calls.in_vain >= LISTED_IN_VAIN or not self.may_find_parts:
            return self.group.rest()
        return self.group.rest(until_s=calls.due_s)

    @property
    def _at_end(self) -> bool:
        """Whether the job is done with all that it has been asked for."""
        return not self.group.in_flight and super().finished

    @property
    def _is_moving(self) -> bool:
        """Whether a rescale is under way, a barrier between two of its moves included."""
        return self.phase not in {"steady", "barrier"} or self.is_between_moves

    def _is_moment(self, asked: ScheduledRescale | ScheduledSnapshot) -> bool:
        """Whether the moment of a request has come; at the latest when nothing else can happen."""
        if self._turn < asked.turn:
            return self._at_end
        match asked.when:
            case "moving":
                return self._is_moving or self._at_end
            case "full":
                return self.group.backlogged or self._at_end
            case "quiet":
                return self.group.quiet or self._at_end
            case "end":
                return self._at_end
        return True

    def _ask(self) -> None:
        if self._wanted and self._saving is not None and self._is_moment(self._wanted[0]):
            if self._wanted.pop(0).last and self.may_find_parts:  # else it is being drained
                self.stop()
            else:
                self.snapshot(_nobody)
        if not self._asked or not self._is_moment(self._asked[0]):
            return
        asked = self._asked.pop(0)
        if self._at_end:
            self._coverage.hit("request at end of stream")
        if not asked.size:
            self.rescale(None, self._evened_out)
            return
        kept = self._schedule.some_of(self.target, min(asked.size, asked.kept))
        try:
            self.replace(kept, asked.size, _nobody)
        except PlanError:
            """A leaver reads a source that cannot move to another worker: no worker leaves."""

    def _evened_out(self, ended: RescaleReport | MalstromError) -> None:
        if isinstance(ended, RescaleReport) and ended.slots:
            self._coverage.hit("slots moved by load")

    def _stop(self) -> NoReturn:
        """End the stopped job: no worker may have read or written since the barrier of the last snapshot."""
        assert self._saving is not None
        for worker in self.group.hosted:
            if worker.counts() != self.group.at_last_cut.get(worker.id):
                raise InternalError(f"worker {worker.id} has read or written after the last barrier")
        self._saving.stopped(self.snapshots)
        raise SimulatedStop(f"job {self._plan.job!r} was stopped. It resumes from its last snapshot.")

    def _break(self) -> None:
        if not self._crashes or not self._is_time(self._crashes[0]):
            return
        crash = self._crashes.pop(0)
        if crash.when == "writing" and self._saving is not None:
            self._saving.tear(self._schedule.one_of(range(6)), lambda: self.crash(crash.who))
        else:
            self.crash(crash.who)

    def _is_time(self, crash: ScheduledCrash) -> bool:
        if self._turn < crash.turn:
            return False
        if crash.when == "moving":
            return self._is_moving
        if crash.when == "copying":
            return self.phase == "copying" and any(self.group.brings(way, StateChunk) for way in self.ways)
        snapshotting = self.snapshotting
        return snapshotting is None or self._saving is None or self._saving.is_time(crash.when, snapshotting)


def _nobody(ended: object) -> None:
    """What came of it is seen in the output."""
