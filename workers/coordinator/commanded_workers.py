"""The workers of a run as the commands to a running job see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from malstrom_py.errors import MalstromError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.job_status import Moving, SnapshotStatus
from malstrom_py.workers.reports.taps import TapStep

SnapshotDone = Callable[[SnapshotId | MalstromError], None]
"""A callback that the thread of the run calls once: with the id of the committed snapshot, or with the error."""


class SetsParameters(Protocol):
    """The snapshots of a run, with which the values of parameters are stored."""

    def set_parameter(self, name: str, value: object) -> Any:
        """Let parameter ``name`` have ``value`` from the last snapshot of the run on; return what is stored."""


class CommandedWorkers(Protocol):
    """The interface of the workers of a run for the commands."""

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def phase(self) -> str: ...

    @property
    def moving(self) -> Moving | None: ...

    @property
    def suspended(self) -> bool: ...

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """The status of the snapshots; None if the job runs without."""

    def rescale(self, size: int | None, done: Done) -> None: ...

    def snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Make a snapshot whose barrier is injected from now on, and with ``copy_to`` a copy of it there."""

    def tap(self, order: TapStep) -> None: ...

    @property
    def snapshotting(self) -> SetsParameters | None: ...

    def drain(self) -> None: ...

    def suspend(self) -> None:
        """Stop every worker after the data in flight; with snapshots, after a last snapshot is committed."""
