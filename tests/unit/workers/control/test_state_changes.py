"""What changes in the state of a step from snapshot to snapshot: read together it is the state."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import PlanError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.sources import Part
from malstrom_py.workers.control.state_changes import StateChanges
from tests.unit.workers.harness import PATIENCE_S, start


class Feed:
    """A source with one part, whose next rows a test gives."""

    def __init__(self) -> None:
        self.rows: deque[list[Any]] = deque()

    def list_parts(self) -> list[Part]:
        return [Part("p")]

    def build_part(self, part: Part, state: Any) -> Feed:
        return self

    def poll(self, rows_max: int) -> list[Any] | None:
        return self.rows.popleft() if self.rows else None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class Fed:
    """A job that adds what a test gives it to sums by key; a sum of 0 leaves no state."""

    def __init__(self, *, keep: int = 3) -> None:
        self.source, self.store = Feed(), MemoryStore()
        job = mp.Job("fed")
        keyed = job.source("in", self.source).key_by("key", lambda row: row[0])
        summed: Any = keyed.stateful_map("sum", lambda key, row, n: (n + row[1], (n + row[1]) or None), default=int)
        summed.sink("out", sinks.Memory())
        self.handle = start(job, 2, snapshots=mp.Snapshots(self.store, interval_s=None, keep=keep, chain_max=2))

    def add(self, **sums: int) -> SnapshotId:
        """Add to sums, and return the snapshot that has it."""
        until = self.handle.status().counts.read + len(sums)
        self.source.rows.append(list(sums.items()))
        while self.handle.status().counts.read < until:
            """It reads."""
        return self.handle.snapshot()


def shown(change: StateChanges) -> tuple[dict[str, int], set[str]]:
    return {row["key"]: row["value"] for row in change.table.to_pylist()}, set(change.gone)


def test_each_snapshot_comes_with_what_it_has_changed() -> None:
    fed = Fed()
    first = fed.add(a=1, b=2, c=3)
    found = fed.handle.changes("sum")
    second = fed.add(a=5, b=-2, d=4)
    change = next(found)
    assert (change.snapshot, change.since, *shown(change)) == (second, first, {"a": 6, "d": 4}, {"b"})
    fed.add(a=1)
    fed.add(a=-1, c=1)  # a is what it was
    third = fed.add(b=7)
    change = next(found)
    assert (change.snapshot, change.since, *shown(change)) == (third, second, {"b": 7, "c": 4}, set())
    last = fed.handle.stop()
    assert [(one.snapshot, *shown(one)) for one in found] == [(last, {}, set())]


@pytest.mark.parametrize("size", [1, 3])
def test_a_rescale_changes_no_state(size: int) -> None:
    fed = Fed()
    before = fed.add(**{f"k{n}": n + 1 for n in range(50)})
    fed.handle.rescale(size)
    fed.add(k3=1)
    change = next(fed.handle.changes("sum", since=before))
    assert shown(change) == ({"k3": 5}, set())
    fed.handle.stop()


def test_a_snapshot_that_is_gone_gives_all_keys() -> None:
    fed = Fed(keep=1)
    first = fed.add(a=1, b=2)
    found = fed.handle.changes("sum")
    turns = 0
    while fed.store.list(f"fed/artefacts/{first}"):
        turns += 1
        last = fed.add(a=1, c=1)
    change = next(found)
    assert (change.snapshot, change.since, *shown(change)) == (last, None, {"a": 1 + turns, "b": 2, "c": turns}, set())
    fed.handle.stop()


def test_a_step_without_state_is_refused_at_once() -> None:
    fed = Fed()
    fed.add(a=1)
    with pytest.raises(PlanError, match="has no step 'other' with state"):
        fed.handle.changes("other")
    fed.handle.stop()
    assert fed.handle.status(timeout_s=PATIENCE_S).state == "stopped"
