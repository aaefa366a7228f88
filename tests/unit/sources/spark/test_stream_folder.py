"""Batches between a query and a job: in a model with seeded crashes of both, each row enters the job once, in order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.folder import PinFolder
from malstrom_py.sources.spark.stream_folder import BatchLog, StreamFolder

RUNS = 40
BATCHES = 10


class Killed(Exception):
    """The process of the query dies here."""


@dataclass
class Query:
    """As Spark works: it plans a batch, has it staged, and notes its end; what has no end noted is repeated."""

    folder: StreamFolder
    rng: random.Random
    crashes: bool
    planned: list[list[int]] = field(default_factory=list)
    noted: int = 0
    rows: int = 0

    def step(self) -> None:
        if self.noted == len(self.planned):
            count = self.rng.randrange(4)
            self.planned.append(list(range(self.rows, self.rows + count)))
            self.rows += count
            (self.folder.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        self.folder.stage(self.noted, self._write)
        self._may_die()
        self.noted += 1

    def _write(self, unfinished: PinFolder) -> None:
        unfinished.rows.mkdir()
        rows = self.planned[self.noted]
        middle = self.rng.randrange(len(rows) + 1)
        for index, part in enumerate((rows[:middle], rows[middle:])):
            pq.write_table(pa.table({"n": pa.array(part, "int64")}), unfinished.rows / f"part-{index}.parquet")
            self._may_die()

    def _may_die(self) -> None:
        if self.crashes and self.rng.random() < 0.1:
            raise Killed


@dataclass
class Job:
    """A reader that goes back to its last snapshot when it dies, and what its sink has committed."""

    folder: StreamFolder
    at: tuple[int, int] = (0, 0)
    pending: list[int] = field(default_factory=list)
    kept: tuple[int, int] = (0, 0)
    committed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = BatchLog(self.folder)

    def step(self) -> None:
        place, index = self.at
        found = self.log.read(place)
        if found is None:
            return
        files, after = found
        if index == len(files):
            self.at = (after, 0)
            return
        self.pending += pq.read_table(files[index].path)["n"].to_pylist()
        self.at = (place, index + 1)

    def snapshot(self) -> None:
        self.committed += self.pending
        self.pending, self.kept = [], self.at

    def acknowledge(self) -> None:
        self.folder.remove_before(self.kept[0])

    def die(self) -> None:
        self.pending, self.at, self.log = [], self.kept, BatchLog(self.folder)


def run(seed: int, folder: Path, stream: type[StreamFolder] = StreamFolder) -> None:
    rng = random.Random(seed)
    query = Query(stream(folder), rng, crashes=seed % 3 > 0)
    job = Job(stream(folder))
    with query.folder.alone() as name:
        """It is made."""
    acts: list[Any] = [job.step] * 8 + [job.snapshot, job.acknowledge] * 2
    acts += [job.die] if seed % 2 else []
    while query.noted < BATCHES:
        try:
            rng.choice([query.step] * 4 + acts)()
        except Killed:
            query.folder = stream(folder)
            with query.folder.alone() as again:
                assert again == name
    while job.at[0] < BATCHES:
        rng.choice(acts)()
    job.step()
    job.snapshot()
    job.acknowledge()
    assert job.committed == list(range(query.rows)), seed
    assert job.folder.ids() == [BATCHES - 1]
    assert job.folder.unread() == 0


@pytest.mark.parametrize("seed", range(RUNS))
def test_each_row_enters_once_though_the_query_and_the_job_die(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path / "stream")


class StagesAgain(StreamFolder):
    """A wrong one: a repeated batch is a new one, if the job has removed the first."""

    def remove_before(self, id: int) -> None:
        for one in self.ids():
            if one < id:
                self.batch(one).rename(self.path / f"gone-{one}")

    def stage(self, id: int, write: Any) -> None:
        if id not in self.ids():
            path = self.path / f"new-{id}-{random.random()}"
            path.mkdir()
            write(PinFolder(path))
            path.rename(self.batch(max(self.ids(), default=id - 1) + 1))


class NamesHalfABatch(StreamFolder):
    """A wrong one: a batch has its name before it is whole."""

    def stage(self, id: int, write: Any) -> None:
        if id not in self.ids():
            self.batch(id).mkdir()
            write(PinFolder(self.batch(id)))


@pytest.mark.parametrize("wrong", [StagesAgain, NamesHalfABatch])
def test_the_model_finds_wrong_folders(wrong: type[StreamFolder], tmp_path: Path) -> None:
    def runs() -> None:
        for seed in range(RUNS):
            run(seed, tmp_path / str(seed), wrong)

    with pytest.raises((AssertionError, SourceError)):
        runs()


def staged(folder: Path, batches: int) -> StreamFolder:
    query = Query(StreamFolder(folder), random.Random(1), crashes=False)
    with query.folder.alone():
        """It is made."""
    for _ in range(batches):
        query.step()
    return query.folder


def test_batches_wait_for_a_reader_until_it_has_read_them(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    log = BatchLog(folder)
    unread = []
    for place in range(4):
        log.read(place)
        unread.append(folder.unread())
    assert unread == [3, 2, 1, 0]


def test_a_reader_learns_why_the_query_has_ended_after_it_has_read_all(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 1)
    folder.note_failure("the query has failed: no broker answers")
    log = BatchLog(folder)
    assert log.read(0) is not None
    with pytest.raises(SourceError, match=r"no broker answers\. Start the job again"):
        log.read(1)
    with folder.alone():
        """Another run begins."""
    assert log.read(1) is None


def test_batches_that_were_removed_are_not_waited_for(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 4)
    folder.remove_before(3)
    assert folder.ids() == [3]
    with pytest.raises(SourceError, match="no batches before 3 any more"):
        BatchLog(folder).read(1)


@pytest.mark.parametrize("id", [1, 4])
def test_a_query_that_does_not_follow_its_batches_is_refused(id: int, tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    with pytest.raises(SourceError, match=f"has batches up to 2, and the query continues with {id}"):
        folder.stage(id, lambda unfinished: None)


def test_a_removal_that_was_interrupted_leaves_no_half_batch(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    old = folder.batch(0).rename(folder.batch(0).with_name(".old-0"))
    assert folder.ids() == [1, 2]
    with folder.alone():
        """Another run begins."""
    assert not old.exists()
