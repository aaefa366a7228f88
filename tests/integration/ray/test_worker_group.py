"""Workers on Ray keep the contract of a `WorkerGroup`, and say who is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.workers.ray.job_config import JobSetup, WorkerOptions
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_actor import ClusterMachines
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import Wiring
from malstrom_py.workers.transport.base import JobSecret
from tests.integration.ray.leftovers import pids
from tests.unit.workers.coordinator.worker_groups import CONTRACT, Grouped, check_dead_worker_is_named, counted


def on_ray(plan: Plan) -> Grouped:
    setup = JobSetup(
        job=plan.job,
        plan=b"",
        workers=2,
        batching=mp.Batching(),
        checks=False,
        wiring=Wiring(JobSecret.new()),
        options=WorkerOptions(num_cpus=0.1),
        start_timeout_s=60.0,
        autoscaling=False,
    )
    machines = ClusterMachines(setup, NodeWatch())
    return Grouped(RemoteWorkers(setup, plan, SystemClock(), machines, WorkerProcesses(machines)), plan)


@pytest.mark.parametrize(("check", "sink"), CONTRACT.items())
def test_a_group_keeps_the_contract(tidy: None, check: Callable[[Grouped], None], sink: Callable[[], Any]) -> None:
    check(on_ray(counted(sink())))


def test_a_worker_that_dies_is_named(tidy: None) -> None:
    check_dead_worker_is_named(on_ray(counted(sinks.Memory())), lambda _: pids("WorkerActor")[1], ";")
