"""The oracle sees every wrong protocol in its recorded run; `make mutants` searches again. What no seed shows is made."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py.workers.coordinator.machine import CoordinatorMachine
from malstrom_py.workers.engine.idle_sources import IdleSource
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import Head, Layout, Stage, Timing, Way
from tests.simulation.jobs.restoring import until
from tests.simulation.jobs.runs import run
from tests.simulation.jobs.verdicts import Violation
from tests.simulation.jobs.wrong_protocols import WRONG, WrongProtocol, by_detours, nothing


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_catches(name: str) -> None:
    said = WRONG[name].caught(WRONG[name].seed)
    assert said is not None, f'search again: python -m tests.simulation.jobs.wrong_protocols "{name}"'


def test_r4_a_job_whose_slots_move_on_in_the_same_rescale_is_right() -> None:
    for seed in range(10):
        with WrongProtocol(((CoordinatorMachine, "__init__", by_detours),)).done():
            run(seed)


BOUND = 4
LAYOUT = Layout(
    (Head("s", ("s",), Timing(BOUND, "ms", idle_s=0.05)),), (Stage("a", (Way("s"),), kind="windows", window=10),)
).finished()


def epochs_pass_an_idle_worker() -> None:
    """One worker reads, and the other one has nothing to read for ever: windows must fire on both."""
    fed = Fed("s", parts={"0": (), "1": ()})
    driven = Driven(LAYOUT, {"s": fed}, Steered(1, tick=0.05), workers=2, slots=16, batching=mp.Batching())
    for time in range(40):
        fed.feed("0", time % 5, time)
    for rows in (40, 80):
        reached = rows - 1 - BOUND - 1
        frontiers = driven._case.seen.frontiers
        until(driven, lambda at=reached: all(frontiers.get(("a-in", w), [-1])[-1] >= at for w in (0, 1)))
        for time in range(40, 80) if rows == 40 else ():
            fed.feed("0", time % 5, time)
    driven.end()


def test_t2_an_idle_worker_follows_or_windows_never_fire() -> None:
    epochs_pass_an_idle_worker()
    with patch.object(IdleSource, "follow", nothing(IdleSource.follow)), pytest.raises(Violation, match="P8"):
        epochs_pass_an_idle_worker()


def test_every_rule_that_jobs_can_break_is_broken_by_one() -> None:
    broken = {match[0] for name in WRONG if (match := re.match(r"[A-Z]\d+", name))}
    assert broken >= {"F2", "S1", "S2", "S3", "T2", "T3", "T4", *(f"R{number}" for number in range(2, 9))}
