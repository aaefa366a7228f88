"""What the program that started a job on Ray does for its coordinator: commit the sinks that show rows there.

Rule: the coordinator waits until it is done, so a snapshot is complete only then (S3). An task is done once, though
it may be handed out again when an answer was lost; a coordinator that is started again gives new ones, by what stands
in the manifest. One that goes on without its program does not wait for it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from malstrom_py.clock import SystemClock
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId, TransactionalSink
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.coordinator.sink_commits import commits_in_driver
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error

POLL_S: Final = 2.0
"""How long whoever asks for an task waits for one."""

GONE_S: Final = 10.0
"""A program that has not asked for so long is gone, if the job may go on without it."""


@dataclass(frozen=True, slots=True)
class DriverTask:
    """Have the sink of ``context.step`` commit ``payloads``, or recover, when ``snapshots`` stand; or "end": there will
    be no more.
    """

    number: str
    what: Literal["commit", "recover", "end"]
    context: CommitContext
    payloads: Sequence[bytes] = field(default=(), repr=False)
    snapshots: Sequence[SnapshotId] = ()


class DriverTasks:
    """The tasks of one coordinator, one at a time. ``outlives``: the job goes on when the program has ended."""

    def __init__(self, *, outlives: bool) -> None:
        self._outlives = outlives
        self._clock = SystemClock()
        self._asked_at_s = self._clock.monotonic_s()
        self._changed = threading.Condition()
        self._task: DriverTask | None = None
        self._done: Future[bytes | None] = Future()

    # The thread of the run.

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Have it committed. What goes wrong there is raised here."""
        self._do(DriverTask(secrets.token_hex(8), "commit", context, tuple(payloads)))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Have it made ready."""
        self._do(DriverTask(secrets.token_hex(8), "recover", context, snapshots=tuple(committed)))

    # Any thread.

    def next(self, timeout_s: float = POLL_S) -> DriverTask | None:
        """The task to be done, once there is one within ``timeout_s``."""
        with self._changed:
            self._asked_at_s = self._clock.monotonic_s()
            self._changed.wait_for(lambda: self._task is not None, timeout_s)
            return self._task

    def done(self, number: str, error: bytes | None) -> None:
        """DriverTask ``number`` is done, or has come to ``error``."""
        with self._changed:
            if self._task is not None and self._task.number == number:
                self._task = None
                self._done.set_result(error)

    def close(self) -> None:
        """There will be no more."""
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


class DriverSink:
    """A sink in the coordinator of which the original, in the program that started the job, is to commit. Discarding
    what waits for that is done here, by the copy.
    """

    def __init__(self, sink: TransactionalSink, tasks: DriverTasks) -> None:
        self._sink = sink
        self.commit = tasks.commit
        self.recover = tasks.recover
        self.abort = sink.abort
        self.hold: Callable[[CommitContext, Sequence[bytes]], Callable[[], None]] | None = getattr(sink, "hold", None)

    def open(self, worker: WorkerInfo) -> Any:
        """Nothing is written here."""
        return self._sink.open(worker)


def commit_in_driver(sinks: Sequence[WriteSink], tasks: DriverTasks) -> list[WriteSink]:
    """The same sinks; those that show rows in the program that started the job have it commit."""
    for step in sinks:
        if commits_in_driver(step) and isinstance(step.sink, TransactionalSink):
            step.sink = DriverSink(step.sink, tasks)
    return list(sinks)


class DriverTaskRunner:
    """Does tasks for the ``sinks`` that are committed in this program, each once."""

    def __init__(self, sinks: Sequence[WriteSink]) -> None:
        self._sinks = {sink.context.step: sink.sink for sink in sinks if isinstance(sink.sink, TransactionalSink)}
        self._last: tuple[str, bytes | None] = ("", None)

    def do(self, task: DriverTask) -> bytes | None:
        """Do ``task``, if it is not the last one again: what went wrong, packed."""
        number, error = self._last
        if number != task.number:
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
        except BaseException as error:  # whatever it is, the coordinator is not left to wait
            return pack_error(error)
        return None
