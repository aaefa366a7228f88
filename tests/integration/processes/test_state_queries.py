"""Queries for the state of a job of worker processes, while it is rescaled and its workers are killed.

Rule: counts add up to the rows that had been read at the snapshot that a query is as of.
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers
from tests.integration.processes.worker_pids import worker_pids

KEYS = 500


def counting(name: str) -> mp.Job:
    """A job that counts numbers without an end by key."""
    job = mp.Job(name)
    keyed = job.source("in", sources.Generator(endless_numbers, parts=3)).key_by("key", lambda number: number % KEYS)
    keyed.count("seen").filter("none", lambda seen: seen < 0).sink("out", sinks.Memory())
    return job


def read_at(folder: Path, job: str, snapshot: Any) -> int:
    """How many rows the job had read at a snapshot."""
    manifest = mp.Snapshots(folder).in_store(job).load_manifest(snapshot)
    return sum(image.position for image in manifest.sources["in"].values())


def check_sums(handle: mp.JobHandle, folder: Path, *, fresh: bool = False) -> str:
    """Ask for all counts, and compare their sum with the positions of the snapshot; return that."""
    state = handle.state("seen", fresh=fresh)
    counts = state.to_arrow()["value"].to_pylist()
    assert sum(counts) == read_at(folder, handle.name, state.snapshot)
    key = 7
    assert state.get(key) == next((row["value"] for row in state.to_arrow(keys=[key]).to_pylist()), None)
    return state.snapshot


@pytest.mark.parametrize("by_socket", [False, True], ids=["in the program", "by its socket"])
def test_a_query_is_exact_while_the_job_is_rescaled_and_loses_workers(
    by_socket: bool, tidy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime").mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    kept = tmp_path / "kept"
    snapshots = mp.Snapshots(kept, interval_s=0.1, keep=2)
    handle = mp.Processes(2, snapshots=snapshots).start(counting("asked"))
    asked = mp.JobHandle.attach("asked") if by_socket else handle
    seen = {check_sums(asked, kept, fresh=True)}
    for turn in count():
        if turn == 3:
            handle.rescale(3, wait=False)
        if turn == 8:
            os.kill(worker_pids()[0], signal.SIGKILL)
        if turn == 14:
            handle.rescale(1, wait=False)
        seen.add(check_sums(asked, kept, fresh=turn % 4 == 3))
        if turn > 20 and handle.status().restarts and handle.status().workers == 1:
            break
    assert len(seen) > 5
    handle.stop()


def test_changes_that_are_read_together_are_the_state(tidy: None, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    handle = mp.Processes(2, snapshots=mp.Snapshots(kept, interval_s=0.1, keep=100)).start(counting("followed"))
    state = handle.state("seen", fresh=True)
    known = dict(state.items())
    for turn, change in enumerate(handle.changes("seen", since=state.snapshot)):
        assert change.since is not None
        known |= {row["key"]: row["value"] for row in change.table.to_pylist()}
        assert not change.gone
        assert sum(known.values()) == read_at(kept, "followed", change.snapshot)
        if turn in {2, 8}:
            handle.rescale(3 if turn == 2 else 1, wait=False)
        if turn == 5:
            os.kill(worker_pids()[0], signal.SIGKILL)
        if turn > 10 and handle.status().restarts and handle.status().state == "running":
            handle.stop(wait=False)
    assert known == dict(handle.state("seen").items())
    assert handle.status().state == "stopped"
