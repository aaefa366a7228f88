"""The regions of a plan: the steps between sources and exchanges, between two exchanges, or before a sink.

The state of a region moves together, barriers are aligned over all inputs of a region, and a region is fed only while
its outputs have no backlog (F2, S1). So no region may feed itself, directly or through others: that would deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malstrom_py.builder.plan import Plan, Step, StreamRef
from malstrom_py.errors import PlanError


@dataclass(frozen=True, slots=True)
class Region:
    """Steps that run together. ``entries`` are the exchanges that feed the region, ``exits`` those that it feeds."""

    steps: tuple[str, ...]
    sources: tuple[str, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]

    @property
    def name(self) -> str:
        """The region's name in messages between workers: that of its first step."""
        return self.steps[0]


def is_exchanged(step: Step, ref: StreamRef) -> bool:
    """Whether ``ref`` is an output stream of an exchange: the keyed stream of a ``key_by``."""
    return step.kind == "key_by" and ref.port == 0


def regions_of(plan: Plan) -> list[Region]:
    """Return the regions, downstream first: feeding them in this order frees credit before it is needed."""
    return _ordered(plan.steps)[0]


def check_regions(plan: Plan) -> Plan:
    """Return ``plan`` if no region feeds itself; raise `PlanError` naming the union that closes the loop otherwise."""
    if not _ordered(plan.steps)[1]:
        return plan
    names = [step.name for step in plan.steps]
    closing = next(name for rank, name in enumerate(names, 1) if _ordered(plan.steps[:rank])[1])
    loop = _ordered(plan.steps[: names.index(closing) + 1])[1]
    while upstream := [region for region in loop if not any(set(region.entries) & set(other.exits) for other in loop)]:
        loop = [region for region in loop if region not in upstream]
    exchanges = ", ".join(repr(name) for region in loop for name in region.exits if _feeds_any(name, loop))
    raise PlanError(
        f"step {closing!r}: this union joins streams from before and after an exchange ({exchanges}), so that the "
        f"exchange would wait for itself (F2): give each stream its own sink, or join them before key_by"
    )


def _feeds_any(exchange: str, regions: Sequence[Region]) -> bool:
    return any(exchange in region.entries for region in regions)


def _ordered(steps: Sequence[Step]) -> tuple[list[Region], list[Region]]:
    """Return the regions, downstream first, and those that cannot be ordered because they lead into a loop."""
    ordered: list[Region] = []
    left = _regions(steps)
    while True:
        # Every exchange that a step reads is an entry of exactly one region.
        ready = [region for region in left if not any(_feeds_any(exit, left) for exit in region.exits)]
        if not ready:
            return ordered, left
        ordered += ready
        left = [region for region in left if region not in ready]


def _regions(steps: Sequence[Step]) -> list[Region]:
    kinds = {step.name: step for step in steps}
    # The receiving end of an exchange is a separate place, hence the pairs (step, after its exchange or not).
    groups: dict[tuple[str, bool], set[tuple[str, bool]]] = {}
    for step in steps:
        places = {(step.name, False)}
        for ref in step.inputs:
            places.add((ref.step, is_exchanged(kinds[ref.step], ref)))
        merged = set(places).union(*(groups.get(place, set()) for place in places))
        for place in merged:
            groups[place] = merged
    regions: list[Region] = []
    seen: set[int] = set()
    for step in reversed(steps):
        group = groups[step.name, False]
        if id(group) in seen:
            continue
        seen.add(id(group))
        inside = [other for other in steps if (other.name, False) in group]
        regions.append(
            Region(
                steps=tuple(other.name for other in inside),
                sources=tuple(other.name for other in inside if other.kind == "source"),
                entries=tuple(other.name for other in steps if (other.name, True) in group),
                exits=tuple(other.name for other in inside if (other.name, True) in groups),
            )
        )
    return regions
