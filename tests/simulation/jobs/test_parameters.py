"""A parameter changes at one cut: each row is processed by all steps with the value of its side of the cut, also
through crashes, stops and rescales; a job that resumes has the value that was set last.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.clock import VirtualClock
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.sources import Part
from malstrom_py.workers.simulator.random_schedule import RandomSchedule, ScheduledSnapshot
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator

DEFAULT = 1
ROWS, KEYS = 60, 5


class Numbers:
    """A part of `ROWS` numbers, each with the name of the part."""

    def __init__(self, part: str, position: int) -> None:
        self._part, self._position = part, position

    def poll(self, rows_max: int) -> list[tuple[str, int]]:
        start, self._position = self._position, min(ROWS, self._position + min(rows_max, 3))
        return [(self._part, number) for number in range(start, self._position)]

    def is_finished(self) -> bool:
        return self._position >= ROWS

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


class Parts:
    def list_parts(self) -> list[Part]:
        return [Part("a"), Part("b"), Part("c")]

    def build_part(self, part: Part, state: Any) -> Numbers:
        return Numbers(part, state or 0)


Row = tuple[str, int, int, int, int]
"""Part, number, the value before the exchange and after it, and the sum of the values of its key."""


def a_job(out: sinks.Memory) -> mp.Job:
    job = mp.Job("values")
    step = job.parameter("step", DEFAULT)

    def added(key: int, row: tuple[str, int, int], total: int | None) -> tuple[Row, int]:
        total = (total or 0) + step.value
        return (*row, step.value, total), total

    rows = job.source("in", Parts()).map("before", lambda row: (*row, step.value))
    rows.key_by("key", lambda row: row[1] % KEYS).stateful_map("after", added).sink("out", out)
    return job


def manifests_of(snapshots: mp.Snapshots) -> list[Manifest]:
    checkpointer = snapshots.checkpointer("values")
    return [checkpointer.load_manifest(made) for made in checkpointer.list_checkpoints()]


def value_of(part: str, number: int, made: Sequence[Manifest]) -> int:
    """Return the value of a row by the manifests: that of the last snapshot before it was read."""
    before = [one for one in made if one.sources["in"][part].position <= number]
    return int(before[-1].parameters.get("step", DEFAULT)) if before else DEFAULT


def check(out: sinks.Memory, made: Sequence[Manifest]) -> None:
    rows: list[Row] = out.items
    assert Counter(row[:2] for row in rows) == Counter((part, n) for part in "abc" for n in range(ROWS))
    for part, number, before, after, _ in rows:
        assert before == after == value_of(part, number, made), (part, number, before, after)
    for key in range(KEYS):
        of_key = [row for row in rows if row[1] % KEYS == key]
        totals = [row[4] for row in of_key]
        assert totals == sorted(totals)
        assert totals[-1] == sum(row[3] for row in of_key)


def simulated(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[sinks.Memory, list[Manifest], list[int]]:
    """Run the job of a seed, of which stops set the parameter. Return the values that were set, too."""
    chance, stopped, given = random.Random(f"values {seed}"), SimulatedCoordinator.stop, list[int]()

    def stop(self: SimulatedCoordinator) -> None:
        if chance.random() < 0.9:
            given.append(chance.randint(2, 9))
            assert self.snapshotting is not None
            self.snapshotting.set_parameter("step", given[-1])
        stopped(self)

    def wanted(self: RandomSchedule) -> list[ScheduledSnapshot]:
        whens = ("turn", "turn", "moving", "full", "quiet")
        some = (ScheduledSnapshot(chance.randint(0, 400), chance.choice(whens), chance.random() < 0.8) for _ in "abc")
        return sorted(some, key=lambda one: one.turn)

    monkeypatch.setattr(SimulatedCoordinator, "stop", stop)
    monkeypatch.setattr(RandomSchedule, "wanted", wanted)
    out = sinks.Memory()
    snapshots = mp.Snapshots(MemoryStore(), interval_s=chance.choice([None, 0.02]), keep=1_000)
    crashes = chance.choice([None, 1, 2])
    clock = VirtualClock()
    mp.Simulation(chance.randint(1, 3), seed=seed, crashes=crashes, clock=clock, snapshots=snapshots).run(a_job(out))
    return out, manifests_of(snapshots), given


def changes(made: Sequence[Manifest]) -> list[Mapping[str, Any]]:
    """Return the values in the order in which they were in force."""
    values = [one.parameters for one in made]
    return [now for before, now in zip([{}, *values], values, strict=False) if now != before]


def test_each_row_has_the_value_of_its_side_of_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = Counter[str]()
    for seed in range(40):
        with monkeypatch.context() as patch:
            out, made, given = simulated(seed, patch)
        check(out, made)
        in_force = [change["step"] for change in changes(made)]
        kept = iter(given)
        assert all(value in kept for value in in_force), "in their order; a crash may come before the cut"
        hits["set"] += len(in_force)
        hits["seen on both sides"] += len({row[3] for row in out.items}) > 1
        hits["lost before its cut"] += len(given) > len(in_force)
    assert min(hits.values()) >= 5, hits
    assert len(hits) == 3, hits


def test_a_value_on_the_wrong_side_of_the_cut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    out, made, _ = next(run for run in (simulated(seed, monkeypatch) for seed in range(40)) if has_both(run[0]))
    check(out, made)
    with pytest.raises(AssertionError):
        check(out, [one for one in made if not one.parameters])
    # As if the cut had been at the snapshot after it.
    first = next(index for index, one in enumerate(made) if one.parameters)
    late = [replace(one, parameters={}) if index == first else one for index, one in enumerate(made)]
    with pytest.raises(AssertionError):
        check(out, late)


def has_both(out: sinks.Memory) -> bool:
    return len({row[3] for row in out.items}) > 1
