"""A process that is killed between two renames of its commit: the next one finishes it, and nothing is there twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from malstrom_py.sinks.files import Files
from tests.unit.sinks.writing import context, everything, visible

_DIES_IN_ITS_COMMIT = """
import os, pathlib, signal, sys
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files import Files
from malstrom_py.worker_context import WorkerInfo

folder, renames = sys.argv[1], int(sys.argv[2])
context = CommitContext("job", "out", "s1", 1)
sink = Files(folder, format="json", partition_by="a")
writer = sink.open(WorkerInfo("job", "out", 0))
writer.write(Batch([{"a": n, "n": n} for n in range(4)]))
payload = writer.pre_commit(context)
pathlib.Path(folder + ".payload").write_bytes(payload)
replace = pathlib.Path.replace

def replace_or_die(path, target):
    global renames
    if not renames:
        os.kill(os.getpid(), signal.SIGKILL)
    renames -= 1
    return replace(path, target)

pathlib.Path.replace = replace_or_die
sink.commit(context, [payload])
"""


@pytest.mark.long("1", "2")
@pytest.mark.parametrize("renames", range(4))
def test_the_next_process_finishes_the_commit(renames: int, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-c", _DIES_IN_ITS_COMMIT, str(folder), str(renames)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert len(visible(folder)) == renames
    payload = (tmp_path / "out.payload").read_bytes()
    sink = Files(folder, format="json", partition_by="a")
    sink.recover(context("s1"), [context("s1").snapshot])
    for _ in range(2):
        sink.commit(context("s1"), [payload])
        rows = [json.loads((folder / path).read_text())["n"] for path in visible(folder)]
        assert sorted(rows) == [0, 1, 2, 3]
    assert not [name for name in everything(folder) if name.startswith("_")]
