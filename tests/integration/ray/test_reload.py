"""Hot reload on Ray: every worker process gets the new code, and so does what replaces a worker or the coordinator."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import events
from tests.integration.job_module import MakeModule
from tests.integration.ray.chaos import PATIENCE_S, until
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.leftovers import pids
from tests.lives import check_lives

MODULE = """
import os
import time

import malstrom_py as mp
from malstrom_py import sinks, sources


def numbers(part, start):
    while True:
        yield start
        start += 1
        if start % 20 == 0:
            time.sleep(0.01)


def total(key, number, seen):
    return {"key": key, "seen": seen + 1, "by": 1, "pid": os.getpid()}, seen + 1


def key_of(number):
    return number % 50


def make(folder):
    job = mp.Job("docs-ray-reload")
    keyed = job.source("in", sources.Generator(numbers, parts=2)).key_by("key", key_of)
    keyed.stateful_map("total", total, default=int).sink("out", sinks.Files(folder, format="json"))
    return job
"""


def versions(folder: Path) -> tuple[list[set[int]], set[int]]:
    """Check that each record was processed once, in order; return the versions by key, and the processes of the new."""
    seen, by = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    rows = sorted(rows_in(folder), key=lambda row: row["seen"])
    for row in rows:
        seen[row["key"]].append(row["seen"])
        by[row["key"]].append(row["by"])
    assert all(values == list(range(1, len(values) + 1)) for values in seen.values())
    assert all(values == sorted(values) for values in by.values())
    return [set(values) for values in by.values()], {row["pid"] for row in rows if row["by"] == 2}


@pytest.mark.long
def test_all_processes_have_the_new_code_and_so_have_those_that_replace_them(
    tidy: None, job_module: MakeModule, tmp_path: Path
) -> None:
    shop = job_module(MODULE)
    runtime = mp.RayRuntime(
        2,
        num_cpus=0.2,
        snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5),
        runtime_env={"env_vars": {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}},
    )
    handle = runtime.start(shop.module.make(tmp_path / "out"))
    handle.snapshot()
    shop.write(('"by": 1', "1 / 0: 1"))
    with pytest.raises(mp.ReloadError, match="its new code has failed"):
        handle.reload("total", probation_s=5)
    shop.write(('"by": 1', '"by": 2'))
    report = handle.reload("total", probation_s=0.5)
    print(report)
    handle.snapshot()
    shop.path.write_text("(")  # no process reads the file from now on
    os.kill(pids("WorkerActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 1 and handle.status().phase == "steady", handle.status)
    handle.rescale(3)
    handle.snapshot()
    os.kill(pids("CoordinatorActor")[0], signal.SIGKILL)
    until(lambda: handle.status().restarts == 2 and handle.status().phase == "steady", handle.status)
    handle.snapshot()
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    by_key, processes = versions(tmp_path / "out")
    assert all(by == {1, 2} for by in by_key)
    assert len(processes) >= 4  # two at first, one for the lost one, a joiner
    seen = list(handle.events())
    replaced = events.NodeFailed("coordinator", "the coordinator died; another one replaces it")
    check_lives(seen[seen.index(replaced) :], sources=["in"])
