"""Which Python runs the functions that Spark is given: it must be of the version of this program.

Rule: only Spark itself can say, so it is asked, once per session; a local session that was made here needs no asking.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from malstrom_py.errors import MalstromError, SparkError
from malstrom_py.spark.failures import spark_errors

_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH\].*?version:? (\d[\d.]*\d)", re.DOTALL)
_CHECKED: Final[WeakSet[Any]] = WeakSet()


class _NotTold(MalstromError):
    """Spark did not say which Python it runs."""


def is_connect(session: Any) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_python(session: Any) -> None:
    """`SparkError` if Spark runs functions of Python in another version than this program. Asked once per session.

    A Spark that can run none at all passes: neither sources nor sinks have it run any.
    """
    if session in _CHECKED:
        return
    theirs = _asked(session)
    if theirs not in {None, _version()}:
        where = "where its Connect server starts" if is_connect(session) else "before the session is made"
        raise SparkError(
            f"Spark runs functions of Python in Python {theirs}, this program is Python {_version()}: set "
            f"PYSPARK_PYTHON to {sys.executable}, or to a Python {_version()} on all nodes, {where}."
        )
    _CHECKED.add(session)


def trust_python(session: Any) -> None:
    """Leave the asking out: the session runs on this machine, and was made with this very Python."""
    _CHECKED.add(session)


def check_reads_jobs(session: Any) -> None:
    """`SparkError` if the Python that Spark runs has no malstrom-py, which the data source is a part of."""

    def probe() -> str:
        import sys

        try:
            import malstrom_py.spark.data_source  # noqa: F401 - that it can be imported is the question
        except Exception as error:
            return f"{sys.executable}: {error}"
        return ""

    with spark_errors("ask Spark whether its Python has malstrom-py"):
        lacking = _answer(session, probe)
    if lacking:
        raise SparkError(
            f"the Python that Spark runs cannot import malstrom-py ({lacking}): set PYSPARK_PYTHON to {sys.executable} "
            f"before the session is made, or install malstrom-py there with what its extra spark brings, on all nodes"
        )


def _asked(session: Any) -> str | None:
    """The version that Spark uses, as "3.11"; None if it cannot run functions of Python."""

    # Not a function of this module: where it runs, there may be no malstrom-py. Nor need there be Arrow.
    def probe() -> str:
        import platform

        return ".".join(platform.python_version_tuple()[:2])

    try:
        with spark_errors("ask Spark which Python it runs", _NotTold):
            return _answer(session, probe)
    except _NotTold as error:
        mismatch = _MISMATCH.search(str(error.__cause__))
        return mismatch[1] if mismatch else None


def _answer(session: Any, probe: Callable[[], str]) -> str:
    """What ``probe`` says where Spark runs functions of Python."""
    from pyspark.sql.functions import udf

    asked = udf(probe, "string", useArrow=False)
    answer: str = session.range(0, 1, 1, 1).select(asked().alias("answer")).collect()[0]["answer"]
    return answer


def _version() -> str:
    return "{}.{}".format(*sys.version_info)
