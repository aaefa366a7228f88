"""A nightly command-line job: each run reads the new files, also after a run was killed in the middle."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

JOB = """
import time
from pathlib import Path
import malstrom_py as mp
from malstrom_py import sinks, sources

HERE = Path(__file__).parent

def slow(row):
    if row["n"] % 20 == 0 and not (HERE / "hurry").exists():
        time.sleep(0.005)
    return row

def add(key, row, total):
    total += row["n"]
    return {"day": row["day"], "n": row["n"], "key": key, "total": total}, total

def job():
    job = mp.Job("nightly")
    read = job.source("in", sources.Files(HERE / "in" / "*.csv", new_files=True)).map("slow", slow)
    totals = read.key_by("key", lambda row: row["n"] % 7).stateful_map("total", add, default=int)
    totals.sink("out", sinks.Files(HERE / "out", format="json"))
    return job
"""
ROWS = 8_000
FINISH_S = 120.0


def arrived(folder: Path, day: int) -> None:
    """Write the files of one day."""
    for number in range(3):
        rows = "".join(f"{day},{n}\n" for n in range(number + 1, ROWS + 1, 3))
        (folder / "in" / f"{day}-{number}.csv").write_text(f"day,n\n{rows}")


def started(folder: Path, workers: int) -> subprocess.Popen[str]:
    command = ["run", str(folder / "job.py"), "--workers", str(workers), "--snapshots", str(folder / "kept")]
    return subprocess.Popen(
        [sys.executable, "-m", "malstrom_py.cli", *command, "--interval", "0.1", "--resume", "latest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(folder: Path, workers: int) -> str:
    """Run the job to success and return its standard error."""
    (folder / "hurry").touch()
    with started(folder, workers) as program:
        output = program.communicate(timeout=FINISH_S)
        assert program.returncode == 0, output
    (folder / "hurry").unlink()
    return output[1]


def written(folder: Path) -> list[dict[str, int]]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def check(folder: Path, days: int) -> None:
    """Assert that each row is in the output once, and that each key's totals are running totals of its rows."""
    rows = written(folder)
    came = sorted((row["day"], row["n"]) for row in rows)
    assert came == [(day, n) for day in range(1, days + 1) for n in range(1, ROWS + 1)]
    totals: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: (row["key"], row["total"], row["n"])):
        totals[row["key"]] = totals.get(row["key"], 0) + row["n"]
        assert row["total"] == totals[row["key"]]


@pytest.mark.long
def test_each_night_reads_what_is_new_also_behind_kills_at_other_numbers_of_workers(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    print(f"seed {seed}")
    (tmp_path / "in").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    arrived(tmp_path, 1)
    ran(tmp_path, 1)
    check(tmp_path, 1)

    arrived(tmp_path, 2)
    before = len(written(tmp_path))
    for workers in (3, 2):
        with started(tmp_path, workers) as program:
            until_s = monotonic() + FINISH_S
            while len(written(tmp_path)) == before:  # a snapshot of this run has been committed
                assert program.poll() is None, program.communicate()
                assert monotonic() < until_s
                sleep(0.02)
            sleep(rng.uniform(0.0, 0.2))
            program.kill()
            assert program.wait(FINISH_S) == -signal.SIGKILL
        before = len(written(tmp_path))
    ran(tmp_path, 4)
    check(tmp_path, 2)

    output = ran(tmp_path, 2)
    assert ": 0 read, 0 written" in output
    assert "no new input since snapshot" in output
    check(tmp_path, 2)
