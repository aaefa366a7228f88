"""A parameter of a job of worker processes: set, and then a worker, or the whole program, is killed.

Rule: what a row shows is checked against the snapshots: it has the value of the last one before it was read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.clock import SystemClock
from tests.endless import endless_numbers
from tests.integration.processes.worker_pids import worker_pids
from tests.tree import ROOT

PATIENCE_S = 60.0


def valued(name: str, folder: Path) -> mp.Job:
    """A job that writes each number with the values that it saw before and after an exchange."""
    job = mp.Job(name)
    step = job.parameter("step", 1)
    numbers = job.source("in", sources.Generator(endless_numbers, parts=1))
    some = numbers.filter("some", lambda number: number % 50 == 0)
    seen = some.map("before", lambda number: {"number": number, "before": step.value})
    keyed = seen.key_by("key", lambda row: row["number"] % 7)
    after = keyed.stateful_map("after", lambda key, row, n: ({**row, "after": step.value}, (n or 0) + 1))
    after.sink("out", sinks.Files(folder, format="json"))
    return job


def rows_in(folder: Path) -> list[dict[str, int]]:
    """Return the rows that are committed."""
    return [json.loads(line) for path in sorted(folder.glob("out-*.json")) for line in path.read_text().splitlines()]


def until(is_so: Callable[[], object]) -> None:
    clock = SystemClock()
    until_s = clock.monotonic_s() + PATIENCE_S
    while not is_so():
        assert clock.monotonic_s() < until_s
        clock.sleep_s(0.05)


def check_rows(rows: list[dict[str, int]], values: list[int]) -> None:
    """Each row has one value on both sides of the exchange, and the values follow each other."""
    assert all(row["before"] == row["after"] for row in rows)
    spans = [[row["number"] for row in rows if row["after"] == value] for value in values]
    assert sum(map(len, spans)) == len(rows)
    assert all(spans)
    assert len({row["number"] for row in rows}) == len(rows), "exactly once"


def test_a_value_outlives_a_rescale_and_the_death_of_a_worker(tidy: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=0.2, keep=1_000)
    handle = mp.Processes(2, snapshots=snapshots).start(valued("valued", out))
    until(lambda: rows_in(out))
    at = handle.set("step", 2)
    os.kill(worker_pids()[0], signal.SIGKILL)
    until(lambda: handle.status().restarts)
    handle.rescale(3)
    mp.JobHandle.attach("valued").set("step", 3)
    with pytest.raises(mp.PlanError, match="must be of the type of its default, int, got str"):
        mp.JobHandle.attach("valued").set("step", "4")
    handle.snapshot()
    until(lambda: any(row["after"] == 3 for row in rows_in(out)))
    handle.stop()
    check_rows(rows_in(out), [1, 2, 3])
    manifest = snapshots.checkpointer("valued").load_manifest(at)
    assert manifest.parameters == {"step": 2}
    assert [event for event in handle.events() if isinstance(event, events.ParameterChanged)] == [
        events.ParameterChanged("step", 2),
        events.ParameterChanged("step", 3),
    ]


PROGRAM = """
import sys
from pathlib import Path
import malstrom_py as mp
from tests.integration.processes.test_parameters import valued
if __name__ == "__main__":
    snapshots = mp.Snapshots(sys.argv[1] + "/kept", interval_s=0.2)
    mp.Processes(2, snapshots=snapshots).run(valued("killed", Path(sys.argv[1]) / "out"), control=True)
"""


def test_a_program_that_is_killed_after_a_set_resumes_with_the_value(tidy: None, tmp_path: Path) -> None:
    out, program = tmp_path / "out", tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), str(tmp_path)]
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: rows_in(out))
        mp.JobHandle.attach("killed").set("step", 2)
    finally:
        running.kill()
        running.wait()
    handle = mp.Processes(3, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.2)).start(valued("killed", out))
    before = len(rows_in(out))
    until(lambda: len(rows_in(out)) > before + 10)
    handle.stop()
    check_rows(rows_in(out), [1, 2])
