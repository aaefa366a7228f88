"""The state of a job is sent ahead of its moves (R12), in one process and on Ray: nothing is lost, and little of it is
left for the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources import Part
from tests.integration.monitoring.conftest import PATIENCE_S, until

KEYS: Final = 1_500
STATE_BYTES: Final = 20_000
BUSY: Final = 50
"""The keys that change all the time, once all keys have state."""


@dataclass(frozen=True)
class Rounds:
    """First every key once, and then a few of them again and again."""

    def list_parts(self) -> Sequence[Part]:
        return [Part("0"), Part("1")]

    def build_part(self, part: Part, state: Any) -> Rows:
        return Rows(int(part), state or 0)


class Rows:
    def __init__(self, part: int, given: int) -> None:
        self._part = part
        self._given = given

    def poll(self, rows_max: int) -> list[int]:
        first, of = self._given, KEYS // 2
        count = min(rows_max, of - first) if first < of else 5
        self._given += count
        return [2 * (row if row < of else row % BUSY) + self._part for row in range(first, first + count)]

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self._given

    def close(self) -> None:
        """Nothing is open."""


def counted(key: int, row: int, state: tuple[int, str] | None) -> tuple[int, tuple[int, str]]:
    """Count the rows of a key, and keep twenty kilobytes beside."""
    seen = (state or (0, ""))[0] + 1
    return seen, (seen, str(key).ljust(STATE_BYTES))


def large(name: str, out: sinks.Memory) -> mp.Job:
    job = mp.Job(name, slots=64)
    rows: Any = job.source("rows", Rounds())
    rows.key_by("key", lambda row: row).stateful_map("count", counted).sink("out", out)
    return job


def is_filled(handle: mp.JobHandle) -> bool:
    counts = handle.status().counts.steps
    return "count" in counts and (counts["count"].keys or 0) >= KEYS


def right(out: sinks.Memory) -> bool:
    """Whether each key has been counted row by row."""
    return all(values == list(range(1, len(values) + 1)) for values in out.by_key.values()) and len(out.by_key) == KEYS


@pytest.fixture
def snapshots(tmp_path: Path) -> mp.Snapshots:
    return mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.5)


def travelled(handle: mp.JobHandle, out: sinks.Memory, *sizes: int) -> list[mp.RescaleReport]:
    """Go through ``sizes``; drained after that."""
    until(lambda: is_filled(handle), "all keys have state")
    reports = [handle.rescale(size, timeout_s=PATIENCE_S) for size in sizes]
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    assert handle.wait(timeout_s=PATIENCE_S).written == len(out.items)
    assert right(out)
    return reports


def test_r12_in_one_process_most_state_goes_ahead_of_its_moves(snapshots: mp.Snapshots) -> None:
    out = sinks.Memory()
    handle = mp.InProcess(1, snapshots=snapshots).start(large("ahead", out), control=False)
    for report in travelled(handle, out, 2, 3, 2):
        assert report.bytes > 5_000_000
        assert report.bytes_ahead > report.bytes / 2


def test_r12_without_snapshots_no_change_is_tracked_and_nothing_goes_ahead() -> None:
    out = sinks.Memory()
    handle = mp.InProcess(1).start(large("not-ahead", out), control=False)
    assert [report.bytes_ahead for report in travelled(handle, out, 2, 3, 2)] == [0, 0, 0]
