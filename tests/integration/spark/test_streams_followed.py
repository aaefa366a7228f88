"""A query that runs on while the job does: its batches enter once, bounded, and are removed, also after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.spark.stream_folder import StreamFolder
from tests.integration.spark.local_spark import PATIENCE_S, jvm_pid, made_session
from tests.integration.spark.test_streams import STREAM, add, numbers
from tests.tree import ROOT

pytestmark = pytest.mark.only_classic


def stream(spark: Any, folder: Path, columns: str = "n LONG", **options: Any) -> sources.Spark:
    (folder / "in").mkdir(exist_ok=True)
    frame = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return sources.Spark(frame, staging=folder / "staging", follow=True, **options)


def start(job: mp.Job, folder: Path, workers: int = 1, **options: Any) -> Any:
    kept = mp.Snapshots(folder / "snapshots", interval_s=0.2)
    return mp.InProcess(workers, snapshots=kept, **{"restart": "never"} | options).start(job, control=False)


def until(reached: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < ends_s
        time.sleep(0.1)


def written(folder: Path) -> list[int]:
    files = (folder / "out").glob("*.json")
    return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


def batches(folder: Path) -> list[int]:
    return StreamFolder(folder / STREAM).ids()


def test_batches_enter_a_running_job_which_is_resumed_and_rescaled(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[tuple[int, int]] = []
    stage = StreamFolder.stage

    def noted(folder: StreamFolder, id: int, write: Any) -> None:
        staged.append((id, folder.unread()))
        stage(folder, id, write)

    monkeypatch.setattr(StreamFolder, "stage", noted)
    add(spark, tmp_path, 0, 10)
    running = start(numbers(stream(spark, tmp_path, filter="n <> 3"), tmp_path), tmp_path)
    until(lambda: len(written(tmp_path)) == 9)
    add(spark, tmp_path, 10, 20)
    running.rescale(3)
    until(lambda: len(written(tmp_path)) == 19)
    running.stop(drain=False)
    for first in range(20, 60, 10):
        add(spark, tmp_path, first, first + 10)
    running = start(numbers(stream(spark, tmp_path), tmp_path), tmp_path, 2)
    until(lambda: len(written(tmp_path)) == 59)
    running.stop()
    assert written(tmp_path) == [n for n in range(60) if n != 3]
    assert len(batches(tmp_path)) <= 2, "what a snapshot has passed is removed"
    assert [id for id, _ in staged] == list(range(len(staged)))
    assert max(unread for _, unread in staged) < 4


def test_the_query_waits_while_too_many_batches_are_unread(spark: Any, tmp_path: Path) -> None:
    for first in range(0, 28, 2):
        add(spark, tmp_path, first, first + 2)
    gate, job, seen = tmp_path / "gate", mp.Job("numbers"), []

    def held(row: dict[str, int]) -> dict[str, int]:
        while not gate.exists():
            time.sleep(0.01)
        return row

    job.source("in", stream(spark, tmp_path)).map("held", held).sink(
        "out", sinks.Files(tmp_path / "out", format="json")
    )
    running = start(job, tmp_path)
    folder = StreamFolder(tmp_path / STREAM)
    until(lambda: (tmp_path / STREAM / "batches").exists() and folder.unread() == 4)
    seen += batches(tmp_path)
    gate.touch()
    until(lambda: len(written(tmp_path)) == 28)
    running.stop()
    assert len(seen) < 12
    assert written(tmp_path) == list(range(28))


def test_a_query_that_ends_fails_the_job(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    running = start(numbers(stream(spark, tmp_path, filter="IF(n = 17, raise_error('x'), TRUE)"), tmp_path), tmp_path)
    until(lambda: len(written(tmp_path)) == 10)
    add(spark, tmp_path, 10, 20)
    with pytest.raises(SourceError, match=r"\[USER_RAISED_EXCEPTION\] x. Start the job again") as caught:
        running.wait(timeout_s=PATIENCE_S)
    assert "\n" not in str(caught.value)
    running = start(numbers(stream(spark, tmp_path), tmp_path), tmp_path)
    until(lambda: len(written(tmp_path)) == 20)
    stop_queries(spark)
    with pytest.raises(SourceError, match="was stopped while the job reads its batches"):
        running.wait(timeout_s=PATIENCE_S)


def stop_queries(spark: Any) -> None:
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("runtime", [mp.InProcess, mp.Processes])
def test_a_job_that_restarts_starts_its_query_again(spark: Any, tmp_path: Path, runtime: Any) -> None:
    restarts_with_its_query(spark, tmp_path, runtime(snapshots=mp.Snapshots(tmp_path / "snapshots", interval_s=0.2)))


def restarts_with_its_query(spark: Any, folder: Path, runtime: Any) -> None:
    """Run a job whose query is stopped twice, each time before there are new rows."""
    add(spark, folder, 0, 10)
    running = runtime.start(numbers(stream(spark, folder), folder), control=False)
    until(lambda: len(written(folder)) == 10)
    for first in (10, 20):
        stop_queries(spark)
        add(spark, folder, first, first + 10)
        until(lambda first=first: len(written(folder)) == first + 10)  # type: ignore[misc]
    assert running.status().restarts == 2
    running.stop()
    assert written(folder) == list(range(30))
    assert not spark.streams.active


def test_what_does_not_belong_to_the_batches_is_refused(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    source = stream(spark, tmp_path)
    running = start(numbers(source, tmp_path), tmp_path)
    until(lambda: len(written(tmp_path)) == 10)
    other = mp.Job("other")
    other.source("in", source).sink("out", sinks.Memory())
    with pytest.raises(SourceError, match="give each job a separate source"):
        mp.run(other, progress=False)
    with pytest.raises(SourceError, match="give each source its own staging="):
        stream(spark, tmp_path).pin("numbers")
    for first in (10, 20, 30):
        add(spark, tmp_path, first, first + 10)
    until(lambda: len(written(tmp_path)) == 40 and 0 not in batches(tmp_path))
    running.stop(drain=False)
    with pytest.raises(SourceError, match="other columns than in the run to resume"):
        start(numbers(stream(spark, tmp_path, "n LONG, m LONG"), tmp_path), tmp_path).wait(timeout_s=PATIENCE_S)
    with pytest.raises(SourceError, match="has no batches before"):
        stream(spark, tmp_path).pin("numbers")
    (tmp_path / "staging").rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="give the former staging="):
        start(numbers(stream(spark, tmp_path), tmp_path), tmp_path).wait(timeout_s=PATIENCE_S)
    with pytest.raises(PlanError, match="follow=True is for a streaming DataFrame"):
        sources.Spark(spark.range(2), follow=True)


def test_a_start_from_the_beginning_with_other_columns_than_the_batches_is_refused(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    source = stream(spark, tmp_path)
    source.pin("numbers")
    until(lambda: batches(tmp_path) == [0])
    source.unpin()
    for columns in ("n LONG, m LONG", "n STRING"):
        with pytest.raises(SourceError, match=r"batches of a stream with other columns \(n: int64\)"):
            stream(spark, tmp_path, columns).pin("numbers")
    assert batches(tmp_path) == [0]


@pytest.mark.long
def test_killed_programs_and_a_killed_spark_lose_and_repeat_nothing(spark: Any, tmp_path: Path) -> None:
    for kill, first in (("program", 0), ("spark", 30)):
        command = [sys.executable, "-m", "tests.integration.spark.test_streams_followed", str(tmp_path), kill]
        program = subprocess.Popen(command, cwd=ROOT)
        had = len(written(tmp_path))
        for number in range(first, first + 30, 10):
            add(spark, tmp_path, number, number + 10)
        if kill == "program":
            until(lambda had=had: len(written(tmp_path)) > had)  # type: ignore[misc]
            program.kill()
        assert program.wait(PATIENCE_S) == (-signal.SIGKILL if kill == "program" else 0)
    running = start(numbers(stream(spark, tmp_path), tmp_path), tmp_path, 2)
    until(lambda: len(written(tmp_path)) >= 60)
    running.stop()
    assert written(tmp_path) == list(range(60))


def follow_until_killed(folder: Path, kill: str) -> None:
    """Run the job; kill its Spark, or wait to be killed."""
    session = made_session("classic")
    running = start(numbers(stream(session, folder), folder), folder)
    had = len(written(folder))
    if kill == "spark":
        until(lambda: len(written(folder)) > had)
        os.kill(jvm_pid(), signal.SIGKILL)
    with pytest.raises(SourceError, match="Start the job again"):
        running.wait()
    os._exit(0)


if __name__ == "__main__":
    follow_until_killed(Path(sys.argv[1]), sys.argv[2])
