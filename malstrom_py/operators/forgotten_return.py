"""Warnings about user functions that forget ``return``, found by their code and by the results of their first calls.

Rules. No false alarm where None is intended: a lambda, a body of ``pass``, a function that ends with ``return None``,
is annotated with ``-> None`` or can return a value is not reported. Where the source is missing or does not match the
code, the answer is None or the function itself, never a guess.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import itertools
import logging
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import StepContext

Function = ast.FunctionDef | ast.AsyncFunctionDef


def reaches_end(code: types.CodeType) -> bool | None:
    """Return whether control can leave a function by the end of its body, rather than by ``return`` or ``raise``.

    A body that ends with ``pass``, ``...`` or a docstring is empty on purpose: False. None: the source is missing.
    """
    function = _parsed(code)
    if function is None:
        return None
    last = function.body[-1]
    is_empty = isinstance(last, ast.Pass) or (isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant))
    return not is_empty and _falls(function.body)


def unwrapped(function: object) -> object:
    """Return the function whose result ``function`` returns: that below decorators which only pass its result on.

    Such are ``functools.cache`` and a wrapper made with ``functools.wraps`` of which each ``return`` gives the result
    of the wrapped function unchanged.

    >>> @functools.cache
    ... def double(number):
    ...     return 2 * number
    >>> unwrapped(double).__name__, type(unwrapped(double)).__name__
    ('double', 'function')
    """
    seen: list[object] = []
    while (inner := _passed_on(function)) is not None and all(inner is not one for one in seen):
        seen.append(inner)
        function = inner
    return function


def _passed_on(function: object) -> object | None:
    if isinstance(function, functools._lru_cache_wrapper):
        return function.__wrapped__
    inner = function.__dict__.get("__wrapped__") if isinstance(function, types.FunctionType) else None
    if inner is None or not isinstance(function, types.FunctionType):
        return None
    wrapper = _parsed(function.__code__)
    if wrapper is None:
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names = {name for name, cell in cells if _holds(cell, inner)}
    return inner if names and _gives_only(wrapper, names) else None


def _holds(cell: types.CellType, thing: object) -> bool:
    try:
        return cell.cell_contents is thing
    except ValueError:  # it has not been assigned yet
        return False


def _gives_only(wrapper: Function, names: set[str]) -> bool:
    """Whether every ``return`` of ``wrapper`` gives the result of a call of one of ``names``, and there is one."""

    def is_call(node: ast.expr | None) -> bool:
        node = node.value if isinstance(node, ast.Await) else node
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names

    own = list(_own(wrapper))
    stored = [node for node in own if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    if any(node.id in names for node in stored):
        return False
    # A variable that is assigned the result, and nothing else, is the result.
    assigned: dict[str, int] = {}
    for node in own:
        if isinstance(node, ast.Assign) and is_call(node.value) and len(node.targets) == 1:
            (target,) = node.targets
            if isinstance(target, ast.Name):
                assigned[target.id] = assigned.get(target.id, 0) + 1
    results = {name for name, times in assigned.items() if times == sum(node.id == name for node in stored)}
    given = [node.value for node in own if isinstance(node, ast.Return)]
    return bool(given) and all(is_call(one) or (isinstance(one, ast.Name) and one.id in results) for one in given)


def _own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a body, without those of functions and classes inside it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left.extend(ast.iter_child_nodes(node))


@functools.lru_cache(maxsize=256)
def _parsed(code: types.CodeType) -> Function | None:
    try:
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except Exception:  # the source is missing, or has changed
        return None
    if isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef) and parsed.name == code.co_name:
        return parsed
    return None


def _falls(body: Sequence[ast.stmt]) -> bool:
    """Whether control can reach the end of ``body``."""
    return all(map(_passes, body))


def _passes(statement: ast.stmt) -> bool:
    """Whether control can continue after ``statement``."""
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return False
        case ast.If():
            return _falls(statement.body) or _falls(statement.orelse)
        case ast.While():
            endless = isinstance(statement.test, ast.Constant) and bool(statement.test.value)
            return _breaks(statement.body) or (not endless and _falls(statement.orelse))
        case ast.For() | ast.AsyncFor():
            return _breaks(statement.body) or _falls(statement.orelse)
        case ast.With() | ast.AsyncWith():
            return _falls(statement.body)
        case ast.Try() | ast.TryStar():
            ways = [[*statement.body, *statement.orelse], *(handler.body for handler in statement.handlers)]
            return _falls(statement.finalbody) and any(map(_falls, ways))
        case ast.Match():
            last = statement.cases[-1]
            takes_all = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
            return not takes_all or any(_falls(case.body) for case in statement.cases)
        case _:
            return True


def _breaks(body: Sequence[ast.stmt]) -> bool:
    """Whether a loop with this ``body`` has a ``break`` that ends this loop."""
    for statement in body:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            inner = statement.orelse
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = []
        else:
            parts: list[ast.AST] = list(ast.iter_child_nodes(statement))
            inner = [part for part in parts if isinstance(part, ast.stmt)]
            for part in parts:
                if isinstance(part, ast.ExceptHandler | ast.match_case):
                    inner.extend(part.body)
        if _breaks(inner):
            return True
    return False


_LOG: Final = logging.getLogger("malstrom_py")

CALLS: Final = 1000
"""A running job warns after so many calls that all returned None."""

LOST: Final = {
    "assign_timestamps": "None is not a timestamp",
    "branch": "no record takes the first stream",
    "enrich": "every answer is None",
    "filter": "no record passes",
    "filter_map": "no record passes",
    "flat_map": "there is nothing to iterate over",
    "fold": "nothing is accumulated",
    "key_by": "every record has the key None",
    "key_local": "every record has the key None",
    "map": "every value becomes None",
    "reduce": "nothing is accumulated",
    "split": "there is no stream to take",
    "stateful_flat_map": "there are no outputs and no state",
    "stateful_map": "there is no output and no state",
    "stateful_op": "no key keeps its state",
    "ttl_map": "there is no output and no state",
}
"""Kind of step -> the effect of a function that always returns None."""

LOST_BY_COMBINE: Final = "every value becomes None"
LOST_BY_TIMER: Final = "a key loses its state when its timer fires"

_ARGUMENTS: Final = ("fn", "predicate", "logic", "asking")
"""The arguments of steps that take a function which has to return something."""

_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

_BARE: Final = frozenset({"COPY_FREE_VARS", "LOAD_CONST", "MAKE_CELL", "NOP", "RESUME", "RETURN_CONST", "RETURN_VALUE"})
"""The instructions of a line that has only ``return``, ``return None`` or ``pass``."""

_LOADS: Final = re.compile(r"LOAD_(FAST|DEREF|CLOSURE)")
"""The instructions that read a local variable."""


def never_returns(function: object) -> bool:
    """Whether ``function`` is a Python function that ends without ``return`` and can never return a value.

    >>> def forgets(number):
    ...     number * 2
    >>> def means_it(number):
    ...     print(number)
    ...     return None
    >>> never_returns(forgets), never_returns(means_it), never_returns(lambda number: None), never_returns(print)
    (True, False, False, False)
    """
    function = _called(function)
    code = _code_of(function)
    if code is None or code.co_name == "<lambda>" or code.co_flags & _GENERATORS or _is_annotated(function):
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    lines: list[int] = []
    for before, step in zip([None, *steps], steps, strict=False):
        if step.opname == "RETURN_CONST":
            is_none = step.argval is None
        elif step.opname == "RETURN_VALUE":
            # A jump target may return another value too, as in `return value or None`.
            loads_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            is_none = loads_none and not step.is_jump_target
        else:
            continue
        if not is_none:
            return False
        lines.append(_line(step))
    if not lines:
        return False
    at_end = reaches_end(code)
    if at_end is None:
        return any(step.opname not in _BARE for step in steps if _line(step) == max(lines))
    return at_end


def forgets_state(function: object) -> bool:
    """Whether ``on_data`` of a logic reads the state of its key, and can never return one.

    >>> def forgets(message, total, output):
    ...     output.emit(message.key, (total or 0) + message.value, None)
    >>> def stateless(message, state, output):
    ...     output.send(message)
    >>> forgets_state(forgets), forgets_state(stateless)
    (True, False)
    """
    return _reads_state(function) and never_returns(function)


def forgets_timer_state(function: object) -> bool:
    """Whether ``on_timer`` of a logic assigns its state last, does not use it afterwards, and never returns.

    A function that only reads the state may drop it on purpose, at the end of a session.

    >>> def forgets(key, time, state, output):
    ...     output.emit(key, state, time)
    ...     state = state + 1
    >>> def drops(key, time, state, output):
    ...     output.emit(key, state, time)
    >>> forgets_timer_state(forgets), forgets_timer_state(drops)
    (True, False)
    """
    code = _code_of(function)
    state = _parameter(function, 2)
    if code is None or state is None or not never_returns(function):
        return False
    last = ""
    for step in dis.get_instructions(code):
        if "JUMP_BACKWARD" in step.opname:
            return False  # the last assignment may be read in the next round of a loop
        if state in _names_of(step) and "_FAST" in step.opname:
            last = step.opname
    return last.startswith("STORE_FAST") and "LOAD" not in last


def forgetful(kind: str, keywords: dict[str, Any]) -> tuple[object, str] | None:
    """Return the function of a step of ``kind`` that forgets ``return``, and the effect; None if there is none.

    ``keywords``: the arguments of the step.
    """
    given = next((keywords[name] for name in _ARGUMENTS if name in keywords), None)
    if kind not in LOST or given is None:
        return None
    if kind == "stateful_op":
        on_data, on_timer = getattr(given, "on_data", given), getattr(given, "on_timer", None)
        if forgets_state(on_data):
            return on_data, LOST[kind]
        return (on_timer, LOST_BY_TIMER) if on_timer is not None and forgets_timer_state(on_timer) else None
    asked = [given]
    if kind == "enrich":
        asked = [getattr(given, "function", given), keywords.get("combine")]
    found = next((function for function in asked if never_returns(function)), None)
    if found is None:
        return None
    return found, LOST_BY_COMBINE if found is keywords.get("combine") else LOST[kind]


class ReturnWatch:
    """Logs one warning when the first `CALLS` calls of a step's function have all returned None; at the end of the run
    also after fewer calls, if its code can return nothing else.
    """

    def __init__(self, context: StepContext, function: object, kind: str, lost: str | None = None) -> None:
        self._context = context
        self._lost = LOST[kind] if lost is None else lost
        self._function = function
        self._kind = kind
        self._left = CALLS
        context.at_close.append(self._end)

    def over(self, results: Sequence[Any]) -> bool:
        """Check the next results. True once watching can end: one is not None, or the warning was logged."""
        if any(result is not None for result in results):
            self._left = 0
            return True
        return self.over_after(len(results))

    def over_after(self, calls: int) -> bool:
        """Count further calls that returned None. True once watching can end."""
        self._left -= calls
        if self._left > 0:
            return False
        self._warn(f"the first {CALLS:,} records: so far")
        return True

    def _end(self) -> None:
        """Warn when the worker closes before `CALLS` calls."""
        if 0 < self._left < CALLS and never_returns(self._function):
            self._warn("every record, so")
        self._left = 0

    def _warn(self, records: str) -> None:
        warned, step = self._context.warned, self._context.step
        if step not in warned:
            warned.add(step)
            _LOG.warning(
                "job %s: step %r (%s): %s returned None for %s %s. If that is not intended, return the result",
                *(self._context.job, step, self._kind, describe_function(self._function), records),
                self._lost,
            )


def watch_returns(context: StepContext, function: object, kind: str) -> ReturnWatch | None:
    """Return the watch for a step whose function may return None: only if its code never returns a value."""
    return ReturnWatch(context, function, kind) if never_returns(function) else None


def watch_values(context: StepContext, function: object, kind: str) -> ReturnWatch | None:
    """Return the watch for a step whose function should return values. A column may be all null."""
    return None if isinstance(function, itemgetter) else ReturnWatch(context, function, kind)


def watch_combine(context: StepContext, combine: object) -> ReturnWatch | None:
    """Return the watch for ``combine`` of enrich, if it never returns a value."""
    return ReturnWatch(context, combine, "enrich", LOST_BY_COMBINE) if never_returns(combine) else None


def watch_timers(context: StepContext, on_timer: object) -> ReturnWatch | None:
    """Return the watch for the states of ``on_timer``, if it makes a new state and never returns it."""
    return ReturnWatch(context, on_timer, "stateful_op", LOST_BY_TIMER) if forgets_timer_state(on_timer) else None


def watch_states(context: StepContext, on_data: object) -> ReturnWatch | None:
    """Return the watch for the states of ``on_data``, if it reads the state and has no explicit ``return None``."""
    code = _code_of(on_data)
    is_lambda = code is not None and code.co_name == "<lambda>"
    if not _reads_state(on_data) or not (is_lambda or never_returns(on_data)):
        return None
    return ReturnWatch(context, on_data, "stateful_op")


def _reads_state(on_data: object) -> bool:
    """Whether the code of ``on_data`` reads its second parameter."""
    code = _code_of(on_data)
    state = _parameter(on_data, 1)
    if code is None or state is None:
        return False
    return any(state in _names_of(step) for step in dis.get_instructions(code) if _LOADS.search(step.opname))


def _parameter(function: object, place: int) -> str | None:
    """Return the name of the argument at ``place``, from 0, in the code of ``function``; None if it has no name.

    An argument of ``*arguments`` is named by an assignment such as ``one, other = arguments``.
    """
    code = _code_of(function)
    if code is None:
        return None
    if isinstance(function, functools.partial):
        place += len(function.args)
        function = function.func
    place += not isinstance(unwrapped(function), types.FunctionType)
    if place < code.co_argcount:
        return code.co_varnames[place]
    if not code.co_flags & inspect.CO_VARARGS:
        return None
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for at, (load, unpack) in enumerate(itertools.pairwise(steps)):
        if _LOADS.search(load.opname) and rest in _names_of(load) and unpack.opname == "UNPACK_SEQUENCE":
            stores = itertools.takewhile(lambda step: step.opname.startswith("STORE_"), steps[at + 2 :])
            names = [name for step in stores for name in _names_of(step)][: unpack.argval]
            return names[place - code.co_argcount] if place - code.co_argcount < len(names) else None
    return None


def _names_of(step: dis.Instruction) -> tuple[str, ...]:
    """Return the local variables that one instruction reads or writes: one or two."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _called(function: object) -> object:
    """Return the function that a call of ``function`` runs: that of a partial, or the method of an object."""
    if isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    function = unwrapped(function)
    if isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return function
    return getattr(type(function), "__call__", None)  # noqa: B004  its value is needed


def _code_of(function: object) -> types.CodeType | None:
    """Return the code that a call of ``function`` runs; None if it is not Python code."""
    code = getattr(_called(function), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _is_annotated(function: object) -> bool:
    """Whether ``function`` is annotated with ``-> None``."""
    try:
        annotated = getattr(function, "__annotations__", {}).get("return", "")
    except Exception:  # they may be evaluated now, and name something undefined
        return False
    return annotated is None or annotated == "None"


def _line(step: dis.Instruction) -> int:
    return (step.positions and step.positions.lineno) or 0
