"""The source text of a user's function, parsed: whether its end can be reached, and what a decorator calls.

Rule: where the source is missing or does not match the code, the answer is None or the function itself, never a guess.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef


def reaches_end(code: types.CodeType) -> bool | None:
    """Return whether control can leave a function by the end of its body, rather than by ``return`` or ``raise``.

    A body that ends with ``pass``, ``...`` or a docstring does nothing on purpose: False. None: there is no source.
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
    except Exception:  # there is no source, or it has changed
        return None
    if isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef) and parsed.name == code.co_name:
        return parsed
    return None


def _falls(body: Sequence[ast.stmt]) -> bool:
    """Whether control can go past the end of ``body``."""
    return all(map(_passes, body))


def _passes(statement: ast.stmt) -> bool:
    """Whether control can go on after ``statement``."""
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
    """Whether a loop with this ``body`` has a ``break`` of its own."""
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
