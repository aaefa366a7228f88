"""The regions of a plan: the steps between sources and exchanges, between two exchanges, or before a sink.

The state of a region moves together, barriers are aligned over all inputs of a region, and a region is fed only while
its outputs have no backlog (F2, S1). So no region may feed itself, directly or through others: that would deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from malstrom_py.errors import PlanError

if TYPE_CHECKING:
    from malstrom_py.builder.plan import Step, StreamRef


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
