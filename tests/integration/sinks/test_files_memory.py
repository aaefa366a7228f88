"""Far more rows than memory, into files: also into more partitions than files may be open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

LIMIT_MB = 300

PROGRAM = """
import re, sys
import malstrom_py as mp
from malstrom_py import sinks, sources

def rows(part, start):
    for n in range(start, 400_000):
        yield {"part": f"part-{n // 64 % 200}", "n": n, "text": f"{n}".ljust(1000, "abcdefghij"[n % 10])}

job = mp.Job("memory")
files = sinks.Files(sys.argv[1], format=sys.argv[2], partition_by=sys.argv[3] or None)
job.source("in", sources.Generator(rows)).sink("out", files)
mp.run(job, progress=False)
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.long
@pytest.mark.parametrize("partition_by", ["", "part"])
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_four_hundred_megabytes_go_into_files_in_less_memory(format: str, partition_by: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), format, partition_by]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT_MB
    folders = {path.parent.name for path in tmp_path.rglob(f"out-*.{format}")}
    assert folders == ({f"part=part-{number}" for number in range(200)} if partition_by else {tmp_path.name})
