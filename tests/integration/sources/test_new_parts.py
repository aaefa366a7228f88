"""R13: parts that appear while a job runs in this process, with real threads; and what its source acknowledges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import JobEnded
from tests.integration.sources.growing_folder import ROWS, GrowingFolder, expected
from tests.servers import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "parts"
    made.mkdir()
    (made / "a").touch()
    return made


def as_dict(row: tuple[str, int]) -> dict[str, Any]:
    return {"part": row[0], "number": row[1]}


def unchanged(row: tuple[str, int]) -> Any:
    return row


def job_of(source: GrowingFolder, out: Any, shape: Callable[[tuple[str, int]], Any] = unchanged) -> mp.Job:
    job = mp.Job("growing")
    job.source("in", source).key_by("part", lambda row: row[0]).map("row", shape).sink("out", out)
    return job


def test_r13_new_parts_are_read_once_until_the_job_is_drained(folder: Path) -> None:
    source, out = GrowingFolder(folder), sinks.Memory()
    handle = mp.InProcess(workers=2).start(job_of(source, out))
    wait_until(lambda: handle.status().counts.read >= ROWS, "part a to be read")
    for part in "bc":
        (folder / part).touch()
    wait_until(lambda: handle.status().counts.read >= 3 * ROWS - 20, "the new parts to be read")
    handle.rescale(3)
    (folder / "d").touch()
    wait_until(lambda: handle.status().counts.read >= 4 * ROWS - 30, "a part after a rescale to be read")
    assert handle.status().state == "running"
    handle.stop(drain=True)
    assert sorted(out.items) == expected("a", "bcd")
    # Without snapshots it acknowledges once, at the end, when all is committed.
    assert source.acknowledged == [f"growing {[(part, ROWS) for part in 'abcd']}"]


def test_r13_a_job_resumes_with_new_parts_and_those_that_are_listed_no_more(folder: Path, tmp_path: Path) -> None:
    source, out = GrowingFolder(folder), sinks.Files(str(tmp_path / "out"), format="json")
    snapshots = mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.02)
    handle = mp.InProcess(workers=2, snapshots=snapshots).start(job_of(source, out, as_dict))
    wait_until(lambda: handle.status().counts.read >= ROWS, "part a to be read")
    (folder / "b").touch()
    wait_until(lambda: any("'b'" in line for line in source.acknowledged), "part b to be acknowledged")
    handle.stop(drain=False)
    with pytest.raises(JobEnded):
        handle.wait()
    (folder / "b").unlink()
    (folder / "c").touch()
    handle = mp.InProcess(workers=3, snapshots=snapshots).start(job_of(source, out, as_dict))
    wait_until(lambda: any("'c', 40" in line for line in source.acknowledged), "part c to be acknowledged")
    (folder / "b").touch()
    known = len(source.acknowledged)
    wait_until(lambda: len(source.acknowledged) > known + 2, "two more snapshots")
    handle.stop(drain=True)
    rows = sorted((row["part"], row["number"]) for row in _rows(tmp_path / "out"))
    assert rows == expected("a", "bc")
    assert source.acknowledged[-1] == f"growing {[(part, ROWS) for part in 'abc']}"


def _rows(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.json"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]
