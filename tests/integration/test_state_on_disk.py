"""The disk of a worker for state that memory has no room for: what it holds, what it leaves, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from malstrom_py.errors import PlanError, StateError
from malstrom_py.state.disk import Disk, RocksDisk
from malstrom_py.state.memory import State
from malstrom_py.testing.disk import MemoryDisk


@pytest.fixture(params=["rocks", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RocksDisk(tmp_path) if request.param == "rocks" else MemoryDisk()


def test_a_disk_returns_what_was_written_last(disk: Disk) -> None:
    disk.write([(b"a1", b"one"), (b"a2", b"two"), (b"b1", b"three")])
    disk.write([(b"a1", b"four")], [b"a2", b"c"])
    assert disk.get([b"a2", b"a1", b"c"]) == [None, b"four", None]
    disk.close()


def test_a_scan_has_what_was_there_when_it_began(disk: Disk) -> None:
    disk.write([(b"a%04d" % n, b"x") for n in range(3_000)] + [(b"b", b"other")])
    found = disk.scan(b"a")
    disk.write([(b"a9999", b"late")], [b"a%04d" % n for n in range(3_000)])
    assert [key for key, _ in found] == [b"a%04d" % n for n in range(3_000)]
    assert list(disk.scan(b"a")) == [(b"a9999", b"late")]
    disk.close()


LEAVE = """
import os, sys
from pathlib import Path
from malstrom_py.state.disk import RocksDisk
disk = RocksDisk(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def test_nothing_is_left_of_a_disk_and_of_a_process_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "malstrom-state-of-mine").mkdir()
    subprocess.run([sys.executable, "-c", LEAVE, str(tmp_path)], check=False, timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    disks = [RocksDisk(tmp_path), RocksDisk(tmp_path)]
    assert len(list(tmp_path.iterdir())) == 3
    for disk in disks:
        disk.close()
    assert [path.name for path in tmp_path.iterdir()] == ["malstrom-state-of-mine"]


def test_a_folder_that_cannot_be_made_is_a_state_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/state: .*name another folder: mp\.State\(folder=…\)"):
        RocksDisk(tmp_path / "file" / "state")


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(PlanError, match="pip install 'rocksdict>="):
        State("4GB")


WRITE_WITHOUT_ROOM = """
import os, resource, signal, sys
from pathlib import Path
import malstrom_py as mp
from malstrom_py.state.disk import RocksDisk

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
disk = RocksDisk(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    for n in range(400):
        disk.write([(b"%d %d" % (n, m), os.urandom(1000)) for m in range(500)])
    disk.get([b"0 0"])
except mp.StateError as error:
    print(error)
disk.close()
"""


def test_a_full_disk_is_a_state_error_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_WITHOUT_ROOM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the states that memory has no room for cannot be kept there" in done.stdout
    assert "The job resumes from its last snapshot" in done.stdout
    assert list(tmp_path.iterdir()) == []
