"""Commits in the driver, the program that started a job on Ray: some sinks show their rows there.

Rule: the coordinator waits for each task, so a snapshot is complete only after the driver has committed (S3). The
driver executes a task once, even if a lost answer makes the coordinator hand it out again; a restarted coordinator
creates new tasks from the manifest. A job that may outlive its driver does not wait for a driver that is gone.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal

from malstrom_py.clock import SystemClock
from malstrom_py.errors.text import redacting
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import BaseTransactionalSink, CommitContext, SnapshotId, TransactionalWriter
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error

POLL_S: Final = 2.0
"""The longest wait of one poll for a task."""

GONE_S: Final = 10.0
"""A driver that has not polled for so long counts as gone, if the job may continue without it."""


@dataclass(frozen=True, slots=True)
class DriverTask:
    """Commit ``payloads`` with the sink of ``context.step``, or recover it given the complete ``snapshots``, or "end":
    there are no more tasks.
    """

    number: str
    what: Literal["commit", "recover", "end"]
    context: CommitContext
    payloads: Sequence[bytes] = field(default=(), repr=False)
    snapshots: Sequence[SnapshotId] = ()


class DriverTasks:
    """The queue of one coordinator's tasks, one at a time. ``outlives``: the job may outlive the driver."""

    def __init__(self, *, outlives: bool) -> None:
        self._outlives = outlives
        self._clock = SystemClock()
        self._asked_at_s = self._clock.monotonic_s()
        self._changed = threading.Condition()
        self._task: DriverTask | None = None
        self._done: Future[bytes | None] = Future()

    # Called by the thread of the run.

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Commit in the driver, and raise its error here."""
        self._do(DriverTask(secrets.token_hex(8), "commit", context, tuple(payloads)))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Recover the sink in the driver, and raise its error here."""
        self._do(DriverTask(secrets.token_hex(8), "recover", context, snapshots=tuple(committed)))

    # Called by any thread.

    def next(self, timeout_s: float = POLL_S) -> DriverTask | None:
        """Return the current task, waiting up to ``timeout_s`` for one."""
        with self._changed:
            self._asked_at_s = self._clock.monotonic_s()
            self._changed.wait_for(lambda: self._task is not None, timeout_s)
            return self._task

    def done(self, number: str, error: bytes | None) -> None:
        """Note that task ``number`` is done, or has failed with ``error``."""
        with self._changed:
            if self._task is not None and self._task.number == number:
                self._task = None
                self._done.set_result(error)

    def close(self) -> None:
        """Answer every later poll with "end": there are no more tasks."""
        with self._changed:
            self._task = DriverTask("", "end", CommitContext("", "", SnapshotId(""), 0))
            self._changed.notify_all()

    def _do(self, task: DriverTask) -> None:
        with self._changed:
            self._task, self._done = task, Future()
            self._changed.notify_all()
        while True:
            try:
                error = self._done.result(POLL_S)
            except TimeoutError:
                if self._outlives and self._clock.monotonic_s() - self._asked_at_s > GONE_S:
                    self.done(task.number, None)
                continue
            if error is not None:
                raise unpack_error(error)
            return


class DriverSink(BaseTransactionalSink):
    """The coordinator's copy of a sink whose original, in the driver, commits. The copy itself discards."""

    def __init__(self, sink: BaseTransactionalSink, tasks: DriverTasks) -> None:
        self._sink = sink
        self._tasks = tasks

    def open(self, worker: WorkerInfo) -> TransactionalWriter:
        return self._sink.open(worker)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self._tasks.commit(context, payloads)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._tasks.recover(context, committed)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self._sink.abort(context, payloads)

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        return self._sink.hold(context, payloads)


def commit_in_driver(sinks: Sequence[WriteSink], tasks: DriverTasks) -> list[WriteSink]:
    """Return ``sinks``; those that show rows in the driver are replaced by a `DriverSink`."""
    for step in sinks:
        if step.transactional is not None and step.sink.commits_in_driver:
            step.sink = DriverSink(step.transactional, tasks)
    return list(sinks)


class DriverTaskRunner:
    """Executes tasks in the driver, each once, on the ``sinks`` that are committed there."""

    def __init__(self, sinks: Sequence[WriteSink], *, redact_errors: bool = False) -> None:
        self._redact_errors = redact_errors
        self._sinks = {step.context.step: sink for step in sinks if (sink := step.transactional) is not None}
        self._last: tuple[str, bytes | None] = ("", None)

    def do(self, task: DriverTask) -> bytes | None:
        """Execute ``task``, unless it repeats the last one, and return its error, packed."""
        number, error = self._last
        if number != task.number:
            with redacting(self._redact_errors):
                error = self._done(task)
            self._last = (task.number, error)
        return error

    def _done(self, task: DriverTask) -> bytes | None:
        sink = self._sinks[task.context.step]
        try:
            if task.what == "commit":
                sink.commit(task.context, task.payloads)
            else:
                sink.recover(task.context, task.snapshots)
        except BaseException as error:  # the coordinator waits for the result
            return pack_error(error)
        return None
