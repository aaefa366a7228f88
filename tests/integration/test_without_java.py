"""Machines without Java: `make test` leaves out the Spark tests and reports it; `.ci/run` refuses to start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

SAID = "Java: not found. Spark needs Java 17 or 21; install one, or set JAVA_HOME to it"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine with a shell, a Python, and little else."""
    for name in ("bash", "dirname", "env"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    (tmp_path / "python3").symlink_to(Path(sys.executable).resolve())
    return {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": "", "PYTHON": "python3"}


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["one process", "shared"])
def test_tests_of_spark_are_left_out_and_the_last_line_says_so(
    environ: dict[str, str], processes: tuple[str, ...]
) -> None:
    chosen = ["tests/integration/spark/test_connect.py", "tests/unit/spark/test_waiting.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *processes, *chosen]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Left out: the tests that start Spark (2). {SAID}."


def test_the_whole_check_refuses_to_begin(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "run"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == f"The check runs every test, those of Spark too. {SAID}. make test leaves them out.\n"
    assert done.stdout == ""
