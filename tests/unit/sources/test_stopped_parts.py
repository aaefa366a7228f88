"""What a part of a source sees of a stop: it is not polled any more, and closed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources import Part


class Watched:
    """A part without an end that notes what is called."""

    def __init__(self, calls: list[str], position: int) -> None:
        self._calls, self._position = calls, position

    def poll(self, rows_max: int) -> list[int]:
        self._calls.append("poll")
        self._position += 1
        return [self._position]

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        self._calls.append("snapshot")
        return self._position

    def close(self) -> None:
        self._calls.append("close")


class WatchedSource:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def list_parts(self) -> list[Part]:
        return [Part("a")]

    def build_part(self, part: Part, state: Any) -> Watched:
        return Watched(self.calls, state or 0)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("drain", [False, True])
def test_a_part_is_closed_once_by_a_stop_after_its_last_position_is_saved(
    kept: bool, drain: bool, tmp_path: Path
) -> None:
    source, job = WatchedSource(), mp.Job("stopped")
    job.source("in", source).sink("out", sinks.Memory())
    snapshots = mp.Snapshots(tmp_path, interval_s=None) if kept else None
    handle = mp.InProcess(snapshots=snapshots).start(job, control=False)
    while not handle.metrics().read:
        """It reads within a moment."""
    handle.stop(drain=drain)
    calls = source.calls
    assert calls.count("close") == 1
    end = calls[len(calls) - calls[::-1].index("poll") :]
    assert "close" in end, "nothing is polled after it"
    if kept:
        assert end.index("snapshot") < end.index("close")
