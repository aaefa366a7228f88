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

TESTS: Final = (
    "test_source.py::test_a_dataframe_a_table_a_query_and_files_give_the_same_rows",
    "test_source.py::test_columns_and_filters_choose_what_is_read",
    "test_source.py::test_nested_partition_columns_have_the_types_that_spark_gives_them",
    "test_source.py::test_one_giant_partition_becomes_several_parts",
    "test_source.py::test_names_are_those_that_spark_tells_apart",
    "test_source.py::test_a_pinned_source_keeps_the_contract_of_sources",
    "test_source.py::test_what_cannot_be_read_is_told_by_the_step",
    "test_source.py::test_a_stream_has_no_end_to_be_pinned",
    "test_source.py::test_the_session_is_left_as_it_was",
    "test_sink_error_mode.py",
)
"""Tests that use the session itself. ``MALSTROM_SPARK=connect pytest tests/integration/spark`` runs all others too."""


@pytest.mark.only_classic
@pytest.mark.timeout(_DEADLINE_S + 30)
def test_what_reads_and_writes_does_so_over_connect() -> None:
    here = Path(__file__).parent.relative_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(here / test) for test in TESTS)],
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
