"""Translation of Spark's exceptions into errors of this library: one line of Spark's message, never a Java stack trace.

Rule: a lost connection or a stopped session is always a `SparkError`; any other failure is of the class that the caller
names. While texts are redacted, the error condition replaces Spark's message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from malstrom_py.errors import MalstromError, SparkError
from malstrom_py.errors.text import redacts

_SPARK_PACKAGES: Final = ("grpc", "py4j", "pyspark")
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
_RAISED: Final = re.compile(r"[\w.]+(Error|Exception)\b.*")
_WHAT_TO_DO: Final = (
    "If its session was stopped, pass one that runs. If Spark died, its own log says why; start it again"
)


@dataclass(frozen=True, slots=True)
class SparkFailure:
    """Spark's message in one line, and whether the connection to Spark is lost."""

    message: str
    is_gone: bool


@contextmanager
def spark_errors(what: str, otherwise: type[MalstromError] = SparkError) -> Iterator[None]:
    r"""Turn errors of pyspark, py4j and gRPC into `SparkError` if the connection is lost, else into ``otherwise``.

    The message begins with ``what``, the operation that failed. Errors from elsewhere, such as a user's function, are
    not changed.
    """
    try:
        yield
    except Exception as error:
        failure = describe_failure(error)
        if failure is None:
            raise
        if failure.is_gone:
            lost = f"Spark has ended or the connection is lost: {failure.message.rstrip('.')}"
            raise SparkError(f"{what}: {lost}. {_WHAT_TO_DO}") from error
        raise otherwise(f"{what}: {failure.message}") from error


def describe_failure(error: Exception) -> SparkFailure | None:
    """Describe an error that Spark raised; None if the error is not Spark's."""
    package = type(error).__module__.partition(".")[0]
    if package not in _SPARK_PACKAGES and not (package == "builtins" and _passed_through_spark(error.__traceback__)):
        return None
    try:
        text = str(error)
    except Exception:  # The text of a Py4J error comes from the JVM, which has ended.
        return SparkFailure(type(error).__name__, is_gone=True)
    if package == "builtins" and not isinstance(error, ConnectionError | TimeoutError | EOFError):
        # pyspark fails on its own None when the session has been stopped.
        return SparkFailure("its session has been stopped", is_gone=True) if "'NoneType'" in text else None
    # A Py4J error that is not a Java error means a broken connection to the JVM.
    gone = package in ("builtins", "py4j") and type(error).__name__ != "Py4JJavaError"
    return SparkFailure(_line(type(error).__name__, text), gone or _GONE.search(text) is not None)


def _line(name: str, text: str) -> str:
    """Return one line of Spark's message; while texts are redacted its error condition."""
    if redacts():
        condition = _CONDITION.search(text)
        return condition[1] if condition else name
    if details := _DETAILS.search(text):
        text = details[1]
    if java := _JAVA.search(text):
        text = text[java.end() :]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [name]
    raised = [line for line in lines if _RAISED.fullmatch(line)]
    # Of a Python function in Spark the last line of its traceback, which Spark's message has.
    line = raised[-1] if name == "PythonException" and raised else lines[0]
    line = _STATE.sub("", line)
    return line if len(line) <= _LINE_MAX else f"{line[: _LINE_MAX - 3]}..."


def _passed_through_spark(frames: TracebackType | None) -> bool:
    while frames is not None:
        if str(frames.tb_frame.f_globals.get("__name__")).partition(".")[0] in _SPARK_PACKAGES:
            return True
        frames = frames.tb_next
    return False
