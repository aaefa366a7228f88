"""The names of the items that a function takes of its row, by its instructions.

Rule: the names are returned only if the row goes nowhere else. Each load of it must be followed immediately by the
look-up of a constant, so that nothing else can get hold of the row; any other use, and any instruction or Python that
is not known here, means that the whole row is needed.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, Final

_PYTHON_MAX: Final = (3, 14)
_SILENT: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL"})
_LOADS: Final = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_LAST_LOADS: Final = frozenset({"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST"})
"""Two instructions in one: the second one loads a name."""
_SHOWS_LOCALS: Final = frozenset({"breakpoint", "dir", "eval", "exec", "locals", "vars"})
_SHOWS_FRAMES: Final = frozenset(
    {
        *("_getframe", "_current_frames", "currentframe", "stack", "trace", "getinnerframes", "getouterframes"),
        *("exc_info", "__traceback__", "tb_frame", "f_back", "f_locals", "walk_stack", "walk_tb"),
    }
)
_DEPTH: Final = 2
"""So many calls deep, functions that read the frames of their callers are found."""


def names_taken(function: object, position: int = 0) -> frozenset[str] | None:
    """Return the names that ``function`` takes of the row that is its argument number ``position``; None: all.

    >>> sorted(names_taken(lambda row: row["price"] * row.get("pieces", 1)))
    ['pieces', 'price']
    >>> names_taken(lambda row: dict(row)), names_taken(itemgetter("price"))
    (None, frozenset({'price'}))
    """
    if isinstance(function, itemgetter):
        reduced: Any = function.__reduce__()
        return frozenset(reduced[1]) if all(isinstance(one, str) for one in reduced[1]) else None
    if type(function) is not FunctionType or sys.version_info[:2] > _PYTHON_MAX:
        return None
    code = function.__code__
    if position >= code.co_argcount or _sees_its_frame(function):
        return None
    row = code.co_varnames[position]
    # A variable of inner functions is in a cell, which they can read at any time.
    return None if row in code.co_cellvars else _looked_up(code, row)


def _sees_its_frame(function: FunctionType) -> bool:
    """Whether ``function`` may reach its row through its local variables, under these names or another one."""
    names = set(function.__code__.co_names)
    showing = [getattr(builtins, name) for name in _SHOWS_LOCALS]
    outside = [function.__globals__.get(name) for name in names]
    if names & _SHOWS_LOCALS or any(one is each for one in outside for each in showing):
        return True
    return _reads_frames(function, _DEPTH)


def _reads_frames(function: FunctionType, depth: int) -> bool:
    names = set(function.__code__.co_names)
    outside = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it has no value yet
            outside.append(cell.cell_contents)
    called = [one for one in outside if isinstance(one, FunctionType | BuiltinFunctionType)]
    if names & _SHOWS_FRAMES or any(one.__name__ in _SHOWS_FRAMES for one in called):
        return True
    return depth > 0 and any(_reads_frames(one, depth - 1) for one in called if isinstance(one, FunctionType))


def _looked_up(code: CodeType, row: str) -> frozenset[str] | None:
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _SILENT]
    names: set[str] = set()
    for place, one in enumerate(instructions):
        if not _is_of(one, row):
            continue
        name = _constant_after(instructions[place + 1 : place + 7]) if _loads_last(one, row) else None
        if name is None:
            return None
        names.add(name)
    return frozenset(names)


def _is_of(one: dis.Instruction, name: str) -> bool:
    """Whether an instruction reads or writes the local variable ``name``."""
    is_local = one.opcode in dis.haslocal or "FAST" in one.opname
    return is_local and (one.argval == name or (isinstance(one.argval, tuple) and name in one.argval))


def _loads_last(one: dis.Instruction, name: str) -> bool:
    """Whether all that an instruction does with the local variable ``name`` is to load it on top of the stack."""
    if one.opname in _LAST_LOADS:
        return isinstance(one.argval, tuple) and one.argval[1] == name and one.argval[0] != name
    return one.opname in _LOADS


def _constant_after(following: Sequence[dis.Instruction]) -> str | None:
    """Return ``"x"`` if the instructions after a load of ``row`` are ``row["x"]`` or ``row.get("x", constant)``."""
    match _names(following):
        case ["LOAD_CONST", "BINARY_SUBSCR", *_]:
            return _text(following[0])
        case ["LOAD_CONST", "BINARY_OP", *_] if following[1].argrepr == "[]":
            return _text(following[0])
        case ["LOAD_METHOD" | "LOAD_ATTR", *_] if following[0].argval == "get":
            return _got(following[1:])
    return None


def _got(following: Sequence[dis.Instruction]) -> str | None:
    """Return ``"x"`` if the instructions call a method with it, and perhaps one constant more, as arguments."""
    match _names(following):
        case ["LOAD_CONST", "CALL", *_] if following[1].arg == 1:
            return _text(following[0])
        case ["LOAD_CONST", "LOAD_CONST" | "LOAD_SMALL_INT", "CALL", *_] if following[2].arg == 2:
            return _text(following[0])
    return None


def _names(instructions: Sequence[dis.Instruction]) -> list[str]:
    return [one.opname for one in instructions]


def _text(instruction: dis.Instruction) -> str | None:
    return instruction.argval if isinstance(instruction.argval, str) else None
