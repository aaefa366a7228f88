"""Spark reads a recording as a stream while the job captures: each committed record once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import capture, sources
from malstrom_py.spark import register
from tests.integration.spark.local_spark import PATIENCE_S
from tests.integration.spark.test_read_stream import until
from tests.integration.spark.test_recordings_read import in_capture, record

pytestmark = pytest.mark.only_classic

PARTS = 2


def numbers(part: int, start: int) -> Iterator[dict[str, int]]:
    for n in range(start, 1_000_000):
        if n % 50 == 0:
            time.sleep(0.02)
        yield {"n": n * PARTS + part}


def runtime(folder: Path, workers: int) -> mp.InProcess:
    return mp.InProcess(workers, snapshots=mp.Snapshots(folder / "kept", interval_s=0.2), progress=False)


def capturing(folder: Path) -> mp.Job:
    job = mp.Job("numbers")
    rows = job.source("in", sources.Generator(numbers, parts=PARTS))
    rows.key_by("key", lambda row: row["n"] % 7).capture_into("seen", folder / "at")
    return job


class Reader:
    """A query from the recording; each of its batches is noted, also when Spark repeats it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        register(spark)
        self._spark, self._folder = spark, folder
        self.batches: dict[int, list[int]] = {}

    def start(self, **trigger: Any) -> Any:
        stream = self._spark.readStream.format("malstrom").option("what", "recording").load(str(self._folder / "at"))
        query = stream.selectExpr("value.n", "key").writeStream.foreachBatch(self._note)
        return query.option("checkpointLocation", str(self._folder / "read")).trigger(**trigger).start()

    def read_now(self) -> None:
        assert self.start(availableNow=True).awaitTermination(PATIENCE_S)

    @property
    def rows(self) -> list[int]:
        return sorted(n for rows in self.batches.values() for n in rows)

    def _note(self, frame: Any, batch: int) -> None:
        rows = sorted(row.n for row in frame.collect())
        assert self.batches.setdefault(batch, rows) == rows, "a batch that is repeated has the same rows"


def test_a_query_reads_what_a_running_job_captures_which_is_rescaled_and_resumed(spark: Any, tmp_path: Path) -> None:
    handle = runtime(tmp_path, 2).start(capturing(tmp_path), control=False)
    handle.snapshot()
    reader = Reader(spark, tmp_path)
    query = reader.start(processingTime="100 milliseconds")
    until(lambda: reader.rows)
    handle.rescale(3)
    handle.snapshot()
    before = len(reader.rows)
    until(lambda: len(reader.rows) > before)
    query.stop()
    handle.stop(drain=False)
    handle = runtime(tmp_path, 1).start(capturing(tmp_path), control=False)
    handle.snapshot()
    handle.stop(drain=True)
    reader.read_now()
    assert reader.rows == captured(tmp_path)
    assert len(reader.rows) > before
    ends = [sum(n % PARTS == part for n in reader.rows) for part in range(PARTS)]
    assert reader.rows == sorted(n * PARTS + part for part, end in enumerate(ends) for n in range(end))


def captured(folder: Path) -> list[int]:
    batches = [content for _, content in capture.read(folder / "at", "seen") if isinstance(content, capture.Batch)]
    return sorted(value["n"] for one in batches for value in one.values)


def test_a_recording_that_was_replaced_or_has_other_types_ends_the_query(spark: Any, tmp_path: Path) -> None:
    record(tmp_path / "at", [(n, {"n": n}) for n in range(10)], workers=1)
    assert len(in_capture(tmp_path / "at")) == 10
    reader = Reader(spark, tmp_path)
    reader.read_now()
    assert reader.rows == list(range(10))
    for one in (tmp_path / "at").iterdir():  # as by another job
        one.unlink()
    record(tmp_path / "at", [(n, {"n": n}) for n in range(10)], workers=1)
    with pytest.raises(Exception, match="is another one than this query has read"):
        reader.read_now()
    record(tmp_path / "empty", [], workers=1)
    recordings = spark.readStream.format("malstrom").option("what", "recording").schema("key INT")
    for place, said in (("at", "is bigint, and the schema has it as int"), ("empty", "no record yet")):
        query = recordings.load(str(tmp_path / place)).writeStream.format("noop")
        with pytest.raises(Exception, match=said):
            query.option("checkpointLocation", str(tmp_path / said)).start().awaitTermination(PATIENCE_S)
