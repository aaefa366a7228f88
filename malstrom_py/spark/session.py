"""Spark sessions: the user's, or context, is used and never stopped; where there is none, one is made and closed.

The folder under the temporary one in which a user's rows wait, on one machine, where no other folder is given.

A call that may wait much longer than its caller, given up at a deadline.

Which Python runs the functions that Spark is given: it must be of the version of this program.

Rule: only Spark itself can say, so it is asked, once per session; a local session that was made here needs no asking.

Rule: Spark is needed in the program that starts a job and where its sinks commit; workers know nothing of it.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from weakref import WeakSet

from malstrom_py.errors import MalstromError, PlanError, SparkError, pip_install
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.java import find_java


def own_folder() -> Path:
    """Where it is, or would be made."""
    return Path(tempfile.gettempdir()).absolute() / f"malstrom-spark-{os.getuid()}"


def make_own(folder: Path, error: type[MalstromError]) -> None:
    """Make it, if it is not there; ``error`` if it is not this user's alone: another may have taken its name."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as failure:
        raise error(f"rows cannot be staged in {folder}: {failure.strerror}. Give staging=") from failure
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise error(f"rows cannot be staged in {folder}: it is not this user's alone. Remove it, or give staging=")


T = TypeVar("T")


def answer_of(ask: Callable[[], T], *, within_s: float) -> T:
    """What ``ask`` gives back, asked in a thread that is left to itself after ``within_s`` seconds: `SparkError` then.

    >>> answer_of(lambda: 42, within_s=5.0)
    42
    """
    answer: Future[T] = Future()
    Thread(target=_ask, args=(ask, answer), name="malstrom-spark-ask", daemon=True).start()
    try:
        return answer.result(within_s)
    except TimeoutError:
        if answer.done():
            raise
        raise SparkError(f"Spark did not answer within {within_s:g} s: see whether its server runs") from None


def _ask(ask: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        answer.set_exception(error)


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
