"""Runs one worker by itself: takes what has come for it, lets it step, sends what it has for others, or waits.

Rule: the worker is touched by the thread of the loop alone. Others leave a function for it with `ask`, which is called
between two steps. A wait ends with what comes, with a question, or when the worker has something to do of itself. What
it holds at a barrier is written down in a thread beside it, and then told.
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
"""How long the loop waits at most. Whatever is to be done comes with a message, with a question, or has its time."""

TALLY_S: Final = 0.5
"""How often the coordinator is told what has been done, while something is."""


class Wake(threading.Event):
    """An event whose setting ends a wait of ``transport`` as well, once there is one."""

    def __init__(self, transport: Transport | None = None) -> None:
        super().__init__()
        self.transport = transport

    def set(self) -> None:
        """Set it, and have `Transport.receive` return."""
        super().set()
        if self.transport is not None:
            self.transport.wake()


class WorkerLoop:
    """Runs a worker over ``transport``. The worker is made by the first question; it steps once `start` is asked."""

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
        self._untold = False
        self._background = ThreadBackground(self.wake)
        self._checkpointer: Checkpointer | None = None
        self.saved: Saved | None = None
        """What was written down last."""

    # Any thread.

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Have the loop call ``function`` between two steps. The answer is its result, or its error."""
        answer: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise InternalError("the loop of this worker has ended")
            self._asked.append((function, answer))
        self.wake.set()
        return answer

    # The thread of the loop, questions among it.

    def take_on(self, worker: Worker) -> None:
        """From now on run ``worker``."""
        self._worker = worker

    def keep_snapshots(self, checkpointer: Checkpointer) -> None:
        """Have ``checkpointer`` write down what the worker holds at barriers."""
        self._checkpointer = checkpointer

    @property
    def has_worker(self) -> bool:
        """Whether there is one."""
        return self._worker is not None

    @property
    def worker(self) -> Worker:
        """The worker that it runs."""
        if self._worker is None:
            raise InternalError("this loop has no worker yet")
        return self._worker

    def start(self) -> None:
        """Step from now on, and take what others send."""
        self._stepping = True

    def rest(self) -> None:
        """Neither step nor take anything any more."""
        self._stepping = False

    def stop(self) -> None:
        """Have `run` return."""
        self._ended = True

    def settle(self, timeout_s: float) -> None:
        """Wait until what is being written down is durable. `DeadlineError` if it is not within ``timeout_s``."""
        until_s = self.clock.monotonic_s() + timeout_s
        while self._background.pending:
            left_s = until_s - self.clock.monotonic_s()
            if left_s <= 0:
                raise DeadlineError(
                    f"worker {self.worker.id} has not written what it held at a barrier within {timeout_s:g} s: see "
                    f"whether the store of the snapshots answers",
                    wait="a snapshot to be written",
                    deadline_s=timeout_s,
                )
            self.wake.wait(min(left_s, IDLE_S))
            self.wake.clear()
            self._background.turn()

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send what the worker has for others, in its order, together what is for one receiver."""
        if len(outgoing) == 1:
            self.transport.send(outgoing[0][0], [outgoing[0][1]])
            return
        by_receiver: dict[int, list[Content]] = {}
        for receiver, content in outgoing:
            by_receiver.setdefault(receiver, []).append(content)
        for receiver, contents in by_receiver.items():
            self.transport.send(receiver, contents)

    def run(self) -> None:
        """Until `stop` is asked for. What fails in a step is raised; questions that wait then are answered with it."""
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
        """Take, step and send once: how long nothing will have to be done then, but for what comes."""
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
        self._untold = self._untold or busy or worker.awaiting
        if self._untold and now_s >= self._tally_at_s:
            self._tell(WorkerCounts(worker.id, worker.counts()))
            self._tally_at_s, self._untold = now_s + TALLY_S, False
        return 0.0 if busy else self._idle(worker, began_s, now_s)

    def _idle(self, worker: Worker, began_s: float, now_s: float) -> float:
        standing = WorkerStatus(worker.id, worker.version, worker.finished, worker.suspended)
        if standing != self._standing:
            self._standing = standing
            if self._untold:  # whoever takes it for finished is to know what it has done
                self._tell(WorkerCounts(worker.id, worker.counts()))
                self._tally_at_s, self._untold = now_s + TALLY_S, False
            self._tell(standing)
        if not worker.at_rest:
            return 0.0  # one part had nothing, and the next is due already
        due_s = [due for due in (worker.due_s(), self._tally_at_s if self._untold else None) if due is not None]
        # What was overdue when the step began and was not done waits for credit, which comes as a message.
        return min([IDLE_S, *(max(0.0, due - now_s) for due in due_s if due > began_s)])

    def _keep(self, worker: Worker) -> None:
        """Have written down what the worker holds at a barrier that has passed, if one has."""
        cut = worker.take_cut()
        if cut is not None and self._checkpointer is not None:
            self._background.submit(partial(save, cut, self._checkpointer), self._was_saved)
        if self._background.pending:
            self._background.turn()

    def _was_saved(self, result: Saved | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        self.saved = result
        self._tell(result)

    def _tell(self, news: WorkerReport | Saved) -> None:
        self.transport.send(COORDINATOR, [news])

    def _answer(self) -> None:
        while self._asked:
            function, answer = self._asked.popleft()
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:  # SystemExit, say: it ends the loop, and who asks is not left to wait
                answer.set_exception(error)
                raise

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._ended = True
            unanswered, self._asked = list(self._asked), deque()
        self._background.close()
        for _, answer in unanswered:
            answer.set_exception(error)
