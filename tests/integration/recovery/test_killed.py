"""A program with a job is killed at random moments and restarted with other numbers of workers until it finishes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

from tests.integration.recovery.jobs import check_written
from tests.integration.recovery.program import ROWS

KILLS = 4
FINISH_S = 120.0


def start(folder: Path, workers: int) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.recovery.program", str(folder), str(workers)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    return program


def test_s6_kills_at_any_moment_leave_every_record_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(KILLS):
        with start(tmp_path, rng.randint(1, 5)) as program:
            sleep(rng.uniform(0.05, 0.6))
            program.kill()
            assert program.wait(FINISH_S) == -signal.SIGKILL
    (tmp_path / "hurry").touch()
    with start(tmp_path, rng.randint(1, 5)) as program:
        assert program.wait(FINISH_S) == 0
    check_written(tmp_path / "out", rows=ROWS)
