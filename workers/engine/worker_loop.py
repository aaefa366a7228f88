"""The loop that runs one worker: receives messages, steps the worker, sends its messages, or waits.

Rule: only the thread of the loop touches the worker. Other threads pass a function to `ask`, which the loop calls
between two steps. A wait ends with a message, a call of `ask`, or scheduled work. Captured state is written by a
background thread, and then reported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, InternalError
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.workers.engine.background import ThreadBackground
from malstrom_py.workers.engine.snapshot_capture import save
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Content,
    Outgoing,
    Saved,
    WorkerCounts,
    WorkerReport,
    WorkerStatus,
)

T = TypeVar("T")

IDLE_S: Final = 0.5
"""The longest wait of the loop. All work arrives as a message or a call of `ask`, or is scheduled."""

TALLY_S: Final = 0.5
"""The interval of count reports to the coordinator while the worker works."""


class Wake(threading.Event):
    """An event that also ends a wait of ``transport`` when it is set."""

    def __init__(self, transport: Transport | None = None) -> None:
        super().__init__()
        self.transport = transport

    def set(self) -> None:
        """Set the event, and make `Transport.receive` return."""
        super().set()
        if self.transport is not None:
            self.transport.wake()


class WorkerLoop:
    """The loop of a worker over ``transport``. The first call of `ask` makes the worker; it steps after `start`."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self.transport = transport
        self.clock = clock
        self.wake = Wake(transport)
        self._worker: Worker | None = None
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._stepping = False
        self._ended = False
        self._standing: WorkerStatus | None = None
        self._tally_at_s = 0.0
        self._unreported = False
        self._background = ThreadBackground(self.wake)
        self._checkpointer: Checkpointer | None = None
        self.saved: Saved | None = None
        """The last durable image."""

    # Any thread.

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call ``function`` in the thread of the loop, between two steps. The future gets its result or its error."""
        answer: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise InternalError("the loop of this worker has ended")
            self._asked.append((function, answer))
        self.wake.set()
        return answer

    # The thread of the loop, including functions passed to `ask`.

    def take_on(self, worker: Worker) -> None:
        """Run ``worker`` from now on."""
        self._worker = worker

    def keep_snapshots(self, checkpointer: Checkpointer) -> None:
        """Write the worker's images at barriers with ``checkpointer``."""
        self._checkpointer = checkpointer

    @property
    def has_worker(self) -> bool:
        """Whether the loop has a worker."""
        return self._worker is not None

    @property
    def worker(self) -> Worker:
        """The worker of the loop."""
        if self._worker is None:
            raise InternalError("this loop has no worker yet")
        return self._worker

    def start(self) -> None:
        """Step and receive messages from now on."""
        self._stepping = True

    def rest(self) -> None:
        """Stop stepping and receiving."""
        self._stepping = False

    def stop(self) -> None:
        """Make `run` return."""
        self._ended = True

    def settle(self, timeout_s: float) -> None:
        """Wait until the image in progress is durable. `DeadlineError` after ``timeout_s``."""
        until_s = self.clock.monotonic_s() + timeout_s
        while self._background.pending:
            left_s = until_s - self.clock.monotonic_s()
            if left_s <= 0:
                raise DeadlineError(
                    f"worker {self.worker.id} has not written its state at a barrier within {timeout_s:g} s: check "
                    f"that the store of the snapshots responds",
                    wait="a snapshot to be written",
                    deadline_s=timeout_s,
                )
            self.wake.wait(min(left_s, IDLE_S))
            self.wake.clear()
            self._background.turn()

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send the worker's messages in order, those for one receiver in one call."""
        if len(outgoing) == 1:
            self.transport.send(outgoing[0][0], [outgoing[0][1]])
            return
        by_receiver: dict[int, list[Content]] = {}
        for receiver, content in outgoing:
            by_receiver.setdefault(receiver, []).append(content)
        for receiver, contents in by_receiver.items():
            self.transport.send(receiver, contents)

    def run(self) -> None:
        """Run until `stop`. An error of a step is raised, and waiting calls of `ask` get it too."""
        wait_s = 0.0
        try:
            while not self._ended:
                self._answer()
                if self._stepping:
                    wait_s = self._turn(wait_s)
                elif not self._ended:
                    self.wake.wait(IDLE_S)
                    self.wake.clear()
        except BaseException as error:
            self._end(error)
            raise
        self._end(InternalError("the loop of this worker has ended"))

    def _turn(self, wait_s: float) -> float:
        """Receive, step and send once. Return how long the next `receive` may wait."""
        worker = self.worker
        outgoing: list[Outgoing] = []
        came = self.transport.receive(wait_s)
        for content in came:
            outgoing += worker.receive(content)  # type: ignore[arg-type]  # others send what a worker takes
        began_s = self.clock.monotonic_s()
        done, more = worker.step()
        outgoing += more
        if outgoing:
            self.send(outgoing)
        self._keep(worker)
        now_s = self.clock.monotonic_s()
        busy = bool(came or done or outgoing)
        self._unreported = self._unreported or busy or worker.awaiting
        if self._unreported and now_s >= self._tally_at_s:
            self._report(WorkerCounts(worker.id, worker.counts()))
            self._tally_at_s, self._unreported = now_s + TALLY_S, False
        return 0.0 if busy else self._idle(worker, began_s, now_s)

    def _idle(self, worker: Worker, began_s: float, now_s: float) -> float:
        standing = WorkerStatus(worker.id, worker.version, worker.finished, worker.suspended)
        if standing != self._standing:
            self._standing = standing
            if self._unreported:  # the coordinator needs the final counts before it sees the worker as finished
                self._report(WorkerCounts(worker.id, worker.counts()))
                self._tally_at_s, self._unreported = now_s + TALLY_S, False
            self._report(standing)
        if not worker.at_rest:
            return 0.0  # the next part is due already
        due_s = [due for due in (worker.due_s(), self._tally_at_s if self._unreported else None) if due is not None]
        # Work that was due before the step and was not done waits for credit, which arrives as a message.
        return min([IDLE_S, *(max(0.0, due - now_s) for due in due_s if due > began_s)])

    def _keep(self, worker: Worker) -> None:
        """Start to write the worker's image, if a barrier has passed."""
        cut = worker.take_cut()
        if cut is not None and self._checkpointer is not None:
            self._background.submit(partial(save, cut, self._checkpointer), self._was_saved)
        if self._background.pending:
            self._background.turn()

    def _was_saved(self, result: Saved | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        self.saved = result
        self._report(result)

    def _report(self, news: WorkerReport | Saved) -> None:
        self.transport.send(COORDINATOR, [news])

    def _answer(self) -> None:
        while self._asked:
            function, answer = self._asked.popleft()
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:  # for example SystemExit: ends the loop, and the caller gets the error
                answer.set_exception(error)
                raise

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._ended = True
            unanswered, self._asked = list(self._asked), deque()
        self._background.close()
        for _, answer in unanswered:
            answer.set_exception(error)
