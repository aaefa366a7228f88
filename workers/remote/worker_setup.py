"""The configuration of a job as the processes of its workers get it: settings, streams, and the format of the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from malstrom_py import logs
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error, redact
from malstrom_py.logs import LogSettings
from malstrom_py.state.memory import State
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.transport.base import JobSecret, Transport


@dataclass(frozen=True, slots=True)
class Wiring:
    """How streams are opened. ``host``: returns the address of this machine that the others reach; None: all workers
    are on one machine.
    """

    secret: JobSecret
    host: Callable[[], str] | None = None
    ports: tuple[int, int] | None = None

    def end(self, peer: int, *, incarnation: int) -> Transport:
        """Open the end of ``peer`` inside its process."""
        from malstrom_py.workers.transport.zeromq import ZeroMQTransport

        host = None if self.host is None else self.host()
        return ZeroMQTransport(peer, incarnation=incarnation, secret=self.secret, host=host, ports=self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """All that a worker of ``job`` needs beside its plan.

    ``snapshot_use``: how the job keeps snapshots, None without. ``incarnation``: the number of this start, for a job
    without snapshots. ``watched``: workers keep black boxes. ``logs``: the settings of the program that starts the job,
    None if it has none. ``redact_errors``: texts of other code's exceptions are hidden.
    """

    job: str
    batching: Batching
    wiring: Wiring
    start_timeout_s: float
    checks: bool = False
    state: State | None = None
    incarnation: int = 1
    snapshot_use: SnapshotUse | None = None
    watched: bool = False
    logs: LogSettings | None = None
    redact_errors: bool = False


def log_as(setup: WorkerSetup, worker: int | None = None) -> None:
    """Log under ``malstrom_py`` in this process as ``worker``, or as the coordinator, of the job of ``setup``.

    Without settings of the program, lines are text.
    """
    redact(setup.redact_errors)  # the process is of this job alone
    logger = logging.getLogger(logs.ROOT)
    given, level = setup.logs or logs.LogSettings(), logger.level
    incarnation = None if worker is None else setup.incarnation
    logger.handlers.clear()
    logs.attach(given, job=setup.job, worker=worker, incarnation=incarnation)
    if setup.logs is None and level != logging.NOTSET:  # set by a hook of the user
        logger.setLevel(level)


def in_other_processes(snapshot_use: SnapshotUse | None, runtime: str) -> SnapshotUse | None:
    """Return ``snapshot_use`` with an absolute path. `PlanError` if workers cannot be sent the checkpointer."""
    if snapshot_use is None:
        return None
    snapshots = snapshot_use.snapshots
    if not snapshots.is_in_store:
        import cloudpickle

        try:
            cloudpickle.dumps(snapshots)
        except Exception as error:
            raise PlanError(
                f"{runtime}: the checkpointer cannot be sent to workers in other processes "
                f"({describe_error(error)}): give mp.Snapshots(checkpointer=) a function of the job's name "
                f"that makes one there"
            ) from error
    if not isinstance(snapshots.uri, str | os.PathLike) or "://" in os.fspath(snapshots.uri):
        return snapshot_use
    return replace(snapshot_use, snapshots=replace(snapshots, uri=Path(snapshots.uri).absolute()))
