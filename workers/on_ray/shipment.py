"""A plan on its way to other processes: functions and classes by cloudpickle, those of ``__main__`` by value."""

from __future__ import annotations

import pickle

import cloudpickle

from malstrom_py.errors import PlanError
from malstrom_py.plan import Plan
from malstrom_py.workers.captured import captured


def pack_plan(plan: Plan) -> bytes:
    """``plan`` as bytes; `PlanError` naming the step whose function, source or sink cannot be taken elsewhere."""
    try:
        packed: bytes = cloudpickle.dumps(plan, protocol=5)
    except Exception as error:
        raise _unpicklable(plan, error) from error
    return packed


def unpack_plan(packed: bytes, job: str) -> Plan:
    """The plan again; `PlanError` if it needs a module that is not here."""
    try:
        plan: Plan = pickle.loads(packed)
    except ImportError as error:
        raise PlanError(
            f"job {job!r} uses module {error.name!r}, which a worker does not have: install it on every node of the "
            f"cluster, or have Ray bring it there with RayRuntime(runtime_env={{'pip': [...]}}) or, for your own code, "
            f"runtime_env={{'working_dir': '.'}}"
        ) from error
    except Exception as error:
        raise PlanError(
            f"job {job!r} cannot be built on a worker ({type(error).__name__}: {error}): see that the cluster runs the "
            f"same versions of Python and of the libraries as the program that starts the job"
        ) from error
    return plan


def _unpicklable(plan: Plan, error: Exception) -> PlanError:
    for step in plan.steps:
        try:
            cloudpickle.dumps((step.factory, step.traits), protocol=5)
        except Exception as own:
            found = captured(step) or own
            return PlanError(
                f"step {step.name!r} ({step.kind}{f', {step.detail}' if step.detail else ''}) cannot be taken to other "
                f"processes: {found}. Make what it holds on to inside the function, or once per worker with "
                f"mp.per_worker(factory)"
            )
    return PlanError(f"job {plan.job!r} cannot be taken to other processes: {error}")
