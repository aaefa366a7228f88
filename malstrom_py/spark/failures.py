"""What Spark raises, as errors of ours: one line of what Spark said, and never a stack of Java.

Rule: a Spark that has gone away, or whose session was stopped, is a `SparkError` wherever that is noticed; anything
else is of the class that the caller names. Messages of Spark that quote data give way to their condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from malstrom_py.errors import MalstromError, SparkError

_ROOMS: Final = ("grpc", "py4j", "pyspark")
_LINE_MAX: Final = 500
_GONE: Final = re.compile(
    r"NO_ACTIVE_(OR_DEFAULT_)?SESSION|SESSION_(CLOSED|NOT_FOUND|CHANGED)|RETRIES_EXCEEDED|StatusCode\.UNAVAILABLE"
    r"|stopped SparkContext|SparkContext (was|has been) shut ?down|\[Errno \d+\] Connection refused"
    r"|SparkEnv\$?\.get\(\)\" is null"
)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
_JAVA: Final = re.compile(r"^: ", re.MULTILINE)
_DETAILS: Final = re.compile(r'details = "(.*)"')
_QUOTES_DATA: Final = (
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "NumberFormatException",
    "PythonException",
    "SparkRuntimeException",
)
_WHAT_TO_DO: Final = (
    "If its session was stopped, pass one that runs. If Spark died, its own log says why; start it again"
)


@dataclass(frozen=True, slots=True)
class Told:
    """What an error tells: in a line, and whether Spark is gone."""

    said: str
    gone: bool


@contextmanager
def spark_errors(what: str, otherwise: type[MalstromError] = SparkError) -> Iterator[None]:
    r"""Raise what pyspark, py4j and gRPC raise inside as `SparkError` if Spark is gone, else as ``otherwise``.

    ``what`` was being done, and begins the message. What others raise inside, a user's function for instance, passes.

    >>> from pyspark.errors import AnalysisException
    >>> with spark_errors("table 'planes'", SparkError):
    ...     raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] There is no `planes`.\n'Relation [planes]")
    Traceback (most recent call last):
        ...
    malstrom_py.errors.SparkError: table 'planes': [TABLE_OR_VIEW_NOT_FOUND] There is no `planes`.
    """
    try:
        yield
    except Exception as error:
        told = told_of(error)
        if told is None:
            raise
        if told.gone:
            raise SparkError(f"{what}: Spark has gone away: {told.said.rstrip('.')}. {_WHAT_TO_DO}") from error
        raise otherwise(f"{what}: {told.said}") from error


def told_of(error: Exception) -> Told | None:
    """What ``error`` tells about Spark; None if it is not Spark's."""
    room = type(error).__module__.partition(".")[0]
    if room not in _ROOMS and not (room == "builtins" and _passed_through_spark(error.__traceback__)):
        return None
    try:
        text = str(error)
    except Exception:  # it asks the JVM, which is not there any more
        return Told(type(error).__name__, gone=True)
    if room == "builtins" and not isinstance(error, ConnectionError | TimeoutError | EOFError):
        # What pyspark stumbles over when its session has been stopped.
        return Told("its session has been stopped", gone=True) if "'NoneType'" in text else None
    # Py4J's own errors that are no errors of Java: the line to the JVM is broken.
    gone = room in ("builtins", "py4j") and type(error).__name__ != "Py4JJavaError"
    return Told(_line(type(error).__name__, text), gone or _GONE.search(text) is not None)


def _line(name: str, text: str) -> str:
    """One line of what Spark said."""
    if name in _QUOTES_DATA:
        condition = _CONDITION.search(text)
        return f"{condition[1] if condition else name} (Spark's own message quotes data: it is the cause of this error)"
    if details := _DETAILS.search(text):
        text = details[1]
    if java := _JAVA.search(text):
        text = text[java.end() :]
    line = next((line.strip() for line in text.splitlines() if line.strip()), name)
    line = _STATE.sub("", line)
    return line if len(line) <= _LINE_MAX else f"{line[: _LINE_MAX - 3]}..."


def _passed_through_spark(frames: TracebackType | None) -> bool:
    while frames is not None:
        if str(frames.tb_frame.f_globals.get("__name__")).partition(".")[0] in _ROOMS:
            return True
        frames = frames.tb_next
    return False
