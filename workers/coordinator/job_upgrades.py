"""What of a snapshot a job takes over that has changed since: by names, and only where it fits (S5).

Rule: nothing is left behind and nothing is guessed in silence. What a step kept goes to the step of that name, or to
the one that says it was renamed from it; whatever does not fit is told at once, all of it, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from malstrom_py.builder.plan import Plan, Step
from malstrom_py.builder.state_migration import Migrate
from malstrom_py.builder.stream import KEYED_METHODS
from malstrom_py.errors import SnapshotError
from malstrom_py.operators.write_sink import WriteParts
from malstrom_py.snapshot.manifest import Artefact, Manifest, PartImage, PlanImage, StepImage

T = TypeVar("T")

_DEFAULT_PARTITIONER: Final = "StableHash"

_KEPT: Final = {"source": "how far it had read", "generate_epochs": "how far event time had come in each part"}
"""What steps without keyed state keep, by kind."""


@dataclass(frozen=True, slots=True)
class UpgradedState:
    """What each step of a plan takes over, by the names that steps have now. A step that stands nowhere starts empty.

    ``former``: step -> its name in the snapshot. ``chains``: step -> worker -> the artefacts to install, in order.
    ``migrate``: step -> what the state of each key has to go through. ``sources``, ``parts``, ``frontiers``, ``sinks``
    and ``pins`` are of the form that they have in `Manifest`. ``dropped``: the steps of the snapshot whose state is
    left behind, for that was allowed. ``stateful``: the steps that kept state in the snapshot, by the names of now.
    """

    former: Mapping[str, str]
    chains: Mapping[str, Mapping[int, Sequence[Artefact]]] = field(default_factory=dict)
    migrate: Mapping[str, Migrate] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, PartImage]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frontiers: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    stateful: frozenset[str] = frozenset()

    def has_state_of(self, step: str) -> bool:
        """Whether the snapshot knows ``step`` as one that keeps state, be it that no key had any."""
        return step in self.stateful


def plan_image(plan: Plan) -> PlanImage:
    """What a snapshot of a job of ``plan`` says about it."""
    return PlanImage(plan.slots, {step.name: _image(step) for step in plan.steps})


def fitted(
    manifest: Manifest, plan: Plan, *, allow_dropped_state: bool = False, sinks_committed: bool = False
) -> UpgradedState:
    """What ``plan`` takes over from the snapshot ``manifest``.

    ``allow_dropped_state``: state of steps that are gone may be left behind. ``sinks_committed``: what the sinks had
    pre-committed in the snapshot is visible already, so that a sink which is gone leaves nothing behind.

    Raises:
        SnapshotError: the job has changed in a way that the snapshot does not fit, with all that is to be mended.
    """
    former = _former(manifest.plan.steps, plan)
    left = _left_behind(manifest, plan, former, sinks_committed=sinks_committed)
    wrong = [*_wrong_as_a_whole(manifest, plan), *_wrong_steps(manifest.plan.steps, plan, former)]
    if left and not allow_dropped_state:
        told = "; ".join(f"step {step!r} ({what})" for step, what in left.items())
        wrong.append(
            f"gone, with what they kept: {told}. Put them back, say renamed_from= at the steps that they have become, "
            f"or allow it to be lost with allow_dropped_state=True (--allow-dropped-state)"
        )
    if wrong:
        raise SnapshotError(
            "\n  - ".join((f"job {plan.job!r} cannot go on from snapshot {manifest.id}, for it has changed:", *wrong))
        )
    return _fit(manifest, plan, former, tuple(left))


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
    """Whether it keeps something for each key, or for each part of a sink."""
    return step.kind in KEYED_METHODS or (isinstance(step.factory, partial) and step.factory.func is WriteParts)


def _partitioner_name(partitioner: object) -> str:
    if partitioner is None:
        return _DEFAULT_PARTITIONER
    named = getattr(partitioner, "__qualname__", None)
    return named if isinstance(named, str) else type(partitioner).__qualname__


def _former(steps: Mapping[str, StepImage], plan: Plan) -> dict[str, str]:
    """Step of ``plan`` -> the step of the snapshot that it was: that of its name, else the one it was renamed from."""
    names = {step.name: step.name if step.name in steps else step.renamed_from for step in plan.steps}
    return {name: former for name, former in names.items() if former is not None and former in steps}


def _wrong_as_a_whole(manifest: Manifest, plan: Plan) -> Iterator[str]:
    if manifest.job != plan.job:
        yield f"the snapshot is of job {manifest.job!r}: give the job that name, or point it to its own snapshots"
    if manifest.plan.slots != plan.slots:
        yield (
            f"its keys fell into {manifest.plan.slots} slots, and now into {plan.slots}; slots stay for a job's life: "
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
                f"well, and one step cannot go on from both: give it a name that is new, or leave out renamed_from"
            )
        image = steps.get(former.get(step.name, ""))
        if image is None or not (image.stateful and _is_stateful(step)):
            continue
        now = _image(step)
        if image.kind != now.kind and not _is_to_migrate(step, image):
            yield (
                f"step {step.name!r} was {_a(image.kind)} and is {_a(now.kind)}, whose state is another: say with "
                f"migrate= how the one becomes the other, or give the step another name to start empty"
            )
        if image.partitioner != now.partitioner:
            yield (
                f"step {step.name!r}: its key_by had the partitioner {image.partitioner} and has {now.partitioner}, by "
                f"which keys fall into other slots than their state: use {image.partitioner} again, or give the step "
                f"another name to start empty"
            )


def _is_to_migrate(step: Step, image: StepImage) -> bool:
    """Whether the state of ``image`` has not yet been through what ``step`` says."""
    return step.migration is not None and step.migration.name != image.migrate


def _left_behind(manifest: Manifest, plan: Plan, former: Mapping[str, str], *, sinks_committed: bool) -> dict[str, str]:
    """Steps of the snapshot that no step of ``plan`` goes on from, though they kept something -> what that is."""
    heirs = {was: step for step in plan.steps if (was := former.get(step.name)) is not None}
    left: dict[str, str] = {}
    for name, image in manifest.plan.steps.items():
        heir = heirs.get(name)
        if image.stateful:
            gone, kept = heir is None or not _is_stateful(heir), f"{image.kind}, its keyed state"
        elif image.kind in _KEPT:
            gone, kept = heir is None or heir.kind != image.kind, f"{image.kind}, {_KEPT[image.kind]}"
        elif image.kind == "sink" and manifest.sinks.get(name) and not sinks_committed:
            gone, kept = heir is None or heir.kind != "sink", "sink, output that it had yet to commit"
        else:
            continue
        if gone:
            left[name] = kept if heir is None else f"{kept}; now {_a(heir.kind)}"
    return left


def _fit(manifest: Manifest, plan: Plan, former: Mapping[str, str], dropped: tuple[str, ...]) -> UpgradedState:
    taken = {name: was for name, was in former.items() if was not in dropped}
    chains: dict[str, dict[int, Sequence[Artefact]]] = {}
    for (operator, worker), chain in manifest.chains().items():
        for name, was in taken.items():
            if was == operator:
                chains.setdefault(name, {})[worker] = chain
    sources = _by_new_name(manifest.sources, taken)
    now_called = {was: name for name, was in taken.items()}
    return UpgradedState(
        former=taken,
        chains=chains,
        migrate={
            step.name: step.migration.function
            for step in plan.steps
            if step.name in taken
            and step.migration is not None
            and _is_to_migrate(step, manifest.plan.steps[taken[step.name]])
        },
        sources=sources,
        parts={
            name: dict(_parts_by_new_name(parts, now_called))
            for name, parts in _by_new_name(manifest.parts, taken).items()
        },
        frontiers=_by_new_name(manifest.frontiers, taken),
        sinks=_by_new_name(manifest.sinks, taken),
        pins=_by_new_name(manifest.pins, taken),
        dropped=dropped,
        stateful=frozenset(name for name, was in taken.items() if manifest.plan.steps[was].stateful),
    )


def _by_new_name(of_steps: Mapping[str, T], taken: Mapping[str, str]) -> dict[str, T]:
    return {name: of_steps[was] for name, was in taken.items() if was in of_steps}


def _parts_by_new_name(parts: Mapping[str, Any], now_called: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """What is kept for the parts of sources that are still there; a part is called ``"source/part"``."""
    for name, kept in parts.items():
        source, slash, part = name.partition("/")
        if source in now_called:
            yield f"{now_called[source]}{slash}{part}", kept


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
