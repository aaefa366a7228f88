"""The oracle sees every wrong protocol in its recorded run; `make mutants` searches again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.coordinator.machine import CoordinatorMachine
from malstrom_py.workers.engine.state_transfer import StateTransfer
from tests.simulation.jobs.runs import run
from tests.simulation.jobs.wrong_protocols import WRONG, WrongProtocol, by_detours, timers_unseen


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_catches(name: str) -> None:
    said = WRONG[name].caught(WRONG[name].seed)
    assert said is not None, f'search again: python -m tests.simulation.jobs.wrong_protocols "{name}"'


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.ahead])
def test_the_right_protocol_passes_the_same_run_with_state_ahead(name: str) -> None:
    assert WRONG[name]._replace(changes=()).caught(WRONG[name].seed) is None


def test_r4_a_job_whose_slots_move_on_in_the_same_rescale_is_right() -> None:
    for seed in range(10):
        with WrongProtocol(((CoordinatorMachine, "__init__", by_detours),)).done():
            run(seed)


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


def keyed_in_two_ways(seed: int) -> dict[str, list[int]]:
    """Counts of two streams with different partitioners, whose dead letters are one stream: one region with both."""
    job, outs = mp.Job("two-ways"), {name: sinks.Memory() for name in ("hash", "index", "letters")}
    letters = []
    for name, partitioner in (("hash", partitioners.stable_hash), ("index", partitioners.index)):
        numbers = job.source(name, sources.Memory(range(40))).key_by(
            f"key-{name}", lambda n: n % 5, partitioner=partitioner
        )
        numbers.count(f"count-{name}").map(f"risky-{name}", risky, on_error="dead-letter").sink(
            f"out-{name}", outs[name]
        )
        letters.append(job.dead_letters(f"risky-{name}"))
    letters[0].union("both", letters[1]).sink("out-letters", outs["letters"])
    mp.Simulation(workers=2, seed=seed, rescales=2, crashes=0).run(job)
    return {name: sorted(out.items) for name, out in outs.items() if name != "letters"}


def risky(count: int) -> int:
    if count == 3:
        raise ValueError("three")
    return count


def first_group_only(right: Callable[..., Any]) -> Callable[..., Any]:
    """A parcel is installed in the steps of one partitioner only."""

    def install(transfer: StateTransfer, parcel: Any) -> None:
        all_groups, transfer._keyed = transfer._keyed, transfer._keyed[:1]
        try:
            right(transfer, parcel)
        finally:
            transfer._keyed = all_groups

    return install


def test_r5_a_region_with_two_partitioners_moves_the_state_of_both() -> None:
    right = dict.fromkeys(("hash", "index"), sorted([1, 2, 4, 5, 6, 7, 8] * 5))
    assert [keyed_in_two_ways(seed) for seed in range(8)] == [right] * 8
    with patch.object(StateTransfer, "install", first_group_only(StateTransfer.install)):
        assert any(keyed_in_two_ways(seed) != right for seed in range(8))


def test_every_rule_that_jobs_can_break_is_broken_by_one() -> None:
    broken = {match[0] for name in WRONG if (match := re.match(r"[A-Z]\d+", name))}
    assert broken >= {"F2", "S1", "S2", "S3", "T2", "T3", "T4", "R12", "R13", *(f"R{number}" for number in range(2, 9))}
