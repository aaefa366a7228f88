"""A sink that runs out of space, or loses its reader: a typed error, and no unfinished files are left.

Each runs in a separate process: the limit on the size of files is one of the process, and so is standard output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITE_WITHOUT_ROOM = """
import random, resource, signal, sys
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.sinks.files import Files

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sink = Files(sys.argv[1], format=sys.argv[2])
writer = sink.open(WorkerInfo("job", "out", 0))
context = CommitContext("job", "out", "s1", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    for _ in range(100):
        writer.write(Batch([{"x": random.random()} for _ in range(10_000)]))
    writer.pre_commit(context)
except SinkError as error:
    print(error)
    sink.abort(context, [])
    writer.close()
"""

PRINT = """
import sys
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.sinks.stdout import Stdout

writer = Stdout().build(WorkerInfo("job", "out", 0))
try:
    for number in range(100_000):
        writer.write(Batch([number] * 100))
except SinkError as error:
    sys.exit(str(error))
"""


@pytest.mark.long(but=("csv",))
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_a_full_disk_is_a_sink_error_and_leaves_nothing(format: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_WITHOUT_ROOM, str(tmp_path), format]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot write to" in done.stdout
    assert "Free some space, or write elsewhere" in done.stdout
    assert list(tmp_path.rglob("*")) == []


def test_a_reader_that_went_away_is_a_sink_error_and_nothing_else_is_said() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PRINT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert said.startswith("the reader of the output closed the pipe")
    assert said.count("\n") == 1


def test_standard_output_on_a_full_disk_is_a_sink_error_and_nothing_else_is_said() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", PRINT]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write to standard output: No space left on device")
    assert done.stderr.count("\n") == 1
