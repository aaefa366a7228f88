"""The run of the tests itself ends when one of its processes dies, and has run all other tests."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from tests.groups import Groups
from tests.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


class Process:
    """A process as the scheduler has it; it is given nothing more."""

    shutting_down = True


def groups(**assigned: dict[str, dict[str, bool]]) -> tuple[Any, dict[str, Any]]:
    scheduler: Any = Groups.__new__(Groups)
    processes = {name: Process() for name in assigned}
    scheduler.assigned_work = {processes[name]: work for name, work in assigned.items()}
    scheduler.workqueue = OrderedDict()
    return scheduler, processes


def test_a_process_that_dies_fails_one_test_and_no_other() -> None:
    """Groups that are done are not assigned again: a process that gets an empty one waits for ever."""
    scheduler, processes = groups(
        dies={"done": {"a": True, "b": True}, "begun": {"c": True, "d": False, "e": False}, "last": {"f": False}},
        stays={"other": {"g": False}},
    )
    assert scheduler.remove_node(processes["dies"]) == "d"
    assert scheduler.workqueue == {"begun": {"e": False}, "last": {"f": False}}
    assert list(scheduler.assigned_work) == [processes["stays"]]


def test_a_process_that_was_done_leaves_nothing() -> None:
    scheduler, processes = groups(dies={"done": {"a": True}}, stays={})
    assert scheduler.remove_node(processes["dies"]) is None
    assert scheduler.workqueue == {}


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


def test_a_run_in_which_a_process_dies_ends(tmp_path: Path) -> None:
    """One test of its group is left: a process begins it only when it knows what follows."""
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
            f"--rootdir={tmp_path}",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,  # on a busy machine it takes far longer than its three seconds
        check=False,
    )
    assert "1 failed, 168 passed" in run.stdout, run.stdout
    assert "test_3.py::test_dies" in run.stdout
