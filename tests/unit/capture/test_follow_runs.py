"""A follower of a job that runs again, while its commits rename what is read, and of a recording with many commits."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import capture, sinks, sources, windows
from malstrom_py.capture.following import GrowingMerge
from malstrom_py.capture.frames import Header
from malstrom_py.capture.recording import Recording, segments_in
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError, PlanError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.capture import Capture
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.worker_context import WorkerId, WorkerInfo

MINUTE = windows.tumbling(timedelta(minutes=1))
RUNS = [[5, 6], [66, 67], [130]]
"""The times of the records that each run of the job finds new."""


class Captured:
    """A job that captures files, and runs again whenever there are more."""

    def __init__(self, folder: Path) -> None:
        self.kept = capture.InMemory()
        self._folder = folder
        self._snapshots = mp.Snapshots(MemoryStore(), interval_s=60)
        self._runs = 0

    def run(self) -> None:
        lines = "".join(f"a,{time}\n" for time in RUNS[self._runs])
        (self._folder / f"{self._runs}.csv").write_text(f"k,t\n{lines}")
        self._runs += 1
        job = mp.Job("captured")
        read = job.source("in", sources.Files(f"{self._folder}/*.csv", new_files=True, types={"t": "int64"}))
        timed = read.assign_timestamps("time", lambda row: row["t"], unit="s")
        timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))[0].capture_into("seen", self.kept)
        mp.run(job, snapshots=self._snapshots, progress=False)

    def merge(self, position: Any = None) -> GrowingMerge:
        merge = GrowingMerge(Recording(self.kept), None, Codec())
        if position is not None:
            merge.seek(position)
        return merge


def shown(found: Batch | Epoch | None) -> list[Any]:
    """The times of a batch, or an epoch, as a tuple."""
    assert found is not None
    return [(found.time,)] if isinstance(found, Epoch) else [*(found.timestamps or ())]


def taken(merge: GrowingMerge) -> list[Any]:
    """The times and epochs up to the end."""
    found: list[Any] = []
    while not merge.is_over():
        found += shown(merge.take())
    return found


def check_times(found: list[Any], runs: int) -> None:
    """No record is late, and the end comes once, after all."""
    epoch = MIN_EPOCH
    for one in found:
        if isinstance(one, tuple):
            assert one[0] > epoch, found
            epoch = one[0]
        else:
            assert one > epoch, found
    assert [one for one in found if not isinstance(one, tuple)] == [time for run in RUNS[:runs] for time in run]
    assert epoch == MAX_EPOCH


@pytest.mark.parametrize("follow", [False, True])
def test_a_replay_of_several_runs_has_all_records_and_none_is_late(tmp_path: Path, follow: bool) -> None:
    job = Captured(tmp_path)
    for _ in RUNS:
        job.run()
    again, out = mp.Job("again"), sinks.Memory()
    back = again.replay_from("back", job.kept, follow=follow).key_by("key", lambda row: row["k"])
    back.window("minute", MINUTE).count().sink("out", out)
    assert mp.run(again, progress=False).late == 0
    assert [(result.start, result.value) for result in out.items] == [(0, 2), (60, 2), (120, 1)]


def test_a_follower_that_is_killed_anywhere_has_each_record_of_all_runs_once(tmp_path: Path) -> None:
    job = Captured(tmp_path)
    for _ in RUNS:
        job.run()
    whole = taken(job.merge())
    check_times(whole, len(RUNS))
    merge, before = job.merge(), list[Any]()
    while not merge.is_over():
        before += shown(merge.take())
        assert before + taken(job.merge(merge.position())) == whole


def test_a_follower_that_was_at_the_end_reads_on_after_a_later_run(tmp_path: Path) -> None:
    job = Captured(tmp_path)
    job.run()
    merge = job.merge()
    check_times(first := taken(merge), 1)
    position = merge.position()
    assert job.merge(position).is_over()
    job.run()
    later = taken(job.merge(position))
    check_times([*first[:-1], *later], 2)  # the end that the first run had, and then that of the second


class Renaming(capture.InMemory):
    """A place whose commit renames the segment right after a list of the names, for ``steps`` times."""

    steps: list[tuple[str, str]]

    def names(self) -> list[str]:
        found = super().names()
        if self.steps:
            self.rename(*self.steps.pop(0))
        return found


def renaming(states: list[str]) -> tuple[Recording, Any]:
    """A recording and its only segment, which goes from state to state with each list."""
    place = Renaming()
    place.steps = []
    job = mp.Job("captured")
    job.source("in", sources.Memory([1, 2, 3])).capture_into("seen", place)
    mp.run(job, progress=False)
    (segment,) = segments_in(place)
    stem = segment.name.removesuffix("capture")
    place.rename(segment.name, f"{stem}{states[0]}")
    recording = Recording(place)
    ((listed,),) = recording.streams.values()
    place.rename(f"{stem}{states[0]}", f"{stem}{states[1]}")
    place.steps = [(f"{stem}{old}", f"{stem}{new}") for old, new in pairwise(states[1:])]
    return recording, listed


def test_a_segment_that_is_renamed_while_it_is_looked_for_is_opened() -> None:
    recording, segment = renaming(["open", "closed-s1", "capture"])
    with recording.open(segment) as file:
        assert file.read()


def test_a_segment_that_is_never_where_it_was_listed_is_a_typed_error() -> None:
    recording, segment = renaming(["open", *(f"closed-s{number}" for number in range(9))])
    with pytest.raises(CaptureError, match="is gone"):
        recording.open(segment)


class Counting(capture.InMemory):
    lists = 0

    def names(self) -> list[str]:
        self.lists += 1
        return super().names()


def test_a_follower_lists_the_names_as_often_for_many_commits_as_for_a_few() -> None:
    def lists(commits: int) -> int:
        place = Counting()
        sink = Capture(place, Header("", "", "", worker=0), TypeTable(), replace=False)
        sink.recover(CommitContext("job", "seen", SnapshotId("s"), 1), [])
        writer = sink.open(WorkerInfo("job", "seen", WorkerId(0)))
        for number in range(commits):
            context = CommitContext("job", "seen", SnapshotId(f"s{number:03}"), 1, final=number == commits - 1)
            writer.write(Batch([number]))
            sink.commit(context, [writer.pre_commit(context)])
        writer.close()
        place.lists = 0
        merge = GrowingMerge(Recording(place), None, Codec())
        found = list[Any]()
        while not merge.is_over():
            if isinstance(one := merge.take(), Batch):
                found += one.values
        assert found == list(range(commits))
        return place.lists

    assert lists(40) == lists(4)


def test_workers_that_have_captured_nothing_are_an_error_at_the_end() -> None:
    kept = capture.InMemory()
    job = mp.Job("captured")
    job.source("in", sources.Memory([1, 2, 3])).capture_into("seen", kept)
    mp.run(job, progress=False)
    for follow in (False, True):
        with pytest.raises(mp.MalstromError, match=r"no stream of the workers \[7\]; it has those of \[0\]"):
            mp.collect(mp.Job("again").source("back", sources.Replay(kept, streams=[7], follow=follow)))


def test_follow_is_true_or_false() -> None:
    with pytest.raises(PlanError, match="follow must be True or False"):
        sources.Replay(capture.InMemory(), follow="yes")  # type: ignore[arg-type]
