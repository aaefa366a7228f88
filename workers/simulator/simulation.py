"""The simulator: runs a job on real workers under a schedule that a seed decides, with rescales and crashes.

Rule: the same seed gives the same run, in every process, unless a step awaits calls that take as long as they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, Unpack

from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock, VirtualClock
from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.events import Restarting
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.validation import checked_seconds
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.recovery import SnapshotUse, begun_again
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.job_handle import JobHandle
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.job_thread import LocalJob, run_to_end
from malstrom_py.workers.runtime.local_runtime import check_job
from malstrom_py.workers.runtime.run_options import (
    RunOptions,
    SimulatedKeywords,
    observers_of,
    options_of,
    snapshot_use_of,
)
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator, SimulatedCrash, SimulatedStop
from malstrom_py.workers.simulator.simulated_job import SimulatedJob
from malstrom_py.workers.simulator.simulated_workers import SimulatedWorkers

__tracebackhide__ = True  # pytest shows the line of the user

_START_S: Final = 4_102_444_800.0
"""2100: no record of today is ahead of the simulated clock (T4)."""


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedResult(RunResult):
    """The counts of a simulated run, and what was hard about it.

    ``hits``: hard case -> how often it was met; ``trace``: a hash of all that happened, in order; ``incarnations``: 1,
    and one more for each crash.
    """

    hits: Mapping[str, int]
    trace: str
    incarnations: int

    def __repr__(self) -> str:
        return f"<SimulatedResult of {self}, incarnations {self.incarnations}, trace {self.trace}>"


class Simulation:
    """Runs a job under a schedule that follows from ``seed``: which workers are slow, when messages arrive, the sizes
    of batches and credits, when and to which size the job is rescaled, what slots weigh and when they move by that, and
    what crashes. For tests: the output must be
    right for every seed.

    ``workers``: at the start. ``rescales`` and ``crashes``: their number; None: the seed decides. After a crash the job
    resumes from its last snapshot on a number of workers that the seed decides; without snapshots it starts from the
    beginning, with empty sinks. With ``crashes=None`` a job crashes only if all its sinks can discard their output. A
    job with snapshots that may crash is also stopped at times, and resumes in the same way. A job whose sources are
    listed again is drained when it has nothing more to do and two listings have found no partition. ``snapshots``: the
    store and the interval; None: the seed decides, and the store is in memory; False: no snapshots. ``row_cost_s``: how
    long a worker is busy with a row in a step, by the simulated clock, which then advances by nothing else; workers
    work at the same time. ``clock``: by default a virtual one. ``checks``: test mode. ``keywords``: of `RunOptions`
    ``batch`` (without it the seed decides how batches are cut), ``autoscale`` (needs ``row_cost_s``), ``resume``,
    ``allow_dropped_state``, ``on_event`` and ``redact_errors``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> numbers = job.source("in", sources.Memory(range(100), parts=3)).key_by("parity", lambda n: n % 2)
    >>> numbers.count("n").sink("out", out)
    >>> for seed in range(5):
    ...     result = mp.Simulation(workers=2, seed=seed).run(job)
    ...     assert out.by_key == {0: list(range(1, 51)), 1: list(range(1, 51))}, seed
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        seed: int = 0,
        rescales: int | None = None,
        crashes: int | None = None,
        clock: Clock | None = None,
        checks: bool = True,
        snapshots: Snapshots | Literal[False] | None = None,
        row_cost_s: float = 0.0,
        **keywords: Unpack[SimulatedKeywords],
    ) -> None:
        check_size(workers)
        given = RunOptions(checks=checks, snapshots=snapshots or None)
        self._options = options = options_of(Simulation, given, keywords, SimulatedKeywords.__annotations__)
        checked_seconds(row_cost_s, "Simulation: row_cost_s", finite=True)
        if options.autoscale is not None and not row_cost_s:
            raise PlanError("Simulation: autoscale needs row_cost_s, by which workers are busy on the simulated clock")
        self._row_cost_s = float(row_cost_s)
        self._observers = observers_of(options)
        for name, count in (("rescales", rescales), ("crashes", crashes)):
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
                raise PlanError(f"Simulation: {name} must be a whole number of at least 0, got {count!r}")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise PlanError(f"Simulation: seed must be a whole number, got {seed!r}")
        self._workers = workers if options.autoscale is None else options.autoscale.within(workers)
        self._seed = seed
        self._rescales = rescales
        self._crashes = crashes
        self._clock = clock
        self._may_keep = snapshots is None
        self._snapshot_use = snapshot_use_of(options)
        if self._snapshot_use is not None and not self._snapshot_use.snapshots.is_in_store:
            raise PlanError(
                "Simulation: snapshots must be kept in a store, mp.Snapshots(uri), because a crash may occur between "
                "any two of its operations; test a checkpointer of your own with check_checkpointer"
            )

    def run(self, job: Job) -> SimulatedResult:
        """Run ``job`` to its end, then commit its sinks. An error bears a note that says how to have it again."""
        plan = check_job(job, "Simulation.run").plan()
        try:
            commands = CommandQueue(plan.job)
            runs = self._runs(plan, commands)
            observing = self._observers.begin(commands)
            run_to_end(runs, commands, None, observing, redact_errors=self._options.redact_errors)
            return runs.ended
        except MalstromError as error:
            error.add_note(f"simulated: have it again with Simulation(workers={self._workers}, seed={self._seed}, …)")
            raise outermost(error) from error.__cause__

    def start(self, job: Job) -> JobHandle:
        """Run ``job`` in a separate thread, so that its handle can rescale and stop it. Such a run depends on the
        timing of these commands, and is not reproducible.
        """
        plan = check_job(job, "Simulation.start").plan()
        commands = CommandQueue(plan.job)
        runs, observers, redact_errors = self._runs(plan, commands), self._observers, self._options.redact_errors
        return JobHandle(LocalJob(runs, commands, control=False, observers=observers, redact_errors=redact_errors))

    def _runs(self, plan: Plan, commands: CommandQueue) -> _Incarnations:
        commands.autoscaler.start(self._options.autoscale)
        chance = RandomSchedule(self._seed)
        batching, drawn = chance.batching(), chance.snapshots()
        snapshot_use = self._snapshot_use or (SnapshotUse(drawn) if drawn is not None and self._may_keep else None)
        rescales = chance.rescales(self._rescales)
        rescales = sorted([*rescales, *chance.rebalances(len(rescales))], key=lambda asked: asked.turn)
        job = SimulatedJob(
            plan,
            chance,
            self._clock or VirtualClock(_START_S),
            self._options.batch or batching,
            events=commands.events,
            checks=self._options.checks,
            state=self._options.state,
            snapshot_use=snapshot_use,
            rescales=rescales,
            crashes=chance.crashes(self._crashes, kept=snapshot_use is not None),
            wanted=[] if snapshot_use is None else chance.wanted(),
            row_cost_s=self._row_cost_s,
        )
        if self._crashes == 0 or (self._crashes is None and not _forgets(job)):  # neither crash nor stop
            job.crashes, job.wanted = [], [replace(wanted, last=False) for wanted in job.wanted]
        return _Incarnations(job, commands, self._workers)


def _forgets(job: SimulatedJob) -> bool:
    """Return whether all sinks can discard their output, so that a crash is not visible."""
    sinks = [step for step in job.plan.steps if step.kind == "sink"]
    committing = build_sinks(job.plan, job.clock)
    return len(committing) == len(sinks) and all(step.transactional is not None for step in committing)


class _Incarnations:
    """The runs of a job, each started after a crash of the one before: from a snapshot, or from the beginning."""

    def __init__(self, job: SimulatedJob, commands: CommandQueue, workers: int) -> None:
        self._job = job
        self._commands = commands
        self._workers = workers
        self._traces: list[str] = []
        self._coordinator, self._now = self._new()

    ended: SimulatedResult
    """The result, once `execute` has returned it."""

    def execute(self) -> SimulatedResult:
        """To the end of the job."""
        while True:
            try:
                result = self._now.execute()
            except SimulatedCrash as crash:
                self._commands.events.emit(Restarting("" if isinstance(crash, SimulatedStop) else str(crash), 0.0))
                self._traces.append(self._coordinator.trace)
                job = self._job
                if job.snapshot_use is not None:
                    if self._now.has_begun:
                        job.snapshot_use = begun_again(job.snapshot_use, self._coordinator.snapshots)
                    self._workers = job.schedule.size()
                job.incarnation, job.zombies = job.incarnation + 1, self._coordinator.on_its_way
                self._coordinator, self._now = self._new()
            else:
                traces = [*self._traces, self._coordinator.trace]
                counts = {field.name: getattr(result, field.name) for field in fields(result)}
                self.ended = SimulatedResult(
                    **counts, hits=dict(self._job.coverage.hits), trace=":".join(traces), incarnations=len(traces)
                )
                return self.ended

    def result(self) -> RunResult:
        """What the run of now has done so far."""
        return self._now.result()

    def _new(self) -> tuple[SimulatedCoordinator, JobRun[SimulatedWorkers]]:
        coordinator = SimulatedCoordinator(self._job, workers=self._workers)
        return coordinator, JobRun(self._job.plan, coordinator, self._job.clock, commands=self._commands)
