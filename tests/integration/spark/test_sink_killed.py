"""Programs that are killed while Spark publishes for them, over Connect: each is a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.killing import ROWS, TABLE, found, run
from tests.tree import ROOT

pytestmark = pytest.mark.only_connect

DEADLINE_S = 100


@pytest.mark.parametrize(
    ("kind", "when"),
    [("table", "during"), ("table", "after"), ("function", "during"), ("function", "after"), ("json", "during")],
)
def test_a_program_that_is_killed_is_finished_by_the_next_start_of_its_job(
    kind: str, when: str, spark: Any, tmp_path: Path
) -> None:
    spark.sql(f"drop table if exists {TABLE}")
    remote = f"sc://{spark.client._builder.endpoint}"
    command = [sys.executable, "-m", "tests.integration.spark.killing", remote, str(tmp_path), kind, when]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(tmp_path.rglob("commit.json"))) == 1
    run(spark, tmp_path, kind, 1)
    counts = Counter(found(spark, tmp_path, kind))
    assert counts.keys() == set(range(ROWS))
    counts[0] -= 1  # of the second run
    times = {1} if kind == "function" else {2} if when == "after" else {1, 2}
    assert set(counts.values()) <= times
    assert list(tmp_path.rglob("_staging")) == []
    spark.sql(f"drop table if exists {TABLE}")
