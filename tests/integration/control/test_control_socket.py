"""Control sockets with clients that mean well: they find the job, command it, and hear how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    ControlError,
    JobEnded,
    JobNotFound,
    JobRunning,
    OperationInProgress,
    OperatorError,
)
from malstrom_py.workers.control.client import running_jobs
from tests.endless import endless_numbers
from tests.unit.workers.harness import PATIENCE_S, Gate


def test_an_attached_handle_does_what_the_own_one_does(handle: mp.JobHandle, out: sinks.Memory) -> None:
    attached = mp.JobHandle.attach("endless")
    assert attached.name == "endless"
    status = attached.status()
    assert (status.job, status.state, status.workers) == ("endless", "running", 2)
    report = attached.rescale(4, timeout_s=PATIENCE_S)
    assert report.members == (0, 1, 2, 3)
    assert report.slots > 0
    assert attached.rescale(3, wait=False) is None
    assert attached.rescale(3, timeout_s=PATIENCE_S).members == (0, 1, 2)
    with pytest.raises(OperationInProgress, match="'endless' has not ended within 0 s"):
        attached.wait(timeout_s=0)
    attached.stop(timeout_s=PATIENCE_S)
    assert handle.wait().written == len(out.items)
    assert all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


def test_files_are_the_users_own_and_gone_in_the_end(handle: mp.JobHandle, runtime: Path) -> None:
    assert runtime.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in runtime.iterdir()}
    assert files == {"endless.token": 0o600, "endless.sock": 0o600}
    assert running_jobs() == ["endless"]
    handle.stop(drain=False)
    assert list(runtime.iterdir()) == []
    assert running_jobs() == []


def test_files_are_gone_when_the_job_has_failed(runtime: Path) -> None:
    job = mp.Job("failing")
    job.source("in", sources.Memory([0])).map("inverse", lambda n: 1 // n).sink("out", sinks.Memory())
    with pytest.raises(OperatorError):
        mp.InProcess().start(job).wait(timeout_s=PATIENCE_S)
    assert list(runtime.iterdir()) == []
    with pytest.raises(OperatorError):
        mp.InProcess().run(job, control=True)
    assert list(runtime.iterdir()) == []


def test_nothing_is_there_without_control(runtime: Path, out: sinks.Memory) -> None:
    gate = Gate()
    job = mp.Job("hidden")
    job.source("in", sources.Memory([1])).map("gate", gate).sink("out", out)
    handle = mp.InProcess().start(job, control=False)
    assert gate.entered.wait(PATIENCE_S)
    assert list(runtime.iterdir()) == []
    with pytest.raises(JobNotFound, match="no job is running here"):
        mp.JobHandle.attach("hidden")
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


def test_the_end_is_told_to_all_who_wait(heard: threading.Semaphore) -> None:
    gate = Gate()
    job = mp.Job("gated")
    job.source("in", sources.Memory([1, 2])).map("gate", gate).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job)
    results: list[mp.RunResult] = []
    waiting = [mp.JobHandle.attach("gated") for _ in range(5)]
    threads = [threading.Thread(target=lambda one=one: results.append(one.wait())) for one in waiting]
    for thread in threads:
        thread.start()
    # Often enough for each waiting client to have heard from the server: they are notified in turn.
    assert all(heard.acquire(timeout=PATIENCE_S) for _ in range(50))
    with pytest.raises(OperationInProgress):
        waiting[0].rescale(2, timeout_s=0.01)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [handle.wait()] * 5
    with pytest.raises(JobEnded, match="cannot be rescaled to 2: it has ended, or its process has") as raised:
        waiting[0].rescale(2)
    assert raised.value.how == ""
    with pytest.raises(JobNotFound, match="no job 'gated' can be reached"):
        mp.JobHandle.attach("gated")


def test_those_who_wait_in_another_process_get_the_jobs_error_without_its_data(heard: threading.Semaphore) -> None:
    gate = Gate()
    job = mp.Job("secretive")
    texts = job.source("texts", sources.Memory(["secret-4711"]))
    texts.inspect("gate", gate).map("number", int).sink("out", sinks.Memory())  # type: ignore[arg-type]
    handle = mp.InProcess().start(job)
    attached, told = mp.JobHandle.attach("secretive"), []

    def wait() -> None:
        with pytest.raises(OperatorError, match="step 'number' failed") as raised:
            attached.wait()
        told.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    assert heard.acquire(timeout=PATIENCE_S)
    gate.opened.set()
    thread.join(PATIENCE_S)
    (error,) = told
    assert handle.status().state == "failed"
    assert (error.step, error.key) == ("number", None)
    assert "secret-4711" in str(error)


def test_a_stop_without_drain_from_elsewhere_tells_everyone(
    handle: mp.JobHandle, out: sinks.Memory, heard: threading.Semaphore
) -> None:
    attached, told = mp.JobHandle.attach("endless"), []

    def wait() -> None:
        with pytest.raises(JobEnded, match="without drain") as raised:
            mp.JobHandle.attach("endless").wait()
        told.append(raised.value.how)

    thread = threading.Thread(target=wait)
    thread.start()
    assert heard.acquire(timeout=PATIENCE_S)
    attached.stop(drain=False, timeout_s=PATIENCE_S)
    thread.join(PATIENCE_S)
    with pytest.raises(JobEnded, match="nothing was committed"):
        handle.wait()
    assert out.items == []


def test_a_name_is_taken_once_on_this_machine(handle: mp.JobHandle) -> None:
    job = mp.Job("endless")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    with pytest.raises(JobRunning, match=r"runs already in process \d+: .*malstrom stop endless"):
        mp.InProcess().run(job, control=True)
    with pytest.raises(JobRunning):
        mp.InProcess().start(job)
    assert mp.run(job).written == 1
    assert handle.status().state == "running"


def test_a_handle_on_an_earlier_run_does_not_command_the_next(handle: mp.JobHandle, runtime: Path) -> None:
    attached = mp.JobHandle.attach("endless")
    handle.stop(drain=False)
    job = mp.Job("endless")
    job.source("in", sources.Generator(endless_numbers)).sink("out", sinks.Memory())
    second = mp.InProcess().start(job)
    with pytest.raises(ControlError, match=r"not the token of job 'endless' .*restarted"):
        attached.stop(drain=False)
    assert second.status().state == "running"
    second.stop(drain=False)
