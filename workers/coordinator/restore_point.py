"""The snapshot that a run resumes from, by the steps of the current plan (S5), though the job may have changed.

Rule: no state is dropped or guessed silently. The state of a step goes to the step with that name, or to the step with
that ``renamed_from``. All misfits are reported together, before anything runs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from malstrom_py.builder.plan import Plan, Step, ancestors
from malstrom_py.builder.state_migration import Migrate
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import SnapshotError, SourceError, lasting
from malstrom_py.logs import log
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.operators.write_sink import WriteParts
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.manifest import Artefact, Manifest, PartImage, PlanImage, StepImage
from malstrom_py.snapshot.verification import load_slots
from malstrom_py.sources.base import Part
from malstrom_py.workers.engine.graph_builder import PartAssignment
from malstrom_py.workers.engine.worker import Worker

T = TypeVar("T")

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

        A part is unread if it is new or has more (as for `begun`), or if the job was drained before its end. The
        growing sources of a finished job may get more; a job that was being drained is at its end.
        """
        listed = listed_parts(dealt.parts)
        unread = {step for step, parts in listed.items() if any(not self._has_read(step, part) for part in parts)}
        unread |= {step for step, positions in dealt.new_positions.items() if positions}
        if self.manifest.result is not None:
            unread |= dealt.growing
        if self.manifest.result is not None and not unread:
            text = "job %s: no new input since snapshot %s, in which it has finished"
            log(_LOG, logging.WARNING, text, *(plan.job, self.manifest.id), job=plan.job)
        frontiers = {
            exchange: time
            for exchange, time in self.frontiers.items()
            if time < MAX_EPOCH or not any(step.name in unread for step in ancestors(plan.steps, {exchange}))
        }
        lighter = replace(self.manifest, sinks={}, pins={})
        return replace(self, manifest=lighter, frontiers=frontiers, sinks={}, pins={})

    def _has_read(self, step: str, part: Part) -> bool:
        image = self.sources.get(step, {}).get(part)
        return image is not None and image.finished

    def begun(self, dealt: PartAssignment) -> dict[str, dict[Part, RestoredPart]]:
        """Return the positions of the parts of each source, also of those that have appeared since (R13), and of those
        that were read and have more now.

        `SourceError`: a part that was not read to its end is missing.
        """
        listed = listed_parts(dealt.parts)
        begun: dict[str, dict[Part, RestoredPart]] = {}
        for step, images in self.sources.items():
            there = set(listed[step])
            gone = [part for part, image in images.items() if not image.finished and part not in there]
            if gone:
                others = f" (and {len(gone) - 1} others)" if len(gone) > 1 else ""
                message = (
                    f"source {step!r} no longer has partition {gone[0]!r}, which was not read to its end in snapshot "
                    f'{self.manifest.id}{others}: restore the partition, or start over with resume="none"'
                )
                raise lasting(SourceError(message))
            begun[step] = {
                Part(part): RestoredPart(image.position, image.finished, self._kept(f"{step}/{part}"))
                for part, image in images.items()
                if part in there
            }
            begun[step] |= {
                part: RestoredPart(position) for part, position in dealt.new_positions.get(step, {}).items()
            }
        return begun

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
                parts = [load_slots(checkpointer, artefact, worker.slots) for artefact in chain]
                worker.install(step, [part.data for part in parts], self.migrate.get(step))
                others = [part.left if former == worker.id else part.taken for part in parts]
                is_same = is_same and not any(others)
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
    former = _former(manifest.plan.steps, plan)
    left = _left_behind(manifest, plan, former, sinks_committed=sinks_committed)
    wrong = [*_wrong_as_a_whole(manifest, plan), *_wrong_steps(manifest.plan.steps, plan, former)]
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
    keyed = step.traits.keyed
    return StepImage(
        kind=step.kind,
        keyed=keyed,
        stateful=_is_stateful(step),
        partitioner=_partitioner_name(step.traits.partitioner) if keyed else None,
        migrate=None if step.migration is None else step.migration.name,
    )


def _is_stateful(step: Step) -> bool:
    """Return whether a step keeps state for each key, or for each part of a sink."""
    return step.kind in KEYED_METHODS or (isinstance(step.factory, partial) and step.factory.func is WriteParts)


def _partitioner_name(partitioner: object) -> str:
    if partitioner is None:
        return _DEFAULT_PARTITIONER
    named = getattr(partitioner, "__qualname__", None)
    return named if isinstance(named, str) else type(partitioner).__qualname__


def _former(steps: Mapping[str, StepImage], plan: Plan) -> dict[str, str]:
    """Return step of ``plan`` -> its step in the snapshot: the step of the same name, else of ``renamed_from``."""
    names = {step.name: step.name if step.name in steps else step.renamed_from for step in plan.steps}
    return {name: former for name, former in names.items() if former is not None and former in steps}


def _wrong_as_a_whole(manifest: Manifest, plan: Plan) -> Iterator[str]:
    if manifest.job != plan.job:
        yield f"the snapshot is of job {manifest.job!r}: give the job that name, or point it to its own snapshots"
    if manifest.plan.slots != plan.slots:
        yield (
            f"the snapshot has {manifest.plan.slots} slots, the job {plan.slots}; the number of slots cannot change: "
            f"use mp.Job({plan.job!r}, slots={manifest.plan.slots})"
        )


def _wrong_steps(steps: Mapping[str, StepImage], plan: Plan, former: Mapping[str, str]) -> Iterator[str]:
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
        if gone:
            left[name] = kept if heir is None else f"{kept}; now {_a(heir.kind)}"
    return left


def _fit(
    manifest: Manifest, plan: Plan, former: Mapping[str, str], dropped: tuple[str, ...], chain_max: int
) -> RestorePoint:
    taken = {name: was for name, was in former.items() if was not in dropped}
    chains: dict[str, dict[int, Sequence[Artefact]]] = {}
    for (operator, worker), chain in manifest.chains().items():
        for name, was in taken.items():
            if was == operator:
                chains.setdefault(name, {})[worker] = chain
    now_called = {was: name for name, was in taken.items()}
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
            name: dict(_parts_by_new_name(parts, now_called))
            for name, parts in _by_new_name(manifest.parts, taken).items()
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


def _parts_by_new_name(parts: Mapping[str, Any], now_called: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the state for parts of sources that still exist; a part is named ``"source/part"``."""
    for name, kept in parts.items():
        source, slash, part = name.partition("/")
        if source in now_called:
            yield f"{now_called[source]}{slash}{part}", kept


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
