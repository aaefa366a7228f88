"""A job of another process as a handle calls it: each method sends a command and converts the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from malstrom_py.errors import ControlError, MalstromError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.control.messages import (
    Accepted,
    Answer,
    Command,
    RescaleCommand,
    SnapshotCommand,
    SnapshotMade,
    StatusCommand,
    StopCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.job_status import JobStatus, RescaleReport
from malstrom_py.workers.reports.result import RunResult

A = TypeVar("A")


class RemoteJob(ABC):
    """Job ``name`` of another process. Subclasses define the transport of commands."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def ask(self, ask: Command, what: str) -> Answer:
        """Send a command and return its answer. ``what`` completes the error "cannot be ...: it has ended"."""

    def rescale(self, size: int, *, wait: bool, timeout_s: float) -> RescaleReport | None:
        """See `JobHandle.rescale`."""
        what = f"rescaled to {size}"
        ask = RescaleCommand(size, wait, timeout_s)
        if wait:
            return self._expect(RescaleReport, ask, what)
        self._expect(Accepted, ask, what)
        return None

    def save(self, uri: str | None, *, timeout_s: float) -> SnapshotId:
        """See `JobHandle.snapshot` and `JobHandle.savepoint`."""
        what = "saved in a snapshot" if uri is None else f"saved to {uri}"
        return SnapshotId(self._expect(SnapshotMade, SnapshotCommand(uri, timeout_s), what).id)

    def status(self, *, timeout_s: float) -> JobStatus:
        """See `JobHandle.status`."""
        return self._expect(JobStatus, StatusCommand(timeout_s), "asked for its status")

    def stop(self, *, drain: bool | None, wait: bool, timeout_s: float) -> SnapshotId | None:
        """See `JobHandle.stop`."""
        kinds: tuple[type[SnapshotMade | Accepted], ...] = (SnapshotMade, Accepted)
        answer = self._expect(kinds, StopCommand(drain, wait, timeout_s), "stopped")
        return SnapshotId(answer.id) if isinstance(answer, SnapshotMade) else None

    def wait(self, *, timeout_s: float | None) -> RunResult:
        """See `JobHandle.wait`."""
        return self._expect(RunResult, WaitCommand(timeout_s), "waited for")

    def _expect(self, kind: type[A] | tuple[type[A], ...], ask: Command, what: str) -> A:
        answer = self.ask(ask, what)
        if isinstance(answer, MalstromError):
            raise answer
        if not isinstance(answer, kind):
            raise ControlError(f"job {self.name!r} answered with {type(answer).__name__}", job=self.name)
        return answer
