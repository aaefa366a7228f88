"""Programs that are killed while Spark publishes for them, over Connect: each in a separate process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.killing import ROWS, SEEN, TABLE, found, run, target_of
from tests.tree import ROOT

pytestmark = pytest.mark.only_connect

DEADLINE_S = 240


def wait_until_nobody_writes(spark: Any, target: Path, kind: str) -> None:
    """A server ends what a client that was killed had asked it for, and two that write to a folder are in each
    other's way."""
    until_s = time.monotonic() + DEADLINE_S

    def is_written_to() -> bool:
        if (target / "_temporary").exists():
            return True
        return kind == "table" and any(target.glob("part-*")) and not spark.catalog.tableExists(TABLE)

    while is_written_to():
        assert time.monotonic() < until_s, f"Spark writes to {target} still"
        time.sleep(0.05)


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
    if when == "during":
        seen = (tmp_path / SEEN).read_text()
        assert seen == "transaction" if kind == "function" else "/_temporary/" in seen
    wait_until_nobody_writes(spark, target_of(spark, tmp_path, kind), kind)
    run(spark, tmp_path, kind, 1)
    counts = Counter(found(spark, tmp_path, kind))
    assert counts.keys() == set(range(ROWS))
    counts[0] -= 1  # of the second run
    times = {1} if kind == "function" else {2} if when == "after" else {1, 2}
    assert set(counts.values()) <= times
    left = [path.name for folder in tmp_path.rglob("_staging") for path in folder.rglob("*") if path.is_file()]
    assert all(name.endswith("~committed") for name in left)
    spark.sql(f"drop table if exists {TABLE}")
