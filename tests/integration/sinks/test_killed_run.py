"""A run that is killed holds no lock any more: the next one clears what it left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from malstrom_py.sinks.files import Files
from tests.unit.sinks.writing import context, everything, write

_WRITES_AND_WAITS = """
import sys
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.files import Files
from malstrom_py.worker_context import WorkerInfo

writer = Files(sys.argv[1], format="json", file_bytes_max=1).open(WorkerInfo("job", "out", 0))
writer.write(Batch([{"n": 1}]))
print("written", flush=True)
sys.stdin.read()
"""


def staged(folder: Path) -> list[str]:
    return [name for name in everything(folder) if name.endswith("open-0.json")]


def test_staging_is_cleared_once_its_process_is_dead_and_not_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITES_AND_WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        Files(tmp_path, format="json").recover(context("s9"), [])
        assert len(staged(tmp_path)) == 1
        process.kill()
    Files(tmp_path, format="json").recover(context("s9"), [])
    assert everything(tmp_path) == []
    write(tmp_path, [{"n": 2}], format="json")
    assert everything(tmp_path) == ["out-s1-00000.json"]
