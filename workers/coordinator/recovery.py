"""How one run of a job begins: with nothing, or where a snapshot of it was taken; whoever ran it before is fenced off.

Rule: first the claim, then everything else: a run that is stale learns it before it changes anything (S3). Sinks are
made ready before anything is read: what belongs to snapshots that stand becomes visible, all else is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeGuard

from malstrom_py.builder.plan import Plan, ancestors
from malstrom_py.clock import Clock
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import PlanError, SnapshotError, SourceError, lasting
from malstrom_py.operators.read_source import RestoredPart, reads_new
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import faults_of, loaded
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator.job_upgrades import Fit, fitted
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import build_sources
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.job_status import SnapshotStatus

LATEST: Final = "latest"
NONE: Final = "none"

_LOG: Final = logging.getLogger("malstrom_py")


@dataclass(frozen=True, slots=True)
class Pinned:
    """What sources have pinned, by step. ``read``: the steps whose sources have been read to the end of that.
    ``finished``: the job has finished with it, and does not go on: nothing is to be pinned.
    """

    records: Mapping[str, Any] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Resumption:
    """The snapshot that a run goes on from, as it fits the plan of now."""

    manifest: Manifest
    fit: Fit = field(repr=False)

    def chains(self, checkpointer: Checkpointer) -> Iterator[tuple[str, list[bytes]]]:
        """Every chain of keyed state, read and compared with its digests: the step that takes it over, and its bytes.

        `SnapshotError`: one of them is damaged.
        """
        for step, chains in self.fit.chains.items():
            for chain in chains.values():
                yield step, [loaded(checkpointer, artefact) for artefact in chain]

    @property
    def known(self) -> dict[str, dict[Part, Any]]:
        """The parts of each source in the snapshot, with their positions."""
        return {
            step: {Part(part): image.position for part, image in images.items()}
            for step, images in self.fit.sources.items()
        }

    @property
    def pinned(self) -> Pinned:
        """What the snapshot has pinned, and of which sources all that was pinned is read."""
        if self.manifest.result is None:
            return Pinned(self.fit.pins)
        sources = self.fit.sources
        read = (step for step in self.fit.pins if all(image.finished for image in sources.get(step, {}).values()))
        return Pinned(self.fit.pins, frozenset(read))

    def opened(self, plan: Plan, listed: Mapping[str, Sequence[Part]]) -> Resumption:
        """The same, with event time beginning again at each exchange whose end had come, and in front of which a source
        has something to read again: a part that is new, or one of a job that was drained.
        """
        unread = {step for step, parts in listed.items() if any(not self._has_read(step, part) for part in parts)}
        if self.manifest.result is not None and not unread:
            _LOG.warning(
                "job %s: nothing is new since snapshot %s, with which it had finished", *(plan.job, self.manifest.id)
            )
        frontiers = {
            exchange: time
            for exchange, time in self.fit.frontiers.items()
            if time < MAX_EPOCH or not any(step.name in unread for step in ancestors(plan.steps, {exchange}))
        }
        return replace(self, fit=replace(self.fit, frontiers=frontiers))

    def _has_read(self, step: str, part: Part) -> bool:
        image = self.fit.sources.get(step, {}).get(part)
        return image is not None and image.finished

    def begun(self, listed: Mapping[str, Sequence[Part]]) -> dict[str, dict[Part, RestoredPart]]:
        """Where the parts of each source stand. ``listed``: those that there are now; a part that is gone may only be
        one that was finished.
        """
        begun: dict[str, dict[Part, RestoredPart]] = {}
        for step, images in self.fit.sources.items():
            there = set(listed[step])
            gone = [part for part, image in images.items() if not image.finished and part not in there]
            if gone:
                others = f" (and {len(gone) - 1} others)" if len(gone) > 1 else ""
                said = (
                    f"source {step!r} has no part {gone[0]!r} any more, which snapshot {self.manifest.id} had not read "
                    f'to its end{others}: bring it back, or start afresh with resume="none"'
                )
                raise lasting(SourceError(said))
            begun[step] = {
                Part(part): RestoredPart(image.position, image.finished, self._kept(f"{step}/{part}"))
                for part, image in images.items()
                if part in there
            }
        return begun

    def _kept(self, part: str) -> dict[str, Any]:
        """What steps keep for a part."""
        return {step: states[part] for step, states in self.fit.parts.items() if part in states}


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run that has begun. ``finished``: there is nothing to run, for the job has finished with this manifest;
    ``finished_before``: it had when it was started, by an earlier start.
    """

    checkpointer: Checkpointer
    incarnation: int
    sequence: int
    resumption: Resumption | None = None
    finished: Manifest | None = None
    finished_before: bool = False

    @property
    def standing(self) -> SnapshotStatus:
        """How it stands with the snapshots at first."""
        return SnapshotStatus.of(self.finished or (None if self.resumption is None else self.resumption.manifest), 0)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a job is snapshotted: as ``snapshots`` say, from where ``resume`` says: "latest", "none", or an id.

    ``is_again``: this run takes the place of one of the same start, which has failed; ``stood``: the last snapshot that
    stood when this run began, as far as that one knows; ``began_from``: the snapshot that those runs began from, as
    long as they have made none.
    """

    snapshots: Snapshots
    resume: str = LATEST
    allow_dropped_state: bool = False
    stood: str | None = None
    is_again: bool = False
    began_from: str | None = None


def keeping_of(snapshots: object, *, resume: object, allow_dropped_state: object) -> Keeping | None:
    """What a runtime was given, checked: None for a job without snapshots. `PlanError` if it makes no sense."""
    if not isinstance(resume, str) or not (resume in {LATEST, NONE} or is_snapshot_id(resume)):
        raise PlanError(f'resume is "latest", "none" or the id of a snapshot, got {resume!r}')
    if not isinstance(allow_dropped_state, bool):
        raise PlanError(f"allow_dropped_state is True or False, got {allow_dropped_state!r}")
    if snapshots is not None and not isinstance(snapshots, Snapshots):
        raise PlanError(f"snapshots is where they are kept, mp.Snapshots(uri), got {type(snapshots).__name__}")
    if snapshots is None and resume not in {LATEST, NONE}:
        raise PlanError(f"resume={resume!r} names a snapshot, and there is no place for it: give snapshots=")
    return None if snapshots is None else Keeping(snapshots, resume, allow_dropped_state)


def warn_of_reading_again(plan: Plan, keeping: Keeping | None) -> None:
    """Warn of sources that are to read what is new and read all: without snapshots nobody knows what was read."""
    for step in plan.steps:
        source = step.factory.keywords.get("source") if isinstance(step.factory, partial) else None
        if keeping is None and reads_new(source):
            _LOG.warning(
                "job %s: source %r is to read what is new since the last run (new_files=, since=), but the job has no "
                "snapshots to know that from: each run reads everything. Give it snapshots=mp.Snapshots(uri)",
                *(plan.job, step.name),
            )


def begun_again(keeping: Keeping | None, known: SnapshotStatus | None) -> Keeping | None:
    """The same for the run after one that has taken over the job, and ``known`` so much: it goes on where that one had
    got to.
    """
    if keeping is None:
        return None
    if known is None:  # it had not begun to make snapshots
        return replace(keeping, resume=LATEST)
    began_from = keeping.began_from if known.made else known.last
    return replace(keeping, resume=LATEST, stood=known.last or keeping.stood, is_again=True, began_from=began_from)


def begin(plan: Plan, keeping: Keeping, commits: SinkCommits, clock: Clock) -> Beginning:
    """Claim the job, choose the snapshot to go on from, and have the sinks made ready.

    Raises:
        SnapshotError: there is none that can be used, or the job has changed so that it does not fit.
    """
    checkpointer = keeping.snapshots.checkpointer(plan.job)
    found, warnings = _found(checkpointer, plan, keeping)
    grows = _grows(plan, clock)
    if _has_finished(found, keeping, grows=grows):
        return _ended(checkpointer, commits, found, keeping)
    claim = checkpointer.claim(clock.now_s(), resume=keeping.resume)
    if keeping.resume == LATEST:
        found, warnings = _found(checkpointer, plan, keeping)  # whoever was fenced off may have been quicker
        if _has_finished(found, keeping, grows=grows):
            return _ended(checkpointer, commits, found, keeping)
        _check_standing(checkpointer, found, keeping, plan.job)
    for warning in warnings:
        _LOG.warning(
            "job %s goes on from an older snapshot than the newest; what sinks have shown since stays visible, and "
            "comes again: %s",
            *(plan.job, warning),
        )
    commits.incarnation = claim.incarnation
    if keeping.resume == NONE:
        _warn_of_what_stays(checkpointer, commits, plan.job)
    _make_ready(checkpointer, commits, found)
    commits.next(checkpointer.next_id(clock.now_s()))
    if found is not None:
        _LOG.info("job %s goes on from snapshot %s", plan.job, found.manifest.id)
    return Beginning(checkpointer, claim.incarnation, claim.sequence + 1, found)


def _check_standing(checkpointer: Checkpointer, found: Resumption | None, keeping: Keeping, job: str) -> None:
    """S4: what stood a moment ago is there, or is missed: a job does not begin from nothing by itself."""
    stood = keeping.stood
    if stood is None or (found is not None and found.manifest.id >= stood):
        return
    if found is None:
        said = (
            f"job {job!r}: snapshot {stood} stood, and nothing of it is left in {checkpointer}: it was removed "
            f"while the job was running. Bring it back from a copy, or start the job afresh"
        )
        raise lasting(SnapshotError(said))
    _LOG.warning(
        "job %s goes on from snapshot %s, for %s, which stood, cannot be used any more: what sinks have shown since "
        "stays visible, and comes again",
        *(job, found.manifest.id, stood),
    )


def _has_finished(found: Resumption | None, keeping: Keeping, *, grows: bool) -> TypeGuard[Resumption]:
    """Return whether there is nothing to run. This is decided here alone. A start that names a snapshot goes on from it
    all the same.

    ``grows``: a source of the job reads what is new, so that the job goes on after its end; but not after the end of
    this very start, to which a run had come that has failed since.
    """
    if found is None or found.manifest.result is None or keeping.resume != LATEST:
        return False
    return not grows or (keeping.is_again and found.manifest.id != keeping.began_from)


def _ended(checkpointer: Checkpointer, commits: SinkCommits, found: Resumption, keeping: Keeping) -> Beginning:
    manifest, before = found.manifest, not keeping.is_again
    commits.incarnation = manifest.incarnation
    _make_ready(checkpointer, commits, found)
    if before:
        _LOG.info('job %s has already finished, in snapshot %s; resume="none" starts over', manifest.job, manifest.id)
    return Beginning(checkpointer, manifest.incarnation, manifest.sequence, finished=manifest, finished_before=before)


def _grows(plan: Plan, clock: Clock) -> bool:
    """Whether a source of ``plan`` reads what is new."""
    return any(source.reads_new for source in build_sources(plan, clock))


def pinned(plan: Plan, keeping: Keeping, clock: Clock) -> Pinned:
    """What the snapshot that a run would begin with has pinned. Nothing is claimed, nothing changed."""
    found, _ = _found(keeping.snapshots.checkpointer(plan.job), plan, keeping)
    if found is None:
        return Pinned()
    return replace(found.pinned, finished=_has_finished(found, keeping, grows=_grows(plan, clock)))


def _found(checkpointer: Checkpointer, plan: Plan, keeping: Keeping) -> tuple[Resumption | None, list[str]]:
    """The snapshot to go on from, if there is one, as it fits ``plan``; what is wrong with newer ones."""
    manifest, warnings = _chosen(checkpointer, plan.job, keeping.resume)
    if manifest is None:
        return None, warnings
    committed = checkpointer.sinks_committed(manifest.id)
    allowed = keeping.allow_dropped_state
    fit = fitted(manifest, plan, allow_dropped_state=allowed, sinks_committed=committed)
    return Resumption(manifest, fit), warnings


def _chosen(checkpointer: Checkpointer, job: str, resume: str) -> tuple[Manifest | None, list[str]]:
    if resume == NONE:
        return None, []
    if resume == LATEST:
        return latest_manifest(checkpointer, job=job)
    manifest = checkpointer.load_manifest(SnapshotId(resume))
    for fault in faults_of(checkpointer, manifest):
        raise lasting(SnapshotError(f"job {job!r} cannot go on from snapshot {resume}: {fault}"))
    return manifest, []


def _warn_of_what_stays(checkpointer: Checkpointer, commits: SinkCommits, job: str) -> None:
    """A job that starts over reads all again, and its sinks add that to what its snapshots have committed."""
    made, adding = checkpointer.list_checkpoints(), commits.adding()
    if made and adding:
        _LOG.warning(
            'job %s starts afresh (resume="none"), though it has snapshots, up to %s: what sinks have shown (%s) stays '
            "visible, and what is read again comes again. Move that output away first, or give the sinks another place",
            *(job, made[-1], ", ".join(map(repr, adding))),
        )


def _make_ready(checkpointer: Checkpointer, commits: SinkCommits, found: Resumption | None) -> None:
    if found is None:
        commits.recover()
        return
    snapshot = found.manifest.id
    newer = [other for other in checkpointer.list_checkpoints() if other > snapshot]
    if newer and commits.any:
        _LOG.warning(
            "job %s goes on from snapshot %s, which is not the newest: what sinks have shown since, up to %s, stays "
            "visible, and comes again",
            *(found.manifest.job, snapshot, newer[-1]),
        )
    commits.recover([standing for standing in checkpointer.list_checkpoints() if standing <= snapshot])
    if not checkpointer.sinks_committed(snapshot):
        commits.take_over(snapshot, pairs_of(found.fit.sinks), stands=True)
        commits.commit(snapshot=snapshot, final=found.manifest.result is not None)
        checkpointer.note_sinks_committed(snapshot)


def pairs_of(sinks: Mapping[str, Sequence[bytes]]) -> Iterator[tuple[str, bytes]]:
    """Payloads of sinks, one by one."""
    return ((step, payload) for step, payloads in sinks.items() for payload in payloads)


def restore(resumption: Resumption, checkpointer: Checkpointer, workers: Sequence[Worker]) -> None:
    """Have ``workers``, just built, take over what they own of the snapshot, and go on where it was taken (S5)."""
    for step, chain in resumption.chains(checkpointer):
        for worker in workers:
            worker.install(step, chain, resumption.fit.migrate.get(step))
    for worker in workers:
        worker.continue_at(resumption.fit.frontiers)


def beginning_steps(plan: Plan, resumption: Resumption | None) -> list[str]:
    """The steps of ``plan`` that are to begin with their initial state: those that the snapshot does not know."""
    given = [step.name for step in plan.steps if step.initial is not None]
    return given if resumption is None else [step for step in given if not resumption.fit.has_state_of(step)]


def listed(dealt: Mapping[int, Mapping[str, Sequence[Part]]]) -> dict[str, list[Part]]:
    """The parts of each source, whoever they were dealt to."""
    parts: dict[str, list[Part]] = {}
    for sources in dealt.values():
        for step, some in sources.items():
            parts.setdefault(step, []).extend(some)
    return parts
