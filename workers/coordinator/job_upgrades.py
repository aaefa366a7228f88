"""The upgrade of a changed job: maps the state of a snapshot to the steps of the current plan, by name (S5).

Rule: no state is dropped or guessed silently. The state of a step goes to the step with that name, or to the step with
that ``renamed_from``. All misfits are reported together, before anything runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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

_KEPT: Final = {"source": "how far it had read", "generate_epochs": "the watermark of each partition"}
"""The state of steps without keyed state, by kind."""


@dataclass(frozen=True, slots=True)
class UpgradedState:
    """The state of a snapshot by the current names of steps. A step that is not named starts empty.

    ``former``: step -> its name in the snapshot. ``chains``: step -> worker -> the artefacts to install, in order.
    ``migrate``: step -> the migration of the state of each key. ``sources``, ``parts``, ``frontiers``, ``sinks`` and
    ``pins`` have the form of `Manifest`. ``dropped``: the steps of the snapshot whose state is dropped, as allowed.
    ``stateful``: the steps that had state in the snapshot, by their current names.
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
        """Return whether ``step`` was a stateful step in the snapshot, also one without keys."""
        return step in self.stateful


def plan_image(plan: Plan) -> PlanImage:
    """Return the description of ``plan`` for the manifest."""
    return PlanImage(plan.slots, {step.name: _image(step) for step in plan.steps})


def fitted(
    manifest: Manifest, plan: Plan, *, allow_dropped_state: bool = False, sinks_committed: bool = False
) -> UpgradedState:
    """Return the state of the snapshot ``manifest`` for ``plan``.

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
    return _fit(manifest, plan, former, tuple(left))


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
    """Yield the state for parts of sources that still exist; a part is named ``"source/part"``."""
    for name, kept in parts.items():
        source, slash, part = name.partition("/")
        if source in now_called:
            yield f"{now_called[source]}{slash}{part}", kept


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
