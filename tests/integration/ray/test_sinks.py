"""Rows that jobs on Ray write during rescales: into files, and to functions in the workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import capture, sinks
from malstrom_py.capture.frames import Header
from malstrom_py.codec import TypeTable
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.capture import Capture
from tests.integration.ray.leftovers import pids, until
from tests.integration.ray.traffic import SAMPLE, Attendance, Seen, Sent, Tour, check_counts, check_rows, traffic

pytestmark = pytest.mark.long


class Appended:
    """A function that appends to one file per process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, seen: Seen) -> None:
        with (self._folder / f"{os.getpid()}.json").open("a") as file:
            file.write(json.dumps(as_object(seen)) + "\n")


def as_object(seen: Seen) -> dict[str, list[object]]:
    return {"row": list(seen)}


def lines(folder: Path) -> list[Seen]:
    """Return the rows in the files of a folder, file by file."""
    files = sorted(folder.glob("[!_]*"))
    found = [json.loads(line)["row"] for file in files for line in file.read_text().splitlines()]
    return [Seen(Sent(*row[0]), *row[1:]) for row in found]


def test_files_are_whole_after_rescales(tidy: None, attendance: Attendance, tmp_path: Path) -> None:
    files = sinks.Files(str(tmp_path / "out"), format="json")
    handle = mp.RayRuntime(2, num_cpus=0.2).start(traffic("into-files", files, attendance, show=as_object))
    Tour(handle, attendance).go(3, 1)
    # A second run of this name removes the leftovers of earlier runs, but not the files of workers that left this run.
    files.recover(CommitContext("into-files", "out", SnapshotId("another"), incarnation=1), [])
    handle.stop()
    result = handle.wait()
    assert len([file for file in (tmp_path / "out").iterdir() if not file.name.startswith(("_", "."))]) >= 3
    check_rows(lines(tmp_path / "out"), result)
    check_counts(result)


def test_functions_get_each_row_once(tidy: None, attendance: Attendance, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    job = traffic("into-functions", sinks.Callable(Appended(folder)), attendance)
    handle = mp.RayRuntime(1, num_cpus=0.2).start(job)
    Tour(handle, attendance).go(2, 1)
    handle.stop()
    result = handle.wait()
    rows = lines(folder)
    assert len(list(folder.iterdir())) == 2
    check_rows(rows, result)
    check_counts(result)


def test_s7_a_recording_has_each_row_once_after_rescales_and_a_death(
    tidy: None, attendance: Attendance, tmp_path: Path
) -> None:
    recorded = Capture(tmp_path / "seen", Header("", "", "", worker=0, keyed=True), TypeTable(), replace=False)
    kept = mp.Snapshots(tmp_path / "kept", interval_s=0.5)
    runtime = mp.RayRuntime(2, num_cpus=0.2, snapshots=kept, restart=mp.Restart(max_restarts=3, backoff_s=0.0))
    handle = runtime.start(traffic("recorded", recorded, attendance, show=as_text))
    Tour(handle, attendance).go(3, 2)
    handle.snapshot()
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    handle.snapshot()
    handle.stop(drain=True)
    handle.wait()
    assert {fault.kind for fault in capture.check(tmp_path / "seen")} <= {"unfinished"}  # it was stopped
    found = mp.collect(mp.Job("again").replay_from("back", tmp_path / "seen").map("rows", as_seen))
    numbers: dict[int, list[int]] = {}
    for seen in found:
        assert not seen.wrong
        numbers.setdefault(seen.sent.part, []).append(seen.sent.number)
    for of_part in numbers.values():
        assert sorted(of_part) == list(range(0, max(of_part) + 1, SAMPLE))


def as_text(seen: Seen) -> str:
    return json.dumps(seen)


def as_seen(text: str) -> Seen:
    sent, *rest = json.loads(text)
    return Seen(Sent(*sent), *rest)
