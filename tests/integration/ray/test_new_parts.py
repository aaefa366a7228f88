"""R13 on Ray: parts that appear while the job runs, and the death of a worker after that."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from tests.integration.ray.leftovers import pids
from tests.integration.sources.growing_folder import ROWS, GrowingFolder, expected
from tests.servers import wait_until


def as_dict(row: tuple[str, int]) -> dict[str, Any]:
    return {"part": row[0], "number": row[1]}


@pytest.mark.long
def test_r13_new_parts_are_read_once_though_a_worker_dies(tidy: None, tmp_path: Path) -> None:
    folder, out = tmp_path / "parts", tmp_path / "out"
    folder.mkdir()
    (folder / "a").touch()
    source, job = GrowingFolder(folder), mp.Job("growing")
    job.source("in", source).key_by("part", lambda row: row[0]).map("row", as_dict).sink(
        "out", sinks.Files(str(out), format="json")
    )
    snapshots = mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.1)
    handle = mp.RayRuntime(2, num_cpus=0.2, snapshots=snapshots).start(job)
    wait_until(lambda: "'a', 40" in source.acknowledged[-1], "part a to be acknowledged")
    (folder / "b").touch()
    wait_until(lambda: "'b', 40" in source.acknowledged[-1], "part b to be acknowledged")
    (folder / "c").touch()
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    wait_until(lambda: "'c', 40" in source.acknowledged[-1], "part c to be acknowledged")
    handle.stop(drain=True, timeout_s=60.0)
    lines = [line for file in out.glob("*.json") for line in file.read_text(encoding="utf-8").splitlines()]
    rows = sorted((row["part"], row["number"]) for row in map(json.loads, lines))
    assert rows == expected("a", "bc")
    assert source.acknowledged[-1] == f"growing {[(part, ROWS) for part in 'abc']}"
