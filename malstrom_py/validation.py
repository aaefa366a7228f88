"""Checks of users' arguments: names of jobs and steps, functions, defaults, side outputs.

Rule: a wrong argument raises a `PlanError` at the call, and the error names the step. Names of jobs and steps are
stable ids in snapshots and file names, so the check of names is strict.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from math import inf, isfinite
from operator import itemgetter
from typing import Any, Final, TypeVar

from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import describe_error, describe_function

__tracebackhide__ = True  # pytest shows the line of the user

C = TypeVar("C")

NAME_MAX: Final = 64
_DETAIL_MAX: Final = 300
_OWN: Final = frozenset(("out", "dead_letters"))
_LEGAL = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}")


def check_name(name: object, what: str) -> str:
    """Return ``name`` if it is a legal name of ``what`` ("job" or "step"), else raise `PlanError`."""
    if not isinstance(name, str):
        raise PlanError(
            f"the name of a {what} must be a str, got {type(name).__name__}: write for instance "
            + ("mp.Job('orders')" if what == "job" else ".map('double', fn)")
        )
    if not _LEGAL.fullmatch(name):
        raise PlanError(
            f"{what} name {name!r} is not legal: use 1 to 64 letters, digits, '_' or '-', "
            f"because the name is an id in snapshots and file names"
        )
    return name


def refuse_class(thing: object, step: str) -> None:
    """Raise `PlanError` if ``thing`` is a class instead of an instance."""
    if isinstance(thing, type):
        raise PlanError(f"step {step!r}: pass an instance, {thing.__name__}(…), not the class itself")


def function_of(function: object, step: str, wanted: str = "a function") -> Any:
    """Return ``function`` if it is callable and not asynchronous, else raise `PlanError` naming ``step``.

    ``wanted``: what the step takes.
    """
    function = callable_of(function, step, wanted)
    if is_coroutine_function(function) or _is_of_kind(function, inspect.isasyncgenfunction):
        raise PlanError(
            f"step {step!r}: {describe_function(function)} is an asynchronous function, async def …, which is not "
            f"awaited here: pass an ordinary function, or use enrich on a keyed stream, which awaits one per record"
        )
    return function


def callable_of(function: object, step: str, wanted: str = "a function") -> Any:
    """Return ``function`` if it is callable, else raise `PlanError` naming ``step``."""
    check_name(step, "step")  # before a message uses it: name and function may have been swapped
    if not callable(function):
        raise PlanError(f"step {step!r}: expected {wanted}, got {type(function).__name__}{_instead_of(function)}")
    return function


def _instead_of(function: object) -> str:
    """Return what to write for ``function``, which is none, but perhaps the name of a column or an expression."""
    if isinstance(function, str):
        return f": write lambda row: row[{function!r}], or use .select or .with_columns"
    return ": use .select or .with_columns" if type(function).__module__.startswith("polars.") else ""


def is_coroutine_function(function: object) -> bool:
    """Whether calling ``function`` returns a coroutine; true also for an object with an asynchronous ``__call__``."""
    return _is_of_kind(function, inspect.iscoroutinefunction)


def _is_of_kind(function: object, is_kind: Callable[[Any], bool]) -> bool:
    if isinstance(function, type):
        return False
    try:
        return is_kind(function) or is_kind(getattr(function, "__call__", None))  # noqa: B004
    except Exception:  # of the user's own __getattr__, which may raise any error
        return False


def refuse_policy(on_error: str, step: str, what: str) -> None:
    """Raise `PlanError` unless ``on_error`` is "fail": ``what`` takes whole batches, so no failed record is known."""
    if on_error != "fail":
        raise PlanError(
            f"step {step!r}: {what} takes whole batches, so on_error={on_error!r} cannot identify the failed record: "
            f"leave it out, or use a function of one value"
        )


def at_least(smallest: int, number: int, step: str, argument: str) -> int:
    """Return ``number`` if it is an int of at least ``smallest``, else raise `PlanError` naming ``step``."""
    check_name(step, "step")
    if not isinstance(number, int) or isinstance(number, bool) or number < smallest:
        raise PlanError(f"step {step!r}: {argument} must be a whole number of at least {smallest}, got {shown(number)}")
    return number


def checked_flag(value: object, what: str) -> bool:
    """Return the argument ``value`` if it is True or False, else raise `PlanError`; ``what`` names it in the error."""
    if not isinstance(value, bool):
        raise PlanError(f"{what} must be True or False, got {shown(value)}")
    return value


def checked_whole(value: object, what: str, *, most: int | None = None) -> int:
    """Return the argument ``value`` if it is an int from 1 to ``most``, else raise `PlanError`, which says ``what``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 and (most is None or value <= most):
        return value
    limits = "of at least 1" if most is None else f"from 1 to {most}"
    raise PlanError(f"{what} must be a whole number {limits}, got {shown(value)}")


def checked_number(value: object, what: str) -> float:
    """Return the argument ``value`` if it is a finite number above 0, else raise `PlanError`, which says ``what``."""
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0:
        return value
    raise PlanError(f"{what} must be a number above 0, got {shown(value)}")


def checked_seconds(value: object, what: str, *, above_0: bool = False, finite: bool = False) -> float:
    """Return the argument ``value`` if it is a number of at least 0, or above it, else raise `PlanError`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_in_range = value > 0 if above_0 else value >= 0
        if is_in_range and not (finite and value == inf):
            return value
    least = "above 0" if above_0 else "of at least 0"
    raise PlanError(f"{what} must be a number of seconds {least}, got {shown(value)}")


def checked_choice(value: C, what: str, *choices: C) -> C:
    """Return the argument ``value`` if it is one of ``choices``, else raise `PlanError`, which says ``what``."""
    if value not in choices:
        raise PlanError(f"{what} must be {' or '.join(map(repr, choices))}, got {shown(value)}")
    return value


def checked_text(value: object, what: str, wanted: str) -> str:
    """Return the argument ``value`` if it is a str that is not blank, else raise `PlanError`."""
    if not isinstance(value, str) or not value.strip():
        raise PlanError(f"{what} must be {wanted}, got {shown(value)}")
    return value


def checked_names(value: object, what: str, wanted: str) -> list[str]:
    """Return the argument ``value``, a str or several different ones, as a list, else raise `PlanError`."""
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise PlanError(f"{what} must be {wanted}, each of them once, got {shown(value)}")
    return names


def checked_function(function: object, what: str, of: str) -> Any:
    """Return the argument ``function`` if it is one, and not asynchronous; else raise `PlanError`, which says ``what``.

    ``of``: its arguments.
    """
    if not callable(function) or is_coroutine_function(function) or _is_of_kind(function, inspect.isasyncgenfunction):
        got = f"{describe_function(function)}, which is async" if callable(function) else type(function).__name__
        raise PlanError(f"{what} must be a function of {of}, got {got}")
    return function


def field_getter(field: Callable[[Any], Any] | str, step: str) -> Callable[[Any], Any]:
    """Return a function of a value: ``field`` itself, or the lookup of the column that it names."""
    if isinstance(field, str):
        return itemgetter(field)
    checked: Callable[[Any], Any] = function_of(field, step, "a function or the name of a column")
    return checked


def short(thing: object) -> str:
    """Describe a source, a sink or a generator for a plan: by its repr, or by its type if that is the default one."""
    text = shown(thing, characters_max=_DETAIL_MAX)
    return type(thing).__name__ if text.startswith("<") else text


def sides_of(sides: object, step: str) -> tuple[str, ...]:
    """Return ``sides`` as names of side outputs, empty for None; raise `PlanError` for an illegal or repeated name."""
    if not isinstance(sides, list | tuple | None):
        raise PlanError(f"step {step!r}: sides must be a list of names, got {sides!r}")
    named = tuple(check_name(side, "side output") for side in sides or ())
    for side in named:
        if side in _OWN or named.count(side) > 1:
            why = "is an output that every step may have" if side in _OWN else "is given twice"
            raise PlanError(f"step {step!r}: side output {side!r} {why}: give each its own name")
    return named


def kind_of_default(default: object, step: str, *, what: str = "default") -> type:
    """Return the type of the states that ``default`` returns; call it once. Raise `PlanError` if it fails.

    ``what`` is the name of the argument.
    """
    if not callable(default) or is_coroutine_function(default):
        got = "a coroutine function" if callable(default) else type(default).__name__
        called = what.partition(" ")[0]
        raise PlanError(
            f"step {step!r}: {what} must be a function that makes a state, such as {called}=list, got {got}"
        )
    where = "" if isinstance(default, type) else f" (in {describe_function(default)})"
    try:
        return default if isinstance(default, type) else type(default())
    except PlanError as error:  # per_worker, for instance, has no worker here
        raise PlanError(
            f"step {step!r}: {what} is called once while the job is built, and failed there{where}: {error}"
        ) from error
    except Exception as error:
        raise PlanError(
            f"step {step!r}: {what} raised {describe_error(error)}{where} when it was called while the job was built: "
            f"it is called without arguments, and returns the state of a key that has none"
        ) from error
