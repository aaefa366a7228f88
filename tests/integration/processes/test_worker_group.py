"""Workers in processes of this machine keep the contract of a `WorkerGroup`, and report who is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import malstrom_py as mp
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import PeerError
from malstrom_py.workers.processes.worker_process import ThisMachine
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import Wiring, WorkerSetup
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.messages import Start
from tests.unit.workers.coordinator.worker_groups import (
    CHECKS,
    Grouped,
    Refusing,
    check_failed_start_is_an_error,
    counted,
    make_counted,
)


def in_processes(plan: Plan) -> Grouped:
    setup = WorkerSetup(job=plan.job, batching=mp.Batching(), wiring=Wiring(JobSecret.new()), start_timeout_s=60.0)
    machine = ThisMachine()
    return Grouped(RemoteWorkers(setup, plan, SystemClock(), machine, WorkerProcesses(machine)), plan)


@pytest.mark.parametrize("check", CHECKS)
def test_a_group_keeps_the_contract(check: Callable[[Grouped], None]) -> None:
    check(in_processes(make_counted()))


def test_a_start_that_fails_is_an_error() -> None:
    check_failed_start_is_an_error(in_processes(counted(Refusing())))


def test_a_worker_that_dies_is_named() -> None:
    grouped = in_processes(make_counted()).opened(0, 1)
    grouped.group.send(0, Start())
    assert isinstance(grouped.group, RemoteWorkers)
    killed = grouped.group._handles[1].process._pid  # type: ignore[attr-defined]
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(PeerError, match=r"worker 1 died") as caught:
        grouped.until(lambda: False)
    assert f"(pid: {killed}) was ended by SIGKILL" in str(caught.value)
    assert caught.value.peer == 1
    grouped.group.close(failed=True)
