"""What reads and writes with a classic session does so with one of Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.tree import ROOT

_DEADLINE_S: Final = 900

SESSION: Final = (
    "test_source.py::test_a_dataframe_a_table_a_query_and_files_give_the_same_rows",
    "test_source.py::test_the_session_is_left_as_it_was",
    "test_sink_error_mode.py::test_a_table_that_somebody_made_meanwhile_is_told_and_left_as_it_is",
)
"""Tests that use the session in each way of ours; all others take a while."""


@pytest.mark.long
@pytest.mark.only_classic
@pytest.mark.timeout(_DEADLINE_S + 30)
@pytest.mark.parametrize("tests", [SESSION, ("",)], ids=["session", "all"])
def test_what_reads_and_writes_does_so_over_connect(tests: tuple[str, ...]) -> None:
    here = Path(__file__).parent.relative_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(here / test) for test in tests)],
        cwd=ROOT,
        env={**os.environ, "MALSTROM_SPARK": "connect"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 0
