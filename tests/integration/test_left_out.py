"""Machines without Java, Chromium or Prometheus: `make test` leaves tests out and reports it; `.ci/run` refuses."""

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


def test_tests_of_spark_are_left_out_and_the_last_line_says_so(environ: dict[str, str]) -> None:
    chosen = ["tests/integration/spark/test_connect.py", "tests/unit/spark/test_waiting.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", *chosen]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Left out: the tests that start Spark (2). {SAID}."


def test_tests_with_other_programs_are_left_out_too(environ: dict[str, str]) -> None:
    suites = ("monitoring/test_prometheus.py", "monitoring/test_browser.py", "netns/test_relay.py")
    chosen = [f"tests/integration/{suite}" for suite in suites]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *chosen]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=400)
    last = done.stdout.splitlines()[-3:]
    assert last[0].startswith("Left out: the tests that open a browser (")
    assert last[0].endswith("Chromium: not found. Install it (on Debian: apt install chromium), or set CHROMIUM to it.")
    assert last[1].startswith("Left out: the tests that start Prometheus (")
    assert last[2].startswith("Left out: the tests in network namespaces (")


@pytest.mark.needs_java
def test_the_whole_check_refuses_to_begin_without_a_browser(environ: dict[str, str], tmp_path: Path) -> None:
    java = shutil.which("java")
    assert java is not None
    (tmp_path / "java").symlink_to(java)
    for name in ("dirname", "readlink", "uname"):
        if (found := shutil.which(name)) is not None and not (tmp_path / name).exists():
            (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [ROOT / ".ci" / "run"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "those with chromium too, which is not found" in done.stderr


def test_the_whole_check_refuses_to_begin(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "run"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == f"The check runs every test, those of Spark too. {SAID}. make test leaves them out.\n"
    assert done.stdout == ""
