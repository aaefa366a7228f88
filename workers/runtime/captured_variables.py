"""What the functions of a job hold on to and other processes cannot be given: the variable, by name.

Rule: whether a thing can be pickled is tried, on its first bytes only: a large table that a function has captured is
not copied to find out, and pickling hooks of the user's own classes are not run. So what is named here cannot be
shipped; what is not named may still fail to be, on Ray.
"""

from __future__ import annotations

import functools
import itertools
import logging
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import cloudpickle

from malstrom_py.builder.plan import Plan, Step
from malstrom_py.errors.text import LIBRARIES, describe_function
from malstrom_py.logs import log

_LOG: Final = logging.getLogger("malstrom_py")

_BYTES_MAX: Final = 64_000
"""So much of a thing is pickled to see that it can be."""

_DEPTH_MAX: Final = 8
_PARTS_MAX: Final = 100

_HOOKS: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")

_DATA: Final = frozenset({"jax", "numpy", "pandas", "polars", "pyarrow", "scipy", "torch"})
"""Libraries whose values can be pickled, and may be so large that it would take a while."""


def warn_of_captured(plan: Plan) -> None:
    """Log a warning for each step of ``plan`` that no other process could be given."""
    for step in plan.steps:
        found = captured(step)
        if found is not None:
            log(
                _LOG,
                logging.WARNING,
                "job %s: step %r (%s) cannot be taken to other processes: %s. It runs in this one; on Ray it is an "
                "error. Make it inside the function, or once per worker with mp.per_worker(factory)",
                *(plan.job, step.name, step.kind, found),
                job=plan.job,
                step=step.name,
            )


def captured(step: Step) -> str | None:
    """What a function or logic of ``step`` holds on to and cannot be pickled, for people; None if nothing is found.

    Of sources and sinks their functions are looked at, and nothing else.
    """
    for part in _given(step):
        found = _fault(part, "", "", _DEPTH_MAX)
        if found is not None:
            return found
    return None


def _given(step: Step) -> Iterator[Any]:
    """What the user gave for ``step``."""
    keywords = step.factory.keywords if isinstance(step.factory, functools.partial) else {}
    for name, value in keywords.items():
        if name in ("source", "sink"):
            yield from filter(_is_function, _attributes(value).values())
        else:
            yield value
    if step.kind == "key_by":  # the steps after it bear the same one
        yield step.traits.partitioner
    yield step.migration


def _is_function(value: object) -> bool:
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial)


def _fault(thing: Any, variable: str, where: str, depth: int) -> str | None:
    """Return what in ``thing`` cannot be pickled. None: nothing is found.

    ``variable`` is the innermost variable that leads to ``thing``; ``where`` is the place of ``thing`` in its value.
    """
    if _can_be_pickled(thing):
        return None
    for place, is_variable, part in _parts(thing) if depth else ():
        if not place:
            deeper = _fault(part, variable, where, depth - 1)
        elif is_variable or not variable:
            deeper = _fault(part, place, "", depth - 1)
        else:
            deeper = _fault(part, variable, f"{place} in {where}" if where else place, depth - 1)
        if deeper is not None:
            return deeper
    kind = type(thing)
    name = describe_function(thing) if _is_function(thing) else f"a value of type {kind.__module__}.{kind.__qualname__}"
    if not variable:
        return f"{name} cannot be pickled"
    return f"{variable} {f'holds {name}, as {where},' if where else f'is {name},'} which cannot be pickled"


def _parts(thing: Any) -> Iterator[tuple[str, bool, Any]]:
    """Yield what ``thing`` holds: the place, whether that is a variable of the user, and the value.

    The object of a method and the function of a partial have the place of ``thing`` itself: "".
    """
    if isinstance(thing, types.MethodType):
        yield "", False, thing.__self__
    elif isinstance(thing, functools.partial):
        yield "", False, thing.func
        of = describe_function(thing)
        yield from ((f"argument {number} of {of}", True, value) for number, value in enumerate(thing.args, 1))
        yield from ((f"argument {name!r} of {of}", True, value) for name, value in thing.keywords.items())
    elif isinstance(thing, types.FunctionType):
        of = describe_function(thing)
        yield from ((f"variable {name!r} of {of}", True, value) for name, value in _variables(thing))
    elif isinstance(thing, Mapping):
        item = f"an item of a {type(thing).__name__}"
        yield from ((item, False, value) for value in itertools.islice(thing.values(), _PARTS_MAX))
    elif isinstance(thing, list | tuple | set | frozenset):
        item = f"an item of a {type(thing).__name__}"
        yield from ((item, False, value) for value in itertools.islice(thing, _PARTS_MAX))
    else:
        of = type(thing).__qualname__
        yield from ((f"attribute {name!r} of {of}", False, value) for name, value in _attributes(thing).items())


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that ``function`` knows from outside: of functions around it, defaults of parameters, globals."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            """It has not been assigned yet."""
    defaults = function.__defaults__ or ()
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    known = function.__globals__
    yield from ((name, known[name]) for name in _names(function.__code__) if name in known)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attributes(thing: object) -> dict[str, Any]:
    """The attributes that belong to ``thing`` itself."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(thing, name):
                found[name] = getattr(thing, name)
    return found


class _Enough(Exception):
    """So far it can be pickled."""


class _Sieve:
    """A file that keeps nothing, and takes only so much."""

    def __init__(self) -> None:
        self._left = _BYTES_MAX

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise _Enough
        return len(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not annotated
    def persistent_id(self, obj: Any) -> Any:
        # A str is encoded as a whole before its first byte is written.
        return 0 if isinstance(obj, str | bytes | bytearray) and len(obj) > _BYTES_MAX else None

    def reducer_override(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind.__module__.partition(".")[0] in _DATA or _says_how(kind):
            return object, ()
        return super().reducer_override(obj)


@functools.lru_cache(maxsize=1024)
def _says_how(kind: type) -> bool:
    """Return whether a class of the user's own code says how it is pickled: that code is not run here, but believed."""
    for hook in _HOOKS:
        found = next((base.__dict__[hook] for base in kind.__mro__ if hook in base.__dict__), None)
        if isinstance(found, types.FunctionType) and not found.__code__.co_filename.startswith(LIBRARIES):
            return True
    return False


def _can_be_pickled(thing: Any) -> bool:
    dump: Callable[[Any], None] = _Pickler(_Sieve(), 5).dump
    try:
        dump(thing)
    except _Enough:
        return True
    except Exception:
        return False
    return True
