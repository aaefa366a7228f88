"""The start of a job on Ray: the order of its steps, and the clean-up after a start that fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import JobRunning, SinkError
from malstrom_py.sinks import CommitContext, SnapshotId, WorkerInfo
from malstrom_py.workers.ray import coordinator_start
from tests.integration.ray.leftovers import actors, until
from tests.integration.ray.traffic import Attendance, traffic

pytestmark = pytest.mark.usefixtures("tidy")
RUNTIME = mp.RayRuntime(1, num_cpus=0.2)


class Log:
    """A file of the steps in all processes; ``here`` marks the steps in this process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._here = os.getpid()

    def note(self, what: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{what}{' here' if os.getpid() == self._here else ''}\n")

    @property
    def all(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []


class Held(sources.Memory[int]):
    """A source that logs its pin and unpin. ``after`` is called in this process after the pin."""

    def __init__(self, log: Log, after: Callable[[], None] | None = None) -> None:
        super().__init__([1, 2, 3])
        self._log = log
        self._after = after

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_after": None}

    def pin(self, job: str, record: object = None) -> None:
        self._log.note("pin")
        if self._after is not None:
            self._after()

    def pin_record(self) -> object:
        return None

    def unpin(self, *, keep: bool = False) -> None:
        self._log.note("unpin")


class Kept:
    """A sink that ignores rows and logs its recovery. ``refuses``: its recovery fails in the driver."""

    def __init__(self, log: Log, *, commits_in_driver: bool, refuses: bool = False) -> None:
        self._log = log
        self.commits_in_driver = commits_in_driver
        self.refuses = refuses

    def open(self, worker: WorkerInfo) -> Kept:
        return self

    def write(self, batch: object) -> None:
        """Do nothing."""

    def pre_commit(self, context: CommitContext) -> bytes:
        return b""

    def close(self) -> None:
        """Do nothing."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._log.note("recover")
        if self.refuses:
            raise SinkError("there is such a table already")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def job_of(name: str, source: Held, sink: Kept | sinks.Memory) -> mp.Job:
    job = mp.Job(name)
    job.source("in", source).sink("out", sink)
    return job


@pytest.mark.parametrize("commits_in_driver", [True, False], ids=["here", "coordinator"])
def test_sinks_recover_before_a_source_is_pinned(log: Log, commits_in_driver: bool) -> None:
    RUNTIME.run(job_of("ordered", Held(log), Kept(log, commits_in_driver=commits_in_driver)))
    assert log.all[:2] == ["recover here", "pin here"]
    # The coordinator then does the same with its own sinks.
    assert log.all[2:3] == (["pin"] if commits_in_driver else ["recover"])
    assert log.all.count("recover here") == log.all.count("unpin here") == 1


def test_a_start_that_a_sink_refuses_cleans_up_and_its_name_is_free(log: Log) -> None:
    job = job_of("refused", Held(log), sink := Kept(log, commits_in_driver=True, refuses=True))
    for _ in range(2):
        with pytest.raises(SinkError, match="'out' could not be prepared: there is such a table already"):
            RUNTIME.start(job)
        assert actors() == []
    assert log.all == ["recover here"] * 2
    sink.refuses = False
    assert RUNTIME.run(job).read == 3


def test_a_taken_name_is_refused_before_the_start_does_anything(
    log: Log, tmp_path: Path, attendance: Attendance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_start, "NAME_S", 1.0)
    (tmp_path / "here").mkdir()
    running = [
        mp.InProcess().start(traffic("taken-here", sinks.Memory(), Attendance(tmp_path / "here"))),
        RUNTIME.start(traffic("taken-on-ray", sinks.Memory(), attendance)),
    ]
    for handle in running:
        with pytest.raises(JobRunning, match=f"'{handle.name}' runs already"):
            RUNTIME.start(job_of(handle.name, Held(log), Kept(log, commits_in_driver=True)))
    assert log.all == []
    for handle in running:
        handle.stop(drain=False)


def test_ctrl_c_while_the_coordinator_starts_cleans_up_and_the_name_is_free(log: Log) -> None:
    def press() -> None:
        until(lambda: bool(actors()))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        RUNTIME.start(job_of("pressed", Held(log, thread.start), sinks.Memory()))
    thread.join()
    until(lambda: not actors())
    assert log.all == ["pin here", "unpin here"]
    assert RUNTIME.run(job_of("pressed", Held(log), sinks.Memory())).read == 3


def test_a_program_may_shut_ray_down_as_soon_as_a_job_has_ended(tidy: None) -> None:
    """Ray ends a process in which a thread drops a reference during `ray.shutdown`."""
    from ray._private import worker

    here: Any = worker.global_worker  # its attributes have no types
    job = mp.Job("shut-down")
    job.source("in", sources.Memory([1, 2, 3])).sink("out", sinks.Memory())
    before = here.core_worker.get_all_reference_counts()
    RUNTIME.start(job).wait(timeout_s=60)
    assert here.core_worker.get_all_reference_counts() == before
