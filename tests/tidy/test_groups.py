"""The run of the tests itself: a process that dies is a failure that names its test, and the others end."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
from tests.groups import Groups

def pytest_xdist_make_scheduler(config, log):
    return Groups(config, log)
"""
TESTS = """
import os
import time
import pytest

@pytest.mark.parametrize("case", range(20))
def test_fine(case): pass
"""
DIES = """
def test_dies():
    time.sleep(1)  # the reports of the tests before it are sent by then
    os._exit(9)
"""


def test_a_process_that_dies_fails_one_test_and_no_other(tmp_path: Path) -> None:
    """A run with it ends: without `Groups.remove_node` it hangs, as xdist assigns groups that were done."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(TESTS + DIES * (number == 3) + "\ndef test_last(): pass\n")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--numprocesses",
            "2",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,  # on a busy machine it takes far longer than its two seconds
        check=False,
    )
    assert "1 failed, 168 passed" in run.stdout, run.stdout
    assert "test_3.py::test_dies" in run.stdout
