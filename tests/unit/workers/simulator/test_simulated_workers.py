"""Simulated workers, decided on from outside."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator
from malstrom_py.workers.simulator.simulated_job import Queues, SimulatedJob


def counting() -> Plan:
    job = mp.Job("counting")
    numbers = job.source("numbers", sources.Memory(range(40), parts=2)).key_by("key", lambda n: n)
    numbers.count("n").sink("out", sinks.Memory())
    return job.plan()


def started(plan: Plan, incarnation: int, zombies: Queues) -> SimulatedCoordinator:
    batching, clock = mp.Batching(rows_max=1), VirtualClock()
    job = SimulatedJob(plan, RandomSchedule(1), clock, batching, incarnation=incarnation, zombies=zombies)
    coordinator = SimulatedCoordinator(job, workers=2)
    coordinator.commit.recover()
    coordinator.open()
    return coordinator


def test_f1_what_several_lost_runs_have_sent_all_comes_to_the_next_one() -> None:
    plan, zombies = counting(), Queues()
    for incarnation in (1, 2):
        coordinator = started(plan, incarnation, zombies)
        for worker in (0, 1, 0, 1):
            coordinator.work(worker)
        zombies = coordinator.on_its_way
        coordinator.close()
    assert {sent.incarnation for queue in zombies.values() for sent in queue} == {1, 2}
    coordinator = started(plan, 3, zombies)
    while coordinator.ways:
        coordinator.arrive(coordinator.ways[0])
    assert coordinator.group.rows_in("n") == 0, "no row counts"
    coordinator.close()
