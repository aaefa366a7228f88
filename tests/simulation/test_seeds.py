"""Random jobs on random schedules, by seed: a few. `make seeds` runs those of CI, `make soak` any number."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

from tests.simulation.hits import HARD_CASES, never_met
from tests.simulation.jobs import draw
from tests.simulation.runs import run
from tests.simulation.soak import Report, main, run_seeds
from tests.tree import ROOT


def test_seeds_end_without_a_violation() -> None:
    report = run_seeds(0, 60, batch=30)
    assert not report.failures, str(report)
    assert report.hits


def test_what_was_never_met_fails_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "0", "--seeds", "2", "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "\nnever met: " in said
    assert re.search(r"^2 seeds of .* from 0 on, \d+ s$", said, flags=re.MULTILINE)


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
