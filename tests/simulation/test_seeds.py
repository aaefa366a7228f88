"""Random jobs on random schedules, by seed. ``SEEDS=20000`` in the environment runs more than CI does."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.simulation.hits import HARD_CASES, never_met
from tests.simulation.jobs import draw
from tests.simulation.runs import run
from tests.simulation.soak import Report, run_seeds
from tests.tree import ROOT

SEEDS = int(os.environ.get("SEEDS", "3000"))


@pytest.mark.timeout(200 + SEEDS // 2)
def test_seeds_end_without_a_violation_and_meet_every_hard_case(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_seeds(0, SEEDS)
    with capsys.disabled():
        print(f"\n{SEEDS:,} seeds of real jobs\n{report}")
    assert not report.failures, str(report)
    assert not never_met(report.hits), str(report)


def test_a_failure_prints_the_command_that_replays_it() -> None:
    assert "python -m tests.simulation.replay 17" in str(Report(failures={17: "lost"}))


def test_a_hard_case_that_was_never_met_is_told() -> None:
    assert never_met(dict.fromkeys(HARD_CASES[1:], 1)) == [HARD_CASES[0]]


def replayed(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation.replay", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


STEADY = [seed for seed in range(100, 110) if draw(random.Random(seed)).is_steady]


@pytest.mark.parametrize("seed", STEADY[:4])
def test_the_same_seed_has_the_same_trace_in_every_process(seed: int) -> None:
    trace = run(seed)[1].trace
    assert trace in replayed(seed, "0")
    assert trace in replayed(seed, "12345")


def test_other_seeds_have_other_traces() -> None:
    assert len({run(seed)[1].trace for seed in range(20)}) == 20
