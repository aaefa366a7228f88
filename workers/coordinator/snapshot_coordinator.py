"""The snapshot coordinator: executes the decisions of its machine (barriers, manifests, commits of sinks).

Rule: decisions of the machine are executed in its order. Work on the store runs in the background; the thread of the
run handles its results in `turn`. A failed snapshot ends the run (S6), because the pre-committed output of sinks cannot
be undone while the job runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, FencedError, InternalError, MalstromError, PlanError, SnapshotError
from malstrom_py.logs import log
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer, save_pieces
from malstrom_py.snapshot.ids import next_snapshot_id
from malstrom_py.snapshot.manifest import Artefact, Manifest, artefact_path
from malstrom_py.snapshot.selection import check_claim, copy_savepoint
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import verified
from malstrom_py.sources.base import Part
from malstrom_py.state.ahead_of_barrier import merged_deltas
from malstrom_py.state.artefact import merged
from malstrom_py.state.artefact_parts import merged_in_parts
from malstrom_py.worker_context import plain_value
from malstrom_py.workers.coordinator import job_machine as machine
from malstrom_py.workers.coordinator.commanded_workers import SnapshotDone
from malstrom_py.workers.coordinator.job_machine import OPEN, WANTED, Effect, Event, JobMachine, PlannedStop
from malstrom_py.workers.coordinator.machine import BarrierBegun, CutMade
from malstrom_py.workers.coordinator.recovery import RestorePoint, RunStart, plan_image
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.background import Background
from malstrom_py.workers.engine.snapshot_capture import CapturedState, persistently, save
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.reports.result import RunResult, as_plain, from_plain
from malstrom_py.workers.transport.messages import Saved

_LOG: Final = logging.getLogger("malstrom_py.coordinator")

_TIMES: Final = 2
"""All state is written again once its changes are half of it."""

SAVE_DEADLINE_S: Final = 600.0
"""How long a snapshot may take until its state is packed, and from the end of its barrier to its manifest."""

_WRITTEN_IN: Final = frozenset({machine.SnapshotPhase.SAVING, machine.SnapshotPhase.COMMITTING})


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for the next snapshot. ``copy_to``: where to copy it."""

    done: SnapshotDone
    copy_to: Snapshots | None = None


@dataclass(slots=True)
class _Snapshot:
    """The snapshot in progress, or the last one. ``requests``: those that it answers; ``passed_s``: when its barrier
    had passed all workers, which it has ``paused_s`` at most; ``manifest``: once all workers have saved.
    """

    id: SnapshotId
    began_s: float
    requests: list[SnapshotRequest]
    passed_s: float | None = None
    paused_s: float = 0.0
    manifest: Manifest | None = None


class SnapshotCoordinator:
    """The coordinator of the snapshots of the run of ``plan`` that has begun as ``start`` says. ``pins``: the pinned
    inputs of sources.

    ``job_machine``: the machine of the run, which gets its part for snapshots here; ``handle`` feeds it with an event.
    ``committed`` is called after each snapshot with the positions of sources: step -> part -> position.
    """

    def __init__(
        self,
        job_machine: JobMachine,
        handle: Callable[[Event], None],
        plan: Plan,
        options: Snapshots,
        start: RunStart,
        *,
        background: Background,
        commits: SinkCommits,
        clock: Clock,
        pins: Mapping[str, Any],
        count: Callable[[], RunResult],
        committed: Callable[[Mapping[str, Mapping[Part, Any]]], None],
    ) -> None:
        self.checkpointer = start.checkpointer
        self.background = background
        self._job = plan.job
        self._options = options
        self._commits = commits
        self._clock = clock
        self._pins = pins
        self._count = count
        self._committed = committed
        self._job_machine = job_machine
        self._handle = handle
        resumption = start.resumption
        self._machine = job_machine.snapshots = machine.SnapshotMachine(
            plan.job,
            plan_image(plan),
            incarnation=start.incarnation,
            sequence=start.sequence,
            chain_max=options.chain_max,
            parent=None if resumption is None else resumption.manifest.id,
            chains=None if resumption is None else resumption.continued,
        )
        self._requests: list[SnapshotRequest] = []
        self._now = _Snapshot(commits.snapshot, clock.monotonic_s(), [])
        self._next_s = clock.monotonic_s() + (options.interval_s or 0.0)
        self._compacting: dict[tuple[str, int], list[tuple[Artefact, ...]]] = {}
        self._copying: list[tuple[Artefact, ...]] = []
        self._is_held = False
        self._last = None if resumption is None else resumption.manifest
        self._defaults = plan.parameters
        self._parameters = self._parameters_after = set_values(plan, resumption)
        self.status = SnapshotStatus.of(self._last, 0, interval_s=options.interval_s)
        """The status of the snapshots. ``last``: the snapshot to resume from, also one of an earlier run."""

    @property
    def result(self) -> RunResult | None:
        """The result of the job in its final snapshot; None before that snapshot is durable."""
        is_finished = self._job_machine.stop is PlannedStop.FINISHED
        return result_in(self._last) if is_finished and self._last is not None else None

    def due_s(self) -> float | None:
        """Return when the next scheduled snapshot starts, on monotonic time; None if none is scheduled or one runs."""
        return self._next_s if self._may_begin and self._options.interval_s is not None else None

    @property
    def phase(self) -> machine.SnapshotPhase:
        """The phase of the current snapshot."""
        return self._machine.phase

    @property
    def is_due(self) -> bool:
        """Whether a snapshot is due."""
        due_s = self.due_s()
        is_asked = bool(self._requests) or self._job_machine.stop in WANTED
        return (self._may_begin and is_asked) or (due_s is not None and self._clock.monotonic_s() >= due_s)

    @property
    def _may_begin(self) -> bool:
        """No snapshot follows the one with the result of the job, nor the last one of a stop."""
        is_idle = self._machine.phase is machine.SnapshotPhase.IDLE
        return is_idle and self._job_machine.stop in OPEN and not self._is_held

    def hold(self, *, held: bool) -> None:
        """Let no snapshot begin while the code is on trial: a failure goes back to the snapshot before."""
        self._is_held = held

    def ask(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Request a snapshot of everything read by now, and with ``copy_to`` a copy of it there."""
        self._requests.append(SnapshotRequest(done, None if copy_to is None else self._options.elsewhere(copy_to)))

    def set_parameter(self, name: str, value: object) -> Any:
        """Let parameter ``name`` have ``value`` from the last snapshot of this run on; return what is stored.

        Raises: PlanError: there is no such parameter, or the value is not of its type.
        """
        if name not in self._defaults:
            known = ", ".join(map(repr, self._defaults)) or "none"
            raise PlanError(f"job {self._job!r} has no parameter {name!r}; its parameters: {known}")
        own = plain_value(f"parameter {name!r}", value, self._defaults[name])
        self._parameters_after = {**self._parameters_after, name: own}
        return own

    def turn(self) -> bool:
        """Handle finished background tasks, and start a snapshot that is due. Return whether one was started."""
        self.background.turn()
        self._check_deadline()
        if not self.is_due:
            return False
        self._begin()
        return True

    def execute(self, effect: Effect) -> None:
        """Execute a decision of the machine."""
        match effect:
            case BarrierBegun():
                # Output that sinks pre-commit from now on belongs to the next snapshot.
                self._commits.next(next_snapshot_id(self._clock.now_s(), after=self._now.id))
            case CutMade():
                self._now.passed_s, self._now.paused_s = self._clock.monotonic_s(), effect.paused_s
            case machine.StoreManifest():
                self._store(effect.manifest)
            case machine.CommitSinks():
                self._commit_sinks(effect.snapshot)
            case machine.Completed():
                self._complete(effect)
            case _:
                raise InternalError(f"{type(effect).__name__} is not of a snapshot")

    def save(self, cut: CapturedState) -> None:
        """Write the image of a worker of this process in the background."""
        self.background.submit(partial(save, cut, self.checkpointer), self._was_saved)

    def saved(self, saved: Saved) -> None:
        """Record the durable image of a worker."""
        self._commits.add(saved.payloads, SnapshotId(saved.snapshot))
        self._handle(saved)

    def close(self) -> None:
        """Stop the background work. Requests for unfinished snapshots are repeated in the next run."""
        self.background.close()

    def _begin(self) -> None:
        requests, self._requests = self._requests, []
        # A snapshot that was in progress when the stop was planned is not the last one.
        if self._job_machine.stop in WANTED:
            self._job_machine.stop_to("begin")
        self._now = _Snapshot(self._commits.snapshot, self._clock.monotonic_s(), requests)
        if self._options.interval_s is not None:
            self._next_s = self._now.began_s + self._options.interval_s
        self._handle(machine.SnapshotStarted(self._now.id, self._job_machine.stop is PlannedStop.SUSPENDING))

    @property
    def _is_final(self) -> bool:
        """Whether the snapshot in progress is the one with the result of the job."""
        return self._job_machine.stop is PlannedStop.SAVING_RESULT

    def _was_saved(self, result: Saved | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        self.saved(result)

    def _store(self, manifest: Manifest) -> None:
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        self._now.manifest = manifest = replace(
            manifest,
            created=now.isoformat(),
            sinks=self._commits.payloads(manifest.id),
            pins=self._pins,
            # The next run has the values of the snapshot that it begins from.
            parameters=self._parameters_after if self._job_machine.stop is PlannedStop.SUSPENDING else self._parameters,
            # The counts of the job, including this snapshot.
            result=as_plain(replace(self._count(), snapshots=self.status.made + 1)) if self._is_final else None,
        )
        checkpointer = self.checkpointer
        # From now on the snapshot may be durable, even if this run does not learn it.
        self._commits.may_be_durable(manifest.id)

        def store() -> None:
            persistently(lambda: checkpointer.save_manifest(manifest))
            persistently(lambda: checkpointer.update_latest(manifest.id))

        self.background.submit(store, self._stored)

    def _stored(self, result: BaseException | None) -> None:
        if result is not None:
            raise result
        self._handle(machine.ManifestStored())

    def _commit_sinks(self, snapshot: SnapshotId) -> None:
        self._check_claim()
        self._commits.commit(self._count(), snapshot=snapshot, final=self._is_final)
        self._handle(machine.SinksCommitted())

    def _check_claim(self) -> None:
        """`FencedError` if another start has claimed the job: this one was stopped for a while, and commits nothing.

        The check is not needed for S3: a commit that is repeated changes nothing. It ends a replaced run early.
        """
        if self._now.manifest is None or not self._commits.any:
            return
        try:
            check_claim(self.checkpointer, self._now.manifest)
        except FencedError:
            raise
        except SnapshotError as error:
            log(
                _LOG,
                logging.WARNING,
                "job %s: the log could not be read before a commit of sinks, which follows: %s",
                *(self._job, error),
                job=self._job,
            )

    def _complete(self, completed: machine.Completed) -> None:
        self._last = manifest = self._now.manifest
        assert manifest is not None
        self._log_completed(manifest)
        self._committed(positions_in(manifest))
        for request in self._now.requests:
            self._answer(request, manifest)
        if not self._is_final:
            for chain in completed.long:
                self._compact(chain)
        checkpointer, keep, now_s, spare = self.checkpointer, self._options.keep, self._clock.now_s(), self._in_use()

        def tidy() -> None:
            checkpointer.note_sinks_committed(completed.snapshot)
            # Older files that belong to no kept snapshot are no longer in use.
            checkpointer.prune(keep, 0.0, now_s, spare=spare)

        self.background.submit(tidy, partial(self._tidied, self._job_machine.stop not in OPEN))

    def _in_use(self) -> set[str]:
        """Return the paths of artefacts that are read or written now, or that the next manifest names."""
        compacting = [chain for chains in self._compacting.values() for chain in chains]
        read = {artefact.path for chain in (*compacting, *self._copying) for artefact in chain}
        return self._machine.paths() | read | {_place_of(chain) for chain in compacting}

    def _tidied(self, is_last: bool, result: object) -> None:
        """Handle the result of the clean-up. A failed one is repeated after the next snapshot or at the next start."""
        if isinstance(result, BaseException):
            log(
                _LOG,
                logging.WARNING,
                "job %s: the clean-up after a snapshot failed: %s",
                *(self._job, result),
                job=self._job,
            )
        if is_last:
            self._job_machine.stop_to("done")

    def _log_completed(self, manifest: Manifest) -> None:
        took_s, paused_s = self._clock.monotonic_s() - self._now.began_s, self._now.paused_s
        written = sum(artefact.size for artefact in manifest.artefacts if artefact.snapshot == manifest.id)
        self.status = SnapshotStatus.of(
            manifest, self.status.made + 1, (written, took_s, paused_s), self._options.interval_s
        )
        log(
            _LOG,
            logging.INFO,
            "job %s: snapshot %s is complete: workers paused for at most %.4f s, %d bytes written, %.3f s in all",
            *(self._job, manifest.id, paused_s, written, took_s),
            job=self._job,
            incarnation=manifest.incarnation,
            snapshot=manifest.id,
            bytes=written,
            pause_s=round(paused_s, 4),
            duration_s=round(took_s, 3),
        )

    def _answer(self, request: SnapshotRequest, manifest: Manifest) -> None:
        copy_to, artefacts = request.copy_to, tuple(manifest.artefacts)
        if copy_to is None:
            request.done(manifest.id)
            return
        self._copying.append(artefacts)

        def was_copied(result: SnapshotId | BaseException) -> None:
            self._copying.remove(artefacts)
            if isinstance(result, BaseException) and not isinstance(result, MalstromError):
                raise result
            request.done(result)

        self.background.submit(
            lambda: copy_savepoint(manifest, self.checkpointer, copy_to.in_store(self._job), self._clock.now_s()),
            was_copied,
        )

    def _compact(self, chain: tuple[Artefact, ...]) -> None:
        """S2: compact the newest of ``chain`` in the background, unless some of them are being compacted."""
        if isinstance(self.checkpointer, StoreCheckpointer):
            chain = worth_merging(chain)
        here = self._compacting.setdefault((chain[0].operator, chain[0].partition), [])
        if any(not set(chain).isdisjoint(other) for other in here):
            return
        here.append(chain)
        work = partial(_compacted, chain, self.checkpointer)
        self.background.submit(work, partial(self._was_compacted, chain), urgent=False)

    def _was_compacted(self, chain: tuple[Artefact, ...], result: Artefact | BaseException) -> None:
        """Handle a compacted chain. A failed compaction is repeated after the next snapshot, with a longer chain."""
        place = chain[0].operator, chain[0].partition
        self._compacting[place].remove(chain)
        if not self._compacting[place]:
            del self._compacting[place]
        if isinstance(result, BaseException):
            step = chain[-1].operator
            log(
                _LOG,
                logging.WARNING,
                "job %s: a chain of step %s was not compacted: %s",
                *(self._job, step, result),
                job=self._job,
                step=step,
            )
        else:
            self._handle(machine.Compacted(chain, result))

    def _check_deadline(self) -> None:
        now, late_s = self._now, self._clock.monotonic_s() - SAVE_DEADLINE_S
        if self._job_machine.moves.is_packing and now.began_s < late_s:
            what = f"workers have not packed their state for snapshot {now.id} within {SAVE_DEADLINE_S:g} s"
            wait = f"state to be packed for snapshot {now.id}"
        # `Coordinator.check_deadline` limits the time of the barrier.
        elif self._machine.phase in _WRITTEN_IN and now.passed_s is not None and now.passed_s < late_s:
            what = (
                f"snapshot {now.id} has not been written to {self.checkpointer} within {SAVE_DEADLINE_S:g} s: check "
                f"that the store responds"
            )
            wait = f"snapshot {now.id} to be written"
        else:
            return
        raise DeadlineError(f"job {self._job!r}: {what}", wait=wait, deadline_s=SAVE_DEADLINE_S)


def positions_in(manifest: Manifest) -> dict[str, dict[Part, Any]]:
    """Return the positions of the parts of each source in ``manifest``, without those that have not begun."""
    return {
        step: {Part(part): image.position for part, image in images.items() if image.position is not None}
        for step, images in manifest.sources.items()
    }


def set_values(plan: Plan, resumption: RestorePoint | None) -> Mapping[str, Any]:
    """Return the values that were set of the parameters of ``plan``, in the snapshot that the job resumes from.

    Raises: SnapshotError: one is not of the type that its default has now.
    """
    found = {} if resumption is None else resumption.manifest.parameters
    try:
        return {
            name: plain_value(f"parameter {name!r}", found[name], default)
            for name, default in plan.parameters.items()
            if name in found
        }
    except PlanError as error:
        raise SnapshotError(
            f"job {plan.job!r} cannot resume from its snapshot: {error}. Give the parameter another name, which starts "
            f"with the default"
        ) from error


def result_in(manifest: Manifest) -> RunResult | None:
    """Return the result of the job that finished with the snapshot ``manifest``; None if it has not finished."""
    return None if manifest.result is None else replace(from_plain(manifest.result), last_snapshot=manifest.id)


def worth_merging(chain: tuple[Artefact, ...]) -> tuple[Artefact, ...]:
    """Return the newest artefacts of a long chain, to be merged: from the first that is at most `_TIMES` all after it.

    So what is large is seldom written again, and most of what did not change is not.
    """
    newer = sum(artefact.size for artefact in chain)
    for place, artefact in enumerate(chain[:-1]):
        newer -= artefact.size
        if artefact.size <= _TIMES * newer:
            return chain[place:]
    return chain[-2:]


def _compacted(chain: Sequence[Artefact], checkpointer: Checkpointer) -> Artefact:
    """Write the content of ``chain``, or of deltas that follow each other, as one artefact."""
    last, kind = chain[-1], chain[0].kind
    merge = merged if kind == "full" else merged_deltas
    made = merged_in_parts(merge, [verified(checkpointer, artefact) for artefact in chain])
    place = (last.snapshot, last.operator, last.partition, kind)
    sha256, size = persistently(lambda: save_pieces(checkpointer, *place, made.pieces, compacted=True))
    return Artefact(last.operator, last.partition, kind, last.snapshot, _place_of(chain), size, sha256)


def _place_of(chain: Sequence[Artefact]) -> str:
    """Return the path of the compacted ``chain``, of which the first says whether it is a full one."""
    last = chain[-1]
    return artefact_path(last.snapshot, last.operator, last.partition, chain[0].kind, compacted=True)
