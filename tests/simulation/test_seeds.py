"""The program that runs seeds of the model and of whole jobs; `make soak` runs any number."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

import tests.simulation.commits.runs
import tests.simulation.jobs.runs
import tests.simulation.protocol_model.runs
from tests.simulation.soak import KINDS, Kind, Report, main
from tests.tree import ROOT

TRACES: dict[str, Callable[[int], str]] = {
    "model": lambda seed: tests.simulation.protocol_model.runs.run(seed).trace,
    "jobs": lambda seed: tests.simulation.jobs.runs.run(seed)[1].trace,
    "commits": lambda seed: tests.simulation.commits.runs.run(seed).trace,
}

ENRICHED = 118
"""A job whose snapshots have calls in flight."""
TIDYING = 26
"""It removes folders of several writers."""


@pytest.mark.parametrize("kind", TRACES)
def test_what_was_never_met_fails_the_program(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kind, "--first", "0", "--seeds", "2", "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "\nnever met: " in said
    assert re.search(r"^2 seeds of .* from 0 on, \d+ s$", said, flags=re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_report_tells_what_is_missing_and_how_to_replay_what_failed(kind: Kind) -> None:
    first, *others = kind.hard_cases
    report = Report(kind, Counter(others), {17: "lost"})
    assert report.never_met == [first]
    assert f"python -m {kind.replay} 17" in str(report)


def replayed(kind: str, seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", KINDS[kind].replay, str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.long("jobs-101", "model-11")
@pytest.mark.parametrize(
    ("kind", "seed"), [("model", 3), ("model", 11), ("jobs", ENRICHED), ("jobs", 101), ("commits", TIDYING)]
)
def test_the_same_seed_has_the_same_trace_in_every_process(kind: str, seed: int) -> None:
    trace = TRACES[kind](seed)
    assert trace in replayed(kind, seed, "0")
    assert trace in replayed(kind, seed, "12345")


@pytest.mark.long("commits")
@pytest.mark.parametrize("kind", TRACES)
def test_other_seeds_have_other_traces(kind: str) -> None:
    assert len({TRACES[kind](seed) for seed in range(10)}) == 10


def test_a_job_that_has_nothing_to_do_for_the_first_time_after_long_moves_still_reads_its_parts() -> None:
    tests.simulation.jobs.runs.run(922_104)


def test_what_a_zombie_has_sent_to_a_channel_that_a_leaver_drops_is_not_missed() -> None:
    assert tests.simulation.protocol_model.runs.run(32_000_096).steps > 300


def test_jobs_are_exact_with_their_state_on_disk() -> None:
    hits = Counter[str]()
    for seed in (*range(63_000, 63_030), 930_565):  # the last: an epoch waited for calls while a slot on disk left
        hits += tests.simulation.jobs.runs.run(seed, runtime=tests.simulation.jobs.runs.run_on_disk)[1].hits
    assert hits["state was put on disk and found there"] > 500


def test_a_disk_that_fails_is_a_worker_that_is_lost() -> None:
    hits = Counter[str]()
    for seed in range(64_000, 64_040):
        on_failing_disk = partial(tests.simulation.jobs.runs.run_on_disk, failures=2)
        hits += tests.simulation.jobs.runs.run(seed, runtime=on_failing_disk)[1].hits
    assert all(hits[f"disk failed: {what}"] for what in ("read", "write"))
