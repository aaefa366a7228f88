"""``malstrom tap --save``: a recording that is being written is left alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.capture import recording
from malstrom_py.cli.output import WrongCommand
from malstrom_py.cli.tapping import _recording
from malstrom_py.data.batch import Batch


def saving(folder: Path, step: str = "seen") -> Any:
    tapped: Any = SimpleNamespace(keyed=False, unit=None, step=step)
    return _recording(folder, "job", tapped)


def replayed(folder: Path, step: str) -> list[Any]:
    return mp.collect(mp.Job("again").source("back", sources.Replay(folder, step)))


def test_a_second_tap_does_not_delete_what_the_first_one_writes(tmp_path: Path) -> None:
    with saving(tmp_path) as first:
        first.write(Batch([1, 2, 3]))
        with pytest.raises(WrongCommand, match="has a recording 'seen': give another folder"), saving(tmp_path):
            pass
        with saving(tmp_path, "other") as other:
            other.write(Batch([9]))
    assert replayed(tmp_path, "seen") == [1, 2, 3]
    assert replayed(tmp_path, "other") == [9]


def test_of_two_taps_that_begin_at_the_same_moment_one_does_not_start(tmp_path: Path) -> None:
    with saving(tmp_path) as first, patch.object(recording, "generation_of", lambda *_: 0):  # looked before the first
        with pytest.raises(WrongCommand, match="began at the same moment: give another folder"), saving(tmp_path):
            pass
        first.write(Batch([1, 2, 3]))
    assert replayed(tmp_path, "seen") == [1, 2, 3]


def test_a_tap_leaves_the_recording_of_its_job_alone(tmp_path: Path) -> None:
    def tapped(value: int) -> int:
        with pytest.raises(WrongCommand, match="give another folder"), saving(tmp_path):
            pass
        return value

    job = mp.Job("job")
    job.source("in", sources.Memory(range(4))).map("slow", tapped).capture_into("seen", tmp_path)
    mp.run(job, batch=mp.Batching(rows_max=1), progress=False)
    assert replayed(tmp_path, "seen") == [0, 1, 2, 3]
