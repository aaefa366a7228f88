"""The plan: a job's graph, immutable and checked. Its steps are in topological order; every runtime runs a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Protocol

from malstrom_py.builder.initial_state import InitialState
from malstrom_py.builder.state_migration import Migration
from malstrom_py.codec import TypeTable
from malstrom_py.data.time import Unit
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.flat import FlatResults


class Bindable(Protocol):
    """A partitioner as the builder uses it: it can be bound to a number of slots."""

    def bind(self, slots: int, *, step: str = "") -> Any:
        """Return this partitioner for ``step`` of a job with ``slots`` slots."""
        ...


PartitionerLike = Bindable | Callable[[Any], int]
"""A partitioner, or your own function: key -> slot."""


def check_partitioner(partitioner: object, step: str) -> Any:
    """Return ``partitioner`` if it is None or may be a partitioner; raise `PlanError` naming ``step`` otherwise."""
    if partitioner is not None and not (callable(partitioner) or hasattr(partitioner, "bind")):
        raise PlanError(
            f"step {step!r}: partitioner must be one of malstrom_py.partitioners or a function key -> slot, "
            f"got {type(partitioner).__name__}"
        )
    return partitioner


SOURCE_REGION = "source"

SHADOW: Final = ".shadow"
"""The end of the name of a shadow, after that of its step. No step of a user has a dot in its name."""

DEAD_LETTERS = "dead_letters"
"""The name of the port for records on which a step with ``on_error="dead-letter"`` failed."""


@dataclass(frozen=True, slots=True)
class StreamRef:
    """One output stream of a step."""

    step: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a stream that are known before it runs.

    ``unit`` is None on a stream without timestamps; ``epochs`` is whether epochs below the maximum may come,
    ``split`` whether ``generate_epochs`` is upstream. ``region`` is ``"source"`` or the name of the
    ``key_by`` that opened the keyed region; ``partitioner`` is that key_by's, None for the default. ``local``
    streams have keys, but were not distributed by them. ``key_names``: of the columns that the key becomes in tables.
    ``results``: how results of windows become flat rows, but for their key (see ``flat``); None before a window.
    """

    keyed: bool = False
    unit: Unit | None = None
    epochs: bool = False
    split: bool = False
    region: str = SOURCE_REGION
    partitioner: PartitionerLike | None = None
    local: bool = False
    key_names: tuple[str, ...] = ("key",)
    results: FlatResults | None = None

    @property
    def flat(self) -> FlatResults | None:
        """How results of windows become flat rows; None if the stream has none."""
        return None if self.results is None else replace(self.results, keys=self.key_names)


@dataclass(frozen=True, slots=True)
class Port:
    """An output of a step: its label, and whether it carries epochs below the maximum."""

    name: str = "out"
    epochs: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan. ``detail`` is for people: a source, a file:line, a bound.

    ``renamed_from`` and ``migration`` let it resume from a snapshot of an earlier version of the step; ``initial`` is
    the initial state of its keys. ``silent_after_s``: of a source, how long without records is an event.
    ``shadow_of``: the step beside which this one runs new code, whose output is compared and not sent. ``promotes``:
    this step has the code of its shadow, and takes over its state. ``types``: of a shadow, whose classes are others.
    """

    name: str
    kind: str
    factory: OperatorFactory
    inputs: tuple[StreamRef, ...] = ()
    ports: tuple[Port, ...] = (Port(),)
    on_error: OnError = "fail"
    traits: Traits = field(default_factory=Traits)
    detail: str = ""
    renamed_from: str | None = None
    migration: Migration | None = None
    initial: InitialState | None = None
    silent_after_s: float | None = None
    shadow_of: str | None = None
    promotes: bool = False
    types: TypeTable | None = None

    @property
    def dead_letter_port(self) -> int | None:
        """The port of dead letters: the last one if the step's policy is "dead-letter", else None.

        A node of a DAG has that port only if another node reads it.
        """
        last = len(self.ports) - 1
        return last if self.on_error == "dead-letter" and self.ports[last].name == DEAD_LETTERS else None


@dataclass(frozen=True, slots=True)
class Region:
    """Steps that run together. ``entries`` are the exchanges that feed the region, ``exits`` those that it feeds.

    The state of a region moves together, barriers are aligned over all inputs of a region, and a region is fed only
    while its outputs have no backlog (F2, S1). So no region may feed itself, directly or through others: that would
    deadlock.
    """

    steps: tuple[str, ...]
    sources: tuple[str, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]

    @property
    def name(self) -> str:
        """The region's name in messages between workers: that of its first step."""
        return self.steps[0]


@dataclass(frozen=True, repr=False)
class Plan:
    """A checked job: its name, its number of slots, its steps, inputs before outputs, and the types of its state.

    ``made_by``: what makes the job again, as ``module:name``, if it is known. ``parameters``: their defaults, by name.
    ``by_value``: modules whose code goes to other processes with the plan, because their files may be others by now.
    """

    job: str
    slots: int
    steps: tuple[Step, ...]
    types: TypeTable = field(default_factory=TypeTable)
    made_by: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    by_value: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Plan({self.job!r}, {len(self.steps)} steps)"

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The regions, downstream first. `PlanError` if one feeds itself."""
        return ordered_regions(self.steps)

    def rank(self, name: str) -> int:
        """Return the index of a step in ``steps``."""
        return next(rank for rank, step in enumerate(self.steps) if step.name == name)

    def edges(self) -> Iterator[tuple[StreamRef, Step]]:
        """Iterate over the edges as (stream, the step that reads it)."""
        return ((ref, step) for step in self.steps for ref in step.inputs)


def union_traits(name: str, streams: Sequence[Traits], kind: Literal["union", "join"] = "union") -> Traits:
    """Return the traits of a union or join of ``streams``; raise `PlanError` naming the step if they do not agree."""
    first, *others = streams
    for other in others:
        if (other.keyed, other.local, other.partitioner) != (first.keyed, first.local, first.partitioner):
            raise PlanError(
                f"step {name!r}: a {kind} of differently keyed streams, so records of one key would not share a "
                f"worker: key all of them alike (same partitioner)"
                + (", or put key_by after it" if kind == "union" else "")
            )
        if (other.unit, other.epochs) != (first.unit, first.epochs):
            raise PlanError(
                f"step {name!r}: a {kind} of streams that are timed differently ({_timing(first)}; {_timing(other)}): "
                f"give all the same timestamps and watermarks before it"
                + (", or put generate_epochs after it" if kind == "union" else _times_for_a_table(first, other))
            )
    region = next((traits.region for traits in streams if traits.region != SOURCE_REGION), SOURCE_REGION)
    return replace(
        first,
        region=region,
        split=any(traits.split for traits in streams),
        key_names=first.key_names if all(one.key_names == first.key_names for one in others) else ("key",),
        results=_results_of([traits.results for traits in streams if traits.results is not None]),
    )


def _results_of(results: Sequence[FlatResults]) -> FlatResults | None:
    """Return how results of several windows become flat rows; None if their times have different units."""
    if len({one.unit for one in results}) != 1:
        return None
    return replace(results[0], early=any(one.early for one in results))


def _times_for_a_table(left: Traits, right: Traits) -> str:
    if left.unit is None or right.unit is not None:
        return ""
    unit = "" if left.unit == "ms" else f", unit={left.unit!r}"
    return (
        f". A table without times gets one for all: .assign_timestamps('…', lambda row: 0{unit}) and "
        f".generate_epochs('…', mp.limit_out_of_orderness(0)) before its key_by"
    )


def _timing(traits: Traits) -> str:
    if traits.unit is None:
        return "without timestamps"
    return f"timestamps in {traits.unit}, {'with' if traits.epochs else 'without'} watermarks"


def epochs_traits(name: str, traits: Traits) -> Traits:
    """Return the traits of the on-time stream of ``generate_epochs``; raise `PlanError` if it cannot be placed here."""
    if traits.region != SOURCE_REGION:
        raise PlanError(
            f"step {name!r}: generate_epochs is after key_by {traits.region!r}, but lateness belongs "
            f"to the source's partitions: put it between the source and the first key_by"
        )
    if traits.unit is None:
        raise PlanError(f"step {name!r}: the stream has no timestamps: put assign_timestamps before it")
    if traits.split:
        raise PlanError(f"step {name!r}: generate_epochs is upstream already; lateness is decided once")
    return replace(traits, epochs=True, split=True)


def make_plan(
    job: str, slots: int, steps: Sequence[Step], types: TypeTable | None = None, *, made_by: str = ""
) -> Plan:
    """Check a graph as a whole and return its plan.

    Raises:
        PlanError: the job is empty, a source has no path to a sink, a former name is a step or is given twice, or a
            region feeds itself.
    """
    if not any(step.kind == "source" for step in steps):
        raise PlanError(f"job {job!r} is empty: start with job.source('name', …)")
    useful = _leading_to_a_sink(steps)
    for step in steps:
        if step.kind == "source" and step.name not in useful:
            raise PlanError(
                f"job {job!r}: no path leads from source {step.name!r} to a sink, so reading it would have "
                f"no effect: end its stream with .sink('name', …), or use mp.collect(stream) to see its values"
            )
    _check_renamed(steps)
    plan = Plan(job, slots, tuple(steps), types or TypeTable(), made_by)
    _ = plan.regions  # a plan without an order of regions fails here, not when it runs
    return plan


def ancestors(steps: Sequence[Step], names: set[str]) -> list[Step]:
    """Return the steps called ``names`` and all their ancestors, in order."""
    wanted = set(names)
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(ref.step for ref in step.inputs)
    return [step for step in steps if step.name in wanted]


def _check_renamed(steps: Sequence[Step]) -> None:
    names, heirs = {step.name for step in steps}, dict[str, str]()
    for step in steps:
        former = step.renamed_from
        if former is None:
            continue
        if former in names:
            raise PlanError(
                f"step {step.name!r}: renamed_from={former!r}, but the job still has a step {former!r}, to which the "
                f"state of that name belongs: leave renamed_from out, or give the other step another name"
            )
        if former in heirs:
            raise PlanError(
                f"step {step.name!r}: renamed_from={former!r} is given to step {heirs[former]!r} already, and only "
                f"one of the two can have its state"
            )
        heirs[former] = step.name


def _leading_to_a_sink(steps: Sequence[Step]) -> set[str]:
    sinks = {step.name for step in steps if step.kind == "sink"}
    return {step.name for step in ancestors(steps, sinks)}


def is_exchanged(step: Step, ref: StreamRef) -> bool:
    """Whether ``ref`` is an output stream of an exchange: the keyed stream of a ``key_by``."""
    return step.kind == "key_by" and ref.port == 0


def ordered_regions(steps: Sequence[Step]) -> tuple[Region, ...]:
    """Return the regions, downstream first: feeding them in this order frees credit before it is needed.

    Raises:
        PlanError: a region feeds itself; it names the union that closes the loop.
    """
    ordered, loop = _ordered(steps)
    if loop:
        raise _closed_loop(steps)
    return tuple(ordered)


def _closed_loop(steps: Sequence[Step]) -> PlanError:
    last = next(rank for rank in range(1, len(steps) + 1) if _ordered(steps[:rank])[1])
    loop = _ordered(steps[:last])[1]
    while upstream := [region for region in loop if not any(set(region.entries) & set(other.exits) for other in loop)]:
        loop = [region for region in loop if region not in upstream]
    entries = {name for region in loop for name in region.entries}
    exchanges = ", ".join(repr(name) for region in loop for name in region.exits if name in entries)
    return PlanError(
        f"step {steps[last - 1].name!r}: this union joins streams from before and after an exchange ({exchanges}), so "
        f"that the exchange would wait for itself (F2): give each stream its own sink, or join them before key_by"
    )


def _ordered(steps: Sequence[Step]) -> tuple[list[Region], list[Region]]:
    """Return the regions, downstream first, and those that cannot be ordered because they lead into a loop."""
    ordered: list[Region] = []
    left = _regions(steps)
    while True:
        # Every exchange that a step reads is an entry of exactly one region.
        entries = {name for region in left for name in region.entries}
        ready = [region for region in left if entries.isdisjoint(region.exits)]
        if not ready:
            return ordered, left
        ordered += ready
        left = [region for region in left if not entries.isdisjoint(region.exits)]


_Place = tuple[str, bool]
"""A step, and whether its receiving end is meant: the receiving end of an exchange is a separate place."""


def _regions(steps: Sequence[Step]) -> list[Region]:
    """Return the regions, that of the last step first."""
    groups = _groups(steps)
    insides: dict[int, list[Step]] = {}
    for step in reversed(steps):
        insides.setdefault(id(groups[step.name, False]), []).insert(0, step)
    read = [step.name for step in steps if (step.name, True) in groups]
    return [
        Region(
            steps=tuple(step.name for step in inside),
            sources=tuple(step.name for step in inside if step.kind == "source"),
            entries=tuple(name for name in read if id(groups[name, True]) == group),
            exits=tuple(step.name for step in inside if (step.name, True) in groups),
        )
        for group, inside in insides.items()
    ]


def _groups(steps: Sequence[Step]) -> dict[_Place, list[_Place]]:
    """Return for each place all places of its region: those that are connected without an exchange between them."""
    exchanges = {step.name for step in steps if step.kind == "key_by"}
    groups: dict[_Place, list[_Place]] = {}
    for step in steps:
        here = (step.name, False)
        group = groups[here] = [here]
        for ref in step.inputs:
            place = (ref.step, ref.port == 0 and ref.step in exchanges)
            small, group = group, groups.setdefault(place, [place])
            if small is not group:
                group += small
                groups.update(dict.fromkeys(small, group))
    return groups
