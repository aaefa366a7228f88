"""Warnings about user functions that forget ``return``, found by their code and by the results of their first calls.

Rule: no false alarm where None is intended. A lambda, a body of ``pass``, a function with an explicit ``return None``,
one annotated with ``-> None``, and one without source are not reported.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import logging
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.errors.text import describe_function
from malstrom_py.logs import log
from malstrom_py.operators.base import StepContext

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
_RETURNS: Final = frozenset({"RETURN_CONST", "RETURN_VALUE"})


def never_returns(function: object) -> bool:
    """Whether ``function`` is a Python function that ends without ``return`` and can never return a value.

    >>> never_returns(print), never_returns(lambda number: None)
    (False, False)
    """
    function = _called(function)
    code = _code_of(function)
    if code is None or code.co_name == "<lambda>" or code.co_flags & _GENERATORS or _is_annotated(function):
        return False
    body = _body_of(code)
    if not body or _is_deliberate(body[-1]):
        return False
    if any(isinstance(node, ast.Return) and node.value is not None for node in _nodes(body)):
        return False
    # A function that cannot be left, or only by `raise`, has no instruction that returns.
    return any(step.opname in _RETURNS for step in dis.get_instructions(code))


def forgets_state(function: object) -> bool:
    """Whether ``on_data`` of a logic reads the state of its key, and can never return one."""
    return _reads_state(function) and never_returns(function)


def forgets_timer_state(function: object) -> bool:
    """Whether ``on_timer`` of a logic assigns its state last, does not use it afterwards, and never returns.

    A function that only reads the state may drop it on purpose, at the end of a session.
    """
    code, state = _code_of(function), _parameter(function, 2)
    if code is None or state is None or not never_returns(function):
        return False
    steps = list(dis.get_instructions(code))
    if any("JUMP_BACKWARD" in step.opname for step in steps):
        return False  # the last assignment may be read in the next round of a loop
    uses = [step.opname for step in steps if "_FAST" in step.opname and state in _names_of(step)]
    return bool(uses) and uses[-1].startswith("STORE_FAST") and "LOAD" not in uses[-1]


def forgetful(kind: str, keywords: dict[str, Any]) -> tuple[object, str] | None:
    """Return the function of a step of ``kind`` that forgets ``return``, and the effect; None if there is none.

    ``keywords``: the arguments of the step.
    """
    given = next((keywords[name] for name in _ARGUMENTS if name in keywords), None)
    if kind not in LOST or given is None:
        return None
    checks = [(given, LOST[kind], never_returns)]
    if kind == "stateful_op":
        on_timer = (getattr(given, "on_timer", None), LOST_BY_TIMER, forgets_timer_state)
        checks = [(getattr(given, "on_data", given), LOST[kind], forgets_state), on_timer]
    elif kind == "enrich":
        combine = (keywords.get("combine"), LOST_BY_COMBINE, never_returns)
        checks = [(getattr(given, "function", given), LOST[kind], never_returns), combine]
    return next(((function, lost) for function, lost, is_wrong in checks if is_wrong(function)), None)


class ReturnWatch:
    """Logs one warning when the first `CALLS` calls of a step's function have all returned None; at the end of the run
    also after fewer calls, if its code can return nothing else.
    """

    def __init__(
        self, context: StepContext, function: object, kind: str, lost: str | None = None, *, active: bool = True
    ) -> None:
        self._context = context
        self._lost = LOST[kind] if lost is None else lost
        self._function = function
        self._kind = kind
        self._left = CALLS if active else 0
        if active:
            context.at_close.append(self._end)

    @property
    def active(self) -> bool:
        """Whether more calls are to be counted."""
        return self._left > 0

    def results(self, results: Sequence[Any]) -> None:
        """Check the next results: watching ends with the first that is not None."""
        if self._left > 0:
            if any(result is not None for result in results):
                self._left = 0
            else:
                self.nothing(len(results))

    def nothing(self, calls: int) -> None:
        """Count further calls that returned None."""
        if self._left > 0:
            self._left -= calls
            if self._left <= 0:
                self._warn(f"the first {CALLS:,} records: so far")

    def _end(self) -> None:
        """Warn when the worker closes before `CALLS` calls."""
        if 0 < self._left < CALLS and never_returns(self._function):
            self._warn("every record, so")
        self._left = 0

    def _warn(self, records: str) -> None:
        warned, step = self._context.warned, self._context.step
        if step not in warned:
            warned.add(step)
            log(
                _LOG,
                logging.WARNING,
                "job %s: step %r (%s): %s returned None for %s %s. If that is not intended, return the result",
                *(self._context.job, step, self._kind, describe_function(self._function), records),
                self._lost,
                job=self._context.job,
                worker=self._context.worker,
                step=step,
            )


def watch_returns(
    context: StepContext,
    function: object,
    kind: str,
    lost: str | None = None,
    *,
    suspects: Callable[[object], bool] = never_returns,
) -> ReturnWatch:
    """Return the watch for a step whose function may return None: active only if its code ``suspects`` a mistake."""
    return ReturnWatch(context, function, kind, lost, active=suspects(function))


def returns_values(function: object) -> bool:
    """Whether results of None are a mistake: of any ``function`` but the look-up of a column, which may be null."""
    return not isinstance(function, itemgetter)


def may_forget_state(on_data: object) -> bool:
    """Whether ``on_data`` reads the state, and is a lambda or can never return one."""
    code = _code_of(on_data)
    is_lambda = code is not None and code.co_name == "<lambda>"
    return _reads_state(on_data) and (is_lambda or never_returns(on_data))


@functools.lru_cache(maxsize=256)
def _body_of(code: types.CodeType) -> Sequence[ast.stmt]:
    """Return the statements of a function; none if its source is missing, or does not match the code."""
    try:
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except Exception:
        return ()
    if isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef) and parsed.name == code.co_name:
        return parsed.body
    return ()


def _is_deliberate(last: ast.stmt) -> bool:
    """Whether the ``last`` statement shows that nothing is to be returned: ``pass``, ``...``, a docstring, an exit."""
    return isinstance(last, ast.Pass | ast.Raise | ast.Return) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    )


def _nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of ``body``, without those of functions and classes inside it."""
    left = list(body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left.extend(ast.iter_child_nodes(node))


def _reads_state(on_data: object) -> bool:
    """Whether the code of ``on_data`` reads its second parameter."""
    code, state = _code_of(on_data), _parameter(on_data, 1)
    if code is None or state is None:
        return False
    return any(
        step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")) and state in _names_of(step)
        for step in dis.get_instructions(code)
    )


def _parameter(function: object, place: int) -> str | None:
    """Return the name of the argument at ``place``, from 0, in the code of ``function``; None if it has no name."""
    code = _code_of(function)
    if isinstance(function, functools.partial):
        place += len(function.args)
        function = function.func
    place += not isinstance(function, types.FunctionType)
    return code.co_varnames[place] if code is not None and place < code.co_argcount else None


def _names_of(step: dis.Instruction) -> tuple[str, ...]:
    """Return the local variables that one instruction reads or writes: one or two."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _called(function: object) -> object:
    """Return the function that a call of ``function`` runs: that of a partial, a cache or the method of an object."""
    if isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    if isinstance(function, functools._lru_cache_wrapper):
        function = function.__wrapped__
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
