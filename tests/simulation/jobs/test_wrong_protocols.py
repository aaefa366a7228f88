"""The oracle sees every wrong protocol in its recorded run; `make mutants` searches again."""

from __future__ import annotations

import re
from functools import partial
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.coordinator.machine import CoordinatorMachine
from malstrom_py.workers.engine.idle_sources import IdleSource
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import Head, Layout, Stage, Timing, Way
from tests.simulation.jobs.restoring import until
from tests.simulation.jobs.runs import run
from tests.simulation.jobs.verdicts import Violation
from tests.simulation.jobs.wrong_protocols import WRONG, WrongProtocol, by_detours, nothing, timers_unseen


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


def have_reached(driven: Driven, time: int) -> bool:
    """Whether the stage is at ``time`` on both workers."""
    frontiers = driven._case.seen.frontiers
    return all(frontiers.get(("a-in", worker), [-1])[-1] >= time for worker in (0, 1))


def epochs_pass_an_idle_worker() -> None:
    """One worker reads, and the other one has nothing to read for ever: windows must fire on both."""
    fed = Fed("s", parts={"0": (), "1": ()})
    driven = Driven(LAYOUT, {"s": fed}, Steered(1, tick=0.05), workers=2, slots=16, batching=mp.Batching())
    for time in range(40):
        fed.feed("0", time % 5, time)
    for rows in (40, 80):
        reached = rows - 1 - BOUND - 1
        until(driven, partial(have_reached, driven, reached))
        for time in range(40, 80) if rows == 40 else ():
            fed.feed("0", time % 5, time)
    driven.end()


def test_t2_an_idle_worker_follows_or_windows_never_fire() -> None:
    epochs_pass_an_idle_worker()
    with patch.object(IdleSource, "follow", nothing(IdleSource.follow)), pytest.raises(Violation, match="P8"):
        epochs_pass_an_idle_worker()


class Alarm(mp.KeyedLogic[int, int, int, None]):
    """Keeps nothing but a timer for each key."""

    def on_data(self, message: mp.DataMessage[int, int], key_state: None, output: mp.Output[int, int]) -> None:
        output.set_timer(message.key, message.value + 5)

    def on_timer(self, key: int, time: int, key_state: None, output: mp.Output[int, int]) -> None:
        output.emit(key, time, time)


def alarms(seed: int) -> list[int]:
    """The alarms of a job that is rescaled; each number sets one."""
    job, out = mp.Job("alarms"), sinks.Memory()
    times = job.source("times", sources.Memory(range(30))).assign_timestamps("at", lambda time: time)
    on_time, _ = times.generate_epochs("epochs", mp.limit_out_of_orderness(2))
    on_time.key_by("key", lambda time: time).stateful_op("alarm", Alarm()).sink("out", out)
    mp.Simulation(workers=2, seed=seed, rescales=2, crashes=0).run(job)
    return sorted(out.items)


def test_r4_a_key_that_has_only_timers_moves() -> None:
    right = [time + 5 for time in range(30)]
    assert [alarms(seed) for seed in range(8)] == [right] * 8
    with patch.object(KeyedState, "interrogate", timers_unseen(KeyedState.interrogate)):
        assert any(alarms(seed) != right for seed in range(8))


def test_every_rule_that_jobs_can_break_is_broken_by_one() -> None:
    broken = {match[0] for name in WRONG if (match := re.match(r"[A-Z]\d+", name))}
    assert broken >= {"F2", "S1", "S2", "S3", "T2", "T3", "T4", *(f"R{number}" for number in range(2, 9))}
