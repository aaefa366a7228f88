"""Which Python runs the functions that Spark is given: it must be of the version of this program.

Rule: only Spark itself can say, so it is asked, once per session; a local session that was made here needs no asking.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from malstrom_py.errors import SparkError
from malstrom_py.spark.failures import spark_errors

if TYPE_CHECKING:
    import pyarrow as pa

_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH\].*?version:? (\d[\d.]*\d)", re.DOTALL)
_CHECKED: Final[WeakSet[Any]] = WeakSet()


def is_connect(session: Any) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_python(session: Any) -> None:
    """`SparkError` if Spark runs functions of Python in another version than this program. Asked once per session."""
    if session in _CHECKED:
        return
    theirs = _asked(session)
    if theirs != _version():
        where = "where its Connect server starts" if is_connect(session) else "before the session is made"
        raise SparkError(
            f"Spark runs functions of Python in Python {theirs}, this program is Python {_version()}: set "
            f"PYSPARK_PYTHON to {sys.executable}, or to a Python {_version()} on all nodes, {where}."
        )
    _CHECKED.add(session)


def trust_python(session: Any) -> None:
    """Leave the asking out: the session runs on this machine, and was made with this very Python."""
    _CHECKED.add(session)


def _asked(session: Any) -> str:
    """The version that Spark uses, as "3.11"."""

    # Not a function of this module: where it runs, there may be no malstrom-py.
    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import platform

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"version": platform.python_version()}])

    try:
        with spark_errors(f"run a function of Python in Spark (by PYSPARK_PYTHON, which may be {sys.executable})"):
            rows = session.range(1).mapInArrow(probe, "version string").collect()
    except SparkError as error:
        mismatch = _MISMATCH.search(str(error.__cause__))
        if mismatch is None:
            raise
        return mismatch[1]
    return ".".join(rows[0]["version"].split(".")[:2])


def _version() -> str:
    return "{}.{}".format(*sys.version_info)
