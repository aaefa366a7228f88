"""A start on Ray: what is done before the job begins, in which order; and what a failed start leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import JobRunning, SinkError
from malstrom_py.sinks import CommitContext, SnapshotId, WorkerInfo
from malstrom_py.workers.ray import runtime as starting
from tests.integration.ray.leftovers import actors, until
from tests.integration.ray.traffic import Attendance, traffic

pytestmark = pytest.mark.usefixtures("tidy")
RUNTIME = mp.RayRuntime(1, num_cpus=0.2)


class Told:
    """What was done, wherever it was, in a file; what was done in this very process is marked by ``here``."""

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
    """Notes when it is pinned and unpinned. ``after`` is called, in this process, after its pin."""

    def __init__(self, told: Told, behind: Callable[[], None] | None = None) -> None:
        super().__init__([1, 2, 3])
        self._told = told
        self._behind = behind

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_behind": None}

    def pin(self, job: str, record: object = None) -> None:
        self._told.note("pin")
        if self._behind is not None:
            self._behind()

    def pin_record(self) -> object:
        return None

    def unpin(self, *, keep: bool = False) -> None:
        self._told.note("unpin")


class Kept:
    """A sink that keeps nothing, and notes when it recovers; ``refuses``: it cannot, in the program that starts it."""

    def __init__(self, told: Told, *, commits_in_driver: bool, refuses: bool = False) -> None:
        self._told = told
        self.commits_in_driver = commits_in_driver
        self.refuses = refuses

    def open(self, worker: WorkerInfo) -> Kept:
        return self

    def write(self, batch: object) -> None:
        """Its snapshots are not requested again."""

    def pre_commit(self, context: CommitContext) -> bytes:
        return b""

    def close(self) -> None:
        """There is nothing to close."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Nothing was written."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Nothing was written."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._told.note("recover")
        if self.refuses:
            raise SinkError("there is such a table already")


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "noted")


def job_of(name: str, source: Held, sink: Kept | sinks.Memory) -> mp.Job:
    job = mp.Job(name)
    job.source("in", source).sink("out", sink)
    return job


@pytest.mark.parametrize("commits_in_driver", [True, False], ids=["here", "coordinator"])
def test_what_a_sink_left_half_done_is_finished_before_a_source_is_pinned(told: Told, commits_in_driver: bool) -> None:
    RUNTIME.run(job_of("ordered", Held(told), Kept(told, commits_in_driver=commits_in_driver)))
    assert told.all[:2] == ["recover here", "pin here"]
    # The coordinator does the same again for its part.
    assert told.all[2:3] == (["pin"] if commits_in_driver else ["recover"])
    assert told.all.count("recover here") == told.all.count("unpin here") == 1


def test_a_start_that_a_sink_refuses_leaves_nothing_and_its_name_is_free(told: Told) -> None:
    job = job_of("refused", Held(told), sink := Kept(told, commits_in_driver=True, refuses=True))
    for _ in range(2):
        with pytest.raises(SinkError, match="'out' could not be prepared: there is such a table already"):
            RUNTIME.start(job)
        assert actors() == []
    assert told.all == ["recover here"] * 2
    sink.refuses = False
    assert RUNTIME.run(job).read == 3


def test_a_name_that_is_taken_is_told_before_anything_is_done(
    told: Told, tmp_path: Path, attendance: Attendance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "NAME_S", 1.0)
    (tmp_path / "here").mkdir()
    running = [
        mp.InProcess().start(traffic("taken-here", sinks.Memory(), Attendance(tmp_path / "here"))),
        RUNTIME.start(traffic("taken-on-ray", sinks.Memory(), attendance)),
    ]
    for handle in running:
        with pytest.raises(JobRunning, match=f"'{handle.name}' runs already"):
            RUNTIME.start(job_of(handle.name, Held(told), Kept(told, commits_in_driver=True)))
    assert told.all == []
    for handle in running:
        handle.stop(drain=False)


def test_ctrl_c_while_the_coordinator_comes_up_leaves_nothing_and_the_name_is_free(told: Told) -> None:
    def press() -> None:
        until(lambda: bool(actors()))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        RUNTIME.start(job_of("pressed", Held(told, thread.start), sinks.Memory()))
    thread.join()
    until(lambda: not actors())
    assert told.all == ["pin here", "unpin here"]
    assert RUNTIME.run(job_of("pressed", Held(told), sinks.Memory())).read == 3
