"""A local Spark for one process of tests; when it is closed, nothing is left."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final, Literal

from tests.tree import ROOT

Kind = Literal["classic", "connect"]

PATIENCE_S: Final = 60.0

_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


@contextmanager
def local_spark(kind: Kind) -> Iterator[Any]:
    """A session of that kind with two cores; its JVM ends with it."""
    with tempfile.TemporaryDirectory(prefix="malstrom-spark-") as folder, spark_environ(kind, Path(folder)):
        # The working directory of the JVM is its own: Spark leaves files there.
        here = Path.cwd()
        os.chdir(folder)
        try:
            session = made_session(kind)
        finally:
            os.chdir(here)
        try:
            yield session
        finally:
            session.stop()
            end_jvm()


@contextmanager
def spark_environ(kind: Kind, folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which Spark is quiet, small, uses this Python, and writes into ``folder`` alone."""
    before = os.environ.copy()
    os.environ |= spark_variables(kind, folder)
    try:
        yield os.environ.copy()
    finally:
        os.environ.clear()
        os.environ |= before


def spark_variables(kind: Kind, folder: Path) -> dict[str, str]:
    """What `spark_environ` sets, for a process to be started; writes the settings that they lead to."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -Djava.io.tmpdir={folder}",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    (folder / "log4j2.properties").write_text(_LOGGING)
    variables = {
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Where Spark runs functions of Python, it is to be this malstrom-py.
        "PYTHONPATH": str(ROOT),
    }
    # By this alone a local Connect server takes a port that is free, and the client asks for it.
    return variables | {"SPARK_TESTING": "1"} if kind == "connect" else variables


def end_jvm() -> None:
    """End the JVM that was started by this process: a stopped session leaves it for the next one."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(PATIENCE_S)
    except TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait(PATIENCE_S)
    SparkContext._gateway = SparkContext._jvm = None


def jvm_pid() -> int:
    """The process of the JVM that was started by this process."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    pid: int = gateway.proc.pid
    return pid


def made_session(kind: Kind) -> Any:
    """A session in the variables of now."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    before = signal.getsignal(signal.SIGINT)  # a classic session takes Ctrl-C for itself, and other tests press it
    try:
        return (builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")).getOrCreate()
    finally:
        signal.signal(signal.SIGINT, before)
