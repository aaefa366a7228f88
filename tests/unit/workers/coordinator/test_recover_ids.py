"""The ids with which starts recover their sinks: smaller than all that they and later starts write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import VirtualClock
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.snapshot.ids import id_of_start, number_of
from malstrom_py.snapshot.store import MemoryStore


class Stopped(VirtualClock):
    """A clock that does not run: all that is done in one start is done in the same microsecond."""

    def sleep_s(self, duration_s: float) -> None:
        """Let no time pass."""


class Noting(sinks.Memory):
    """Notes the ids of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[tuple[str, SnapshotId]] = []

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.ids.append(("recover", context.snapshot))
        super().recover(context, committed)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.ids.append(("commit", context.snapshot))
        super().commit(context, payloads)


@pytest.mark.parametrize("second_s", [1e9, 1e9 + 60.0, 1e9 - 60.0], ids=["the same", "later", "set back"])
@pytest.mark.parametrize("resume", ["latest", "none"])
def test_s3_what_a_start_writes_is_later_than_all_recoveries_before(second_s: float, resume: str) -> None:
    store, out = MemoryStore(), Noting()

    def start(clock_s: float, **options: Any) -> None:
        job = mp.Job("ids")
        job.source("in", sources.Memory(range(4))).sink("out", out)
        snapshots = mp.Snapshots(store, interval_s=None)
        mp.InProcess(snapshots=snapshots, clock=Stopped(clock_s), **options).run(job)

    start(1e9)
    start(second_s, resume=resume)
    starts = [index for index, (what, _) in enumerate(out.ids) if what == "recover"]
    assert len(starts) == 2
    for index in starts:
        recovered = number_of(out.ids[index][1])
        before = [number_of(snapshot) for _, snapshot in out.ids[:index]]
        after = [number_of(snapshot) for what, snapshot in out.ids[index:] if what == "commit"]
        assert all(number < recovered for number in before)
        assert all(number > recovered for number in after)


def test_s3_an_id_is_later_than_a_start_that_has_written_nothing() -> None:
    checkpointer = mp.Snapshots(MemoryStore()).checkpointer("ids")
    claim = checkpointer.claim(1e9 + 5.0)
    assert checkpointer.next_id(1e9) > id_of_start(claim.created)


@pytest.mark.parametrize("created", ["", "yesterday", "2026-13-01"])
def test_a_start_of_an_unknown_time_does_not_matter(created: str) -> None:
    assert id_of_start(created) == ""
    assert id_of_start("2026-11-22T05:22:42.123456+01:00") == id_of_start("2026-11-22T04:22:42.123456")
