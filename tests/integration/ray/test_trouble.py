"""Failures on Ray: the error says what to do, and the job continues if it can."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    DeadlineError,
    OperationInProgress,
    OperatorError,
    PeerError,
    PlanError,
    SinkError,
)
from malstrom_py.sinks import CommitContext, SnapshotId, WorkerInfo
from tests.integration.ray.leftovers import PATIENCE_S, WITHIN_S, until
from tests.integration.ray.traffic import Attendance, Tour, check_order, check_rows, memory_rows, traffic

pytestmark = pytest.mark.usefixtures("tidy")
RUNTIME = mp.RayRuntime(1, num_cpus=0.2)


def small(name: str, out: sinks.Memory) -> mp.Job:
    job = mp.Job(name)
    job.source("in", sources.Memory([1, 2, 3])).key_by("key", lambda n: n).sink("out", out)
    return job


def test_a_finished_job_refuses_a_rescale_and_says_how_it_ended(out: sinks.Memory) -> None:
    handle = RUNTIME.start(small("finished", out))
    assert handle.wait(timeout_s=PATIENCE_S).written == 3
    with pytest.raises(mp.JobEnded, match="has finished, and its sinks have committed"):
        handle.rescale(2)
    status = handle.status()
    assert (status.state, status.error, status.counts.written) == ("finished", None, 3)
    assert handle.wait().written == 3
    handle.stop()
    with pytest.raises(mp.JobNotFound, match="no job 'finished'"):
        mp.JobHandle.attach("finished")


@pytest.mark.long
def test_impossible_sizes_are_refused_and_the_job_continues(out: sinks.Memory, attendance: Attendance) -> None:
    handle = RUNTIME.start(traffic("sized", out, attendance))
    tour = Tour(handle, attendance)
    tour.stay(1)
    for size in (0, -1):
        with pytest.raises(PlanError):
            handle.rescale(size)
    with pytest.raises(PlanError, match=r"21 workers of 0\.2 CPU each are more than the Ray cluster can place: .* 20"):
        handle.rescale(21)
    with pytest.raises(PlanError, match="more than the Ray cluster can place"):
        mp.RayRuntime(5).start(small("large", sinks.Memory()))
    assert handle.status().state == "running"
    tour.go(2)
    handle.stop()
    check_rows(memory_rows(out), handle.wait())


@pytest.mark.long
def test_a_rescale_whose_workers_do_not_start_in_time_is_cancelled(out: sinks.Memory, attendance: Attendance) -> None:
    runtime = mp.RayRuntime(1, num_cpus=1.5, autoscaling=True, start_timeout_s=4)
    handle = runtime.start(traffic("waiting", out, attendance))
    tour = Tour(handle, attendance)
    tour.stay(1)
    with pytest.raises(DeadlineError, match=r"worker 2 of job 'waiting' did not start within 4 s: see `ray status`"):
        handle.rescale(3)  # 4.5 of 4 CPUs
    tour.stay(1)
    tour.go(2, 1)
    handle.stop()
    check_rows(memory_rows(out), handle.wait())
    check_order(out.by_key)


def test_ports_that_are_all_taken(out: sinks.Memory) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = small("crowded", out)
        with pytest.raises(PlanError, match=rf"no port from {port} to {port} is free"):
            mp.RayRuntime(1, num_cpus=0.2, ports=(port, port)).run(job)


def test_a_timeout_of_a_wait_leaves_the_job_running(out: sinks.Memory, attendance: Attendance) -> None:
    handle = RUNTIME.start(traffic("slow", out, attendance))
    with pytest.raises(OperationInProgress, match=r"job 'slow' has not ended within 0\.1 s"):
        handle.wait(timeout_s=0.1)
    Tour(handle, attendance).stay(1)
    with pytest.raises(OperationInProgress, match=r"has not been rescaled within 0 s; the rescale continues"):
        handle.rescale(2, timeout_s=0)
    assert handle.status().state in {"rescaling", "running"}
    Tour(handle, attendance).stay(2)
    attached = mp.JobHandle.attach("slow")
    assert attached.status().workers == 2
    attached.stop()
    assert handle.wait(timeout_s=PATIENCE_S).written == len(out.items) > 0


@pytest.mark.long
def test_clients_that_wait_leave_room_for_others(out: sinks.Memory, attendance: Attendance) -> None:
    handle = RUNTIME.start(traffic("awaited", out, attendance))
    Tour(handle, attendance).stay(1)
    attached, results = mp.JobHandle.attach("awaited"), list[mp.RunResult]()
    clients = [
        threading.Thread(target=lambda: results.append(attached.wait(timeout_s=PATIENCE_S)), daemon=True)
        for _ in range(20)
    ]
    for client in clients:
        client.start()
        assert attached.status().workers == 1
    attached.stop(wait=False)
    for client in clients:
        client.join(PATIENCE_S)
    assert [result.written for result in results] == [handle.wait(timeout_s=PATIENCE_S).written] * len(clients)


def test_options_that_ray_does_not_take(out: sinks.Memory) -> None:
    job = mp.Job("options")
    job.source("in", sources.Memory(range(10))).sink("out", out)
    with pytest.raises(PlanError, match=r"Ray rejects these options: .*pip"):
        mp.RayRuntime(1, num_cpus=0.1, runtime_env={"pip": 3}).start(job)


def test_the_error_of_a_row_that_cannot_be_sent_to_the_driver_has_its_cause(out: sinks.Memory) -> None:
    job = mp.Job("locked-rows")
    job.source("in", sources.Memory(range(3))).map("lock", lambda n: threading.Lock()).sink("out", out)
    with pytest.raises(SinkError, match=r"'out' could not pre-commit: sinks\.Memory .*cannot be pickled") as caught:
        mp.RayRuntime(1, num_cpus=0.1).run(job)
    assert caught.value.__cause__ is not None
    assert out.items == []


class OnlyThere(Exception):
    """Cannot be brought from its process."""

    def __init__(self, text: str, *, why: str) -> None:
        super().__init__(text)


def refuse_by_value(number: int) -> int:
    raise ValueError(f"no {number}") if number == 4711 else OnlyThere(f"no {number}", why="no")


@pytest.mark.parametrize(("number", "redact"), [(4711, False), (4712, True)])
def test_the_text_of_a_users_exception_crosses_processes_with_its_line_unless_it_is_hidden(
    number: int, redact: bool
) -> None:
    job = mp.Job("texts")
    job.source("in", sources.Memory([number])).map("step", refuse_by_value).sink("out", sinks.Stdout())
    handle = mp.RayRuntime(1, num_cpus=0.2, redact_errors=redact).start(job)
    with pytest.raises(OperatorError) as caught:
        handle.wait(timeout_s=PATIENCE_S)
    error = caught.value
    line = refuse_by_value.__code__.co_firstlineno
    assert f"refuse_by_value at {__file__}:{line + 1}" in str(error)
    everything = f"{error!r} {error.__cause__!r} {error.__context__!r} {error.__notes__} {handle.status().error}"
    events = repr(list(handle.events()))
    assert (f"no {number}" in str(error), f"no {number}" in events) == (not redact, not redact)
    assert (str(number) in everything + events) is not redact


class SlowToLeave:
    """A sink with a slow pre-commit on all workers but the first; ``folder`` gets the process of each worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, worker: WorkerInfo) -> SlowToLeave:
        self.worker = worker.worker
        (self.folder / f"worker-{worker.worker}").write_text(str(os.getpid()))
        return self

    def write(self, batch: object) -> None:
        """Do nothing."""

    def pre_commit(self, context: CommitContext) -> bytes:
        if self.worker:
            time.sleep(60)
        return b""

    def close(self) -> None:
        """Do nothing."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Do nothing."""


@pytest.mark.long
def test_a_death_is_reported_while_a_leaver_takes_long(tidy: None, tmp_path: Path) -> None:
    job = mp.Job("slow-leaver")
    numbers = job.source("in", sources.Generator(lambda part, start: itertools.count(start), parts=2))
    numbers.key_by("by", lambda n: n % 10).count("count").sink("out", SlowToLeave(tmp_path))
    handle = mp.RayRuntime(2, num_cpus=0.1).start(job)
    until(lambda: handle.status().counts.read > 0)
    handle.rescale(1, wait=False)
    until(lambda: handle.status(timeout_s=0.2).age_s > 0.2)  # the coordinator waits for the leaver
    os.kill(int((tmp_path / "worker-0").read_text()), signal.SIGKILL)
    with pytest.raises(PeerError, match="worker 0 died"):
        handle.wait(timeout_s=WITHIN_S)
