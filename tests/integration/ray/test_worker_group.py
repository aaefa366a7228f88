"""Workers on Ray keep the contract of a `WorkerGroup`, and say who is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import malstrom_py as mp
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import PeerError
from malstrom_py.workers.ray.job_config import JobSetup, WorkerOptions
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_actor import ClusterMachines
from malstrom_py.workers.remote.packed_plan import pack_plan
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import Wiring
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.messages import Start
from tests.integration.ray.leftovers import pids
from tests.unit.workers.coordinator.worker_groups import (
    CHECKS,
    Grouped,
    Refusing,
    check_failed_start_is_an_error,
    counted,
    make_counted,
)


def on_ray(plan: Plan) -> Grouped:
    setup = JobSetup(
        job=plan.job,
        plan=pack_plan(plan),
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


@pytest.fixture
def made(tidy: None) -> Callable[[Plan], Grouped]:
    return on_ray


@pytest.mark.parametrize("check", CHECKS)
def test_a_group_keeps_the_contract(made: Callable[[Plan], Grouped], check: Callable[[Grouped], None]) -> None:
    check(made(make_counted()))


def test_a_start_that_fails_is_an_error(made: Callable[[Plan], Grouped]) -> None:
    check_failed_start_is_an_error(made(counted(Refusing())))


def test_a_worker_that_dies_is_named(made: Callable[[Plan], Grouped]) -> None:
    grouped = made(make_counted()).opened(0, 1)
    grouped.group.send(0, Start())
    killed = pids("WorkerActor")[1]
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(PeerError, match=r"worker [01] died") as caught:
        grouped.until(lambda: False)
    assert str(caught.value).startswith(f"worker {caught.value.peer} died")
    assert f"pid: {killed};" in str(caught.value)
    grouped.group.close(failed=True)
