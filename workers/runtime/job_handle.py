"""What a user holds of a job that runs: the same methods, whether it runs in this process or in another one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal, Protocol, overload

from malstrom_py.errors import JobNotFound, MalstromError, PlanError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.control.client import find
from malstrom_py.workers.control.messages import TIMEOUT_S_MAX
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.job_status import JobStatus, RescaleReport
from malstrom_py.workers.reports.result import RunResult

TIMEOUT_S: Final = 120.0

URI_MAX: Final = 2_000
"""How many characters where a savepoint is to be may take."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class RunningJob(Protocol):
    """A job in some process, behind a handle. Arguments have been checked."""

    @property
    def name(self) -> str: ...

    def rescale(self, size: int, *, wait: bool, timeout_s: float) -> RescaleReport | None: ...

    def save(self, uri: str | None, *, timeout_s: float) -> SnapshotId: ...

    def status(self, *, timeout_s: float) -> JobStatus: ...

    def stop(self, *, drain: bool | None, wait: bool, timeout_s: float) -> SnapshotId | None: ...

    def wait(self, *, timeout_s: float | None) -> RunResult: ...


class JobHandle:
    """A running job. Runtimes return one from ``start``; `attach` gives one on a job of another process.

    The methods may be called from any thread; functions of the job itself may ask for its status and stop it without
    waiting. Ctrl-C during one stops the waiting, never the job. A job that still runs when its program ends is stopped
    without drain.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs-handle"), sinks.Memory()
    >>> job.source("in", sources.Memory(range(3))).sink("out", out)
    >>> handle = mp.InProcess().start(job, control=False)
    >>> handle.wait(timeout_s=60).written, out.items, handle.status().state
    (3, [0, 1, 2], 'finished')
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._job.name

    @classmethod
    def attach(cls, name: str, *, address: str | None = None) -> JobHandle:
        """A handle on the job ``name``, wherever it was started.

        Without ``address`` that is a job of this machine, started by the same user with ``control``; or else one on the
        Ray cluster that this program is connected to, that ``RAY_ADDRESS`` names, or that runs on this machine. With
        it, a job on the Ray cluster there. What the methods raise has no ``__cause__``, which stays in the job's own
        process.

        Raises:
            JobNotFound: there is none; the message has the names of those that can be reached.
            ControlError: where it would be found is a folder that others can write to; or there is no such cluster.
        """
        try:
            return cls(_found(name, address))
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    @overload
    def rescale(self, workers: int, *, wait: Literal[True] = True, timeout_s: float = TIMEOUT_S) -> RescaleReport: ...

    @overload
    def rescale(self, workers: int, *, wait: bool, timeout_s: float = TIMEOUT_S) -> RescaleReport | None: ...

    def rescale(self, workers: int, *, wait: bool = True, timeout_s: float = TIMEOUT_S) -> RescaleReport | None:
        """Have the job run on ``workers`` workers, while it goes on.

        Blocks until that is done. If another request has overtaken this one meanwhile (the last one wins), it returns
        with that one, and ``superseded_by`` of the report is set. Without ``wait`` it returns None once the job has
        begun with it.

        Raises:
            PlanError: the job cannot run on so many; nothing has changed.
            OperationInProgress: it has taken longer than ``timeout_s``, and goes on.
            JobEnded: the job has, maybe meanwhile.
        """
        _checked(wait, "wait")
        timeout_s = _seconds(timeout_s)
        try:
            return self._job.rescale(workers, wait=wait, timeout_s=timeout_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def snapshot(self, *, timeout_s: float = TIMEOUT_S) -> SnapshotId:
        """Have the job make a snapshot, besides those that it makes by interval: its id, once it is committed.

        Raises:
            SnapshotError: the job runs without ``snapshots=``, or the snapshot could not be made.
            OperationInProgress: it has taken longer than ``timeout_s``, and goes on; or the job is being stopped.
            JobEnded: the job has, maybe meanwhile.
        """
        return self._saved(None, timeout_s)

    def savepoint(self, uri: str, *, timeout_s: float = TIMEOUT_S) -> SnapshotId:
        """Have the job make a snapshot that stands alone, in the store ``uri``, and is never pruned: its id.

        A job goes on from it that is started with ``snapshots=mp.Snapshots(uri)``. ``uri`` is as `Snapshots` takes it;
        a path is one of the machine, or a folder that all machines share. For an object store of the same kind as that
        of the job's snapshots the same ``options`` count.

        Raises:
            SnapshotError: the job runs without ``snapshots=``, or the savepoint could not be made.
            OperationInProgress: it has taken longer than ``timeout_s``, and goes on; or the job is being stopped, or
                makes another savepoint.
            JobEnded: the job has, maybe meanwhile.
        """
        if not isinstance(uri, str) or not 0 < len(uri) <= URI_MAX or "\0" in uri:
            raise PlanError(f"uri says where the savepoint is to be, in 1 to {URI_MAX:,} characters other than NUL")
        # The job may run elsewhere, and in another folder.
        return self._saved(uri if _SCHEME.match(uri) else str(Path(uri).expanduser().resolve()), timeout_s)

    def status(self, *, timeout_s: float = 5.0) -> JobStatus:
        """How the job stands: at once, unless a function of the job keeps its thread busy.

        Past ``timeout_s`` it tells what was last known, and by ``age_s`` how old that is. A job that has ended tells
        how it did (of another process: `JobEnded`, for the job is no longer there to be asked).
        """
        timeout_s = _seconds(timeout_s)
        try:
            return self._job.status(timeout_s=timeout_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def stop(self, *, drain: bool | None = None, wait: bool = True, timeout_s: float = TIMEOUT_S) -> SnapshotId | None:
        """End the job before its sources do: one with ``snapshots=`` so that it can go on, any other for good.

        ``drain=True``: the sources stop, what is in flight is finished, the maximum epoch is emitted, and the sinks
        commit: the job is finished, and `wait` returns its result. That is what a job without snapshots does by itself.
        ``drain=False``: all workers stop where they are and the sinks discard what is not committed; with
        ``snapshots=``, whose default this is, a last snapshot comes first, from which the job goes on when it is
        started again. `wait` raises `JobEnded` then, with the id of that snapshot.

        Blocks until the job has ended, unless ``wait`` is False. To ask again for the same is nothing new; nor is it if
        the job has ended that way already, or, where ``drain`` is left out, by itself.

        Returns:
            The id of the snapshot that the job has ended with: of a job that was going back to one, that one. None if
            it has none, if its last one could not be made, or if it has not ended yet.

        Raises:
            OperationInProgress: it has taken longer than ``timeout_s``, and goes on; or the job is being stopped in the
                other way, or makes a savepoint.
            JobEnded: it had ended in another way before it could be stopped.
            Exception: the job failed meanwhile; its own error.
        """
        if drain is not None:
            _checked(drain, "drain")
        _checked(wait, "wait")
        timeout_s = _seconds(timeout_s)
        try:
            return self._job.stop(drain=drain, wait=wait, timeout_s=timeout_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def wait(self, *, timeout_s: float | None = None) -> RunResult:
        """Wait until the job has ended by itself or was stopped, for ever if ``timeout_s`` is None: its result.

        Raises:
            OperationInProgress: it has taken longer than ``timeout_s``; the job goes on.
            JobEnded: the job was stopped without drain.
            Exception: the job failed; its own error.
        """
        timeout_s = None if timeout_s is None else _seconds(timeout_s)
        try:
            return self._job.wait(timeout_s=timeout_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def _saved(self, uri: str | None, timeout_s: float) -> SnapshotId:
        timeout_s = _seconds(timeout_s)
        try:
            return self._job.save(uri, timeout_s=timeout_s)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__


def _found(name: str, address: str | None) -> RunningJob:
    from malstrom_py.workers.ray import discovery as attaching

    if address is not None:
        return attaching.attach(name, address)
    try:
        return find(name)
    except JobNotFound:
        job = attaching.attach_nearby(name)
        if job is None:
            raise
        return job


def _seconds(timeout_s: float) -> float:
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not timeout_s >= 0:
        raise PlanError(f"timeout_s is a number of seconds of at least 0, got {timeout_s!r}")
    return min(float(timeout_s), TIMEOUT_S_MAX)


def _checked(flag: bool, what: str) -> None:
    if not isinstance(flag, bool):
        raise PlanError(f"{what} is True or False, got {flag!r}")
