"""When a worker or the coordinator dies, the job ends with one error that names it and the cause, and cleans up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.errors import MalstromError, OperatorError, PeerError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo
from tests.integration.ray.leftovers import PATIENCE_S, WITHIN_S, pids, until
from tests.integration.ray.traffic import Attendance, Paced, Roll, Sent, Tour, check_counts, traffic

RUNTIME = mp.RayRuntime(2, num_cpus=0.2)


def error_of(handle: mp.JobHandle) -> MalstromError:
    """Wait until the job has failed, and return its error."""
    with pytest.raises(MalstromError) as caught:
        handle.wait(timeout_s=WITHIN_S)
    with pytest.raises(mp.JobEnded):
        handle.rescale(3)
    status = handle.status()
    assert status.state == "failed"
    assert status.error == str(caught.value)
    return caught.value


def rescale_in_background(handle: mp.JobHandle, size: int) -> tuple[threading.Thread, list[MalstromError]]:
    """Request a rescale in a thread; return the thread and the list of its errors."""
    errors: list[MalstromError] = []

    def rescale() -> None:
        try:
            handle.rescale(size)
        except MalstromError as error:
            errors.append(error)

    thread = threading.Thread(target=rescale)
    thread.start()
    return thread, errors


def again(attendance: Attendance) -> None:
    """Check that the name is free: start another job of this name, and stop it."""
    handle = RUNTIME.start(traffic("mortal", sinks.Memory(), attendance))
    Tour(handle, attendance).stay(2)
    handle.stop()


def test_s6_a_worker_is_killed(out: sinks.Memory, attendance: Attendance) -> None:
    handle = RUNTIME.start(traffic("mortal", out, attendance))
    Tour(handle, attendance).stay(2)
    worker = 1
    os.kill(attendance.pid(worker), signal.SIGKILL)
    error = error_of(handle)
    assert isinstance(error, PeerError)
    assert error.peer == worker
    assert f"worker {worker} died" in str(error)
    assert out.items == []


def test_s6_the_coordinator_is_killed(out: sinks.Memory, attendance: Attendance) -> None:
    handle = RUNTIME.start(traffic("mortal", out, attendance))
    Tour(handle, attendance).stay(2)
    os.kill(pids("CoordinatorActor")[0], signal.SIGKILL)
    error = error_of(handle)
    assert isinstance(error, PeerError)
    assert "the coordinator of job 'mortal' is gone" in str(error)
    again(attendance)


@pytest.mark.long(but=("1-1",))
@pytest.mark.parametrize(("size", "victim"), [(4, 0), (4, 2), (1, 1)])
def test_s6_a_worker_is_killed_in_the_middle_of_a_rescale(
    size: int, victim: int, out: sinks.Memory, attendance: Attendance
) -> None:
    handle = RUNTIME.start(traffic("mortal", out, attendance, rows=500, tick_s=0.0))
    Tour(handle, attendance).stay(2)
    rescaling, errors = rescale_in_background(handle, size)
    until(lambda: handle.status().phase == "moving")
    os.kill(attendance.pid(victim), signal.SIGKILL)
    error = error_of(handle)
    rescaling.join(PATIENCE_S)
    assert isinstance(error, PeerError)
    assert error.peer == victim
    assert isinstance(errors[0], mp.JobEnded)
    assert f"worker {victim} died" in str(errors[0])


class Detained(Roll):
    """A sink whose writers on the third and later workers do not open until ``pass_file`` exists."""

    def __init__(self, attendance: Attendance, pass_file: Path) -> None:
        super().__init__(attendance)
        self._pass_file = pass_file

    def build(self, worker: WorkerInfo) -> Roll:
        super().build(worker)
        if worker.worker > 1 and not self._pass_file.exists():
            time.sleep(3600.0)
        return self


@pytest.mark.long
def test_a_joiner_that_is_killed_while_it_opens_cancels_the_rescale_and_the_job_continues(
    tidy: None, attendance: Attendance, tmp_path: Path
) -> None:
    handle = RUNTIME.start(traffic("mortal", Detained(attendance, tmp_path / "pass"), attendance))
    tour = Tour(handle, attendance)
    tour.stay(2)
    rescaling, errors = rescale_in_background(handle, 3)
    until(lambda: attendance.pid(2) != 0)
    os.kill(attendance.pid(2), signal.SIGKILL)
    rescaling.join(PATIENCE_S)
    [error] = errors
    assert isinstance(error, PeerError)
    assert "worker 2 died" in str(error)
    (tmp_path / "pass").touch()
    tour.stay(2)
    tour.go(3, 2)
    handle.stop()
    check_counts(handle.wait())


class DiesIfIdle:
    """A sink whose writer, if it got no rows, kills its process in the pre-commit once ``folder`` has a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def open(self, worker: WorkerInfo) -> DiesIfIdle:
        return self

    def write(self, batch: Batch) -> None:
        self._written += len(batch)

    def pre_commit(self, context: CommitContext) -> bytes:
        if not self._written:
            until(lambda: any(is_staged(path) for path in self._folder.rglob("*")))
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    def close(self) -> None:
        """Do nothing."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Do nothing."""


def is_staged(path: Path) -> bool:
    """Return whether `sinks.Files` has pre-committed this file."""
    return path.suffix == ".json" and not path.name.startswith("open-")


def test_s6_a_worker_that_is_killed_in_its_pre_commit_leaves_nothing_of_the_others(tidy: None, tmp_path: Path) -> None:
    job, folder = mp.Job("mortal"), tmp_path / "out"
    rows = job.source("in", sources.Memory(range(100), parts=2)).key_by("one", lambda n: "key")
    rows.map("object", lambda n: {"n": n}).sink("files", sinks.Files(folder, format="json"))
    rows.sink("deadly", DiesIfIdle(folder))
    error = error_of(RUNTIME.start(job))
    assert isinstance(error, PeerError)
    assert error.peer in {0, 1}
    assert f"worker {error.peer} died" in str(error)
    assert list(folder.rglob("*")) == []


def test_the_error_has_the_exception_of_the_users_function_as_its_cause(
    out: sinks.Memory, tidy: None, attendance: Attendance
) -> None:
    def refuse(record: Sent) -> bool:
        if record.number == 2000 and record.part == 3:
            raise LookupError(f"no number {record.number}")
        return True

    job = mp.Job("mortal")
    source = job.source("numbers", Paced(attendance))
    source.filter("picky", refuse).key_by("by-key", lambda record: record.key).sink("out", out)
    handle = RUNTIME.start(job)
    error = error_of(handle)
    assert isinstance(error, OperatorError)
    assert error.step == "picky"
    assert isinstance(error.__cause__, LookupError)
    assert error.__cause__.args == ("no number 2000",)
    assert "refuse at" in str(error)
