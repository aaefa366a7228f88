"""Snapshots on a local disk, by other processes: killed, out of space, several at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.verification import verify
from tests.tree import ROOT
from tests.unit.snapshot.taken import JOB, Start, restored

BEGIN = """
import resource, sys
from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.snapshots import Snapshots
from tests.unit.snapshot.taken import JOB, Start
checkpointer = Snapshots(sys.argv[1]).in_store(JOB)
"""

ENDLESS = """
start = Start(checkpointer)
print("claimed", start.claim.incarnation, flush=True)
while True:
    made = start.take(b"base" * 50_000, b"more" * 50_000)
    print("committed", made.id, flush=True)
    start.take(b"delta" * 1_000, delta=True)
    checkpointer.prune(2, 0.0, start.now_s)
"""

WITHOUT_ROOM = """
start = Start(checkpointer)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    start.take(b"x" * 200_000)
except SnapshotError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print("then", start.take(b"small").id)
"""

CLAIM = """
for _ in range(5):
    print(checkpointer.claim(0.0).incarnation)
"""


def run(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_s3_after_a_kill_the_newest_that_was_told_is_there_whole(tmp_path: Path) -> None:
    incarnations = []
    for lines in (1, 2, 3, 4, 7):
        process = run(ENDLESS, tmp_path)
        assert process.stdout is not None
        told = [process.stdout.readline().split() for _ in range(lines)]
        process.kill()
        told += [line.split() for line in process.communicate(timeout=60)[0].splitlines() if line.count(" ") == 1]
        assert process.returncode == -9
        incarnations.append(int(told[0][1]))
        checkpointer = Snapshots(tmp_path).in_store(JOB)
        found, warnings = latest_manifest(checkpointer, job=JOB)
        assert warnings == []
        if lines > 1:
            assert found is not None
            assert found.id >= told[-1][1]
            assert restored(checkpointer, found)
        assert [verify(checkpointer, id) for id in checkpointer.list_checkpoints() if verify(checkpointer, id)] == []
    assert incarnations == [1, 2, 3, 4, 5]


def test_s3_without_room_it_is_an_error_and_the_old_snapshot_stays(tmp_path: Path) -> None:
    checkpointer = Snapshots(tmp_path).in_store(JOB)
    Start(checkpointer).take(b"old")
    process = run(WITHOUT_ROOM, tmp_path)
    said, then = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    assert "totals-0.full cannot be written: File too large. Complete snapshots are unchanged" in said
    found, warnings = latest_manifest(checkpointer, job=JOB)
    assert found is not None
    assert (f"then {found.id}", warnings) == (then, [])
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".part"] == []


def test_s3_of_starts_in_many_processes_each_has_an_incarnation_of_its_own(tmp_path: Path) -> None:
    processes = [run(CLAIM, tmp_path) for _ in range(4)]
    got = [int(line) for process in processes for line in process.communicate(timeout=60)[0].split()]
    assert sorted(got) == list(range(1, 21))
