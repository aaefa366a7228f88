"""The texts of errors: what a message says of an exception that another's code raised, and where that happened.

Rule: a message repeats the text of every exception. Such a text may hold values of records: while texts are redacted, a
message has the type and the place alone. `text_of` decides that, and nothing else does.
"""

from __future__ import annotations

import builtins
import difflib
import errno
import functools
import inspect
import operator
import os
import sysconfig
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary, extract_tb, walk_tb
from typing import Any, Final

from malstrom_py import errors
from malstrom_py.errors import MalstromError, has_safe_text, mark_safe

# In a source tree the rooms `workers` and `rescale` are links to folders outside the package's own.
_PACKAGE: Final = Path(errors.__file__).parent.parent
PACKAGE_FOLDERS: Final = tuple(
    f"{folder}{os.sep}" for folder in (_PACKAGE, *(path.resolve() for path in _PACKAGE.iterdir() if path.is_dir()))
)
"""The prefixes of the paths of this package's files."""

LIBRARIES: Final = ("<frozen ", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
"""The prefixes of the paths of the files of Python and of installed libraries."""

_SITE: Final = f"{os.sep}site-packages{os.sep}"

REDACTING: Final = "MALSTROM_REDACT_ERRORS"
"""The environment variable that redacts texts in the whole process: 1."""

_TEXT_MAX: Final = 2000
_FIELDS_MAX: Final = 12
_NEAREST_MAX: Final = 3


class _Redaction:
    """The number of running jobs with ``redact_errors=True`` in this process."""

    def __init__(self) -> None:
        self.jobs = 0
        self.lock = threading.Lock()


_REDACTION: Final = _Redaction()


def redacts() -> bool:
    """Whether this process hides the texts of other code's exceptions."""
    return _REDACTION.jobs > 0 or os.environ.get(REDACTING, "") not in ("", "0")


def redact(on: bool) -> None:
    """Hide them from now on if ``on``: for a process that belongs to one job."""
    with _REDACTION.lock:
        _REDACTION.jobs += on


@contextmanager
def redacting(on: bool) -> Iterator[None]:
    """Hide them inside if ``on``, in all threads of the process: a job has several.

    >>> with redacting(True):
    ...     describe_error(ValueError("secret"))
    'ValueError'
    >>> describe_error(ValueError("secret"))
    'ValueError: secret'
    """
    redact(on)
    try:
        yield
    finally:
        with _REDACTION.lock:
            _REDACTION.jobs -= on


def text_of(error: BaseException) -> str:
    """Return the text of ``error``, "" if it has none or may not be shown.

    While texts are redacted, only those of this package are shown, and what the system says of an error's number.

    >>> text_of(KeyError("delay")), text_of(ValueError())
    ("'delay'", '')
    """
    if redacts() and not _is_ours(error):
        return errno_text(error)
    try:
        text = str(error.args[0]) if has_safe_text(error) else str(error)
    except Exception:  # of the user's own __str__
        return ""
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


def describe_error(error: BaseException) -> str:
    """Return the type of ``error`` and its `text_of`."""
    return type(error).__name__ + after(text_of(error))


def public_text(error: BaseException) -> str:
    """Return the `text_of` an error of this package alone; of another one its type too, for it is unexpected."""
    if isinstance(error, MalstromError):
        return text_of(error) or type(error).__name__
    return f"an unexpected {describe_error(error)}"


def _is_ours(error: BaseException) -> bool:
    """Whether this package wrote the text: a user's code may also raise an error of this package's classes."""
    if isinstance(error, MalstromError):
        return error.__traceback__ is None or raised_by_malstrom(error)
    return has_safe_text(error)


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


def raised_by_malstrom(error: BaseException) -> bool:
    """Whether code of this package raised ``error``."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(PACKAGE_FOLDERS)


def nearest(name: object, names: Iterable[object]) -> list[str]:
    """Return those of ``names`` that are most like ``name``, the nearest first, at most 3.

    >>> nearest("dep_dealy", ["arr_delay", "dep_delay", "carrier"])
    ['dep_delay']
    """
    known = {one.casefold(): one for one in names if isinstance(one, str)}
    wanted = name.casefold() if isinstance(name, str) else ""
    return [known[one] for one in difflib.get_close_matches(wanted, known, n=_NEAREST_MAX)]


def instead_of(name: object, names: Sequence[str]) -> str:
    """Return what a message says of the unknown column ``name`` where ``names`` exist: the nearest, else a list.

    >>> instead_of("dealy", ["carrier", "delay"]), instead_of("x", ["carrier", "delay"])
    (", did you mean 'delay'?", ", only 'carrier', 'delay'.")
    """
    near = nearest(name, names)
    if near:
        return f", did you mean {' or '.join(map(repr, near))}?"
    listed = list_fields(names)
    return f", only {listed}{'' if listed.endswith('…') else '.'}"


def list_fields(names: Sequence[str]) -> str:
    """List the names of columns for a message, at most the first 12.

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


def text_with_place(error: Exception) -> str:
    """Describe an error that a user's code may have raised, with the function and the line of that code.

    The place is the innermost one outside this package, Python and the installed packages; without one, the text alone
    is returned.
    """
    if isinstance(error, MalstromError) and raised_by_malstrom(error):
        return describe_error(error)  # it is complete
    place = raised_at(error)
    remedy = ". Correct it" if place and not isinstance(error, OSError) else ""
    return f"{type(error).__name__}{place and f' {place}'}{after(sentence(text_of(error)))}{remedy}"


def raised_at(error: BaseException) -> str:
    """Return ``in function at file:line`` of the user's code that raised ``error``; "" if none was running."""
    frame = users_frame(error)
    return "" if frame is None else f"in {frame.name} at {frame.filename}:{frame.lineno}"


def failed_in(function: object, error: BaseException) -> str:
    """Return ``name at file:line`` of the user's ``function``: the line in it, or in another, that raised ``error``."""
    where, frame = describe_function(function), users_frame(error)
    if frame is None or where.endswith(f":{frame.lineno}"):
        return where
    if f" at {frame.filename}:" in where and where.partition(" at ")[0].rpartition(".")[2] == frame.name:
        return f"{where.rpartition(':')[0]}:{frame.lineno}"
    return f"{where}, raised {raised_at(error)}"


def sentence(text: str) -> str:
    """Return ``text`` in one line, without the full stop at its end, so that another sentence can follow."""
    return " ".join(text.split()).removesuffix(".")


def users_frame(error: BaseException) -> FrameSummary | None:
    """Return the innermost line of the user's code that was running when ``error`` was raised; None if none was."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(PACKAGE_FOLDERS + LIBRARIES) and _SITE not in frame.filename:
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
