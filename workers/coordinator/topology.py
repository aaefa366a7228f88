"""The exchanges of a job, and what feeds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malstrom_py.builder.plan import Plan


@dataclass(frozen=True, slots=True)
class Topology:
    """The exchanges of a job, and which of them each region and each source feeds."""

    exchanges: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, tuple[str, ...]]


def topology_of(plan: Plan) -> Topology:
    """Return the exchanges of ``plan``, the regions that exchanges feed, and the sources.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([1, 2])).key_by("parity", lambda n: n % 2)
    >>> numbers.sum("total").sink("out", sinks.Memory())
    >>> topology_of(job.plan()).sources
    {'numbers': ('parity',)}
    """
    regions = plan.regions
    downstream = _downstream(plan)
    return Topology(
        exchanges=tuple(exit for region in regions for exit in region.exits),
        regions={region.name: region.exits for region in regions if region.entries},
        sources={
            source: tuple(exit for exit in region.exits if exit in downstream[source])
            for region in regions
            for source in region.sources
        },
    )


def _downstream(plan: Plan) -> dict[str, set[str]]:
    """Return for each step all steps downstream, also those after another exchange."""
    found: dict[str, set[str]] = {step.name: {step.name} for step in plan.steps}
    for step in reversed(plan.steps):
        for ref in step.inputs:
            found[ref.step] |= found[step.name]
    return found
