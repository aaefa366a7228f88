"""A simulated crew, decided on from outside."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.simulator.coverage import Coverage
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator
from malstrom_py.workers.simulator.simulated_workers import Queues


def counting() -> Plan:
    job = mp.Job("counting")
    numbers = job.source("numbers", sources.Memory(range(40), parts=2)).key_by("key", lambda n: n)
    numbers.count("n").sink("out", sinks.Memory())
    return job.plan()


def started(plan: Plan, incarnation: int, zombies: Queues) -> SimulatedCoordinator:
    crew = SimulatedCoordinator(
        plan,
        RandomSchedule(1),
        Coverage(),
        workers=2,
        batching=mp.Batching(rows_max=1),
        clock=VirtualClock(),
        checks=False,
        incarnation=incarnation,
        rescales=[],
        crashes=[],
        zombies=zombies,
    )
    crew.commit.recover()
    crew.open()
    return crew


def test_f1_what_several_lost_runs_have_sent_all_comes_to_the_next_one() -> None:
    plan, zombies = counting(), Queues()
    for incarnation in (1, 2):
        crew = started(plan, incarnation, zombies)
        for worker in (0, 1, 0, 1):
            crew.work(worker)
        zombies = crew.on_its_way
        crew.close()
    assert {sent.incarnation for queue in zombies.values() for sent in queue} == {1, 2}
    crew = started(plan, 3, zombies)
    while crew.ways:
        crew.arrive(crew.ways[0])
    assert crew.group.rows_in("n") == 0, "no row counts"
    crew.close()
