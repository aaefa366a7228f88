"""Spark sessions: the user's is used and never stopped; where there is none, one is made and closed.

Rule: Spark is needed in the program that starts a job and where its sinks commit; workers know nothing of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from malstrom_py.errors import PlanError, SparkError
from malstrom_py.spark.java import find_java

_MIN: Final = (4, 0)


@contextmanager
def spark_session(given: Any = None) -> Iterator[Any]:
    """A session to use inside: ``given``, else the one that this program has, else one that is closed again.

    Raises:
        PlanError: pyspark is missing or too old.
        SparkError: there is no Java that fits, Spark does not come up, or its Python is of another version than this.
    """
    session = given if given is not None else existing_session()
    if session is not None:
        check_python(session)
        yield session
        return
    session = _made()
    try:
        check_python(session)
        yield session
    finally:
        session.stop()


def existing_session() -> Any | None:
    """The session of this program, classic or Connect; None if there is none."""
    imported_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def imported_pyspark() -> Any:
    """pyspark, if it is there and new enough; else `PlanError`."""
    try:
        import pyspark
    except ImportError as error:
        raise PlanError("Spark is needed here, and it is not installed: pip install 'malstrom-py[spark]'") from error
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _MIN:
        raise PlanError(f"pyspark {pyspark.__version__} is too old: pip install 'malstrom-py[spark]'")
    return pyspark


def check_python(session: Any) -> None:
    """`SparkError` if Spark runs functions of Python in another version than this program. Asked once per session."""


def _made() -> Any:
    """A session of this program's own. Its workers are to be of this very Python, whatever the path says."""
    from pyspark.sql import SparkSession

    java = find_java(os.environ)
    if not java.fits:
        raise SparkError(f"Spark cannot be started: Java: {java.said}. {java.what_to_do}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return SparkSession.builder.appName("malstrom-py").config("spark.ui.enabled", "false").getOrCreate()
