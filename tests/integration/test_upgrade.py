"""A job that an earlier version stopped is resumed by this one at any size, and sends just what it had not sent."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

import malstrom_py as mp
from tests.vectors.upgrade_job import FOLDERS, ROWS, upgrade_job


@pytest.fixture(scope="module")
def everything() -> Counter[str]:
    """Return what a run of this version sends that nothing interrupts."""
    out: list[str] = []
    mp.run(upgrade_job(ROWS, out))
    return Counter(out)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("folder", sorted(FOLDERS.glob("upgrade-*")), ids=lambda folder: folder.name)
def test_s5_a_job_of_an_earlier_version_resumes(
    folder: Path, workers: int, everything: Counter[str], tmp_path: Path
) -> None:
    shutil.copytree(folder / "snapshots", tmp_path / "snapshots")
    out: list[str] = []
    runtime = mp.InProcess(workers=workers, snapshots=mp.Snapshots(str(tmp_path / "snapshots"), interval_s=0.1))
    runtime.run(upgrade_job(ROWS, out))
    sent = Counter(json.loads((folder / "sent.json").read_text()))
    assert sent + Counter(out) == everything
    assert 0 < len(out) < everything.total()
