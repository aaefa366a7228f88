"""Plans with a shadow: a step of new code that gets the input of a running step, and whose output is compared only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from malstrom_py.builder.columns_read import narrow_sources
from malstrom_py.builder.plan import SHADOW, Plan, Step
from malstrom_py.errors import ReloadError
from malstrom_py.operators.base import Operator

_NEVER = ("source", "sink", "key_by", "generate_epochs", "enrich")


def with_shadow(plan: Plan, new: Plan, step: str) -> Plan:
    """Return ``plan`` with the code that ``step`` has in the plan ``new``, as its shadow.

    Raises:
        ReloadError: it is a step whose output cannot be compared where it runs.
    """
    code = new.steps[new.rank(step)]
    _check(code)
    steps: list[Step] = []
    for one in plan.steps:
        if one.name == step:  # its shadow copies rows before it: the code of the job may change them
            shadow = replace(code, name=f"{step}{SHADOW}", shadow_of=step, renamed_from=None)
            steps.append(replace(shadow, inputs=one.inputs, initial=None, types=new.types))
        steps.append(replace(one, promotes=False))  # its state is in the snapshot of the cut
    parameters = {**new.parameters, **plan.parameters}  # the new code may read more
    return replace(plan, steps=tuple(narrow_sources(steps)), parameters=parameters)


def without_shadow(plan: Plan, step: str) -> Plan:
    """Return ``plan`` without the shadow of ``step``."""
    return replace(plan, steps=tuple(narrow_sources([one for one in plan.steps if one.shadow_of != step])))


def promoted(plan: Plan, step: str) -> Plan:
    """Return ``plan``, which has the code of the shadow of ``step`` in the step itself, as one that takes its state."""
    return replace(plan, steps=tuple(replace(one, promotes=one.name == step) for one in plan.steps))


def shadowed(plan: Plan) -> list[str]:
    """Return the steps of ``plan`` that have a shadow."""
    return [one.shadow_of for one in plan.steps if one.shadow_of is not None]


def _check(code: Step) -> None:
    function = code.factory.func if isinstance(code.factory, partial) else code.factory
    kind = function if isinstance(function, type) and issubclass(function, Operator) else Operator
    if code.kind in _NEVER or kind.holding:
        raise ReloadError(
            f"step {code.name!r} cannot have a shadow: {code.kind} steps act outside of the job, send their records to "
            f"other workers, or make the watermarks of the job. Shadow the step before or after it",
            step=code.name,
        )
