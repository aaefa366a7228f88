"""A streaming DataFrame as a source: each run reads what is new, each row once, also after it was stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SourceError
from tests.integration.spark.local_spark import PATIENCE_S, made_session
from tests.tree import ROOT

pytestmark = pytest.mark.only_classic

STREAM = Path("staging", "numbers", "stream")


def add(spark: Any, folder: Path, first: int, last: int) -> None:
    spark.range(first, last, 1, 2).selectExpr("id AS n").write.mode("append").parquet(str(folder / "in"))


def stream(spark: Any, folder: Path, **options: Any) -> sources.Spark:
    frame = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return sources.Spark(frame, staging=folder / "staging", **options)


def numbers(source: Any, folder: Path) -> mp.Job:
    job = mp.Job("numbers")
    job.source("in", source).sink("out", sinks.Files(folder / "out", format="json"))
    return job


def run(source: Any, folder: Path, workers: int = 1) -> int:
    kept = mp.Snapshots(str(folder / "snapshots"))
    read = mp.InProcess(workers, snapshots=kept, restart="never").run(numbers(source, folder)).read
    assert read is not None
    return read


def written(folder: Path) -> list[int]:
    rows = mp.collect(mp.Job("read").source("in", sources.Files(folder / "out" / "*.json")))
    return sorted(row["n"] for row in rows)


def test_each_run_reads_the_rows_that_are_new(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    assert run(stream(spark, tmp_path, filter="n <> 3"), tmp_path) == 9
    assert run(stream(spark, tmp_path), tmp_path, 3) == 0
    add(spark, tmp_path, 10, 14)
    assert run(stream(spark, tmp_path), tmp_path, 2) == 4
    assert written(tmp_path) == [n for n in range(14) if n != 3]
    assert len(list((tmp_path / STREAM / "batches").glob("0*"))) >= 4, "a batch for each file"


def test_a_stopped_run_reads_its_batches_to_their_end_before_a_later_one_reads_on(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 50_000)
    kept = mp.Snapshots(str(tmp_path / "snapshots"))
    runtime = mp.InProcess(snapshots=kept, batch=mp.Batching(rows_max=50))
    runtime.start(numbers(stream(spark, tmp_path), tmp_path), control=False).stop(drain=False)
    add(spark, tmp_path, 50_000, 50_010)
    run(stream(spark, tmp_path), tmp_path, 2)
    run(stream(spark, tmp_path), tmp_path)
    assert written(tmp_path) == list(range(50_010))


def test_a_batch_that_spark_repeats_is_staged_once_and_half_a_batch_not_at_all(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    assert run(stream(spark, tmp_path), tmp_path) == 10
    add(spark, tmp_path, 10, 12)
    first = stream(spark, tmp_path)
    first.pin("numbers")
    first.unpin()
    # As if the program had been killed before Spark noted the end of the last batch, and in the middle of another.
    commits = tmp_path / STREAM / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    batches = tmp_path / STREAM / "batches"
    half = batches / f".tmp-{last + 1}" / "rows"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"PAR1")
    add(spark, tmp_path, 12, 13)
    assert run(stream(spark, tmp_path), tmp_path) == 3
    assert written(tmp_path) == list(range(13))
    assert not list(batches.glob(".tmp-*"))


@pytest.mark.long("before")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_killed_while_a_batch_gets_its_name(spark: Any, tmp_path: Path, when: str) -> None:
    add(spark, tmp_path, 0, 10)
    command = [sys.executable, "-m", "tests.integration.spark.test_streams", str(tmp_path), when]
    ended = subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    batches = tmp_path / STREAM / "batches"
    assert len(list(batches.glob(".tmp-*"))) == (when == "before")
    assert len(list(batches.glob("0*"))) == 1 + (when == "after")
    add(spark, tmp_path, 10, 12)
    assert run(stream(spark, tmp_path), tmp_path) == 12
    assert written(tmp_path) == list(range(12))


def test_a_query_that_fails_fails_the_job(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    failing = stream(spark, tmp_path, filter="IF(n = 7, raise_error('seven'), TRUE)")
    with pytest.raises(SourceError, match="seven") as caught:
        run(failing, tmp_path)
    assert "\n" not in str(caught.value)
    assert run(stream(spark, tmp_path), tmp_path) == 10


def test_each_stream_has_its_own_staging(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    source = stream(spark, tmp_path)
    job = numbers(source, tmp_path)
    job.source("in2", stream(spark, tmp_path)).sink("out2", sinks.Memory())
    with pytest.raises(SourceError, match="give each source its own staging="):
        mp.run(job, progress=False)


def test_batches_without_the_checkpoint_of_their_query_are_refused(spark: Any, tmp_path: Path) -> None:
    add(spark, tmp_path, 0, 10)
    run(stream(spark, tmp_path), tmp_path)
    (tmp_path / STREAM / "checkpoint").rename(tmp_path / "lost")
    with pytest.raises(SourceError, match="the checkpoint of their query is gone"):
        run(stream(spark, tmp_path), tmp_path)


def test_a_stream_needs_a_folder_that_lasts_and_no_column(spark: Any, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="needs staging="):
        sources.Spark(frame)
    with pytest.raises(PlanError, match="leave out since="):
        sources.Spark(frame, staging=tmp_path, since="value")


def die_renaming(when: str) -> None:
    rename, times = Path.rename, []

    def renamed(path: Path, target: Any) -> Path:
        times.append(path)
        if len(times) == 2 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        moved = rename(path, target)
        if len(times) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    Path.rename = renamed  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    session = made_session("classic")
    die_renaming(sys.argv[2])
    run(stream(session, Path(sys.argv[1])), Path(sys.argv[1]))
