"""Whether a function may be called with proxies for values: it has no effect, and reads nothing that may change.

Rule: what is not known to be harmless is refused: an instruction of a later Python makes a function slow, never wrong.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, timedelta
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final

_HARMLESS: Final = frozenset(
    {
        *("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "KW_NAMES", "COPY_FREE_VARS"),
        *("POP_TOP", "COPY", "SWAP", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR"),
        *("LOAD_FAST_LOAD_FAST", "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
        *("LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_METHOD", "LOAD_ATTR", "LOAD_SMALL_INT"),
        *("LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "NOT_TAKEN", "UNARY_POSITIVE"),
        *("UNARY_NEGATIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL", "BINARY_OP", "BINARY_SUBSCR"),
        *("BINARY_SLICE", "BUILD_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP", "BUILD_TUPLE"),
        *("BUILD_LIST", "LIST_EXTEND", "BUILD_SET", "UNPACK_SEQUENCE"),
        *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "DICT_UPDATE", "DICT_MERGE", "CALL", "CALL_KW"),
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "LOAD_ASSERTION_ERROR"),
        *("JUMP_FORWARD", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE"),
        *("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"),
        *("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
        *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"),
    }
)
"""No loop, no handler of exceptions, no assignment but to local names."""

_METHODS: Final = frozenset(
    {
        *("get", "keys", "lower", "upper", "strip", "startswith", "endswith", "year", "month", "day"),
        *("hour", "minute", "second", "microsecond", "weekday", "isoweekday"),
    }
)
"""Attributes and methods that change nothing, on rows, values and constants."""

CALLED: Final = frozenset({"abs", "bool", "dict", "float", "int", "len", "max", "min", "str"})
"""Builtins that may be called."""

_PLAIN: Final = (bool, int, float, str, bytes, timedelta, type(None))
_ENTRIES_MAX: Final = 1000
_DEPTH_MAX: Final = 4


class Impure(Exception):
    """``why``: why a function may not be called with proxies, in words that follow the name of the step."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def is_plain(value: object) -> bool:
    """Whether ``value`` cannot change: a constant, or a tuple or frozenset of constants."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    if kind is datetime:
        return value.tzinfo is None and not value.fold  # type: ignore[attr-defined]
    return kind in _PLAIN or kind is date


def is_table(value: object) -> bool:
    """Whether ``value`` is a dict, set or list of constants, which may change between batches."""
    if type(value) is dict:
        return len(value) <= _ENTRIES_MAX and all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return type(value) in (set, list) and len(value) <= _ENTRIES_MAX and all(map(is_plain, value))  # type: ignore[arg-type,call-overload]


class Outside:
    """What a function reads from outside: constants, small tables, and functions like it, by name."""

    def __init__(self) -> None:
        self._read: list[tuple[Callable[[], Any], Any, str]] = []
        self.compares_identity = False
        """Whether something is compared with ``is None``."""
        self.has_remainders = False
        """Whether ``%`` is used, which formats if its left side is text."""

    def note(self, read: Callable[[], Any], value: Any) -> None:
        """Note that ``read`` returns ``value``."""
        # The text of a table shows more than ``==`` does: 1 is not True there, and the order counts.
        self._read.append((read, value, repr(value) if is_table(value) else ""))

    @property
    def is_same(self) -> bool:
        """Whether everything that was read is still the same."""
        for read, value, text in self._read:
            try:
                now = read()
            except (LookupError, ValueError):
                return False
            if now is not value or (text and (not is_table(now) or repr(now) != text)):
                return False
        return True


class Checking:
    """Checks functions, and the functions that these call.

    ``replaced``: what a constant, table or function becomes in the function that is called with proxies. ``overlay``:
    what is called in place of builtins.
    """

    def __init__(
        self,
        replaced: Callable[[Any], Any] = lambda value: value,
        overlay: Mapping[str, Any] | None = None,
    ) -> None:
        self.outside = Outside()
        self._replaced = replaced
        self._overlay = overlay or {}

    def checked(self, function: Callable[..., Any], depth: int = 0) -> FunctionType:
        """Return ``function`` with what it reads from outside replaced.

        Raises:
            Impure: it may have an effect, or reads something that is not known to stay the same.
        """
        if type(function) is not FunctionType:
            raise Impure(f"is a {type(function).__name__}, not a plain function")
        if depth > _DEPTH_MAX:
            raise Impure("calls functions that call others, too deep")
        code, defaults = function.__code__, function.__defaults__
        # What a function that is called is given may be anything.
        self._check_code(code, set() if depth else _given(code, len(defaults or ())))
        if function.__kwdefaults__:
            raise Impure("has arguments by keyword only")
        note = self.outside.note
        note(lambda: function.__code__, code)
        note(lambda: function.__defaults__, defaults)
        for one in defaults or ():
            note(lambda one=one: one, one)  # type: ignore[misc]  # a table may change
        return FunctionType(
            code.replace(co_consts=tuple(map(self._replaced, code.co_consts))),
            self._globals(function, depth),
            function.__name__,
            tuple(self._usable("a default", one, depth) for one in defaults or ()),
            tuple(_cell(one) for one in self._closed_over(function, depth)),
        )

    def _globals(self, function: FunctionType, depth: int) -> dict[str, Any]:
        code, globals_, note = function.__code__, function.__globals__, self.outside.note
        of_module: dict[str, Any] = getattr(function, "__builtins__")  # noqa: B009  it has no type
        known: dict[str, Any] = {"__builtins__": {}}
        for name in {one.argval for one in _instructions(code) if one.opname == "LOAD_GLOBAL"}:
            if name in globals_ and name != "__builtins__":
                value = globals_[name]
                note(lambda name=name: globals_[name], value)  # type: ignore[misc]
                known[name] = self._usable(name, value, depth)
                continue
            builtin = getattr(builtins, name, None)
            is_error = isinstance(builtin, type) and issubclass(builtin, Exception)
            if not is_error and name not in CALLED:
                raise Impure(f"calls {name}")
            note(lambda name=name: name in globals_, False)  # type: ignore[misc]
            note(lambda name=name: of_module[name], _BUILTINS.get(name, builtin))  # type: ignore[misc]
            known[name] = self._overlay.get(name, builtin)
        return known

    def _closed_over(self, function: FunctionType, depth: int) -> Iterator[Any]:
        """Yield what the free variables of ``function`` refer to."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Impure(f"reads {name} before it has a value") from None
            self.outside.note(lambda cell=cell: cell.cell_contents, value)  # type: ignore[misc]
            yield self._usable(name, value, depth)

    def _usable(self, name: str, value: Any, depth: int) -> Any:
        if is_plain(value) or is_table(value):
            return self._replaced(value)
        if type(value) is FunctionType:
            return self._replaced(self.checked(value, depth + 1))
        raise Impure(f"reads {name}, of type {type(value).__name__}")

    def _check_code(self, code: CodeType, given: Set[str]) -> None:
        """Raise `Impure` if ``code`` may have an effect. ``given``: those of its arguments that are proxies."""
        if code.co_flags & 0x2AC:  # *args, **kwargs, a generator, a coroutine
            raise Impure("is not a function of a row that returns a value")
        before, outside, instructions = None, self.outside, _instructions(code)
        for place, one in enumerate(instructions):
            name = one.opname
            if name not in _HARMLESS:
                raise Impure(_words(name, one))
            if name in _ATTRIBUTES and one.argval not in _METHODS and not _is_of_argument(instructions, place, given):
                raise Impure(_attribute_words(instructions, place))
            if name == "IS_OP" and (before is None or not _loads_none(before) or one.is_jump_target):
                raise Impure("compares with is")
            outside.compares_identity |= name == "IS_OP" or name.endswith(("_NONE", "_NOT_NONE"))
            outside.has_remainders |= name == "BINARY_OP" and one.argrepr.startswith("%")
            if name not in ("CACHE", "EXTENDED_ARG"):
                before = one


_BUILTINS: Final = {name: getattr(builtins, name) for name in CALLED}


@lru_cache(maxsize=1000)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of ``code``: one function is checked for each kind of its row."""
    return tuple(dis.get_instructions(code))


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]


def _loads_none(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and instruction.argval is None


_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")


def _given(code: CodeType, defaults: int) -> set[str]:
    """Return the arguments without a default that are always what the function was given."""
    stored = [one.argval for one in _instructions(code) if one.opname.startswith(("STORE_FAST", "DELETE_FAST"))]
    names = {name for one in stored for name in (one if isinstance(one, tuple) else (one,))}
    return set(code.co_varnames[: code.co_argcount - defaults]) - names


def _is_of_argument(instructions: Sequence[dis.Instruction], place: int, given: Set[str]) -> bool:
    """Whether what is loaded at ``place`` is an attribute of an argument that is a proxy, and not called."""
    one, owner = instructions[place], instructions[place - 1]
    is_loaded = "LOAD_FAST" in owner.opname and not one.is_jump_target
    name = owner.argval[-1] if isinstance(owner.argval, tuple) else owner.argval
    is_called = one.opname == "LOAD_METHOD" or "NULL" in one.argrepr
    return is_loaded and name in given and not is_called and not one.argval.startswith("_")


def _attribute_words(instructions: Sequence[dis.Instruction], place: int) -> str:
    """Return what is done with the attribute that is loaded at ``place``: ``calls random.random``."""
    start = end = place
    while instructions[start].opname in _ATTRIBUTES and start:
        start -= 1
    while end < len(instructions) and instructions[end].opname in _ATTRIBUTES:
        end += 1
    owner, *attributes = instructions[start:end]
    is_name = owner.opname.startswith(("LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF"))
    name = owner.argval if is_name and not attributes[0].is_jump_target else ""
    path = ".".join((name if type(name) is str else "", *(one.argval for one in attributes)))
    loads = (owner, *attributes, *instructions[end : end + 1])  # what pushes NULL is next to the call
    is_called = any(one.opname in ("LOAD_METHOD", "PUSH_NULL") or "NULL" in one.argrepr for one in loads)
    return f"{'calls' if is_called else 'uses'} {path}"


def _words(opname: str, instruction: dis.Instruction) -> str:
    if "JUMP_BACKWARD" in opname or opname in ("FOR_ITER", "GET_ITER"):
        return "has a loop"
    if opname.startswith(("IMPORT", "STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "DELETE", "STORE_DEREF")):
        return "changes or imports something"
    if opname in ("FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING", "FORMAT_WITH_SPEC"):
        return "makes text of values"
    if opname in ("PUSH_EXC_INFO", "BEFORE_WITH", "SETUP_FINALLY"):
        return "handles exceptions"
    if opname.startswith(("LIST_", "SET_", "MAKE_FUNCTION")):
        return "makes a list or a set of another, or a function"
    return f"has an instruction that is not known here ({instruction.opname})"
