"""What can be asked of the workers of a run, and what each of these commands is answered with.

Rule: the workers are commanded by the thread that runs the job, between two steps; whoever asked holds a future.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from malstrom_py.errors import MalstromError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.job_status import SnapshotStatus
from malstrom_py.workers.rescale_report import Moving, RescaleReport
from malstrom_py.workers.rescales import Done

SnapshotDone = Callable[[SnapshotId | MalstromError], None]
"""Told once, by the thread of the run: the id of the snapshot once it is committed, or why there is none."""


class Commanded(Protocol):
    """The workers of a run, as they can be commanded by its own thread."""

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
        """How it stands with its snapshots; None if the job runs without."""
        ...

    def rescale(self, size: int, done: Done) -> None: ...

    def snapshot(self, done: SnapshotDone) -> None:
        """Make a snapshot whose barrier begins from now on; those that are asked for meanwhile may share one.

        `SnapshotError` if the job runs without.
        """
        ...

    def savepoint(self, uri: str, done: SnapshotDone) -> None:
        """The same, whole and into ``uri``, where no later snapshot needs or prunes it."""
        ...

    def drain(self) -> None: ...

    def suspend(self) -> None:
        """Have every worker stop behind what is on its way; with snapshots, once a last one is committed."""
        ...


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A rescale that was asked for: ``taken`` once the run has begun with it, ``done`` when it has ended."""

    size: int
    taken: Future[None]
    done: Future[RescaleReport]

    @property
    def what(self) -> str:
        """What the job is to be."""
        return f"rescaled to {self.size}"

    def refuse(self, error: MalstromError) -> None:
        """Answer with ``error``, as far as there is no answer yet."""
        refuse(error, self.taken, self.done)


@dataclass(frozen=True, slots=True)
class Saving:
    """A snapshot that was asked for: among those of the job, or as a savepoint to ``uri``; ``done`` has its id."""

    uri: str | None
    done: Future[SnapshotId]

    @property
    def what(self) -> str:
        """What the job is to be."""
        return "saved in a snapshot" if self.uri is None else f"saved to {self.uri}"

    def refuse(self, error: MalstromError) -> None:
        """Answer with ``error``, unless there is an answer."""
        refuse(error, self.done)


def future() -> Future[Any]:
    """One that nobody who waits for it can cancel."""
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()
    return made


def refuse(error: MalstromError, *futures: Future[Any]) -> None:
    """Answer those of ``futures`` with ``error`` that have no answer yet."""
    for one in futures:
        if not one.done():
            one.set_exception(error)
