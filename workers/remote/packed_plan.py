"""A plan as it travels to the processes of workers.

Rule: a plan is packed by cloudpickle; functions and classes of ``__main__`` travel by value.
"""

from __future__ import annotations

import pickle
from collections import ChainMap
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from types import CodeType
from typing import Any, ClassVar, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error

_NO_FILE: Final = "<dynamic-code>"


@dataclass(frozen=True, slots=True)
class PlanAdvice:
    """What users can do about a plan that a worker cannot unpack: a ``module`` is missing there, or ``other`` reasons.
    What runs the processes words it.
    """

    module: str
    other: str


def pack_plan(plan: Plan) -> bytes:
    """Pack ``plan``. `PlanError` names the step whose function, source or sink cannot be pickled."""
    try:
        return packed(plan)
    except Exception as error:
        raise _unpicklable(plan, error) from error


def unpack_plan(packed: bytes, job: str, advice: PlanAdvice) -> Plan:
    """Unpack a plan. `PlanError`, with ``advice``, if it needs a module that this process lacks."""
    try:
        plan: Plan = pickle.loads(packed)
    except ImportError as error:
        text = f"job {job!r} uses module {error.name!r}, which a worker does not have: {advice.module}"
        raise PlanError(text) from error
    except Exception as error:
        text = f"job {job!r} cannot be built on a worker ({describe_error(error)}): {advice.other}"
        raise PlanError(text) from error
    return plan


def packed(thing: object) -> bytes:
    """Pack anything as a plan is packed."""
    file = BytesIO()
    _pickler()(file, protocol=5).dump(thing)
    return file.getvalue()


@cache
def _pickler() -> Any:
    """Return a pickler of which functions that travel by value keep their file: cloudpickle writes none, and errors
    would then not name the line of a program's own function.
    """
    import cloudpickle

    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, arguments = reduce(code)
        return make, tuple(code.co_filename if given == _NO_FILE else given for given in arguments)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: with_file}, cloudpickle.Pickler.dispatch_table)

    return Pickler


def _unpicklable(plan: Plan, error: Exception) -> PlanError:
    for step in plan.steps:
        try:
            packed((step.factory, step.traits))
        except Exception as own:
            return PlanError(
                f"step {step.name!r} ({step.kind}{f', {step.detail}' if step.detail else ''}) cannot be sent to the "
                f"workers: {describe_error(own)}. Create what it uses inside the function, or once per worker with "
                f"mp.per_worker(factory)"
            )
    return PlanError(f"job {plan.job!r} cannot be sent to the workers: {describe_error(error)}")
