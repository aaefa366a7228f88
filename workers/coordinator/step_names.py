"""Which step of a snapshot each step of a plan continues: of the same name, or renamed, a shadow, or promoted.

Rule: a shadow begins with a copy of the state of its step, and has its own state from its first snapshot on. A promoted
step takes over the state of its shadow. The state of a shadow whose program has ended is dropped with it.
"""

from __future__ import annotations

from collections.abc import Collection

from malstrom_py.builder.plan import SHADOW, Plan, Step


def former_steps(plan: Plan, steps: Collection[str]) -> dict[str, str]:
    """Return step of ``plan`` -> the step in ``steps``, those of a snapshot, that it continues.

    >>> from malstrom_py.operators.stateless import Map
    >>> former_steps(Plan("docs", 1, (Step("b", "map", Map, renamed_from="a"), Step("c", "map", Map))), {"a", "c"})
    {'b': 'a', 'c': 'c'}
    """
    names = {step.name: _former_of(step, steps) for step in plan.steps}
    return {name: former for name, former in names.items() if former is not None and former in steps}


def _former_of(step: Step, steps: Collection[str]) -> str | None:
    if step.promotes and f"{step.name}{SHADOW}" in steps:
        return f"{step.name}{SHADOW}"
    return step.name if step.name in steps else step.shadow_of or step.renamed_from


def is_let_go(name: str, plan: Plan, steps: Collection[str]) -> bool:
    """Return whether the state of step ``name`` of a snapshot with ``steps`` ends without loss: it is that of a shadow,
    or of the code that a promoted shadow replaces.
    """
    if name.endswith(SHADOW) and name.removesuffix(SHADOW) in steps:
        return True
    return f"{name}{SHADOW}" in steps and any(step.promotes and step.name == name for step in plan.steps)
