"""Files in whole jobs: hundreds of open parts in little memory, a folder that another process fills, a resumed job."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.tree import ROOT

ROWS = 600_000
LINE = {"number": 1234567, "user": "user-00042", "text": "some words that make a line of usual length"}

READ = """
import re, sys
import malstrom_py as mp
from malstrom_py import sinks, sources
options = {options}
source = sources.Files({path!r}, **options)
assert len(source.list_parts()) {parts}, len(source.list_parts())
job = mp.Job("memory")
job.source("in", source).sink("out", sinks.Callable(len))
assert mp.run(job, {workers}, progress=False).written == {rows}
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""

FOLLOW = """
import malstrom_py as mp
from malstrom_py import sources
source = sources.Files({path!r}, follow=True)
print("listening", flush=True)
print(mp.collect(mp.Job("follow").source("in", source), count=300))
"""


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"rows.{suffix}"
    if suffix == "parquet":
        columns = {name: [value] * 3000 for name, value in LINE.items()}
        with pq.ParquetWriter(path, (table := pa.table(columns)).schema, use_dictionary=False) as writer:
            for _ in range(ROWS // 3000):
                writer.write_table(table)
        return path
    head = ",".join(LINE) + "\n" if suffix == "csv" else ""
    row = ",".join(map(str, LINE.values())) if suffix == "csv" else json.dumps(LINE)
    path.write_text(head + f"{row}\n" * ROWS)
    return path


def answer(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "megabytes"), [("jsonl", 120), ("txt", 120), ("csv", 220), ("parquet", 300)])
def test_two_hundred_parts_open_at_once_take_little_memory(suffix: str, megabytes: int, tmp_path: Path) -> None:
    path = written(tmp_path, suffix)
    size = 1 if suffix == "parquet" else path.stat().st_size // 200
    options = {"split_bytes": size, "newlines_in_values": suffix != "csv"}
    program = READ.format(path=str(path), options=options, parts="> 190", workers=1, rows=ROWS)
    assert int(answer(program)) < megabytes


@pytest.mark.long(but=("csv",))
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_parts_dealt_to_several_workers_are_the_whole_file(suffix: str, tmp_path: Path) -> None:
    path = written(tmp_path, suffix)
    options = {"split_bytes": 1 << 20 if suffix != "parquet" else 100_000, "newlines_in_values": suffix != "csv"}
    answer(READ.format(path=str(path), options=options, parts="> 3", workers=3, rows=ROWS))


def test_a_folder_is_followed_while_another_process_fills_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    program = FOLLOW.format(path=str(folder / "*.csv"))
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "listening\n"
        folder.mkdir()
        for number in range(30):
            rows = "".join(f"{number * 10 + row}\n" for row in range(10))
            hidden = folder / f"_{number:02}.csv"
            hidden.write_text("n\n" + rows)
            hidden.rename(folder / f"{number:02}.csv")
        output, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0
    assert sorted(row["n"] for row in ast.literal_eval(output)) == list(range(300))


def test_a_job_that_was_stopped_resumes_with_the_files_of_its_start(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.txt").write_text("".join(f"{number}-{line}\n" for line in range(50)))

    def job() -> mp.Job:
        def slowly(line: str) -> str:
            time.sleep(0.001)
            return line

        job = mp.Job("lines")
        lines = job.source("in", sources.Files(folder / "*.txt"))
        lines.map("slowly", slowly).sink("out", sinks.Files(out, format="json"))
        return job

    kept = mp.Snapshots(tmp_path / "snapshots", interval_s=None)
    handle = mp.InProcess(snapshots=kept).start(job(), control=False)
    handle.snapshot()
    handle.stop()
    (folder / "30.txt").write_text("late\n")
    last = folder / "29.txt"
    lines = last.read_text()
    last.write_text(lines + "one more\n")
    with pytest.raises(mp.SourceError, match=r"29\.txt: the file changed since the job started .*Restore it, or start"):
        mp.run(job(), snapshots=kept, progress=False)
    last.write_text(lines)
    mp.run(job(), snapshots=kept, progress=False)
    written = [json.loads(line)["value"] for file in out.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(written) == sorted(f"{number}-{line}" for number in range(30) for line in range(50))
