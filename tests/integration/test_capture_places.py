"""Recordings in an object store: the same as in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import capture, sinks
from tests.integration.small_s3 import SmallS3, small_s3
from tests.unit.capture.test_replay import ROWS, captured
from tests.unit.capture.test_time_and_pace import rows_of


@pytest.fixture
def server() -> Iterator[SmallS3]:
    with small_s3() as server:
        yield server


@pytest.fixture
def place(server: SmallS3) -> Any:
    return capture.ObjectStore("s3://bucket/seen", options=server.options)


def test_a_job_is_captured_and_replayed_with_snapshots_and_rescales(place: Any, tmp_path: Path) -> None:
    job = captured(place)
    handle = mp.InProcess(
        2, batch=mp.Batching(rows_max=5), snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.02)
    ).start(job, control=False)
    try:
        handle.rescale(3)
        handle.rescale(1)
    except mp.JobEnded:
        """It was faster."""
    handle.wait(timeout_s=60)
    assert capture.check(place) == []
    assert sorted(rows_of(place)) == sorted(rows_of(place, follow=True)) == sorted(ROWS)
    assert {segment.rpartition(".")[2] for segment in place.names()} == {"begun", "capture", "commit"}


def test_a_recording_of_a_job_that_failed_has_what_it_saw(place: Any) -> None:
    failing = mp.Job("original")
    stream = failing.source("in", mp.sources.Memory([3, 2, 1, 0]))
    stream.capture_into("seen", place)
    stream.map("inverse", lambda n: 1 / n).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        mp.run(failing, progress=False, batch=mp.Batching(rows_max=1))
    found = [value for _, one in capture.read(place) if isinstance(one, capture.Batch) for value in one.values]
    assert found[:3] == [3, 2, 1]
