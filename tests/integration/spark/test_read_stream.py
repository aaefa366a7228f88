"""Spark reads the output of a job as a stream: each row once, though it is stopped, killed and rescaled."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.sinks.output_record import read_output
from malstrom_py.spark import register
from tests.integration.spark.local_spark import PATIENCE_S
from tests.tree import ROOT

pytestmark = pytest.mark.only_classic

ROWS = 1_000_000
PARTS = 2


def numbers(part: int, start: int) -> Iterator[dict[str, int]]:
    for n in range(start, ROWS):
        if n % 50 == 0:
            time.sleep(0.02)
        yield {"n": part * ROWS + n}


def job_of(folder: Path, format: Literal["csv", "json", "parquet"] = "parquet") -> mp.Job:
    job = mp.Job("numbers")
    rows = job.source("in", sources.Generator(numbers, parts=PARTS)).key_by("by", lambda row: row["n"] % 7)
    rows.map("plain", lambda row: row).sink("out", sinks.Files(folder / "out", format=format))
    return job


def runtime(folder: Path, workers: int = 2, **options: Any) -> mp.InProcess:
    return mp.InProcess(workers, snapshots=mp.Snapshots(folder / "kept", interval_s=0.2), progress=False, **options)


class Reader:
    """A query from ``folder``; each of its batches is noted, also when Spark repeats it."""

    def __init__(self, spark: Any, folder: Path, **options: str) -> None:
        register(spark)
        self._spark = spark
        self._folder = folder
        self._options = options
        self.batches: dict[int, list[int]] = {}

    def start(self, **trigger: Any) -> Any:
        stream = self._spark.readStream.format("malstrom").schema("n LONG").options(**self._options)
        query = stream.load(str(self._folder / "out")).writeStream.foreachBatch(self._note)
        return query.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def read_now(self) -> None:
        assert self.start(availableNow=True).awaitTermination(PATIENCE_S)

    @property
    def checkpoint(self) -> Path:
        return self._folder / "checkpoint"

    @property
    def rows(self) -> list[int]:
        return sorted(n for rows in self.batches.values() for n in rows)

    def check_all(self) -> None:
        """Check that each row that the job has written was read once, and that no number is missing."""
        left = self._spark.read.format("malstrom").options(**self._options).load(str(self._folder / "out"))
        assert self.rows == sorted(row.n for row in left.collect())
        ends = [sum(n // ROWS == part for n in self.rows) for part in range(PARTS)]
        assert self.rows == [part * ROWS + n for part, end in enumerate(ends) for n in range(end)]

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a Spark that was killed in its last batch."""
        commits = self.checkpoint / "commits"
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    def _note(self, frame: Any, batch: int) -> None:
        rows = sorted(row.n for row in frame.collect())
        assert self.batches.setdefault(batch, rows) == rows, "a batch that is repeated has the same rows"


def files_of(folder: Path) -> int:
    return len(read_output(folder / "out", "numbers").outputs["out"].files)


def until(is_so: Any) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_query_follows_a_job_that_runs_and_is_rescaled(spark: Any, tmp_path: Path) -> None:
    reader = Reader(spark, tmp_path)
    query = reader.start(processingTime="100 milliseconds")  # before there is any output
    handle = runtime(tmp_path).start(job_of(tmp_path), control=False)
    until(lambda: reader.rows)
    handle.rescale(3)
    handle.snapshot()
    query.stop()
    stopped_at = len(reader.rows)
    handle.rescale(1)
    handle.snapshot()
    reader.read_now()
    assert len(reader.rows) > stopped_at
    reader.forget_last_commit()
    query = reader.start(processingTime="100 milliseconds")
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    written = handle.wait(timeout_s=PATIENCE_S).written
    until(lambda: len(reader.rows) >= (written or 0))
    query.stop()
    reader.read_now()
    reader.check_all()


def test_a_job_that_was_killed_and_resumed_is_read_on(spark: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.spark.test_read_stream", str(tmp_path)]
    killed = subprocess.Popen(command, cwd=ROOT)
    try:
        until(lambda: (tmp_path / "out" / "_malstrom" / "numbers.json").exists() and files_of(tmp_path) >= 4)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    reader = Reader(spark, tmp_path, job="numbers", step="out")
    reader.read_now()
    before = len(reader.rows)
    handle = runtime(tmp_path, 3).start(job_of(tmp_path, "json"), control=False)
    handle.snapshot()
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    reader.forget_last_commit()
    reader.read_now()
    assert len(reader.rows) > before > 0
    reader.check_all()
    for name in read_output(tmp_path / "out", "numbers").outputs["out"].files:
        (tmp_path / "out" / name).unlink()
    reader.read_now()  # files that were read are not needed any more


def write(folder: Path, rows: int, name: str = "numbers") -> None:
    job = mp.Job(name)
    job.source("in", sources.Memory([{"n": n} for n in range(rows)])).sink("out", sinks.Files(folder / "out"))
    mp.run(job, progress=False)


def test_output_that_was_replaced_is_refused(spark: Any, tmp_path: Path) -> None:
    records, kept = tmp_path / "out" / "_malstrom", tmp_path / "kept-record"
    reader = Reader(spark, tmp_path)
    write(tmp_path, 10)
    reader.read_now()
    records.rename(kept)
    for _ in range(2):
        with pytest.raises(Exception, match=r"the output recorded in .* is another one now"):
            reader.read_now()
    write(tmp_path, 10)
    with pytest.raises(Exception, match="SourceError: this query has read 1 files of step 'out' of job 'numbers'"):
        reader.read_now()
    shutil.rmtree(records)
    kept.rename(records)
    reader.read_now()  # the offsets of the query are as they were
    reader.check_all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"what": "result"}, "read what='result' by spark.read"),
        ({"read": "state"}, "snapshots are read by spark.read"),
        ({"step": "other"}, "no step 'other' of job 'numbers'"),
        ({"jobs": "numbers"}, "unknown option jobs"),
        ({}, "several jobs have written"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_what_is_no_stream_is_told(options: dict[str, str], said: str, spark: Any, tmp_path: Path) -> None:
    for name in ("numbers", "others"):
        write(tmp_path, 1, name)
    with pytest.raises(Exception, match=said):
        Reader(spark, tmp_path, **({"job": "numbers"} | options if options else {})).read_now()


if __name__ == "__main__":
    runtime(Path(sys.argv[1])).run(job_of(Path(sys.argv[1]), "json"))
