"""What a worker reads: each source gets its turn, and none is polled that may not be."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.rescale.channels.channel import Credit
from tests.unit.workers.harness import Running


def endless(parts: int = 1) -> sources.Generator[int]:
    return sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=parts)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_f2_a_source_that_always_has_something_does_not_starve_another(workers: int) -> None:
    job = mp.Job("two-sources")
    first, second = job.source("first", endless(3)), job.source("second", endless(3))
    first.union("both", second).key_by("key", lambda n: n % 9).sink("out", sinks.Memory())
    running = Running(job, workers=workers, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    running.step(300)
    read = [running.rows_in(name) for name in ("first", "second")]
    assert min(read) > max(read) / 4 > 10
    running.crew.close()


def test_f2_a_region_that_stays_full_does_not_have_the_sources_of_another_starve() -> None:
    job = mp.Job("two-regions")
    job.source("full", endless()).key_by("key", lambda n: n).key_by("again", lambda n: n).sink("out", sinks.Memory())
    first, second = job.source("first", endless()), job.source("second", endless())
    first.union("both", second).key_by("free", lambda n: n % 9).sink("free-out", sinks.Memory())
    running = Running(job, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    worker = running.crew.group.worker(0)
    feeds = {source.context.step: feed for source, _, feed, _ in worker.reading._polls}
    worker.reading.read()
    for _ in range(100):
        assert not feeds["full"].sources_open
        worker._feeds["free-out"].take()
        worker.reading.read()
    read = [running.rows_in(name) for name in ("first", "second")]
    assert min(read) > max(read) / 4 > 10
    running.crew.close()


def test_f2_a_source_of_a_region_that_is_full_waits_and_one_of_another_goes_on() -> None:
    job = mp.Job("two-regions")
    job.source("full", endless()).key_by("key", lambda n: n % 9).key_by("again", lambda n: n % 2).sink(
        "out", sinks.Memory()
    )
    job.source("free", endless()).sink("free-out", sinks.Memory())
    running = Running(job, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    reading = running.crew.group.worker(0).reading
    full_feed = next(feed for source, _, feed, _ in reading._polls if source.context.step == "full")
    read = reading.read()
    assert (read, full_feed.sources_open) == (8, False)
    before = running.rows_in("full")
    assert [reading.read() for _ in range(3)] == [4, 4, 4]
    assert running.rows_in("full") == before
    running.crew.close()


def test_which_sources_can_be_read_on_elsewhere() -> None:
    class Whole:
        def build(self, worker: sinks.WorkerInfo) -> object:
            return sources.Memory([1, 2, 3]).build_part(sources.Part("0"), None)

    job = mp.Job("kinds")
    job.source("parts", sources.Memory([1, 2, 3])).sink("a", sinks.Memory())
    job.source("whole", Whole()).sink("b", sinks.Memory())  # type: ignore[arg-type]  # a custom type of part
    running = Running(job)
    reading = running.crew.group.worker(0).reading
    assert reading.fixed == "whole"
    while not reading.finished:
        running.step()
    assert reading.fixed == ""
    running.finish()


def test_what_is_stopped_is_at_its_end_where_it_stands() -> None:
    job, out = mp.Job("stopped"), sinks.Memory()
    job.source("in", endless(2)).sink("out", out)
    running = Running(job).step(3)
    reading = running.crew.group.worker(0).reading
    assert reading.is_due
    reading.stop()
    assert reading.is_due
    assert reading.read() == 0
    assert (reading.finished, reading.is_due, reading.due_s()) == (True, False, None)
    running.finish()
    assert len(out.items) == running.rows_in("in")


class Columns:
    """A source of one part that can give columns in two ways, and notes in which it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def list_parts(self) -> list[sources.Part]:
        return [sources.Part("0")]

    def build_part(self, part: sources.Part, state: object) -> Columns:
        return self

    def poll(self, rows_max: int) -> pa.RecordBatch:
        self.asked.append("arrow")
        return pa.RecordBatch.from_pydict({"n": [1]})

    def poll_columns(self, rows_max: int) -> pa.RecordBatch:
        self.asked.append("frames")
        return pa.RecordBatch.from_pydict({"n": [1]})

    def is_finished(self) -> bool:
        return len(self.asked) == 3

    def snapshot(self) -> int:
        return len(self.asked)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("step", "asked"),
    [
        (lambda stream: stream.map_batches("same", lambda batch: batch), ["arrow", "arrow", "arrow"]),
        (lambda stream: stream.filter("some", pl.col("n") > 0), ["arrow", "frames", "frames"]),
    ],
    ids=["arrow", "frames"],
)
def test_a_part_that_gives_columns_is_asked_for_frames_if_a_step_behind_takes_them(step: Any, asked: list[str]) -> None:
    job, source, out = mp.Job("columns"), Columns(), sinks.Memory()
    step(job.source("in", source)).sink("out", out)
    mp.run(job)
    assert (source.asked, len(out.items)) == (asked, 3)
