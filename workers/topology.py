"""What the coordinator must know of a plan: which exchanges each region and each source feeds."""

from __future__ import annotations

from malstrom_py.plan import Plan
from malstrom_py.regions import regions_of
from malstrom_py.workers.coordinator_events import Topology


def topology_of(plan: Plan) -> Topology:
    """The exchanges of ``plan``, the regions that exchanges feed, and its sources.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([1, 2])).key_by("parity", lambda n: n % 2)
    >>> numbers.sum("total").sink("out", sinks.Memory())
    >>> topology_of(job.plan()).sources
    {'numbers': ('parity',)}
    """
    regions = regions_of(plan)
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
    """For each step those that it leads to; what is behind another exchange among them does no harm."""
    found: dict[str, set[str]] = {step.name: {step.name} for step in plan.steps}
    for step in reversed(plan.steps):
        for ref in step.inputs:
            found[ref.step] |= found[step.name]
    return found
