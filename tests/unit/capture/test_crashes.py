"""A recording has each record once after a crash at any moment between pre-commit, manifest and commit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import malstrom_py as mp
from malstrom_py import capture, sources
from malstrom_py.capture.frames import Header
from malstrom_py.codec import TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.capture import Capture
from malstrom_py.worker_context import WorkerId, WorkerInfo

SNAPSHOTS = [SnapshotId(f"s{number}") for number in range(4)]


class Run:
    """One start of a job with one worker, which captures numbers. It continues from ``durable``, the last manifest."""

    def __init__(self, kept: capture.InMemory, start: int, durable: Sequence[SnapshotId]) -> None:
        self.start = start
        self.sink = Capture(kept, Header("", "", "", worker=0), TypeTable(), replace=False)
        self.sink.recover(self.context(SNAPSHOTS[-1]), durable)
        self.writer = self.sink.open(WorkerInfo("job", "seen", WorkerId(0)))

    def context(self, snapshot: SnapshotId) -> CommitContext:
        return CommitContext("job", "seen", snapshot, self.start, final=snapshot == SNAPSHOTS[2])

    def write(self, *numbers: int) -> None:
        self.writer.write(Batch(list(numbers)))

    def pre_commit(self, snapshot: SnapshotId) -> bytes:
        return self.writer.pre_commit(self.context(snapshot))

    def commit(self, snapshot: SnapshotId, payload: bytes) -> None:
        self.sink.commit(self.context(snapshot), [payload])


CRASHES = ["before the first manifest", "before the manifest", "before the commit", "after the commit"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_recording_after_a_crash_between_pre_commit_and_manifest_has_each_record_once(crash: str) -> None:
    kept, durable, committed = capture.InMemory(), list[SnapshotId](), list[bytes]()
    first = Run(kept, 1, durable)
    for number, snapshot in enumerate(SNAPSHOTS[:2]):
        first.write(number * 2, number * 2 + 1)
        payload = first.pre_commit(snapshot)
        if crash == CRASHES[0] or (number == 1 and crash == CRASHES[1]):
            break
        durable.append(snapshot)
        committed.append(payload)
        if number == 1 and crash == CRASHES[2]:
            break
        first.commit(snapshot, payload)
    first.write(7, 8, 9)  # it dies, with an open segment

    second = Run(kept, 2, durable)
    for snapshot, payload in zip(durable[-1:], committed[-1:], strict=True):
        second.commit(snapshot, payload)  # the commit of the last manifest is retried
    second.write(*range(len(durable) * 2, 10))
    second.writer.advanced(mp.MAX_EPOCH)
    second.commit(SNAPSHOTS[2], second.pre_commit(SNAPSHOTS[2]))
    second.writer.close()

    assert mp.collect(mp.Job("again").source("back", sources.Replay(kept))) == list(range(10))
    assert mp.collect(mp.Job("follows").source("back", sources.Replay(kept, follow=True))) == list(range(10))
    assert {name.rpartition(".")[2] for name in kept.names()} == {"begun", "capture", "commit"}
