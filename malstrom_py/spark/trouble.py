"""What goes wrong in Spark, as errors of this package: what was asked for is wrong, or Spark itself has gone away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from malstrom_py.errors import MalstromError, SparkError

_LINES_MAX: Final = 3
_GONE: Final = re.compile(
    r"SparkContext (was|has been) (shut ?down|stopped)|stopped SparkContext|UNAVAILABLE|Connection refused|"
    r"INVALID_HANDLE\.SESSION|NO_ACTIVE_SESSION|Answer from Java side is empty"
)


@contextmanager
def spark_trouble(what: str, kind: type[MalstromError]) -> Iterator[None]:
    """What Spark raises inside, as a ``kind`` that says ``what`` could not be done, and why in Spark's own words.

    Raises:
        SparkError: Spark does not answer any more.
    """
    try:
        yield
    except MalstromError:
        raise
    except Exception as error:
        told = told_by_spark(error)
        if told is None:
            raise
        if is_gone(error):
            raise SparkError(
                f"{what}: Spark does not answer any more: {told}. See its log; start it, then the job, again"
            ) from error
        raise kind(f"{what}: {told}") from error


def told_by_spark(error: Exception) -> str | None:
    """What Spark says in ``error``, in short; None if the error is none of Spark's."""
    module = type(error).__module__.partition(".")[0]
    if module not in {"pyspark", "py4j", "grpc"} and not isinstance(error, ConnectionError | EOFError):
        return None
    java = getattr(error, "java_exception", None)
    try:
        text = str(error if java is None else java.toString())
    except Exception:  # the JVM that would tell is gone
        text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("== ", "at ", "JVM stacktrace"))]
    return " ".join(said[:_LINES_MAX]).rstrip(".") or type(error).__name__


def is_gone(error: Exception) -> bool:
    """Whether ``error`` means that there is no Spark any more that could do anything."""
    if isinstance(error, ConnectionError | EOFError):
        return True
    module, name = type(error).__module__, type(error).__name__
    if module.startswith("py4j") and name != "Py4JJavaError":
        return True
    return bool(_GONE.search(str(error)))
