"""The safe text of errors: what messages and logs may repeat of an error without showing values of records.

Rule: safe are texts of this package, and the name of a field, an attribute or a variable that is in the source code.
The bytecode shows that the interpreter raised the error, and the source of that expression contains the name; code from
``eval`` has no source. Of all other errors only the type is safe.
"""

from __future__ import annotations

import ast
import builtins
import dis
import errno
import functools
import inspect
import linecache
import operator
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, extract_tb, walk_tb
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from malstrom_py import errors
from malstrom_py.errors import CodecError, MalstromError, has_safe_text, mark_safe

# In a source tree the rooms `workers` and `rescale` are links to folders outside the package's own.
_PACKAGE: Final = Path(errors.__file__).parent.parent
PACKAGE_FOLDERS: Final = tuple(
    f"{folder}{os.sep}" for folder in (_PACKAGE, *(path.resolve() for path in _PACKAGE.iterdir() if path.is_dir()))
)
"""The prefixes of the paths of this package's files."""

_STDLIB: Final = f"{sysconfig.get_path('stdlib')}{os.sep}"
LIBRARIES: Final = ("<frozen ", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
"""The prefixes of the paths of the files of Python and of installed libraries."""

NO_FIELD: Final = "the row has no field"

_ITEMS: Final = ("BINARY_SUBSCR", "BINARY_OP", "DELETE_SUBSCR")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR")
_NAMES: Final = (
    *("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLOSURE"),
    *("DELETE_FAST", "DELETE_DEREF", "DELETE_GLOBAL", "DELETE_NAME"),
)
_FIELDS_MAX: Final = 12
_LINES_MAX: Final = 50

_TYPE: Final = r"'([\w.]+)'"
_OPERATOR: Final = r"(?:[-+*/%@&|^<>=~]+|\*\* or pow\(\)|divmod\(\))"
_OF_TYPES: Final = re.compile(
    rf"unsupported operand type\(s\) for {_OPERATOR}: {_TYPE} and {_TYPE}"
    rf"|'[<>=!]+' not supported between instances of {_TYPE} and {_TYPE}"
    rf"|{_TYPE} object (?:is not (?:iterable|subscriptable|callable|an iterator)|does not support item assignment)"
    r"|cannot unpack non-iterable (\w+) object"
    rf"|unhashable type: {_TYPE}"
    r"|can only concatenate (\w+) \(not \"([\w.]+)\"\) to (\w+)"
)
"""The interpreter's messages on types. The names of types are groups, to be looked up."""

_OF_ARGUMENTS: Final = re.compile(
    r"([\w.<>]+)\(\) (takes (?:from \d+ to )?\d+ positional arguments? but \d+ (?:was|were) given"
    r"|missing \d+ required positional arguments?)(: '\w+'(?:,? (?:and )?'\w+')*)?"
)


def safe_detail(error: BaseException, row: object = None, function: object = None) -> str:
    """Return the safe text of ``error`` besides its type, "" if there is none.

    ``row``: the value that was processed; ``function``: the user's function that was called.
    """
    try:
        return _safe_detail(error, row, function)
    except Exception:  # of the user's class of error or of row, which may raise on any access
        return ""


def errno_text(error: BaseException) -> str:
    """Return the system's text for the number of ``error``; "" without a number, or if the class is not Python's own.

    The error's own text and path are left out: a user's function may have built them from a value.

    >>> errno_text(OSError(28, "secret", "/x/secret")), errno_text(OSError("secret"))
    ('[Errno 28] No space left on device', '')
    """
    kind = type(error)
    if not isinstance(error, OSError) or getattr(builtins, kind.__name__, None) is not kind:
        return ""
    number = error.errno
    return f"[Errno {number}] {os.strerror(number)}" if type(number) is int and number in errno.errorcode else ""


def raised_by_malstrom(error: BaseException, *, alone: bool = False) -> bool:
    """Whether this package raised ``error``; ``alone``: without other code in the traceback."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    if not files or not files[-1].startswith(PACKAGE_FOLDERS):
        return False
    return not alone or all(file.startswith(PACKAGE_FOLDERS) or _is_pythons(file) for file in files)


def _is_pythons(file: str) -> bool:
    """Whether ``file`` is in Python's library: ``contextlib`` is in many tracebacks."""
    return file.startswith(_STDLIB) and "site-packages" not in file


def _safe_detail(error: BaseException, row: object, function: object) -> str:
    if has_safe_text(error):
        return str(error.args[0])
    raised = _raising(error)
    if raised is None:
        return ""
    operation = raised.operation
    if type(error) is TypeError:
        return _of_call_or_types(error, raised, function)
    if type(error) is KeyError and operation in _ITEMS:
        return _of_key(error, raised, row)
    if type(error) is AttributeError and operation in _ATTRIBUTES:
        return _of_attribute(error, raised)
    if type(error) in (NameError, UnboundLocalError) and operation in _NAMES:
        return _of_name(error, raised)
    if type(error) is ModuleNotFoundError and operation == "IMPORT_NAME":
        return _of_module(error, raised)
    return ""


def _of_key(error: KeyError, raised: _Raised, row: object) -> str:
    key = error.args[0] if len(error.args) == 1 else None
    source = raised.source
    if not isinstance(key, str) or not isinstance(source, ast.Subscript):
        return ""
    if not isinstance(source.slice, ast.Constant) or source.slice.value != key:
        return ""  # it was computed, so it may be a value
    found = raised.frame.f_locals.get(source.value.id) if isinstance(source.value, ast.Name) else None
    is_row = isinstance(row, dict) and type(found) is type(row) and (found is row or found == row)
    return f"{NO_FIELD} {key!r}" if is_row else f"no item {key!r}"


def _of_attribute(error: AttributeError, raised: _Raised) -> str:
    source = raised.source
    if not isinstance(source, ast.Attribute) or not raised.argument == error.name == source.attr:
        return ""
    kind = type(error.obj)
    of = f"{kind.__name__} has" if _is_written(kind) else "there is"
    return f"{of} no attribute {source.attr!r}"


def _of_name(error: BaseException, raised: _Raised) -> str:
    name = raised.source.id if isinstance(raised.source, ast.Name) else None
    if name is None or raised.argument != name:
        return ""
    if type(error) is UnboundLocalError or name in raised.frame.f_code.co_freevars:
        return f"local variable {name!r} has no value there"
    return f"name {name!r} is not defined"


def _of_module(error: ModuleNotFoundError, raised: _Raised) -> str:
    """Name the missing module, which may be a parent package of the imported one."""
    is_named = raised.argument in _imported(raised.source) and f"{raised.argument}.".startswith(f"{error.name}.")
    return f"there is no module {error.name!r}" if is_named else ""


def _imported(source: ast.AST | None) -> set[str]:
    if isinstance(source, ast.ImportFrom):
        return {source.module or ""}
    return {alias.name for alias in source.names} if isinstance(source, ast.Import) else set()


def _of_call_or_types(error: TypeError, raised: _Raised, function: object) -> str:
    if raised.operation.startswith(("RAISE", "RERAISE")):
        return ""
    is_call = raised.operation.startswith(("CALL", "PRECALL"))
    text = str(error)
    return (is_call and _of_arguments(text, raised, function)) or _of_types(text)


def _of_types(text: str) -> str:
    """Return ``text`` if it is an interpreter's message on known types, else ""."""
    match = _OF_TYPES.fullmatch(text)
    return text if match and all(_is_known(name) for name in match.groups() if name is not None) else ""


def _of_arguments(text: str, raised: _Raised, function: object) -> str:
    """Return the message on the number of arguments, with names only if they are those of a function in the source."""
    match = _OF_ARGUMENTS.fullmatch(text)
    if match is None:
        return ""
    called = [function, *raised.called()]
    of_source = any(isinstance(one, FunctionType) and _names(one, match[1], match[3] or "") for one in called)
    verb = "is " if match[2].startswith("missing") else ""
    return text if of_source else f"a function that is called there {verb}{match[2]}"


def _names(function: FunctionType, name: str, arguments: str) -> bool:
    code = function.__code__
    lines = _lines(code.co_filename, code.co_firstlineno, code.co_firstlineno, function.__globals__)
    written = set(code.co_varnames[: code.co_argcount])
    return (
        bool(lines)
        and name == function.__qualname__
        and name.rpartition(".")[2] == code.co_name
        and written.issuperset(re.findall(r"'(\w+)'", arguments))
    )


def _is_known(name: str) -> bool:
    """Whether ``name`` is a type of Python or of a loaded package, as the interpreter writes it."""
    if isinstance(getattr(builtins, name, None), type):
        return True
    if any(isinstance(kind, type) and kind.__name__ == name for kind in vars(types).values()):
        return True
    module, _, last = name.rpartition(".")
    return isinstance(vars(sys.modules[module]).get(last), type) if module in sys.modules else False


def _is_written(kind: type) -> bool:
    """Whether ``kind`` is found under its module and name; a type that was built from data is not."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind or kind in vars(types).values()


@dataclass(frozen=True, slots=True)
class _Raised:
    """Where an error was raised: the instruction, its ``argument``, and its ``source``, if it has one."""

    frame: FrameType
    operation: str
    argument: Any
    source: ast.AST | None

    def called(self) -> Iterator[object]:
        """Yield the function that the source calls by name, if any."""
        if isinstance(self.source, ast.Call) and isinstance(self.source.func, ast.Name):
            name = self.source.func.id
            yield self.frame.f_locals.get(name, self.frame.f_globals.get(name))


def _raising(error: BaseException) -> _Raised | None:
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame, code = trace.tb_frame, trace.tb_frame.f_code
    instruction = next((one for one in dis.get_instructions(code) if one.offset == trace.tb_lasti), None)
    if instruction is None:
        return None
    return _Raised(frame, instruction.opname, instruction.argval, _source(code, trace.tb_lasti, frame.f_globals))


def _source(code: CodeType, offset: int, names: dict[str, Any]) -> ast.AST | None:
    """Return the expression or statement of the instruction at ``offset``; None if it is not found."""
    line, end_line, column, end_column = list(code.co_positions())[offset // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [text.encode() for text in _lines(code.co_filename, line, end_line, names)]
    if not lines:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    text = b"".join(lines).decode()
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return ast.parse(text).body[0]


def _lines(file: str, first: int, last: int, names: dict[str, Any]) -> list[str]:
    """Return lines of a source file; an empty list if it has none, or is not the file of the module with ``names``.

    The file of ``eval`` is ``<string>``, or the name that its caller gives.
    """
    module = names.get("__file__", file)  # a cell of a notebook has none
    if file.startswith("<") or last - first >= _LINES_MAX or Path(module).absolute() != Path(file).absolute():
        return []
    lines = linecache.getlines(file, names)[first - 1 : last]
    return lines if len(lines) == last - first + 1 else []


def list_fields(names: list[str]) -> str:
    """List the names of columns for a message, at most the first 12.

    For names of a schema only: the keys of a dict may be values.

    >>> list_fields(["carrier", "delay"]), list_fields([])
    ("'carrier', 'delay'", 'none')
    """
    known = ", ".join(repr(name) for name in names[:_FIELDS_MAX])
    return (known or "none") + (", …" if len(names) > _FIELDS_MAX else "")


PER_WORKER: Final = "per_worker"
"""The ``rule`` of an `OperatorError` on a resource that a worker could not make: ``on_error`` does not cover it."""


def describe_function(function: object) -> str:
    """Describe a function: ``name at file:line``, or its type if it has no code."""
    while isinstance(function, functools.partial):
        function = function.func
    named = column_of(function)
    if named is not None:
        return f"column {named!r}"
    try:
        return _described(function)
    except Exception:  # of the user's own __getattr__, which may raise any error
        return type(function).__qualname__


def column_of(function: object) -> str | None:
    """Return the column that ``function`` looks up if it was made from a column's name, else None.

    >>> column_of(operator.itemgetter("price")), column_of(len)
    ('price', None)
    """
    if not isinstance(function, operator.itemgetter):
        return None
    reduced: Any = function.__reduce__()
    items = reduced[1]
    return items[0] if len(items) == 1 and isinstance(items[0], str) else None


def count_others(number: int) -> str:
    """Format a number of others: ``3 others``, ``1 other``."""
    return f"{number} other{'' if number == 1 else 's'}"


def _described(function: object) -> str:
    if callable(function):
        function = inspect.unwrap(function)  # inside the wrapper of a decorator
    function = getattr(function, "__func__", function)
    name = getattr(function, "__qualname__", None)
    caller = getattr(function, "__init__" if isinstance(function, type) else "__call__", None)
    codes = (getattr(function, "__code__", None), getattr(caller, "__code__", None))
    code = next((code for code in codes if isinstance(code, types.CodeType)), None)
    name = name if isinstance(name, str) else type(function).__qualname__
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if code else name


def safe_text(error: Exception) -> str:
    """Describe an error without values: its type, then the system's text for its number or the `safe_detail`.

    The text of an error of this package is complete if no user's code is in its traceback. A `CodecError` may come from
    a user's code: its text never holds values of records.
    """
    if isinstance(error, MalstromError) and raised_by_malstrom(error, alone=not isinstance(error, CodecError)):
        return describe_error(error)
    return type(error).__name__ + after(errno_text(error) or safe_detail(error))


def text_with_place(error: Exception) -> str:
    """Describe an error that a user's code may have raised: its `safe_text`, with the function and the line.

    The place is the innermost one outside this package, Python and the installed packages; without one, the text alone
    is returned.
    """
    kind, colon, words = safe_text(error).partition(": ")
    if words and isinstance(error, MalstromError):
        return f"{kind}{colon}{words}"  # it is complete
    frame = users_frame(error)
    place = "" if frame is None else f" in {frame.name} at {frame.filename}:{frame.lineno}"
    remedy = ". Correct it" if place and not isinstance(error, OSError) else ""
    return f"{kind}{place}{colon}{words}{remedy}"


def users_frame(error: BaseException) -> FrameSummary | None:
    """Return the innermost line of the user's code that was running when ``error`` was raised; None if none was."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(PACKAGE_FOLDERS + LIBRARIES):
            return frame
    return None


def missing_methods(thing: object, made_by: object, methods: Sequence[str]) -> str:
    """Describe a result of the user's function ``made_by`` that has not all of ``methods``; "" if it has them.

    >>> missing_methods([], len, ["append", "poll(rows_max)"])
    'len returned list: return an object with the methods append() and poll(rows_max)'
    """
    if all(callable(getattr(thing, method.partition("(")[0], None)) for method in methods):
        return ""
    calls = [method if "(" in method else f"{method}()" for method in methods]
    named = f"{', '.join(calls[:-1])} and {calls[-1]}"
    return f"{describe_function(made_by)} returned {type(thing).__name__}: return an object with the methods {named}"


def refuse_no_items(items: object, wanted: str) -> None:
    """Raise TypeError if ``items``, a function's result, is not iterable; it names what is ``wanted`` instead."""
    try:
        iter(items)  # type: ignore[call-overload]  # it may not be iterable
    except TypeError as error:
        got = "None" if items is None else type(items).__name__
        raise mark_safe(TypeError(f"must return {wanted}, got {got}")) from error


def after(words: str) -> str:
    """Return ``words`` after a colon, "" for ""."""
    return f": {words}" if words else ""


def describe_error(error: BaseException) -> str:
    """Describe an error by type and text, for readers who may see values; by its type if the text cannot be read."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of the user's own __str__
        return type(error).__name__
