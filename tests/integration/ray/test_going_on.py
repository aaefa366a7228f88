"""A finished job on Ray resumes with new files, from its initial state and what it has counted since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources

KEYS = 20


def wrote(folder: Path, day: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(3):
        rows = "".join(f"{n % KEYS},1\n" for n in range(KEYS * 5))
        (folder / f"{day}-{number}.csv").write_text(f"key,n\n{rows}")


def totals(folder: Path, workers: int, begin_with: dict[int, int]) -> dict[int, list[int]]:
    job = mp.Job("ray-going-on")
    read = job.source("in", sources.Files(folder / "in" / "*.csv", new_files=True)).key_by("key", "key")
    read.sum("total", by="n", initial_state=begin_with).sink("out", sinks.Files(folder / "out", format="json"))
    runtime = mp.RayRuntime(workers, num_cpus=0.2, snapshots=mp.Snapshots(folder / "kept", interval_s=None))
    runtime.run(job)
    rows = [json.loads(line) for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return {key: sorted(row["value"] for row in rows if row["key"] == key) for key in range(KEYS)}


@pytest.mark.long
def test_each_run_reads_the_files_that_are_new_and_begins_with_its_initial_state_once(
    tidy: None, tmp_path: Path
) -> None:
    given = {key: 1_000 * (key + 1) for key in range(0, KEYS, 2)}
    for day, workers in ((1, 2), (2, 3)):
        wrote(tmp_path / "in", day)
        first = {key: given.get(key, 0) for key in range(KEYS)}
        assert totals(tmp_path, workers, given) == {
            key: list(range(start + 1, start + 15 * day + 1)) for key, start in first.items()
        }
