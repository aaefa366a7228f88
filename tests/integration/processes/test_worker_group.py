"""Workers in processes of this machine keep the contract of a `WorkerGroup`, and report who is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.workers.processes.worker_process import ThisMachine
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import Wiring, WorkerSetup
from malstrom_py.workers.transport.base import JobSecret
from tests.unit.workers.coordinator.worker_groups import CONTRACT, Grouped, check_dead_worker_is_named, counted


def in_processes(plan: Plan) -> Grouped:
    setup = WorkerSetup(job=plan.job, batching=mp.Batching(), wiring=Wiring(JobSecret.new()), start_timeout_s=60.0)
    machine = ThisMachine()
    return Grouped(RemoteWorkers(setup, plan, SystemClock(), machine, WorkerProcesses(machine)), plan)


def pid_of_1(grouped: Grouped) -> int:
    group: Any = grouped.group
    return int(group._handles[1].process._pid)


@pytest.mark.parametrize(("check", "sink"), CONTRACT.items())
def test_a_group_keeps_the_contract(tidy: None, check: Callable[[Grouped], None], sink: Callable[[], Any]) -> None:
    check(in_processes(counted(sink())))


def test_a_worker_that_dies_is_named(tidy: None) -> None:
    grouped = in_processes(counted(sinks.Memory()))
    assert check_dead_worker_is_named(grouped, pid_of_1, ") was ended by SIGKILL") == 1
