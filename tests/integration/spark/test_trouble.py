"""Jobs whose Spark is missing, refuses, or dies in the middle: typed errors, and nothing is left half done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SinkError, SourceError
from tests.integration.spark.programs import told_by

WITHOUT = """
import malstrom_py as mp
from malstrom_py import sinks, sources

def job(source, sink):
    made = mp.Job("without")
    made.source("in", source).sink("out", sink)
    return made

for attempt in (job(sources.Spark(sql="select 1 as n"), sinks.Memory()),
                job(sources.Memory([{"n": 1}]), sinks.Spark(table="t"))):
    try:
        mp.run(attempt)
    except mp.MalstromError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.only_classic
def test_a_job_that_needs_spark_and_finds_no_java_names_the_versions_that_fit(tmp_path: Path) -> None:
    told = told_by(WITHOUT, environ={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}).splitlines()
    assert len(told) == 2
    found = f"JAVA_HOME ({tmp_path}) has no bin/java"
    assert all(f"Spark cannot be started: Java: {found}" in line for line in told), told
    assert all("Spark needs Java 17 or 21; install one, or set JAVA_HOME to it" in line for line in told)
    assert told[0].startswith("SparkError ")


DYING = """
import os, signal, sys, threading, time
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.spark.local_spark import jvm_pid, made_session, spark_environ

kind, what, folder = os.environ["SPARK_KIND"], os.environ["DIES_IN"], Path(os.environ["SPARK_FOLDER"])
evaluated = folder / "evaluated"

def slow(batches):
    for batch in batches:
        evaluated.touch()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.1)
        yield batch

def kill():
    pid = jvm_pid()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def kill_once_evaluated():
    deadline = time.monotonic() + 60
    while not evaluated.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kill()

def store(frame, snapshot):
    print("id", snapshot)
    kill()
    frame.count()

with spark_environ(kind, folder):
    session = made_session(kind)
    if kind == "connect":
        session.client.set_retry_policies([])
    job = mp.Job("dying")
    if what == "pin":
        threading.Thread(target=kill_once_evaluated, daemon=True).start()
        frame = session.range(4).mapInArrow(slow, "id long")
        job.source("in", sources.Spark(frame, staging=folder / "staging")).sink("out", sinks.Files(folder / "out"))
    else:
        sink = sinks.Spark(foreach_snapshot=store, session=session, staging=folder / "staging")
        job.source("in", sources.Memory([{"n": 1}, {"n": 2}])).sink("out", sink)
    try:
        mp.run(job)
    except mp.MalstromError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def dying(spark_kind: str, tmp_path: Path) -> dict[str, str]:
    """The variables of a program whose Spark dies."""
    (tmp_path / "dying").mkdir()
    return {"SPARK_KIND": spark_kind, "SPARK_FOLDER": str(tmp_path / "dying")}


@pytest.mark.long
def test_a_spark_that_dies_while_a_source_is_pinned_fails_the_job_and_leaves_nothing(
    dying: dict[str, str], tmp_path: Path
) -> None:
    [told] = told_by(DYING, environ=dying | {"DIES_IN": "pin"}).splitlines()
    assert told.startswith("SparkError ")
    assert "Spark has ended or the connection is lost" in told
    assert [path for path in (tmp_path / "dying" / "staging").rglob("*") if path.is_file()] == []
    assert not (tmp_path / "dying" / "out").exists()


@pytest.mark.long
@pytest.mark.only_classic
def test_what_a_spark_that_dies_was_publishing_is_published_by_the_next_start(
    spark: Any, dying: dict[str, str], tmp_path: Path
) -> None:
    called, told = told_by(DYING, environ=dying | {"DIES_IN": "publish"}).splitlines()
    assert told.startswith("SinkError ")
    assert "Spark has ended or the connection is lost" in told
    stored: list[tuple[str, list[int]]] = []

    def store(frame: Any, snapshot: str) -> None:
        stored.append((f"id {snapshot}", sorted(row.n for row in frame.collect())))

    again = mp.Job("dying")
    sink = sinks.Spark(foreach_snapshot=store, session=spark, staging=tmp_path / "dying" / "staging")
    again.source("in", sources.Memory([{"n": 3}])).sink("out", sink)
    mp.run(again)
    (first, rows), (second, others) = stored
    assert (first, rows, others) == (called, [1, 2], [3])
    assert second != first


def test_where_nothing_may_be_staged_or_written_it_says_so(spark: Any, tmp_path: Path) -> None:
    # Not even root may write below a file.
    (tmp_path / "file").touch()
    staged = mp.Job("staged")
    source = sources.Spark(sql="select 1 as n", session=spark, staging=tmp_path / "file")
    staged.source("in", source).sink("out", sinks.Memory())
    with pytest.raises(SourceError, match="file"):
        mp.run(staged)
    for format in ("parquet", "json"):
        written = mp.Job("written")
        sink = sinks.Spark(tmp_path / "file" / "out", format=format, session=spark, staging=None)
        written.source("in", sources.Memory([{"n": 1}])).sink("out", sink)
        with pytest.raises(SinkError, match="file"):
            mp.run(written)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_database_that_is_not_there_is_a_sink_error(spark: Any, tmp_path: Path) -> None:
    job = mp.Job("refused")
    sink = sinks.Spark(table="no_such_database.t", session=spark, staging=tmp_path)
    job.source("in", sources.Memory([{"n": 1}])).sink("out", sink)
    with pytest.raises(SinkError, match=r"\[SCHEMA_NOT_FOUND\] The schema .*no_such_database") as caught:
        mp.run(job)
    assert "\tat " not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
