"""Local and simulated workers keep the contract of a `WorkerGroup`. `tests/integration/ray` has Ray's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.builder.plan import Plan
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.worker_group import StartGroup
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_job import SimulatedJob
from malstrom_py.workers.simulator.simulated_workers import SimulatedWorkers
from malstrom_py.workers.transport.messages import Build
from tests.unit.workers.coordinator.worker_groups import CONTRACT, Grouped, counted


def local(plan: Plan) -> Grouped:
    return Grouped(LocalWorkers(plan, VirtualClock(), mp.Batching()), plan)


def simulated(plan: Plan) -> Grouped:
    group = SimulatedWorkers(SimulatedJob(plan, RandomSchedule(1), VirtualClock(), checks=True))

    def turn() -> None:
        for way in list(group.ways):
            group.arrive(way)

    return Grouped(group, plan, turn)


@pytest.mark.parametrize(("check", "sink"), CONTRACT.items())
@pytest.mark.parametrize("made", [local, simulated])
def test_a_group_keeps_the_contract(
    made: Callable[[Plan], Grouped], check: Callable[[Grouped], None], sink: Callable[[], Any]
) -> None:
    check(made(counted(sink())))


def test_r1_joiners_are_built_from_the_old_table_as_no_members_and_connected_with_each_other() -> None:
    start = StartGroup((3, 4), members=(0, 1), table=(0, 1, 0, 1), version=5)
    built = [start.build(worker, incarnation=2) for worker in start.workers]
    assert built == [Build(3, (0, 1), (0, 1, 0, 1), 5, 2, (4,)), Build(4, (0, 1), (0, 1, 0, 1), 5, 2, (3,))]
