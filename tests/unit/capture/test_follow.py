"""A replay that follows has each record once and in order, through failures and rescales of both jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import capture, sinks, sources
from malstrom_py.capture import following
from malstrom_py.capture.following import GrowingMerge
from malstrom_py.capture.frames import SegmentWriter, advance
from malstrom_py.capture.merge import Cursor, Merge
from malstrom_py.capture.recording import COMMITTED, OPEN, Commit, Recording, Segment, segments_in, write_commit
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError, PlanError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.sources.base import Part
from malstrom_py.sources.replay import ALL
from malstrom_py.testing.contracts import check_source
from tests.unit.capture.streams import HEADER, written
from tests.unit.capture.test_replay import EXPECTED, ROWS, by_part, captured, counted, expected_counts


class Follower:
    """Reads what is committed, at random moments, and is killed in between: it resumes from its last position."""

    def __init__(self, place: capture.InMemory, seed: int) -> None:
        self._random = Random(seed)
        self._place = place
        self._merge: GrowingMerge | None = None
        self._position: Any = None
        self._taken: list[Any] = []
        self.kept: list[Any] = []
        """The batches and epochs up to the last position."""

    def look(self) -> None:
        """Take some of what is there; make a snapshot, or die, from time to time."""
        if self._merge is None:
            try:
                self._merge = GrowingMerge(Recording(self._place), None, Codec())
            except CaptureError:
                return  # the captured job has not begun
            if self._position is not None:
                self._merge.seek(self._position)
        for _ in range(self._random.randrange(4)):
            if (found := self._merge.take()) is not None:
                self._taken.append(found)
        if self._random.random() < 0.3:
            self._position, self.kept = self._merge.position(), [*self.kept, *self._taken]
            self._taken = []
        elif self._random.random() < 0.2:
            self._merge, self._taken = None, []

    def finish(self) -> None:
        """Read to the end."""
        while self._merge is None:
            self.look()
        while not self._merge.is_over():
            found = self._merge.take()
            assert found is not None or self._merge.is_over()
            self._taken += [] if found is None else [found]
        self.kept += self._taken

    def faults(self) -> list[str]:
        """What is wrong with all that was read."""
        faults, epoch = [], MIN_EPOCH
        values: dict[str, list[Any]] = {}
        for one in self.kept:
            if isinstance(one, Epoch):
                faults += [f"epoch {one.time} after {epoch}"] * (one.time <= epoch)
                epoch = one.time
                continue
            faults += [f"{time} is late after {epoch}" for time in one.timestamps if time <= epoch]
            for value in one.values:
                values.setdefault(value[0], []).append(value)
        if by_part(values) != by_part(EXPECTED):
            faults.append("not each record once and in order")
        return faults if epoch == MAX_EPOCH else [*faults, f"it ends at {epoch}"]


class Watched(capture.InMemory):
    """A place at which a follower looks after every change."""

    follower: Follower | None = None
    early = 0
    """How many batches it had before the captured job ended."""

    def create(self, name: str) -> Any:
        file = super().create(name)
        self._look()
        return file

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._look()

    def delete(self, name: str) -> None:
        super().delete(name)
        self._look()

    def _look(self) -> None:
        if self.follower is not None:
            self.follower.look()


def faults_of(merge: Merge) -> list[str]:
    """What is wrong with the event time of a whole recording that is read with ``merge``."""
    faults, epoch, early = [], MIN_EPOCH, 0
    while (one := merge.take()) is not None:
        if isinstance(one, Epoch):
            epoch = one.time
            continue
        faults += [f"{time} is late after {epoch} in a whole replay" for time in one.timestamps or () if time <= epoch]
        early += len(one) if epoch == MIN_EPOCH else 0
    return faults if early < 300 else [*faults, f"event time does not advance for {early} records of a whole replay"]


def followed(seed: int) -> tuple[list[str], int]:
    """Capture through rescales and losses while a follower reads; return what is wrong with the recording, its whole
    replay and the follower, and how much this one had before the end.
    """
    place = Watched()
    place.follower = Follower(place, seed)
    job = captured(place)
    if seed % 2:  # before the exchange, where each worker has its own event time
        job = mp.Job("original")
        timed = job.source("in", sources.Memory(ROWS, parts=3)).assign_timestamps("time", lambda row: row[1])
        timed.generate_epochs("epochs", mp.limit_out_of_orderness(400))[0].capture_into("seen", place)
    mp.Simulation(
        workers=2,
        seed=seed,
        rescales=2 + seed % 2,
        crashes=seed % 3,
        snapshots=mp.Snapshots(MemoryStore(), interval_s=0.01),
    ).run(job)
    early = sum(not isinstance(one, Epoch) for one in place.follower.kept)
    place.follower.finish()
    recording = Recording(place)
    whole = faults_of(Merge(recording, list(recording.streams), Codec()))
    return [*map(str, capture.check(place)), *whole, *place.follower.faults()], early


def test_a_follower_has_each_record_once_and_in_order_whatever_happens_to_the_captured_job() -> None:
    early = 0
    for seed in range(12):
        faults, had = followed(seed)
        assert not faults, (seed, faults)
        early += had
    assert early > 12


def test_a_worker_that_joins_does_not_advance_event_time_over_a_partition_that_has_moved_before() -> None:
    kept = capture.InMemory()

    def commit(number: int, **streams: Callable[[SegmentWriter], object]) -> None:
        names = []
        for stream, write in streams.items():
            at = number if stream in ("ahead", "taker") else 0
            names.append(Segment("step", 1, of[stream], at, COMMITTED).name)
            whole = partial(ended, write)
            kept.segments[names[-1]] = bytearray(written(whole, replace(HEADER, stream=of[stream], segment=at)))
        write_commit(kept, "step", str(number), Commit([f"1/{of[one]}" for one in streams], names, final=number == 1))

    def ended(write: Callable[[SegmentWriter], object], segment: SegmentWriter) -> None:
        write(segment)
        segment.end(last=True)

    def member(segment: SegmentWriter, passed: int, then: int) -> None:
        segment.progress(*advance(MIN_EPOCH, passed))
        segment.moved(1, then)

    def joins(segment: SegmentWriter, version: int, epoch: int) -> None:
        segment.progress((MIN_EPOCH, -1))
        segment.moved(version, epoch)

    def sends(segment: SegmentWriter) -> None:
        segment.batch(Batch([150], keys=["k"], timestamps=[150]))
        segment.moved(2, MAX_EPOCH)

    of = {name: f"w{number:06}-00000000" for number, name in enumerate(("ahead", "taker", "joiner", "leaver"))}
    leaver = partial(member, passed=100, then=MAX_EPOCH)
    commit(0, ahead=partial(member, passed=400, then=400), taker=partial(joins, version=1, epoch=100), leaver=leaver)
    ends = partial(SegmentWriter.moved, version=2, epoch=MAX_EPOCH)
    commit(1, ahead=ends, taker=sends, joiner=partial(joins, version=2, epoch=MAX_EPOCH))
    merge = GrowingMerge(Recording(kept), None, Codec())
    found = [merge.take() for _ in range(3)]
    assert [one.time if isinstance(one, Epoch) else one and one.values for one in found] == [100, [150], MAX_EPOCH]


def uncommitted_is_read(right: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker has captured is read before its snapshot is committed."""

    def segments_of(merge: GrowingMerge, commit: Commit) -> Any:
        found = right(merge, commit)
        for segment in segments_in(merge._recording.place):
            found.setdefault(f"{segment.generation}/{segment.stream}", []).append(segment)
        return {name: sorted({one.number: one for one in some}.values()) for name, some in found.items()}

    return segments_of


def new_streams_are_ignored(right: Callable[..., Any]) -> Callable[..., Any]:
    """Event time does not wait for streams that have brought nothing in this commit."""
    return lambda merge, cursor: not cursor.is_over


def event_time_stays(right: Callable[..., Any]) -> Callable[..., Any]:
    """A stream keeps its event time when a partition arrives that lags."""
    return lambda sink, epoch: epoch


def nothing_is_noted(right: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker has passed without the partitions that it gave away is written before the move; or a worker that
    joins holds the earliest time.
    """
    return lambda sink: None


def the_era_before_is_forgotten(right: Callable[..., Any]) -> Callable[..., Any]:
    """A stream in the next era does not hold back those that are not."""

    def enter(cursor: Any, moved: Any) -> None:
        right(cursor, moved)
        cursor.before = MAX_EPOCH

    return enter


def a_commit_is_skipped(right: Callable[..., Any]) -> Callable[..., Any]:
    """The latest commit is read next."""
    return lambda place, step: right(place, step)[-1:]


@pytest.mark.parametrize(
    ("place", "method", "of"),
    [
        (GrowingMerge, "_segments_of", uncommitted_is_read),
        (GrowingMerge, "_may_send", new_streams_are_ignored),
        (following, "commits_in", a_commit_is_skipped),
        (WriteSink, "rewind", event_time_stays),
        (WriteSink, "moving", nothing_is_noted),
        (Cursor, "_enter", the_era_before_is_forgotten),
        (WriteSink, "owns_nothing", nothing_is_noted),
    ],
)
def test_a_wrong_follower_is_seen(place: Any, method: str, of: Callable[..., Any]) -> None:
    def is_seen(seed: int) -> bool:
        try:
            return bool(followed(seed)[0])
        except Exception:
            return True

    with patch.object(place, method, of(getattr(place, method))):
        assert any(map(is_seen, range(40)))


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_follows_is_rescaled_and_killed_and_has_the_same_results(seed: int) -> None:
    kept = capture.InMemory()
    mp.Simulation(workers=3, seed=seed, rescales=1, snapshots=mp.Snapshots(MemoryStore(), interval_s=0.01)).run(
        captured(kept)
    )
    job = mp.Job("follows")
    counts, values = counted(job.replay_from("back", kept, follow=True))
    snapshots = mp.Snapshots(MemoryStore(), interval_s=0.01)
    result = mp.Simulation(workers=2, seed=seed, rescales=1, crashes=1, snapshots=snapshots).run(job)
    assert counts.by_key == expected_counts()
    assert by_part(values.by_key) == by_part(EXPECTED)
    assert result.late == 0


def test_a_source_that_follows_keeps_the_contract_of_sources() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), 3, progress=False, batch=mp.Batching(rows_max=10))
    check_source(sources.Replay(kept, follow=True))


def test_streams_and_times_are_chosen_as_in_a_recording_that_is_whole() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), 3, progress=False)
    whole = {
        worker: mp.collect(mp.Job("one").source("back", sources.Replay(kept, streams=[worker], follow=True)))
        for worker in range(3)
    }
    assert sorted(row for rows in whole.values() for row in rows) == sorted(ROWS)
    assert all(whole.values())
    later = mp.collect(mp.Job("later").replay_from("back", kept, since=2_500, follow=True))
    assert sorted(later) == sorted(row for row in ROWS if row[1] >= 2_500)


def test_what_is_not_committed_is_not_followed() -> None:
    kept = capture.InMemory()
    job = mp.Job("fails")
    numbers = job.source("in", sources.Memory([3, 2, 1, 0]))
    numbers.capture_into("seen", kept)
    numbers.map("inverse", lambda number: 1 / number).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        mp.run(job, batch=mp.Batching(rows_max=1), progress=False)
    assert [segment.state for segment in segments_in(kept)] == [OPEN]
    part = sources.Replay(kept, follow=True).build_part(ALL, None)
    assert part.poll(10) is None
    assert not part.is_finished()


def test_a_recording_that_was_replaced_is_not_read_on() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False)
    part = sources.Replay(kept, follow=True).build_part(ALL, None)
    part.poll(10)
    position = part.snapshot()
    mp.run(captured(kept, replace=True), progress=False)
    with pytest.raises(CaptureError, match="replaced by that of another run"):
        sources.Replay(kept, follow=True).build_part(ALL, position)


def test_a_replay_resumes_as_it_began() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False)
    (part,) = sources.Replay(kept).list_parts()
    read = sources.Replay(kept).build_part(part, None)
    read.poll(10)
    with pytest.raises(CaptureError, match="with or without follow=True"):
        sources.Replay(kept, follow=True).build_part(Part(ALL), read.snapshot())


@pytest.mark.parametrize("resumed", [False, True])
def test_a_recording_that_an_earlier_version_began_is_not_followed_without_its_begin(resumed: bool) -> None:
    kept = capture.InMemory()
    mp.Simulation(workers=2, seed=1, crashes=1, snapshots=mp.Snapshots(MemoryStore(), interval_s=0.01)).run(
        captured(kept)
    )
    generations = sorted({segment.generation for segment in segments_in(kept)})
    assert len(generations) > 1
    for name in [name for name in kept.names() if name.endswith(".commit")]:
        if not resumed or f".g{generations[0]:06}." in kept.segments[name].decode():
            kept.delete(name)
    with pytest.raises(CaptureError, match="begun by a version that wrote no commits"):
        sources.Replay(kept, follow=True).build_part(ALL, None).poll(10)


def test_a_commit_that_was_damaged_is_named() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False)
    (name,) = (name for name in kept.names() if name.endswith(".commit"))
    del kept.segments[name][-3:]
    with pytest.raises(capture.Corrupt, match=f"'{name}'"):
        sources.Replay(kept, follow=True).build_part(ALL, None).poll(10)


def test_a_reader_of_streams_follows_by_itself() -> None:
    from io import BytesIO

    with pytest.raises(PlanError, match="follows in any case"):
        sources.Replay(capture.Reader(BytesIO()), follow=True)
