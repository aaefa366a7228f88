"""Batches between a query and a job: in a model with seeded crashes of both, each row enters the job once, in order."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.folder import PinFolder
from malstrom_py.sources.pinned.row_groups import PinnedFile
from malstrom_py.sources.spark import stream_folder
from malstrom_py.sources.spark.pinning import check_complete
from malstrom_py.sources.spark.stream_folder import BatchLog, StreamFolder

RUNS = 40
BATCHES = 10
STEPS_MAX = 3000
FAILED = "the query has failed"


class Killed(Exception):
    """The process of the query dies here."""


@dataclass
class Query:
    """As Spark works: it plans a batch, has it staged, and notes its end; what has no end noted is repeated.

    One that has failed is started again when it is asked for.
    """

    folder: StreamFolder
    rng: random.Random
    crashes: bool
    planned: list[list[int]] = field(default_factory=list)
    noted: int = 0
    rows: int = 0
    has_failed: bool = False

    def step(self) -> None:
        if self.has_failed and self.folder.failure() is not None:
            return
        if self.has_failed:
            self.folder.clear()
            self.has_failed = False
        if self.noted == len(self.planned):
            count = self.rng.randrange(4)
            self.planned.append(list(range(self.rows, self.rows + count)))
            self.rows += count
            (self.folder.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        self.folder.stage(self.noted, self._write)
        self._may_die()
        self.noted += 1

    def fail(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            self.folder.note_failure(FAILED)

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
    name: str
    at: tuple[int, int] = (0, 0)
    pending: list[int] = field(default_factory=list)
    kept: tuple[int, int] = (0, 0)
    committed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = BatchLog(self.folder, self.name)

    def step(self) -> None:
        place, index = self.at
        found, fault = None, ""
        try:
            found = self.log.read(place)
        except SourceError as error:
            fault = str(error)
        if fault:
            assert FAILED in fault
            assert not self.folder.batch(place).exists(), "all rows come before it"
            self.die()
            self.folder.ask_again()
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
        self.pending, self.at, self.log = [], self.kept, BatchLog(self.folder, self.name)


def run(seed: int, folder: Path, stream: type[StreamFolder] = StreamFolder) -> None:
    rng = random.Random(seed)
    query = Query(stream(folder), rng, crashes=seed % 3 > 0)
    with query.folder.alone() as name:
        """It is made."""
    job = Job(stream(folder), name)
    acts: list[Any] = [job.step] * 8 + [job.snapshot, job.acknowledge] * 2
    acts += [job.die] if seed % 2 else []
    fails = [query.fail] if seed % 4 < 2 else []
    for _ in range(STEPS_MAX):
        if query.noted == BATCHES:
            break
        try:
            rng.choice([query.step] * 4 + acts + fails)()
        except Killed:
            query.folder, query.has_failed = stream(folder), False
            with query.folder.alone() as again:
                assert again == name
    assert query.noted == BATCHES, "a query that was asked for runs"
    job.folder.ask_again()
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


class IsNotAsked(StreamFolder):
    """A wrong one: a run that begins does not ask for the query that has failed."""

    def ask_again(self) -> None:
        """It waits for a query that does not run."""


class EndsBeforeTheRows(StreamFolder):
    """A wrong one: a reader learns of the failure before it has read all batches."""

    def files(self, id: int) -> list[PinnedFile] | None:
        return super().files(id) if self.failure() is None else None


@pytest.mark.parametrize("wrong", [StagesAgain, NamesHalfABatch, IsNotAsked, EndsBeforeTheRows])
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


def log_of(folder: StreamFolder) -> BatchLog:
    name = folder.name()
    assert name is not None
    return BatchLog(folder, name)


def test_batches_wait_for_a_reader_until_it_has_read_them(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    log = log_of(folder)
    unread = []
    for place in range(4):
        log.read(place)
        unread.append(folder.unread())
    assert unread == [3, 2, 1, 0]


def test_a_reader_learns_why_the_query_has_ended_after_it_has_read_all(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 1)
    folder.note_failure("the query has failed: no broker answers")
    log = log_of(folder)
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
        log_of(folder).read(1)


@pytest.mark.parametrize("id", [1, 4])
def test_a_query_that_does_not_follow_its_batches_is_refused(id: int, tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    with pytest.raises(SourceError, match=f"has batches up to 2, and the query continues with {id}"):
        folder.stage(id, lambda unfinished: None)


def test_no_other_start_comes_between_a_query_and_its_hold_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = StreamFolder(tmp_path / "stream"), StreamFolder(tmp_path / "stream")
    now, waits = [0.0], [one.leave]

    def wait(pause_s: float) -> None:
        now[0] += pause_s
        if now[0] > 10:
            waits.pop()(keep=True)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", wait)

    def refused() -> None:
        with pytest.raises(SourceError, match=r"is using the batches in .*: give each source"), other.alone():
            raise AssertionError

    with one.alone():
        refused()
        one.hold()
        refused()
    refused()
    now[0] = 9.9
    with other.alone():
        assert not waits, "it has waited for the end of the one before"


def test_a_removal_that_was_interrupted_leaves_no_half_batch(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    old = folder.batch(0).rename(folder.batch(0).with_name(".old-0"))
    assert folder.ids() == [1, 2]
    with folder.alone():
        """Another run begins."""
    assert not old.exists()


def until_it_fails(log: BatchLog, place: int) -> None:
    for _ in range(50):
        assert log.read(place) is None


def test_a_reader_does_not_wait_for_a_batch_that_was_removed_under_it(tmp_path: Path) -> None:
    query = Query(StreamFolder(tmp_path), random.Random(1), crashes=False)
    with query.folder.alone():
        """It is made."""
    query.step()
    log = log_of(query.folder)
    assert log.read(0) is not None
    assert log.read(1) is None
    for _ in range(3):
        query.step()
    shutil.rmtree(query.folder.batch(1))
    with pytest.raises(SourceError, match="no batches before 2 any more"):
        until_it_fails(log, 1)


@pytest.mark.parametrize("again", [0, 1, 3])
def test_a_reader_stops_if_its_folder_is_removed_or_replaced(again: int, tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 1)
    log = log_of(folder)
    assert log.read(0) is not None
    assert log.read(1) is None
    shutil.rmtree(folder.path)
    if again:
        staged(folder.path, again)
    with pytest.raises(SourceError, match="removed or replaced"):
        until_it_fails(log, 1)


@pytest.mark.parametrize("place", [4, 10])
def test_an_older_copy_of_the_folder_is_refused(place: int, tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 3)
    assert log_of(folder).read(3) is None
    with pytest.raises(SourceError, match=f"has batches up to 2, and the job continues with {place}"):
        log_of(folder).read(place)


def test_a_batch_and_its_plan_are_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(stream_folder, "sync", lambda path: synced.append(path.name[:5]))
    folder = StreamFolder(tmp_path / "stream")
    with folder.alone():
        """It is made."""
    (folder.checkpoint / "offsets").mkdir(parents=True)
    synced.clear()

    def write(unfinished: PinFolder) -> None:
        unfinished.rows.mkdir()
        (unfinished.rows / "part.parquet").touch()

    for id in range(2):
        (folder.checkpoint / "offsets" / str(id)).touch()
        folder.stage(id, write)
        assert {str(id), "rows", "part.", ".tmp-"} <= set(synced[:-1])
        assert synced[-1] == "batch"
        synced.clear()


@pytest.mark.parametrize("first", ["old", "new"])
def test_a_batch_that_an_ended_query_still_writes_does_not_mix_with_that_of_the_next(
    first: str, tmp_path: Path
) -> None:
    folder = staged(tmp_path / "stream", 0)
    log = log_of(folder)

    def write(unfinished: PinFolder, names: str) -> None:
        for name in names:
            unfinished.rows.mkdir(exist_ok=True)
            (unfinished.rows / f"{name}.parquet").touch()

    def of_old(unfinished: PinFolder) -> None:
        write(unfinished, "ab")
        if first == "new":
            StreamFolder(folder.path).stage(0, lambda other: write(other, "ab"))

    def of_new(unfinished: PinFolder) -> None:
        write(unfinished, "a")
        folder.stage(0, of_old)
        found = log.read(0)
        assert found is not None
        assert len(found[0]) == 2
        write(unfinished, "b")

    StreamFolder(folder.path).stage(0, of_new)
    assert folder.ids() == [0]
    assert [path.name for path in folder.batch(0).parent.iterdir()] == [folder.batch(0).name]
    found = log.read(0)
    assert found is not None
    assert len(found[0]) == 2


def test_what_a_killed_query_has_written_is_removed(tmp_path: Path) -> None:
    folder = staged(tmp_path / "stream", 1)
    left = folder.batch(0).with_name(".tmp-1-0011aabb")
    (left / "rows").mkdir(parents=True)
    with folder.alone():
        """Another run begins."""
    assert not left.exists()
    assert folder.ids() == [0]


@pytest.mark.parametrize(("rows", "said"), [(2, "only 2 of them are here"), (4, "3 rows .* and 4 are there")])
def test_a_batch_has_the_rows_that_spark_has_counted(rows: int, said: str, tmp_path: Path) -> None:
    counted = SimpleNamespace(get={"rows": 3})
    check_complete(counted, 3, 1, PinFolder(tmp_path))
    with pytest.raises(SourceError, match=said):
        check_complete(counted, rows, 1, PinFolder(tmp_path))


HAD = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("columns", "is_read"),
    [
        ({"a": pa.int64(), "b": pa.string()}, True),
        ({"b": pa.string()}, True),
        ({"a": pa.int64(), "c": pa.float64()}, False),
        ({"a": pa.string(), "b": pa.string()}, False),
        ({"a": pa.int32()}, False),
    ],
)
def test_batches_are_read_with_the_columns_that_they_have(
    columns: dict[str, pa.DataType], is_read: bool, tmp_path: Path
) -> None:
    folder = staged(tmp_path / "stream", 1)
    folder.stage(1, lambda unfinished: folder.note_columns(unfinished, HAD))
    asked = pa.schema(list(columns.items()))
    folder.check_columns(2, asked)
    if is_read:
        folder.check_columns(0, asked)
    else:
        with pytest.raises(SourceError, match=r"stream has batches of .* columns \(a: int64") as caught:
            folder.check_columns(0, asked)
        assert caught.value.lasting
