"""Names of jobs and steps, and other arguments of users: checked at the call, with a `PlanError` that names the step.

Names of jobs and steps. They are stable ids (snapshots and upgrades hang on them), so they are strict.

Checks of what users pass to a builder: wrong is told at the call, as a `PlanError` that names the step.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import describe_function

NAME_MAX: Final = 64
_LEGAL = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}")


def check_name(name: object, what: str) -> str:
    """``name`` if it is legal for a job or step (``what`` says which), else `PlanError`.

    >>> check_name("running-mean", "step")
    'running-mean'
    """
    if not isinstance(name, str):
        raise PlanError(
            f"the name of a {what} comes first and is a str, got {type(name).__name__}: "
            f"write for instance .map('double', fn)"
        )
    if not _LEGAL.fullmatch(name):
        raise PlanError(
            f"{what} name {name!r} is not legal: use 1 to 64 letters, digits, '_' or '-', "
            f"for the name is an id in snapshots and file names"
        )
    return name


_DETAIL_MAX: Final = 300
_OWN: Final = frozenset(("out", "dead_letters"))


def refuse_class(thing: object, step: str) -> None:
    """`PlanError` if ``thing`` is a class where one of its instances is meant."""
    if isinstance(thing, type):
        raise PlanError(f"step {step!r}: pass an instance, {thing.__name__}(…), not the class itself")


def function_of(function: object, step: str) -> Any:
    """``function``, if it can be called and gives its result at once, else `PlanError` naming ``step``."""
    function = callable_of(function, step)
    if is_coroutine_function(function) or _is_of_kind(function, inspect.isasyncgenfunction):
        raise PlanError(
            f"step {step!r}: {describe_function(function)} is an asynchronous function, async def …, which is not "
            f"awaited here: pass an ordinary function, or use enrich on a keyed stream, which awaits one per record"
        )
    return function


def callable_of(function: object, step: str) -> Any:
    """``function``, if it can be called in any way, else `PlanError` naming ``step``."""
    check_name(step, "step")  # before it stands in a message: name and function may have been swapped
    if not callable(function):
        raise PlanError(f"step {step!r}: expected a function, got {type(function).__name__}")
    return function


def is_coroutine_function(function: object) -> bool:
    """Whether calling ``function`` gives a coroutine; also of an object with an asynchronous ``__call__``."""
    return _is_of_kind(function, inspect.iscoroutinefunction)


def _is_of_kind(function: object, is_kind: Callable[[Any], bool]) -> bool:
    if isinstance(function, type):
        return False
    try:
        return is_kind(function) or is_kind(getattr(function, "__call__", None))  # noqa: B004
    except Exception:  # of the user's own __getattr__, which may answer to any name, and raise anything
        return False


def refuse_policy(on_error: str, step: str, what: str) -> None:
    """`PlanError` unless ``on_error`` is "fail": ``what`` takes whole batches, so no single record can be blamed."""
    if on_error != "fail":
        raise PlanError(
            f"step {step!r}: {what} takes whole batches, so on_error={on_error!r} cannot tell which record failed: "
            f"leave it out, or use a function of one value"
        )


def at_least(smallest: int, number: int, step: str) -> int:
    """``number``, if it is a whole number of at least ``smallest``, else `PlanError` naming ``step``."""
    check_name(step, "step")
    if not isinstance(number, int) or isinstance(number, bool) or number < smallest:
        raise PlanError(f"step {step!r}: expected a whole number of at least {smallest}, got {number!r}")
    return number


def field_getter(field: Callable[[Any], Any] | str, step: str) -> Callable[[Any], Any]:
    """A function of a value: ``field`` itself, or for a column's name the one that looks the column up."""
    if isinstance(field, str):
        return itemgetter(field)
    checked: Callable[[Any], Any] = function_of(field, step)
    return checked


def short(thing: object) -> str:
    """What a plan tells of a source, a sink or a generator: its repr, or its type where that says no more."""
    text = shown(thing, characters_max=_DETAIL_MAX)
    return type(thing).__name__ if text.startswith("<") else text


def sides_of(sides: object, step: str) -> tuple[str, ...]:
    """``sides`` as names of side outputs of a step, each legal and there once, none if None, else `PlanError`."""
    if not isinstance(sides, list | tuple | None):
        raise PlanError(f"step {step!r}: sides is a list of names, got {sides!r}")
    named = tuple(check_name(side, "side output") for side in sides or ())
    for side in named:
        if side in _OWN or named.count(side) > 1:
            why = "is an output that every step may have" if side in _OWN else "stands there twice"
            raise PlanError(f"step {step!r}: side output {side!r} {why}: give each a name of its own")
    return named


def kind_of_default(default: object, step: str, *, what: str = "default") -> type:
    """The type of the states that ``default`` makes, else `PlanError`. It is called once for that.

    ``what`` is how the user has called it.
    """
    if not callable(default) or is_coroutine_function(default):
        got = "a coroutine function" if callable(default) else type(default).__name__
        called = what.partition(" ")[0]
        raise PlanError(f"step {step!r}: {what} is a function that makes a state, such as {called}=list, got {got}")
    where = "" if isinstance(default, type) else f" (in {describe_function(default)})"
    try:
        return default if isinstance(default, type) else type(default())
    except PlanError as error:  # of ours, so its text tells no value: per_worker, which has no worker to ask here
        raise PlanError(
            f"step {step!r}: {what} is called once while the job is built, and failed there{where}: {error}"
        ) from error
    except Exception as error:
        raise PlanError(
            f"step {step!r}: {what} raised {type(error).__name__}{where} when it was called while the job was built: "
            f"it is called without arguments, and returns the state of a key that has none"
        ) from error
