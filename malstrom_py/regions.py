"""The regions of a plan: what lies between sources and exchanges, between two exchanges, or before a sink.

State of a region moves together, barriers are aligned over all inputs of a region, and a region is fed only while
its outputs have no backlog (F2, S1).
"""

from __future__ import annotations

from dataclasses import dataclass

from malstrom_py.plan import Plan, Step, StreamRef


@dataclass(frozen=True, slots=True)
class Region:
    """Steps that are run together. ``entries`` are the exchanges that feed it, ``exits`` those that it feeds."""

    steps: tuple[str, ...]
    sources: tuple[str, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]


def is_exchanged(step: Step, ref: StreamRef) -> bool:
    """Whether the stream ``ref`` of ``step`` comes out of an exchange: the keyed one of a ``key_by``."""
    return step.kind == "key_by" and ref.port == 0


def regions_of(plan: Plan) -> list[Region]:
    """The regions, downstream first: feeding them in this order frees credit before it is asked for."""
    kinds = {step.name: step for step in plan.steps}
    # The far end of an exchange is a place of its own, hence the pairs (step, behind its exchange or not).
    groups: dict[tuple[str, bool], set[tuple[str, bool]]] = {}
    for step in plan.steps:
        places = {(step.name, False)}
        for ref in step.inputs:
            places.add((ref.step, is_exchanged(kinds[ref.step], ref)))
        merged = set(places).union(*(groups.get(place, set()) for place in places))
        for place in merged:
            groups[place] = merged
    regions: list[Region] = []
    seen: set[int] = set()
    for step in reversed(plan.steps):
        group = groups[step.name, False]
        if id(group) in seen:
            continue
        seen.add(id(group))
        inside = [other for other in plan.steps if (other.name, False) in group]
        regions.append(
            Region(
                steps=tuple(other.name for other in inside),
                sources=tuple(other.name for other in inside if other.kind == "source"),
                entries=tuple(other.name for other in plan.steps if (other.name, True) in group),
                exits=tuple(other.name for other in inside if (other.name, True) in groups),
            )
        )
    return regions
