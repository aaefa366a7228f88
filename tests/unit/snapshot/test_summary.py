"""Summaries of snapshots, without reading state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot import summary
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import PartImage
from malstrom_py.snapshot.store import MemoryStore
from tests.unit.snapshot.taken import JOB, Start


@pytest.fixture
def start() -> Start:
    start = Start(StoreCheckpointer(MemoryStore(), JOB))
    start.take(b"aaaa", b"bb")
    start.take(b"c", b"ddd", delta=True)
    return start


def test_the_state_of_a_step_is_summed_over_its_chains(start: Start) -> None:
    assert start.last is not None
    assert summary.state_of(start.last) == [
        summary.StateSummary("totals", workers=2, artefacts=4, chain=2, full=6, delta=4)
    ]
    assert summary.size_of(start.last) == 10


def test_a_job_is_found_by_its_log(start: Start) -> None:
    store = start.checkpointer.store
    store.put("notes/readme.txt", b"no job")
    assert summary.jobs_in(store) == [JOB]
    assert summary.find_job(store, None) == JOB
    with pytest.raises(SnapshotError, match="has no snapshot of job 'notes'; it has snapshots of orders"):
        summary.find_job(store, "notes")
    with pytest.raises(SnapshotError, match="has no snapshot; it has no snapshots"):
        summary.find_job(MemoryStore(), None)


def test_positions_are_told_in_json_whatever_they_are_of(start: Start) -> None:
    assert start.last is not None
    made = replace(start.last, sources={"read": {"a": PartImage((1, 2)), "b": PartImage([1], finished=True)}})
    (first, second) = summary.positions_of(made)
    assert first[:2] == ("read", "a")
    assert set(first[2]) == {"$"}, "a tuple is not a list"
    assert second == ("read", "b", [1], True)


def test_what_sets_a_snapshot_apart_is_noted(start: Start) -> None:
    assert start.last is not None
    assert summary.notes_on(start.last) == []
    marked = replace(start.last, savepoint=True, result={})
    assert summary.notes_on(marked) == ["savepoint", "the job has finished"]
    assert summary.as_plain(marked)["finished"] is True
