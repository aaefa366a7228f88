"""Spark sessions: finding or starting one, and checking that it is alive and runs the right Python.

Rules:
- A session or context of the user is used and never stopped. Without one, a session is started and closed again.
- Spark must run Python functions in this program's Python version. Spark is asked for its version once per session,
  unless the session is local and was started here.
- Only the program that starts a job, or commits its sinks, needs Spark. Workers never use it.
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


def default_staging_folder() -> Path:
    """Return the folder where this user's rows are staged by default: on this machine only, below the temporary one."""
    return Path(tempfile.gettempdir()).absolute() / f"malstrom-spark-{os.getuid()}"


def make_default_staging(folder: Path, error: type[MalstromError]) -> None:
    """Create ``folder`` if missing; raise ``error`` if other users own it or may write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as failure:
        raise error(f"rows cannot be staged in {folder}: {failure.strerror}. Give staging=") from failure
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise error(
            f"rows cannot be staged in {folder}: another user owns it or may write to it. Remove it, or give staging="
        )


T = TypeVar("T")


def call_within(ask: Callable[[], T], *, within_s: float) -> T:
    """Call ``ask`` in a daemon thread and return its result; raise `SparkError` after ``within_s`` seconds."""
    answer: Future[T] = Future()
    Thread(target=_ask, args=(ask, answer), name="malstrom-spark-ask", daemon=True).start()
    try:
        return answer.result(within_s)
    except TimeoutError:
        if answer.done():
            raise
        raise SparkError(f"Spark did not answer within {within_s:g} s: check that its server runs") from None


def _ask(ask: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        answer.set_exception(error)


_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH\].*?version:? (\d[\d.]*\d)", re.DOTALL)
_CHECKED: Final[WeakSet[Any]] = WeakSet()


class _VersionUnknown(MalstromError):
    """Spark did not return the version of its Python."""


def is_connect(session: Any) -> bool:
    """Return whether the session is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_python_version(session: Any) -> None:
    """Raise `SparkError` if Spark runs Python functions in another version than this program; once per session.

    A Spark that cannot run Python functions passes: sources and sinks do not use any.
    """
    if session in _CHECKED:
        return
    theirs = _version_in_spark(session)
    if theirs not in {None, _version()}:
        where = "where its Connect server starts" if is_connect(session) else "before the session is made"
        raise SparkError(
            f"Spark runs functions of Python in Python {theirs}, this program is Python {_version()}: set "
            f"PYSPARK_PYTHON to {sys.executable}, or to a Python {_version()} on all nodes, {where}."
        )
    _CHECKED.add(session)


def skip_python_check(session: Any) -> None:
    """Skip the check: the session is local, and was started with this Python."""
    _CHECKED.add(session)


def check_data_source_installed(session: Any) -> None:
    """Raise `SparkError` if Spark's Python cannot import malstrom-py, which the data source belongs to."""

    def probe() -> str:
        import sys

        try:
            import malstrom_py.spark.data_source  # noqa: F401 - the import is the check
        except Exception as error:
            return f"{sys.executable}: {error}"
        return ""

    with spark_errors("ask Spark whether its Python has malstrom-py"):
        failure = _run_in_spark(session, probe)
    if failure:
        raise SparkError(
            f"the Python that Spark runs cannot import malstrom-py ({failure}): set PYSPARK_PYTHON to {sys.executable} "
            f"before the session is made, or install malstrom-py with its extra spark on all nodes"
        )


def _version_in_spark(session: Any) -> str | None:
    """Return the Python version that Spark uses, as "3.11"; None if Spark cannot run Python functions."""

    # Not a function of this module: Spark's Python may have neither malstrom-py nor Arrow.
    def probe() -> str:
        import platform

        return ".".join(platform.python_version_tuple()[:2])

    try:
        with spark_errors("ask Spark which Python it runs", _VersionUnknown):
            return _run_in_spark(session, probe)
    except _VersionUnknown as error:
        mismatch = _MISMATCH.search(str(error.__cause__))
        return mismatch[1] if mismatch else None


def _run_in_spark(session: Any, probe: Callable[[], str]) -> str:
    """Run ``probe`` in Spark's Python and return its result."""
    from pyspark.sql.functions import udf

    probed = udf(probe, "string", useArrow=False)
    answer: str = session.range(0, 1, 1, 1).select(probed().alias("answer")).collect()[0]["answer"]
    return answer


def _version() -> str:
    return "{}.{}".format(*sys.version_info)


_MIN: Final = (4, 0)
_ANSWER_S: Final = 60.0
_MARK: Final = "spark.malstrom.made"


@contextmanager
def spark_session(given: Any = None) -> Iterator[Any]:
    """Provide a session: ``given``, else the session of this program, else a new one that is closed at the end.

    The JVM of a new session stays idle until this program ends: without it Spark could not start another session.

    Raises:
        PlanError: pyspark is missing or too old.
        SparkError: no suitable Java is installed, Spark does not start or does not answer, or its Python has another
            version than this program.
    """
    imported_pyspark()
    session = given if given is not None else existing_session()
    if session is not None:
        check_alive(session)
        check_python_version(session)
        yield session
        return
    session, is_own = _start_session()
    try:
        check_python_version(session)
        yield session
    finally:
        # Stopping a session stops its context, which may be the user's.
        if is_own:
            with suppress(SparkError), spark_errors("close a session of Spark"):
                session.stop()


def existing_session() -> Any | None:
    """Return the session of this program, classic or Connect; None if there is none."""
    imported_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with spark_errors("find the session of this program"):
        try:
            return SparkSession.active()
        except PySparkRuntimeError:
            return None


def imported_pyspark() -> Any:
    """Import pyspark; raise `PlanError` if it is missing or too old."""
    try:
        import pyspark
    except ImportError as error:
        raise PlanError(f"Spark is needed here, and it is not installed: {pip_install('spark')}") from error
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _MIN:
        raise PlanError(f"pyspark {pyspark.__version__} is too old: {pip_install('spark')}")
    return pyspark


def check_alive(session: Any) -> None:
    """Raise `SparkError` if the session was stopped, or Spark does not answer."""
    with spark_errors("ask Spark for a sign of life"):
        if is_connect(session):
            # A Connect client retries for many minutes.
            call_within(lambda: session.range(0).schema, within_s=_ANSWER_S)
        else:
            _ = session.range(0)


def _start_session() -> tuple[Any, bool]:
    """Start a session; return it, and whether its context is new too: the user may have a context without a session.

    A new context runs Python functions in this program's Python.
    """
    from pyspark.sql import SparkSession

    if not os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        java = find_java(os.environ)
        if not java.fits:
            raise SparkError(f"Spark cannot be started: Java: {java.description}. {java.what_to_do}")
    mark = secrets.token_hex(8)
    builder = SparkSession.builder.appName("malstrom-py").config("spark.ui.enabled", "false").config(_MARK, mark)
    with _own_python(), _same_ctrl_c(), spark_errors("Spark cannot be started"):
        session = builder.getOrCreate()
        # A context takes settings only when it is created; a session takes them at any time.
        is_own = is_connect(session) or session.sparkContext.getConf().get(_MARK) == mark
        if is_own and not is_connect(session) and str(session.conf.get("spark.master")).startswith("local"):
            skip_python_check(session)
        return session, is_own


@contextmanager
def _own_python() -> Iterator[None]:
    """Make sessions that are started inside run Python functions in this Python."""
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
    """Restore the handler of Ctrl-C at the end: a new session replaces it, and would leave it replaced."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)
