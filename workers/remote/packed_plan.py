"""A plan as it travels to the processes of workers.

Rule: a plan is packed by cloudpickle; functions and classes of ``__main__``, and of the modules that the plan names in
``by_value``, travel by value.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from io import BytesIO
from operator import attrgetter
from types import CodeType
from typing import Any, ClassVar, Final, NewType

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error

_NO_FILE: Final = "<dynamic-code>"

_REGISTERED = threading.Lock()
"""Held while modules are registered for one plan: plans of other jobs in this program are packed before or after."""


@dataclass(frozen=True, slots=True)
class PlanAdvice:
    """What users can do about a plan that a worker cannot unpack: a ``module`` is missing there, or ``other`` reasons.
    What runs the processes words it.
    """

    module: str
    other: str


def pack_plan(plan: Plan) -> bytes:
    """Pack ``plan``. `PlanError` names the step whose function, source or sink cannot be pickled."""
    with _by_value(plan.by_value):
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


@contextmanager
def _by_value(names: Collection[str]) -> Iterator[None]:
    """Have cloudpickle copy the functions and classes of modules, and no longer than that: its list of modules is that
    of the whole program.
    """
    import cloudpickle

    with _REGISTERED:
        known = cloudpickle.list_registry_pickle_by_value()
        modules = [sys.modules[name] for name in names if name in sys.modules and name not in known]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


@cache
def _pickler() -> Any:
    """Return a pickler of which functions that travel by value keep their file: cloudpickle writes none, and errors
    would then not name the line of a program's own function. Functions with a cache and new types, which pickle knows
    by their names only, and properties with a cache, which hold a lock, travel as other functions do.
    """
    import cloudpickle

    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, arguments = reduce(code)
        return make, tuple(code.co_filename if given == _NO_FILE else given for given in arguments)

    def is_found_there(named: Any) -> bool:
        copied = ("__main__", *cloudpickle.list_registry_pickle_by_value())
        return _is_in_module(named) and not f"{named.__module__}.".startswith(tuple(f"{one}." for one in copied))

    def with_cache(function: Any) -> Any:
        if is_found_there(function):
            return function.__reduce__()
        return _cached, (function.__wrapped__, function.cache_parameters())

    def without_lock(made: cached_property[Any]) -> tuple[Any, ...]:
        return _property, (made.func, made.attrname)

    def new_type(made: Any) -> Any:
        if is_found_there(made):
            return made.__reduce__()
        return NewType, (made.__name__, made.__supertype__), {"__module__": made.__module__}

    own = {
        CodeType: with_file,
        type(lru_cache(len)): with_cache,
        cached_property: without_lock,
        NewType: new_type,
    }

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table: ClassVar[Any] = ChainMap(own, cloudpickle.Pickler.dispatch_table)

    return Pickler


def _is_in_module(function: Any) -> bool:
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return False
    return found is function


def _cached(function: Any, parameters: Any) -> Any:
    return lru_cache(**parameters)(function)


def _property(function: Any, name: str | None) -> Any:
    made = cached_property(function)
    made.attrname = name
    return made


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
