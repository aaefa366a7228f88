"""The loop that runs one worker: receives messages, steps the worker, sends its messages, or waits.

Rule: only the thread of the loop touches the worker, and the loop executes orders between two steps. A wait ends with a
message or scheduled work; where rows trickle, with the next turn (`Gathering`). Captured state is written by a
background thread, and then reported.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, PeerError
from malstrom_py.rescale.channels.channel import Frame, Grant
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.workers.engine.background import ThreadBackground
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.gathering import Gathering
from malstrom_py.workers.engine.snapshot_capture import save
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.reports.figures import tally_s
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Close,
    Content,
    Finished,
    OrderFailed,
    Outgoing,
    PartWith,
    Reach,
    Saved,
    Welcome,
    WorkerCounts,
    WorkerOrder,
    WorkerReport,
    WorkerStatus,
)

IDLE_S: Final = 0.5
"""The longest wait of the loop. All work arrives as a message, or is scheduled."""


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


class Host(Protocol):
    """What executes the orders of the coordinator on the worker of a loop."""

    @property
    def worker(self) -> Worker: ...

    @property
    def is_started(self) -> bool: ...

    def obey(self, order: WorkerOrder) -> list[Outgoing]: ...


class WorkerLoop:
    """The loop of the worker ``number`` of ``host`` over ``transport``.

    ``batching``: says how far turns may be apart. ``checkpointer``: writes the worker's images at barriers, in a job
    with snapshots.
    """

    def __init__(
        self,
        number: int,
        host: Host,
        transport: Transport,
        clock: Clock,
        batching: Batching,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        self.transport = transport
        self.clock = clock
        self.wake = Wake(transport)
        self._number = number
        self._host = host
        self._gathering = Gathering(batching)
        self._ended = False
        self._standing: WorkerStatus | None = None
        self._tally_at_s = 0.0
        self._unreported = False
        self._peers: set[int] = set()
        self._background = ThreadBackground(self.wake)
        self._checkpointer = checkpointer
        self._saved: Saved | None = None

    def settle(self, timeout_s: float) -> Saved | None:
        """Wait until the image in progress is durable, at most ``timeout_s``, and return the last report."""
        until_s = self.clock.monotonic_s() + timeout_s
        while self._background.pending:
            left_s = until_s - self.clock.monotonic_s()
            if left_s <= 0:
                raise DeadlineError(
                    f"worker {self._number} has not written its state at a barrier within {timeout_s:g} s: check "
                    f"that the store of the snapshots responds",
                    wait="a snapshot to be written",
                    deadline_s=timeout_s,
                )
            self.wake.wait(min(left_s, IDLE_S))
            self.wake.clear()
            self._background.turn()
        return self._saved

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
        """Run until the order to close. An error of a step or of closing is raised."""
        wait_s = 0.0
        try:
            while not self._ended:
                wait_s = self._turn(wait_s)
        finally:
            self._background.close()

    def _turn(self, wait_s: float) -> float:
        """Wait, receive, step and send once. Return how long the next turn may wait."""
        if wait_s > 0 and (pause_s := self._gathering.pause_s(self.clock.monotonic_s(), wait_s)) > 0:
            self.clock.sleep_s(pause_s)
            wait_s = max(0.0, wait_s - pause_s)
        came = self._received(wait_s)
        outgoing: list[Outgoing] = []
        rows, urgent = 0, False
        for content in came:
            if type(content) is Frame and content.control is None:
                rows += content.cost
            elif type(content) is not Grant:
                urgent = True
            if isinstance(content, WorkerOrder):
                outgoing += self._obey(content)
            else:
                outgoing += self._host.worker.receive(content)  # type: ignore[arg-type]  # others send what it takes
        if self._ended or not self._host.is_started:
            self.send(outgoing)
            return IDLE_S
        worker = self._host.worker
        began_s = self.clock.monotonic_s()
        gathered = self._gathering.begins(began_s, rows, urgent=urgent)
        done, more = worker.step(gathered=gathered)
        outgoing += more
        if outgoing:
            self.send(outgoing)
        self._keep(worker)
        now_s = self.clock.monotonic_s()
        busy, waits = bool(came or done or outgoing), worker.waits
        self._gathering.ended(now_s, done, waits=waits)
        self._unreported = self._unreported or busy or waits
        if self._unreported and now_s >= self._tally_at_s:
            self._report(WorkerCounts(worker.id, worker.counts(), worker.figures()))
            self._tally_at_s, self._unreported = now_s + tally_s(1 + len(self._peers)), False
        if busy:
            # The turn after it finds whether there is anything more to wait for.
            return self._gathering.turn_s if gathered and worker.settled else 0.0
        return self._idle(worker, began_s, now_s)

    def _received(self, wait_s: float) -> list[Content]:
        try:
            return self.transport.receive(wait_s)
        except PeerError as error:
            if self._host.is_started or error.peer is None or error.peer == COORDINATOR:
                raise
            self.transport.disconnect(error.peer)  # others end at other times
            return []

    def _obey(self, order: WorkerOrder) -> list[Outgoing]:
        """Execute an order between two steps, and answer with its error if it fails. A failed `Close` ends the loop."""
        if isinstance(order, Reach | Welcome):
            self._peers.update(order.addresses)
        elif isinstance(order, PartWith):
            self._peers.difference_update(order.leavers)
        if isinstance(order, Close):
            self._ended = True
            return self._host.obey(order)
        try:
            return [(receiver, _sendable(content)) for receiver, content in self._host.obey(order)]
        except Exception as error:
            return [(COORDINATOR, OrderFailed(self._number, pack_error(error)))]

    def _idle(self, worker: Worker, began_s: float, now_s: float) -> float:
        standing = WorkerStatus(worker.id, worker.version, worker.finished, worker.suspended)
        if standing != self._standing:
            self._standing = standing
            if self._unreported:  # the coordinator needs the final counts before it sees the worker as finished
                self._report(WorkerCounts(worker.id, worker.counts(), worker.figures()))
                self._tally_at_s, self._unreported = now_s + tally_s(1 + len(self._peers)), False
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
        self._saved = result
        self._report(result)

    def _report(self, news: WorkerReport | Saved) -> None:
        self.transport.send(COORDINATOR, [news])


def _sendable(content: Any) -> Any:
    """Return ``content`` with its error packed, if it has one."""
    if isinstance(content, Finished) and content.error is not None:
        return replace(content, error=pack_error(content.error))
    return content
