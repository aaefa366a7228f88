"""The start of a run: claims the job, chooses the snapshot to resume from, fits it to the job, prepares the sinks.

Rule: the claim comes first and fences off earlier runs: a stale run finds out before it changes anything (S3). No state
is dropped or guessed silently: that of a step goes to the step with that name, or to the step with that
``renamed_from``, and all misfits of a changed job are reported together (S5). Sinks are prepared before anything is
read: the output of durable snapshots becomes visible, all other output is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeGuard, TypeVar

from malstrom_py.builder.plan import Plan, Step, ancestors
from malstrom_py.builder.state_migration import Migrate
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.clock import Clock
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import SnapshotError, SourceError, lasting
from malstrom_py.logs import log
from malstrom_py.operators.read_source import ReadSource, RestoredPart
from malstrom_py.operators.write_sink import WriteParts
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import made_at_s, next_snapshot_id
from malstrom_py.snapshot.manifest import Artefact, Manifest, PartImage, PlanImage, StepImage
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import faults_of, stored
from malstrom_py.sources.base import Part
from malstrom_py.state.artefact_parts import all_or_none
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.step_names import former_steps, is_let_go
from malstrom_py.workers.engine.graph_builder import PartAssignment, build_sources
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.reports.result import text_of_new_input

T = TypeVar("T")

LATEST: Final = "latest"
NONE: Final = "none"

_LOG: Final = logging.getLogger("malstrom_py.coordinator")

_DEFAULT_PARTITIONER: Final = "StableHash"

_KEPT: Final = {"source": "how far it had read", "generate_epochs": "the watermark of each partition"}
"""The state of steps without keyed state, by kind."""


@dataclass(frozen=True, slots=True)
class PinnedInputs:
    """The pinned inputs of sources, by step. ``read``: the steps that have read all pinned inputs. ``finished``: the
    job has finished and does not resume, so nothing needs to be pinned.
    """

    records: Mapping[str, Any] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The snapshot ``manifest``, and its state by the current names of steps. A step that is not named starts empty.

    ``former``: step -> its name in the snapshot. ``chains``: step -> worker -> the artefacts to install, in order.
    ``migrate``: step -> the migration of the state of each key. ``sources``, ``parts``, ``frontiers``, ``sinks`` and
    ``pins`` have the form of `Manifest`. ``dropped``: the steps of the snapshot whose state is dropped, as allowed.
    ``stateful``: the steps that had state in the snapshot, also without keys. ``chain_max``: as in `Snapshots`.
    """

    manifest: Manifest
    former: Mapping[str, str] = field(repr=False)
    chains: Mapping[str, Mapping[int, Sequence[Artefact]]] = field(repr=False)
    migrate: Mapping[str, Migrate] = field(repr=False)
    sources: Mapping[str, Mapping[str, PartImage]] = field(repr=False)
    parts: Mapping[str, Mapping[str, Any]] = field(repr=False)
    frontiers: Mapping[str, int] = field(repr=False)
    sinks: Mapping[str, Sequence[bytes]] = field(repr=False)
    pins: Mapping[str, Any] = field(repr=False)
    dropped: tuple[str, ...]
    stateful: frozenset[str]
    chain_max: int

    @property
    def continued(self) -> dict[tuple[str, int], tuple[Artefact, ...]]:
        """The chains that the next snapshot may continue, by step and worker: of steps that are the same as before.

        A longer chain is not continued: the final snapshot of a job is not compacted, so each run would add to it.
        """
        return {
            (step, worker): tuple(chain)
            for step, chains in self.chains.items()
            if step not in self.migrate and self.former[step] == step
            for worker, chain in chains.items()
            if len(chain) <= self.chain_max
        }

    @property
    def known(self) -> dict[str, dict[Part, Any]]:
        """The parts of each source in the snapshot, with their positions."""
        return {
            step: {Part(part): image.position for part, image in images.items()}
            for step, images in self.sources.items()
        }

    @property
    def pinned(self) -> PinnedInputs:
        """The pinned inputs of the snapshot, and the sources that have read all of theirs."""
        if self.manifest.result is None:
            return PinnedInputs(self.pins)
        read = (step for step in self.pins if all(one.finished for one in self.sources.get(step, {}).values()))
        return PinnedInputs(self.pins, frozenset(read))

    def for_workers(self, plan: Plan, dealt: PartAssignment) -> RestorePoint:
        """Return what workers restore: without data that they do not need, and without the final epochs of exchanges
        whose sources have unread parts.

        A part is unread if it is new or has more (see `restored_parts`), or if the job was drained before its end. The
        growing sources of a finished job may get more; a job that was being drained is at its end.
        """
        listed = listed_parts(dealt.parts)
        read = {(step, part) for step, images in self.sources.items() for part in images if images[part].finished}
        unread = {step for step, parts in listed.items() if any((step, part) not in read for part in parts)}
        unread |= {step for step, positions in dealt.new_positions.items() if positions}
        if self.manifest.result is not None:
            unread |= dealt.growing
        if self.manifest.result is not None and not unread:
            _warn(plan.job, "has no new input since snapshot %s, in which it has finished", self.manifest.id)
        frontiers = {
            exchange: time
            for exchange, time in self.frontiers.items()
            if time < MAX_EPOCH or not any(step.name in unread for step in ancestors(plan.steps, {exchange}))
        }
        lighter = replace(self.manifest, sinks={}, pins={})
        return replace(self, manifest=lighter, frontiers=frontiers, sinks={}, pins={})

    def restored_parts(self, dealt: PartAssignment) -> dict[str, dict[Part, RestoredPart]]:
        """Return the positions of the parts of each source, also of those that have appeared since (R13), and of those
        that were read and have more now.

        `SourceError`: a part that was not read to its end is missing.
        """
        listed = listed_parts(dealt.parts)
        restored: dict[str, dict[Part, RestoredPart]] = {}
        for step, images in self.sources.items():
            present = set(listed[step])
            gone = [part for part, image in images.items() if not image.finished and part not in present]
            if gone:
                others = f" (and {len(gone) - 1} others)" if len(gone) > 1 else ""
                message = (
                    f"source {step!r} no longer has partition {gone[0]!r}, which was not read to its end in snapshot "
                    f'{self.manifest.id}{others}: restore the partition, or start over with resume="none"'
                )
                raise lasting(SourceError(message))
            restored[step] = {
                Part(part): RestoredPart(image.position, image.finished, self._kept(f"{step}/{part}"))
                for part, image in images.items()
                if part in present
            }
            new = dealt.new_positions.get(step, {})
            restored[step] |= {part: RestoredPart(position) for part, position in new.items()}
        return restored

    def _kept(self, part: str) -> dict[str, Any]:
        """Return the state of steps for a part."""
        return {step: states[part] for step, states in self.parts.items() if part in states}

    def restore(self, checkpointer: Checkpointer, worker: Worker) -> None:
        """Install in the new ``worker`` the state that it owns, and set its frontiers to the snapshot's (S5).

        It reads only the slots that it owns. Its chain is continued if it owns all of that chain and nothing else.
        """
        continued = self.continued
        for step, chains in self.chains.items():
            is_same = (step, worker.id) in continued
            for former, chain in chains.items():
                parts = [stored(checkpointer, artefact) for artefact in chain]
                worker.install(step, parts, self.migrate.get(step))
                is_same = is_same and all_or_none(parts, worker.slots, owned=former == worker.id)
            if is_same:
                worker.continue_chain(step, self.manifest.id)
        worker.continue_at(self.frontiers)


def listed_parts(dealt: Mapping[int, Mapping[str, Sequence[Part]]]) -> dict[str, list[Part]]:
    """Return the parts of each source, of all workers."""
    parts: dict[str, list[Part]] = {}
    for sources in dealt.values():
        for step, some in sources.items():
            parts.setdefault(step, []).extend(some)
    return parts


def plan_image(plan: Plan) -> PlanImage:
    """Return the description of ``plan`` for the manifest."""
    return PlanImage(plan.slots, {step.name: _image(step) for step in plan.steps})


def fitted(
    manifest: Manifest, plan: Plan, *, chain_max: int, allow_dropped_state: bool = False, sinks_committed: bool = False
) -> RestorePoint:
    """Return the snapshot ``manifest`` as ``plan`` resumes from it. ``chain_max``: as in `Snapshots`.

    ``allow_dropped_state``: the state of removed steps may be dropped. ``sinks_committed``: the pre-committed output of
    the snapshot is visible already, so that a removed sink loses nothing.

    Raises:
        SnapshotError: the snapshot does not fit the changed job; the message lists all misfits.
    """
    former = former_steps(plan, manifest.plan.steps)
    left = _left_behind(manifest, plan, former, sinks_committed=sinks_committed)
    wrong = [*_misfits(manifest, plan, former)]
    if left and not allow_dropped_state:
        steps = "; ".join(f"step {step!r} ({what})" for step, what in left.items())
        wrong.append(
            f"steps with state were removed: {steps}. Restore them, give renamed_from= to the steps that replace them, "
            f"or drop the state with allow_dropped_state=True (--allow-dropped-state)"
            f"{_perhaps_renamed(manifest.plan.steps, plan, left)}"
        )
    if wrong:
        raise SnapshotError(
            "\n  - ".join(
                (f"job {plan.job!r} cannot resume from snapshot {manifest.id}, because the job changed:", *wrong)
            )
        )
    return _fit(manifest, plan, former, tuple(left), chain_max)


def _perhaps_renamed(steps: Mapping[str, StepImage], plan: Plan, left: Collection[str]) -> str:
    """Return which new steps of ``plan`` may be those of the snapshot that are ``left``: they are of the same kind."""
    new = [step for step in plan.steps if step.name not in steps and step.renamed_from is None]
    return "".join(
        f". Step {step.name!r} is new and {_a(step.kind)} like {name!r}: if it is the same step, give {step.name!r} "
        f"renamed_from={name!r}"
        for name in left
        for step in new
        if name in steps and steps[name].kind == step.kind
    )


def _image(step: Step) -> StepImage:
    keyed, partitioner = step.traits.keyed, step.traits.partitioner
    named = getattr(partitioner, "__qualname__", None) or type(partitioner).__qualname__
    return StepImage(
        kind=step.kind,
        keyed=keyed,
        stateful=_is_stateful(step),
        partitioner=(_DEFAULT_PARTITIONER if partitioner is None else named) if keyed else None,
        migrate=None if step.migration is None else step.migration.name,
    )


def _is_stateful(step: Step) -> bool:
    """Return whether a step keeps state for each key, or for each part of a sink."""
    return step.kind in KEYED_METHODS or (isinstance(step.factory, partial) and step.factory.func is WriteParts)


def _misfits(manifest: Manifest, plan: Plan, former: Mapping[str, str]) -> Iterator[str]:
    steps = manifest.plan.steps
    if manifest.job != plan.job:
        yield f"the snapshot is of job {manifest.job!r}: give the job that name, or point it to its own snapshots"
    if manifest.plan.slots != plan.slots:
        yield (
            f"the snapshot has {manifest.plan.slots} slots, the job {plan.slots}; the number of slots cannot change: "
            f"use mp.Job({plan.job!r}, slots={manifest.plan.slots})"
        )
    for step in plan.steps:
        if step.renamed_from is not None and step.name not in former:
            yield (
                f"step {step.name!r}: renamed_from={step.renamed_from!r}, but the snapshot knows neither name; its "
                f"steps are {', '.join(steps)}"
            )
        other = None if step.name not in steps or step.renamed_from in former else steps.get(step.renamed_from or "")
        if other is not None and (other.stateful or other.kind in _KEPT):
            yield (
                f"step {step.name!r}: renamed_from={step.renamed_from!r}, but the snapshot has a step {step.name!r} as "
                f"well, and one step cannot take the state of both: give it a new name, or leave out renamed_from"
            )
        image = steps.get(former.get(step.name, ""))
        if image is None or not (image.stateful and _is_stateful(step)):
            continue
        now = _image(step)
        if image.kind != now.kind and not _is_to_migrate(step, image):
            yield (
                f"step {step.name!r} was {_a(image.kind)} and is {_a(now.kind)}, whose state differs: give a function "
                f"migrate= that converts the state, or give the step another name to start empty"
            )
        if image.partitioner != now.partitioner:
            yield (
                f"step {step.name!r}: its key_by had the partitioner {image.partitioner} and has {now.partitioner}, "
                f"which maps keys to other slots than those of their state: use {image.partitioner} again, or give the "
                f"step another name to start empty"
            )


def _is_to_migrate(step: Step, image: StepImage) -> bool:
    """Return whether the state of ``image`` has not been through the migration of ``step``."""
    return step.migration is not None and step.migration.name != image.migrate


def _left_behind(manifest: Manifest, plan: Plan, former: Mapping[str, str], *, sinks_committed: bool) -> dict[str, str]:
    """Return the stateful steps of the snapshot that no step of ``plan`` continues -> a description of the state."""
    heirs = {was: step for step in plan.steps if (was := former.get(step.name)) is not None}
    left: dict[str, str] = {}
    for name, image in manifest.plan.steps.items():
        heir = heirs.get(name)
        if image.stateful:
            gone, kept = heir is None or not _is_stateful(heir), f"{image.kind}, its keyed state"
        elif image.kind in _KEPT:
            gone, kept = heir is None or heir.kind != image.kind, f"{image.kind}, {_KEPT[image.kind]}"
        elif image.kind == "sink" and manifest.sinks.get(name) and not sinks_committed:
            gone, kept = heir is None or heir.kind != "sink", "sink, its uncommitted output"
        else:
            continue
        if gone and not is_let_go(name, plan, manifest.plan.steps):
            left[name] = kept if heir is None else f"{kept}; now {_a(heir.kind)}"
    return left


def _fit(
    manifest: Manifest, plan: Plan, former: Mapping[str, str], dropped: tuple[str, ...], chain_max: int
) -> RestorePoint:
    taken = {name: was for name, was in former.items() if was not in dropped}
    chains: dict[str, dict[int, Sequence[Artefact]]] = {}
    now_called = {was: name for name, was in taken.items()}
    for (operator, worker), chain in manifest.chains().items():
        for name in (name for name, was in taken.items() if was == operator):  # a step and its shadow
            chains.setdefault(name, {})[worker] = chain
    return RestorePoint(
        manifest,
        former=taken,
        chains=chains,
        migrate={
            step.name: step.migration.function
            for step in plan.steps
            if step.name in taken
            and step.migration is not None
            and _is_to_migrate(step, manifest.plan.steps[taken[step.name]])
        },
        sources=_by_new_name(manifest.sources, taken),
        parts={
            name: {  # the state for a part of a source has the name "source/part"
                f"{now_called[source]}{slash}{part}": state
                for source, slash, part, state in ((*of.partition("/"), state) for of, state in states.items())
                if source in now_called
            }
            for name, states in _by_new_name(manifest.parts, taken).items()
        },
        frontiers=_by_new_name(manifest.frontiers, taken),
        sinks=_by_new_name(manifest.sinks, taken),
        pins=_by_new_name(manifest.pins, taken),
        dropped=dropped,
        stateful=frozenset(name for name, was in taken.items() if manifest.plan.steps[was].stateful),
        chain_max=chain_max,
    )


def _by_new_name(of_steps: Mapping[str, T], taken: Mapping[str, str]) -> dict[str, T]:
    return {name: of_steps[was] for name, was in taken.items() if was in of_steps}


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


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
    sources = build_sources(plan, clock)
    grows = any(step.source.reads_new for step in sources)
    if _has_finished(found, snapshot_use, grows=grows):
        return _ended(checkpointer, commits, found, snapshot_use, sources)
    claim = checkpointer.claim(made_at_s(recovering), resume=snapshot_use.resume)
    if snapshot_use.resume == LATEST:
        # The fenced-off run may have made another.
        found, warnings = _found(checkpointer, plan, snapshot_use, verified)
        if _has_finished(found, snapshot_use, grows=grows):
            return _ended(checkpointer, commits, found, snapshot_use, sources)
    _warn_of_what_stays(plan.job, checkpointer.list_checkpoints(), commits, found, snapshot_use, warnings)
    commits.claimed(claim.incarnation)
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


def _warn_of_what_stays(
    job: str,
    kept: list[SnapshotId],
    commits: SinkCommits,
    found: RestorePoint | None,
    use: SnapshotUse,
    faults: list[str],
) -> None:
    """Warn of output that is written again: of the ``kept`` snapshots, the job does not resume from the newest one.

    ``faults``: of newer ones.
    """
    if found is not None:
        this = found.manifest.id
        if use.last_known is not None and use.last_known > this:
            faults = [*faults, f"{use.last_known} can no longer be used"]
        until = f", up to {kept[-1]}," if kept[-1:] > [this] and commits.any else ""
        text = (
            "resumes from snapshot %s, which is not the newest: output that sinks have committed since then%s stays "
            "visible and is written again%s"
        )
        if until or faults:
            _warn(job, text, this, until, "".join(f"; {fault}" for fault in faults), snapshot=this)
    elif use.resume == NONE and kept and (adding := commits.adding()):
        text = (
            'starts over (resume="none"), though it has snapshots, up to %s: the committed output of sinks (%s) stays '
            "visible, and is written again. Move that output away first, or give the sinks another place"
        )
        _warn(job, text, kept[-1], ", ".join(map(repr, adding)))


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
    sources: Sequence[ReadSource],
) -> RunStart:
    manifest, before = found.manifest, not snapshot_use.is_again
    # The arguments with which sources would read new input.
    read_new_with = {one.context.step: given for one in sources if (given := one.reads_new_with) is not None}
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


def pinned(plan: Plan, snapshot_use: SnapshotUse, clock: Clock) -> PinnedInputs:
    """Return the pinned inputs of the snapshot that a run would resume from. Changes nothing."""
    found, _ = _found(snapshot_use.snapshots.checkpointer(plan.job), plan, snapshot_use)
    if found is None:
        return PinnedInputs()
    grows = any(step.source.reads_new for step in build_sources(plan, clock))
    return replace(found.pinned, finished=_has_finished(found, snapshot_use, grows=grows))


def _found(
    checkpointer: Checkpointer, plan: Plan, snapshot_use: SnapshotUse, verified: Manifest | None = None
) -> tuple[RestorePoint | None, list[str]]:
    """Return the snapshot to resume from, if any, fitted to ``plan``, and the faults of newer snapshots.

    ``verified``: a snapshot whose digests have been verified.
    """
    warnings: list[str] = []
    if snapshot_use.resume == NONE:
        return None, warnings
    if snapshot_use.resume == LATEST:
        latest, warnings = latest_manifest(checkpointer, job=plan.job, verified=verified)
        if latest is None and snapshot_use.last_known is not None:  # S4: a job starts over only on request
            message = (
                f"job {plan.job!r}: snapshot {snapshot_use.last_known} is no longer in {checkpointer}: it was removed "
                f"while the job ran. Restore it from a copy, or start the job over"
            )
            raise lasting(SnapshotError(message))
        if latest is None:
            return None, warnings
        manifest = latest
    else:
        manifest = checkpointer.load_manifest(SnapshotId(snapshot_use.resume))
        for fault in faults_of(checkpointer, manifest):
            raise lasting(SnapshotError(f"job {plan.job!r} cannot resume from snapshot {manifest.id}: {fault}"))
    committed = checkpointer.sinks_committed(manifest.id)
    allowed, chain_max = snapshot_use.allow_dropped_state, snapshot_use.snapshots.chain_max
    found = fitted(manifest, plan, chain_max=chain_max, allow_dropped_state=allowed, sinks_committed=committed)
    return found, warnings


def _make_ready(checkpointer: Checkpointer, commits: SinkCommits, found: RestorePoint | None) -> None:
    if found is None:
        commits.recover()
        return
    snapshot = found.manifest.id
    commits.recover([durable for durable in checkpointer.list_checkpoints() if durable <= snapshot])
    if not checkpointer.sinks_committed(snapshot):
        payloads = ((step, payload) for step, some in found.sinks.items() for payload in some)
        commits.take_over(snapshot, payloads, durable=True)
        commits.commit(snapshot=snapshot, final=found.manifest.result is not None)
        checkpointer.note_sinks_committed(snapshot)


def _warn(job: str, text: str, *given: object, **fields: Any) -> None:
    log(_LOG, logging.WARNING, f"job %s {text}", job, *given, job=job, **fields)
