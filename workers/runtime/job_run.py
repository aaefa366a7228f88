"""One run of a job: opens its workers, steps them, executes commands, and commits at the end.

Rule: without snapshots, sinks commit only after all input is read and written; an earlier failure discards everything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Generic

from msgspec import structs

from malstrom_py.builder.plan import Plan, Step
from malstrom_py.clock import Clock
from malstrom_py.errors import JobEnded
from malstrom_py.errors.text import public_text
from malstrom_py.metrics import JobMetrics
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.coordinator import Coordinator, G
from malstrom_py.workers.coordinator.snapshot_coordinator import result_in
from malstrom_py.workers.engine.garbage import fewer_collections
from malstrom_py.workers.reports.job_state import JobState
from malstrom_py.workers.reports.job_status import JobStatus
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.reports.shadows import Compared
from malstrom_py.workers.reports.taps import SeenOfStep, TappedStep
from malstrom_py.workers.runtime.interrupts import Interrupts
from malstrom_py.workers.runtime.progress import Progress
from malstrom_py.workers.runtime.shadow_plan import shadowed
from malstrom_py.workers.runtime.source_pinning import SourcePins
from malstrom_py.workers.runtime.supervisor import Trial


class JobRun(Generic[G]):
    """One run of ``plan`` that ``coordinator`` coordinates."""

    def __init__(
        self,
        plan: Plan,
        coordinator: Coordinator[G],
        clock: Clock,
        *,
        commands: CommandQueue | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._commands = commands or CommandQueue(plan.job)
        self._progress = progress
        self._coordinator = coordinator
        self._commands.wake = coordinator.wake
        use = coordinator.snapshot_use
        self._commands.shadows.expect(shadowed(plan))
        self._commands.state.set(partial(_state_of, plan, None if use is None else use.snapshots))
        self._commands.taps.steps = {step.name: _tapped(step) for step in plan.steps if step.shadow_of is None}
        coordinator.tapped = self._saw
        self._interrupts = Interrupts()
        self._commit = self._coordinator.commit
        self._pins = SourcePins(plan, clock)
        self._undone: RunResult | None = None
        self.has_begun = False
        """Whether it has got as far as to take over the job."""
        self.trial: Trial | None = None
        """The reload whose code this run tries; no snapshot begins before `passed` was called."""
        self._passed: Callable[[], None] = lambda: None
        self._enter("opening")

    def try_out(self, trial: Trial | None, passed: Callable[[], None]) -> None:
        """Try the code of ``trial``, if any, and call ``passed`` when it has proved itself. Call this first."""
        self.trial, self._passed = trial, passed

    def execute(self, until: Callable[[Coordinator[G]], bool] | None = None, until_s: float | None = None) -> RunResult:
        """To its end, or until ``until(coordinator)`` is true after a step, or the clock's time is ``until_s``."""
        with self._interrupts, self._pins, fewer_collections():
            try:
                start = self._coordinator.begin()
                self.has_begun = True
                self._commands.note_snapshots(None if start is None else start.snapshot_status)
                resumed = start and start.resumption
                self._commands.shadows.compare(shadowed(self._plan), resumed.manifest.id if resumed else "")
                if (
                    start is not None
                    and start.finished is not None
                    and (before := result_in(start.finished)) is not None
                ):
                    new_with = start.read_new_with if start.finished_before else {}
                    return replace(before, resumed_finished=start.finished_before, read_new_with=new_with)
                # Staged input of a job with snapshots stays until the job has finished: a restart may read it.
                self._pins.keep = start is not None
                known = None if start is None or start.resumption is None else start.resumption.pinned
                self._pins.pin(known)
                with self._progress or nullcontext():
                    self._coordinator.open(self._pins.records())
                    self._commands.note_snapshots(self._coordinator.snapshots)
                    self._loop(until, until_s)
                self._commands.note_snapshots(self._coordinator.snapshots)
                kept: RunResult | None = None
                if start is None:
                    self._commands.refuse_if_stopped()
                    self._commit_at_end()
                else:
                    kept = self._snapshot_at_end()
                self._last_metrics()
                self._pins.keep = False
                self._pins.keep_unread = start is not None and self._commands.is_stopping
                self._coordinator.close()
                self._coordinator.events.finished(manual=self._commands.is_stopping)
            except BaseException as error:
                self._undo(error)
                raise
        return kept or self.result()

    def _saw(self, seen: SeenOfStep) -> None:
        """Keep what a worker has seen of the records of a step."""
        if isinstance(seen, Compared):
            self._commands.shadows.add(seen)
        else:
            self._commands.taps.add(seen)

    def _commit_at_end(self) -> None:
        self._enter("committing")
        self._coordinator.pre_commit()
        with self._interrupts.held():
            self._commit.commit(self.result())
        self._coordinator.committed_at_end()

    def _snapshot_at_end(self) -> RunResult:
        """S7: what has been written since the last snapshot is committed with one that says how the job has ended. It
        would do for a stop as well.
        """
        self._enter("committing")
        self._coordinator.finish()
        while (kept := self._coordinator.kept) is None:
            self._coordinator.step(until_s=None)
            self._interrupts.check()
            self._commands.refuse_if_abandoned()
            self._commands.note_snapshots(self._coordinator.snapshots)
        return kept

    def result(self) -> RunResult:
        """Return the counts so far. Closed workers have none: those of an undone run are from before it closed them."""
        if self._undone is not None:
            return self._undone
        return self._coordinator.result()

    def _measure(self, status: JobStatus) -> JobMetrics:
        """Return the metrics now."""
        coordinator, group = self._coordinator, self._coordinator.group
        metrics = coordinator.metering.metrics(
            self.result(),
            group.counts(),
            group.figures(),
            members=coordinator.members,
            table=coordinator.table,
            status=status,
            totals=self._commands.events.totals,
        )
        return structs.replace(metrics, autoscale=self._commands.autoscaler.metrics)

    def _sample(self, now_s: float) -> None:
        """Take the figures that are due: for rates and loads, and for the autoscaler unless the run ends or tries new
        code.
        """
        coordinator, autoscaler = self._coordinator, self._commands.autoscaler
        if now_s >= coordinator.metering.due_s:
            coordinator.sample()
            self._commands.rates.add(coordinator.metering.rates())
        if now_s < autoscaler.due_s:
            return
        if self._commands.is_stopping or self.trial is not None:
            autoscaler.pause(now_s)
        else:
            autoscaler.turn(coordinator, now_s)

    def _last_metrics(self) -> None:
        """Publish the metrics before the workers are closed."""
        if not self._commands.is_watched:
            return
        with suppress(Exception):  # no job fails because of figures for people
            self._commands.publish_metrics(self._measure(self._commands.known()))

    @property
    def workers(self) -> int:
        """The number of workers, after a rescale in progress."""
        return len(self._coordinator.target)

    def _enter(self, phase: str) -> None:
        self._commands.note_snapshots(self._coordinator.snapshots)
        self._commands.enter(phase, self.result(), len(self._coordinator.members))

    def _loop(self, until: Callable[[Coordinator[G]], bool] | None, until_s: float | None) -> None:
        coordinator, clock, commands, progress = self._coordinator, self._clock, self._commands, self._progress
        commands.loop()
        if self.trial is not None:
            self._hold_snapshots(held=True)
            self.trial.begin(clock.monotonic_s())
        metering, autoscaler, group = coordinator.metering, commands.autoscaler, coordinator.group
        while group.busy or not coordinator.finished:  # a busy run is not asked
            if commands.pending:
                commands.obey(coordinator, self.result)
                commands.answer_metrics(self._measure)
            now_s = clock.monotonic_s()
            if now_s >= metering.due_s or now_s >= autoscaler.due_s:
                self._sample(now_s)
            if self.trial is not None:
                self._try(self.trial)
            coordinator.step(until_s=until_s if self.trial is None else self.trial.until_s)
            self._interrupts.check()
            if progress is not None and progress.due(clock.monotonic_s()):
                progress.show(self.result(), self._measure(commands.known()))
            if (until is not None and until(coordinator)) or (until_s is not None and clock.monotonic_s() >= until_s):
                return
        if self.trial is not None:
            self._pass()
        if progress is not None:
            progress.show(self.result(), self._measure(commands.known()))

    def _try(self, trial: Trial) -> None:
        if trial.until_s is not None and self._clock.monotonic_s() >= trial.until_s:
            self._pass()

    def _pass(self) -> None:
        """End the trial: the new code has proved itself, or has processed all input."""
        self.trial = None
        self._hold_snapshots(held=False)
        self._passed()

    def _hold_snapshots(self, *, held: bool) -> None:
        if self._coordinator.snapshotting is not None:
            self._coordinator.snapshotting.hold(held=held)

    def _undo(self, error: BaseException) -> None:
        """Close the workers and discard uncommitted output; add failures of that as notes to ``error``."""
        self._last_metrics()
        self._undone = self.result()
        for failure in self._commit.abort():
            error.add_note(public_text(failure))
        try:
            self._coordinator.close()
        except Exception as failure:
            if public_text(failure) != public_text(error):  # other workers fail in the same way
                error.add_note(public_text(failure))
        self._coordinator.events.failed(error)
        if isinstance(error, JobEnded):
            error.result = self.result()
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"stopped by the user; {self._what_stays()}; so far {self.result()}")

    def _what_stays(self) -> str:
        """Describe what an interrupted run leaves."""
        status = self._coordinator.snapshots
        if status is not None and status.last is not None:
            committed = "its sinks have committed what is in its last snapshot; " if self._commit.any else ""
            return f"{committed}it can resume from snapshot {status.last}"
        done = self._commit.committed
        if not done:
            return "nothing was committed"
        return f"sink{'' if len(done) == 1 else 's'} {', '.join(map(repr, done))} had committed"


def _state_of(plan: Plan, snapshots: Snapshots | None) -> JobState:
    from malstrom_py.workers.control.state_shapes import job_state  # a job runs without it

    return job_state(plan, snapshots)


def _tapped(step: Step) -> TappedStep:
    """Return what is known of the records of ``step``."""
    return TappedStep(keyed=step.traits.keyed or step.traits.local, unit=step.traits.unit)
