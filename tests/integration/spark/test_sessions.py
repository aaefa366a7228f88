"""Sessions of Spark: the user's own, and one that is made where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SourceError
from malstrom_py.errors.text import redacting
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import existing_session, spark_session
from tests.integration.spark.programs import fake_java, other_python, told_by


def test_a_session_that_is_given_is_used_and_goes_on(spark: Any) -> None:
    with spark_session(spark) as used:
        assert used is spark
    assert spark.range(3).count() == 3


def test_the_session_of_the_program_is_found_and_goes_on(spark: Any) -> None:
    with spark_session() as used:
        assert used.conf.get("spark.app.id") == spark.conf.get("spark.app.id")
    assert existing_session() is not None
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("select cast('secret' as int)", "CAST_INVALID_INPUT"),
        ("select raise_error('secret') from range(1)", "USER_RAISED_EXCEPTION"),
    ],
)
def test_what_spark_says_is_told_unless_texts_are_hidden(spark: Any, sql: str, condition: str) -> None:
    with pytest.raises(SourceError, match=f"{condition}.*secret"), spark_errors("a query", SourceError):
        spark.sql(sql).collect()
    with (
        redacting(True),
        pytest.raises(SourceError, match=f"{condition}$") as caught,
        spark_errors("a query", SourceError),
    ):
        spark.sql(sql).collect()
    assert "secret" not in str(caught.value)


CLASSIC = """
import os, signal, sys
from pathlib import Path
import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SparkError
from malstrom_py.spark.session import existing_session, spark_session
from tests.integration.spark.local_spark import jvm_pid, made_session, spark_environ

other = os.environ["OTHER_PYTHON"]
folder = Path(os.environ["SPARK_FOLDER"])

def use_context_of_user():
    from pyspark import SparkContext
    context = SparkContext("local[1]", "of the user")
    for _ in range(2):
        with spark_session() as session:
            print("context:", session.range(3).count(), session.sparkContext is context)
    print("kept:", context.appName, context.range(4).getNumPartitions(), context.getConf().get("spark.malstrom.made"))
    context.stop()

def run_job_twice():
    ids, expected = [], []
    job = mp.Job("again")
    sink = sinks.Spark(
        foreach_snapshot=lambda frame, snapshot: ids.append(frame.sparkSession.conf.get("spark.app.id")),
        staging=folder / "staging",
    )
    job.source("in", sources.Memory([{"n": 1}])).sink("out", sink)
    for _ in range(2):
        session = made_session("classic")
        expected.append(session.conf.get("spark.app.id"))
        mp.run(job, progress=False)
        session.stop()
    print("published by:", ids == expected, len(set(ids)))

with spark_environ("classic", folder):
    use_context_of_user()
    run_job_twice()
    del os.environ["PYSPARK_PYTHON"]
    handler = signal.getsignal(signal.SIGINT)
    with spark_session() as session:
        print("made:", session.range(3).count())
        stopped = session
        with spark_session() as again:
            print("the same:", again.conf.get("spark.app.id") == session.conf.get("spark.app.id"))
    print("left:", existing_session(), os.environ.get("PYSPARK_PYTHON"), signal.getsignal(signal.SIGINT) == handler)
    try:
        with spark_session(stopped): pass
    except SparkError as error:
        print("stopped:", error)
    os.environ["PYSPARK_PYTHON"] = other
    from pyspark.sql import SparkSession
    users = SparkSession.builder.getOrCreate()
    try:
        with spark_session(): pass
    except SparkError as error:
        print("other:", error)
    pid = jvm_pid()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for given in (users, None):
        try:
            with spark_session(given): pass
        except SparkError as error:
            print("killed:", error)
"""
"""It kills its JVM at the end, so it needs its own."""

CONNECT = """
import os, signal, sys
from pathlib import Path
from malstrom_py.errors import SparkError
from malstrom_py.spark.session import existing_session, spark_session
from tests.integration.spark.local_spark import end_jvm, jvm_pid, made_session, spark_environ

with spark_environ("connect", Path(os.environ["SPARK_FOLDER"])):
    os.environ["PYSPARK_PYTHON"] = os.environ["OTHER_PYTHON"]
    users = made_session("connect")
    try:
        with spark_session(): pass
    except SparkError as error:
        print("other:", error)
    users.client.set_retry_policies([])
    pid = jvm_pid()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for given in (users, None):
        try:
            with spark_session(given): pass
        except SparkError as error:
            print("killed:", error)
    users.stop()
"""


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The variables of a program that starts a Spark."""
    folder = tmp_path / "spark"
    folder.mkdir()
    return {"SPARK_FOLDER": str(folder), "OTHER_PYTHON": str(other_python(tmp_path / "other"))}


@pytest.mark.long
@pytest.mark.only_classic
def test_sessions_of_the_user_are_kept_and_own_ones_closed_and_a_wrong_or_dead_spark_is_refused(
    alone: dict[str, str],
) -> None:
    context, published, made = 3, 4, 7
    lines = told_by(CLASSIC, environ=alone).splitlines()
    assert lines[:context] == ["context: 3 True", "context: 3 True", "kept: of the user 2 None"]
    assert lines[context:published] == ["published by: True 2"], "a job that runs again uses the session of its run"
    assert lines[published:made] == ["made: 3", "the same: True", "left: None None True"]
    stopped, other, *killed = lines[made:]
    assert stopped.startswith(
        "stopped: ask Spark for a sign of life: Spark has ended or the connection is lost: its session has been stopped"
    )
    assert other.startswith("other: Spark runs functions of Python in Python 3.99, this program is Python 3.")
    assert "set PYSPARK_PYTHON to " in other
    assert len(killed) == 2
    assert all("Spark has ended or the connection is lost" in line for line in killed)


@pytest.mark.only_connect
def test_another_python_or_a_dead_server_is_refused(alone: dict[str, str]) -> None:
    other, *killed = told_by(CONNECT, environ=alone).splitlines()
    assert other.startswith("other: Spark runs functions of Python in Python 3.99, this program is Python 3.")
    assert "where its Connect server starts" in other
    assert len(killed) == 2
    assert all("Spark has ended or the connection is lost" in line for line in killed)


REFUSED = """
from malstrom_py.errors import MalstromError
from malstrom_py.spark.session import spark_session
try:
    with spark_session(): pass
except MalstromError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.only_classic
def test_with_a_java_that_does_not_fit_spark_is_not_started(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "11.0.2")
    told = told_by(REFUSED, environ={"JAVA_HOME": str(home)})
    assert told.startswith(
        f"SparkError Spark cannot be started: Java: 11.0.2 at {home}/bin/java (by JAVA_HOME). Spark n"
    )


@pytest.mark.only_classic
def test_a_spark_that_does_not_come_up_is_an_error_in_one_line(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "17.0.1")
    told = told_by(REFUSED, environ={"JAVA_HOME": str(home)})
    assert told.startswith("SparkError Spark cannot be started: [JAVA_GATEWAY_EXITED]")
    assert len(told.splitlines()) == 1


@pytest.mark.only_classic
def test_without_pyspark_it_says_what_to_install() -> None:
    told = told_by("import sys\nsys.modules['pyspark'] = None\n" + REFUSED)
    assert (
        told == "PlanError Spark is needed here, and it is not installed: pip install 'pyspark>=4.0' 'pandas>=2.2,<3'\n"
    )
