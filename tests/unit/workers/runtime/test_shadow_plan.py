"""Plans with a shadow."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.workers.runtime.shadow_plan import with_shadow


def plan_with(**parameters: int) -> Plan:
    job = mp.Job("shop")
    for name, default in parameters.items():
        job.parameter(name, default)
    job.source("in", sources.Memory([1])).map("double", lambda n: 2 * n).sink("out", sinks.Memory())
    return job.plan()


def test_a_plan_with_a_shadow_has_the_parameters_of_both() -> None:
    plan = with_shadow(plan_with(old=1), plan_with(old=2, new=3), "double")
    assert plan.parameters == {"old": 1, "new": 3}
