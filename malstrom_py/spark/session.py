"""Spark sessions: the user's, or context, is used and never stopped; where there is none, one is made and closed.

Rule: Spark is needed in the program that starts a job and where its sinks commit; workers know nothing of it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from malstrom_py.errors import PlanError, SparkError
from malstrom_py.extras import pip_install
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.java import find_java
from malstrom_py.spark.pythons import check_python, is_connect, trust_python
from malstrom_py.spark.waiting import answer_of

_MIN: Final = (4, 0)
_ANSWER_S: Final = 60.0
_MARK: Final = "spark.malstrom.made"


@contextmanager
def spark_session(given: Any = None) -> Iterator[Any]:
    """A session to use inside: ``given``, else the one that this program has, else one that is closed again.

    The JVM of one that is made stays with the program, idle, until this ends: Spark has no other way to start
    another session in it.

    Raises:
        PlanError: pyspark is missing or too old.
        SparkError: there is no Java that fits, Spark does not come up or does not answer, or its Python is of
            another version than this.
    """
    imported_pyspark()
    session = given if given is not None else existing_session()
    if session is not None:
        check_answers(session)
        check_python(session)
        yield session
        return
    session, is_own = _made()
    try:
        check_python(session)
        yield session
    finally:
        # To stop the session of a context is to stop the context, and all that others do with it.
        if is_own:
            with suppress(SparkError), spark_errors("close a session of Spark"):
                session.stop()


def existing_session() -> Any | None:
    """The session of this program, classic or Connect; None if there is none."""
    imported_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with spark_errors("find the session of this program"):
        try:
            return SparkSession.active()
        except PySparkRuntimeError:
            return None


def imported_pyspark() -> Any:
    """pyspark, if it is there and new enough; else `PlanError`."""
    try:
        import pyspark
    except ImportError as error:
        raise PlanError(f"Spark is needed here, and it is not installed: {pip_install('spark')}") from error
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _MIN:
        raise PlanError(f"pyspark {pyspark.__version__} is too old: {pip_install('spark')}")
    return pyspark


def check_answers(session: Any) -> None:
    """`SparkError` if the session was stopped, or Spark behind it does not answer."""
    with spark_errors("ask Spark for a sign of life"):
        if is_connect(session):
            # A client of Connect tries again for many minutes.
            answer_of(lambda: session.range(0).schema, within_s=_ANSWER_S)
        else:
            _ = session.range(0)


def _made() -> tuple[Any, bool]:
    """A session, and whether all of it is of our making: a program may have a context of Spark without a session.

    The workers of one of our making are to be of this very Python, whatever the path says.
    """
    from pyspark.sql import SparkSession

    if not os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        java = find_java(os.environ)
        if not java.fits:
            raise SparkError(f"Spark cannot be started: Java: {java.said}. {java.what_to_do}")
    mark = secrets.token_hex(8)
    builder = SparkSession.builder.appName("malstrom-py").config("spark.ui.enabled", "false").config(_MARK, mark)
    with _own_python(), _same_ctrl_c(), spark_errors("Spark cannot be started"):
        session = builder.getOrCreate()
        # A context takes settings when it is made, and never again; a session takes them at any time.
        is_own = is_connect(session) or session.sparkContext.getConf().get(_MARK) == mark
        if is_own and not is_connect(session) and str(session.conf.get("spark.master")).startswith("local"):
            trust_python(session)
        return session, is_own


@contextmanager
def _own_python() -> Iterator[None]:
    """A session that is made inside runs functions of Python in this very Python."""
    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_PYTHON"]
        else:
            os.environ["PYSPARK_PYTHON"] = before


@contextmanager
def _same_ctrl_c() -> Iterator[None]:
    """Spark takes Ctrl-C for itself where a session is made; that of a session that is closed again must not stay."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)
