"""The start of a run: claims the job, chooses the snapshot to resume from, prepares the sinks.

Rule: the claim comes first and fences off earlier runs: a stale run finds out before it changes anything (S3). Sinks
are prepared before anything is read: the output of durable snapshots becomes visible, all other output is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeGuard

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors import SnapshotError, lasting
from malstrom_py.logs import log
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import made_at_s, next_snapshot_id
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import faults_of
from malstrom_py.sources.base import as_source
from malstrom_py.workers.coordinator.restore_point import PinnedInputs, RestorePoint, fitted
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import build_sources
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.reports.result import text_of_new_input

LATEST: Final = "latest"
NONE: Final = "none"

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a run. ``finished``: the job has finished with this manifest, and there is nothing to run.
    ``finished_before``: the job had finished before this start. ``read_new_with``: as in `RunResult`.
    """

    checkpointer: Checkpointer
    incarnation: int
    sequence: int
    resumption: RestorePoint | None = None
    finished: Manifest | None = None
    finished_before: bool = False
    read_new_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def snapshot_status(self) -> SnapshotStatus:
        """The status of the snapshots at the start."""
        return SnapshotStatus.of(self.finished or (None if self.resumption is None else self.resumption.manifest), 0)


@dataclass(frozen=True, slots=True)
class SnapshotUse:
    """The snapshots of a job, and where it resumes from: ``resume`` is "latest", "none", or an id.

    ``is_again``: this run replaces a failed run of the same start. ``last_known``: the last durable snapshot that
    the failed run knows. ``began_from``: the snapshot that the failed runs resumed from, if they have made none.
    """

    snapshots: Snapshots
    resume: str = LATEST
    allow_dropped_state: bool = False
    last_known: str | None = None
    is_again: bool = False
    began_from: str | None = None


def warn_of_reading_again(plan: Plan, snapshot_use: SnapshotUse | None) -> None:
    """Warn of sources that should read new input only but read all, because the job has no snapshots."""
    for step in plan.steps:
        given = step.factory.keywords.get("source") if isinstance(step.factory, partial) else None
        source = None if given is None or snapshot_use is not None else as_source(given)
        if source is not None and source.reads_new and (asked := source.reads_new_with) is not None:
            log(
                _LOG,
                logging.WARNING,
                "job %s: source %r should read only new input since the last run (%s), but the job has no snapshots: "
                "each run reads everything. Give the runtime snapshots=mp.Snapshots(uri)",
                *(plan.job, step.name, asked or "reads_new"),
                job=plan.job,
                step=step.name,
            )


def begun_again(
    snapshot_use: SnapshotUse | None, known: SnapshotStatus | None, *, finished: bool = False
) -> SnapshotUse | None:
    """Return ``snapshot_use`` for the run after another one, which resumes from the last snapshot.

    ``known``: the snapshots of the run that failed or is ``finished``; None if it had not claimed the job.
    """
    if snapshot_use is None:
        return None
    if known is None:
        return replace(snapshot_use, resume=LATEST)
    # A run after a finished one reads what is new; one after a failure not, if the job had finished.
    began_from = snapshot_use.began_from if known.made and not finished else known.last
    return replace(
        snapshot_use,
        resume=LATEST,
        last_known=known.last or snapshot_use.last_known,
        is_again=True,
        began_from=began_from,
    )


def begin(plan: Plan, snapshot_use: SnapshotUse, commits: SinkCommits, clock: Clock, workers: int) -> RunStart:
    """Claim the job, choose the snapshot to resume from, and prepare the sinks. ``workers``: how many restore it.

    Raises:
        SnapshotError: no snapshot can be used, or the job has changed and the snapshot does not fit.
    """
    checkpointer = snapshot_use.snapshots.checkpointer(plan.job)
    # `recover` discards what is older than this id, which is made before the claim: if this start is paused, all that a
    # later start writes has larger ids.
    commits.next(recovering := checkpointer.next_id(clock.now_s()))
    found, warnings = _found(checkpointer, plan, snapshot_use)
    verified = None if found is None else found.manifest
    grows = _grows(plan, clock)
    if _has_finished(found, snapshot_use, grows=grows):
        return _ended(checkpointer, commits, found, snapshot_use, _read_new_with(plan, clock))
    claim = checkpointer.claim(made_at_s(recovering), resume=snapshot_use.resume)
    if snapshot_use.resume == LATEST:
        # The fenced-off run may have made another.
        found, warnings = _found(checkpointer, plan, snapshot_use, verified)
        if _has_finished(found, snapshot_use, grows=grows):
            return _ended(checkpointer, commits, found, snapshot_use, _read_new_with(plan, clock))
        _check_standing(checkpointer, found, snapshot_use, plan.job)
    for warning in warnings:
        log(
            _LOG,
            logging.WARNING,
            "job %s resumes from a snapshot that is not the newest; output that sinks have committed since then stays "
            "visible and is written again: %s",
            *(plan.job, warning),
            job=plan.job,
        )
    commits.claimed(claim.incarnation)
    if snapshot_use.resume == NONE:
        _warn_of_what_stays(checkpointer, commits, plan.job)
    _make_ready(checkpointer, commits, found)
    commits.next(max(checkpointer.next_id(clock.now_s()), next_snapshot_id(clock.now_s(), after=recovering)))
    if found is not None:
        log(
            _LOG,
            logging.INFO,
            "job %s resumes from snapshot %s, made on %d workers, on %d workers",
            *(plan.job, found.manifest.id, found.manifest.workers, workers),
            job=plan.job,
            incarnation=claim.incarnation,
            snapshot=found.manifest.id,
            workers_from=found.manifest.workers,
            workers=workers,
        )
    return RunStart(checkpointer, claim.incarnation, claim.sequence + 1, found)


def _check_standing(
    checkpointer: Checkpointer, found: RestorePoint | None, snapshot_use: SnapshotUse, job: str
) -> None:
    """S4: check that the last known snapshot still exists: a job starts over only on request."""
    last_known = snapshot_use.last_known
    if last_known is None or (found is not None and found.manifest.id >= last_known):
        return
    if found is None:
        message = (
            f"job {job!r}: snapshot {last_known} is no longer in {checkpointer}: it was removed while the job ran. "
            f"Restore it from a copy, or start the job over"
        )
        raise lasting(SnapshotError(message))
    log(
        _LOG,
        logging.WARNING,
        "job %s resumes from snapshot %s, because %s can no longer be used: output that sinks have committed since "
        "then stays visible and is written again",
        *(job, found.manifest.id, last_known),
        job=job,
        snapshot=found.manifest.id,
    )


def _has_finished(found: RestorePoint | None, snapshot_use: SnapshotUse, *, grows: bool) -> TypeGuard[RestorePoint]:
    """Return whether there is nothing to run. A start that names a snapshot always runs.

    ``grows``: a source of the job reads new input, so that a new start runs again after the job's end. A restart after
    a failure does not, if an earlier run of the same start had finished the job.
    """
    if found is None or found.manifest.result is None or snapshot_use.resume != LATEST:
        return False
    return not grows or (snapshot_use.is_again and found.manifest.id != snapshot_use.began_from)


def _ended(
    checkpointer: Checkpointer,
    commits: SinkCommits,
    found: RestorePoint,
    snapshot_use: SnapshotUse,
    read_new_with: Mapping[str, str],
) -> RunStart:
    manifest, before = found.manifest, not snapshot_use.is_again
    commits.claimed(manifest.incarnation)
    _make_ready(checkpointer, commits, found)
    if before:
        log(
            _LOG,
            logging.INFO,
            'job %s has already finished, in snapshot %s: nothing is read; resume="none" starts over%s',
            *(manifest.job, manifest.id, text_of_new_input(read_new_with)),
            job=manifest.job,
            snapshot=manifest.id,
        )
    return RunStart(
        *(checkpointer, manifest.incarnation, manifest.sequence),
        finished=manifest,
        finished_before=before,
        read_new_with=read_new_with,
    )


def _grows(plan: Plan, clock: Clock) -> bool:
    """Return whether a source of ``plan`` reads new input at each start."""
    return any(step.source.reads_new for step in build_sources(plan, clock))


def _read_new_with(plan: Plan, clock: Clock) -> dict[str, str]:
    """Return the arguments with which sources of ``plan`` would read new input, by step."""
    found = ((source.context.step, source.reads_new_with) for source in build_sources(plan, clock))
    return {step: argument for step, argument in found if argument is not None}


def pinned(plan: Plan, snapshot_use: SnapshotUse, clock: Clock) -> PinnedInputs:
    """Return the pinned inputs of the snapshot that a run would resume from. Changes nothing."""
    found, _ = _found(snapshot_use.snapshots.checkpointer(plan.job), plan, snapshot_use)
    if found is None:
        return PinnedInputs()
    return replace(found.pinned, finished=_has_finished(found, snapshot_use, grows=_grows(plan, clock)))


def _found(
    checkpointer: Checkpointer, plan: Plan, snapshot_use: SnapshotUse, verified: Manifest | None = None
) -> tuple[RestorePoint | None, list[str]]:
    """Return the snapshot to resume from, if any, fitted to ``plan``, and the faults of newer snapshots.

    ``verified``: a snapshot whose digests have been verified.
    """
    manifest, warnings = _chosen(checkpointer, plan.job, snapshot_use.resume, verified)
    if manifest is None:
        return None, warnings
    committed = checkpointer.sinks_committed(manifest.id)
    allowed, chain_max = snapshot_use.allow_dropped_state, snapshot_use.snapshots.chain_max
    found = fitted(manifest, plan, chain_max=chain_max, allow_dropped_state=allowed, sinks_committed=committed)
    return found, warnings


def _chosen(
    checkpointer: Checkpointer, job: str, resume: str, verified: Manifest | None
) -> tuple[Manifest | None, list[str]]:
    if resume == NONE:
        return None, []
    if resume == LATEST:
        return latest_manifest(checkpointer, job=job, verified=verified)
    manifest = checkpointer.load_manifest(SnapshotId(resume))
    for fault in faults_of(checkpointer, manifest):
        raise lasting(SnapshotError(f"job {job!r} cannot resume from snapshot {resume}: {fault}"))
    return manifest, []


def _warn_of_what_stays(checkpointer: Checkpointer, commits: SinkCommits, job: str) -> None:
    """Warn that a job that starts over reads all input again, and its sinks append to the committed output."""
    made, adding = checkpointer.list_checkpoints(), commits.adding()
    if made and adding:
        log(
            _LOG,
            logging.WARNING,
            'job %s starts over (resume="none"), though it has snapshots, up to %s: the committed output of sinks (%s) '
            "stays visible, and is written again. Move that output away first, or give the sinks another place",
            *(job, made[-1], ", ".join(map(repr, adding))),
            job=job,
        )


def _make_ready(checkpointer: Checkpointer, commits: SinkCommits, found: RestorePoint | None) -> None:
    if found is None:
        commits.recover()
        return
    snapshot = found.manifest.id
    newer = [other for other in checkpointer.list_checkpoints() if other > snapshot]
    if newer and commits.any:
        log(
            _LOG,
            logging.WARNING,
            "job %s resumes from snapshot %s, which is not the newest: output that sinks have committed since then, up "
            "to %s, stays visible and is written again",
            *(found.manifest.job, snapshot, newer[-1]),
            job=found.manifest.job,
            snapshot=snapshot,
        )
    commits.recover([durable for durable in checkpointer.list_checkpoints() if durable <= snapshot])
    if not checkpointer.sinks_committed(snapshot):
        payloads = ((step, payload) for step, some in found.sinks.items() for payload in some)
        commits.take_over(snapshot, payloads, durable=True)
        commits.commit(snapshot=snapshot, final=found.manifest.result is not None)
        checkpointer.note_sinks_committed(snapshot)


def beginning_steps(plan: Plan, resumption: RestorePoint | None) -> list[str]:
    """Return the steps of ``plan`` that start with their initial state: those without state in the snapshot."""
    given = [step.name for step in plan.steps if step.initial is not None]
    return given if resumption is None else [step for step in given if step not in resumption.stateful]
