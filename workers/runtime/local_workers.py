"""The workers of a run in this process: steps them in turn in one thread, and delivers their messages.

Deterministic: the same job, input, clock, number of workers, and requests at the same steps give the same run, unless a
step awaits asynchronous calls. A clock other than the system's does not advance during such a call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import Grant
from malstrom_py.rescale.moves.protocol import PackAhead
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.state.memory import State
from malstrom_py.workers.coordinator.recovery import RunStart
from malstrom_py.workers.coordinator.worker_group import Arrived, NothingToDo, StartGroup
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import States, initial_states
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.error_transfer import blame
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.runtime.worker_host import WorkerHost
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Close,
    Connected,
    Content,
    Message,
    Start,
    Welcome,
    WorkerOrder,
)

WATCH_S: Final = 1.0
"""The longest wait for awaited calls before the workers are stepped again. The calls have their own deadlines."""

_NAP_S: Final = 0.01
"""The same with a clock other than the system's."""


class LocalWorkers:
    """The workers of ``plan``, a `WorkerGroup`. ``incarnation``: of a job without snapshots. The other arguments are
    those of `WorkerHost`.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        batching: Batching,
        *,
        checks: bool = False,
        state: State | None = None,
        incarnation: int = 1,
        keys_per_chunk: int | None = None,
    ) -> None:
        self.wake = threading.Event()
        self.at_work = False
        self.busy = False
        self._clock = clock
        self._incarnation = incarnation
        self._new_host = partial(
            WorkerHost,
            plan,
            batching=batching,
            clock=clock,
            wake=self.wake,
            checks=checks,
            state=state,
            warned=set(),
            keys_per_chunk=keys_per_chunk,
            load=self._load,
        )
        self._checkpointer: Checkpointer | None = None
        self._states: States | None = None
        self._hosts: dict[int, WorkerHost] = {}
        self._arrived: list[Arrived] = []

    @property
    def workers(self) -> list[int]:
        return list(self._hosts)

    @property
    def hosted(self) -> list[Worker]:
        """The workers themselves."""
        return [host.worker for host in self._hosts.values()]

    def worker(self, number: int) -> Worker:
        """Return the worker ``number``."""
        return self._hosts[number].worker

    def begin(self, start: RunStart | None) -> None:
        if start is not None:
            self._checkpointer, self._incarnation = start.checkpointer, start.incarnation

    def start(self, start: StartGroup) -> None:
        """Build the workers from the current table, and connect them in both directions (R1)."""
        before = self.workers
        for worker in start.workers:
            self._hosts[worker] = self._new_host(checkpointer=self._checkpointer)
            self._hosts[worker].obey(start.build(worker, self._incarnation))
        for other in before:
            self._hosts[other].obey(Welcome(dict.fromkeys(start.workers)))
        if start.joins:
            for worker in start.workers:
                self._hosts[worker].obey(Start())
        self._connected(start)

    def send(self, worker: int, content: Content) -> None:
        if isinstance(content, WorkerOrder):
            self._carry(worker, self._hosts[worker].obey(content))
        else:
            self._carry(COORDINATOR, [(worker, content)])

    def arrived(self) -> Sequence[Arrived]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def receive(self) -> Sequence[Arrived]:
        """Step every worker once."""
        self.busy = False
        started = [host.worker for host in self._hosts.values() if host.is_started]
        share = len(started)
        for worker in started:
            try:
                done, outgoing = worker.step(share)
            except Exception as error:
                blame(error, worker.id)
                raise
            if done or outgoing:
                self.busy = True
            if (cut := worker.take_cut()) is not None:
                self._arrived.append(cut)
            if outgoing:
                self._carry(worker.id, outgoing)
        self.at_work = self.busy or any(worker.awaiting for worker in started)
        return self.arrived() if self._arrived else ()

    def wait(self, wait_s: float | None, *, pending: bool = False) -> None:
        workers = self.hosted
        if any(worker.ready for worker in workers):
            return
        now_s = self._clock.monotonic_s()
        waits_s = [due - now_s for worker in workers if (due := worker.due_s()) is not None]
        # Overdue work waits for credit, not for time.
        waits_s = [wait for wait in (*waits_s, *(() if wait_s is None else (wait_s,))) if wait > 0]
        if pending or any(worker.awaiting for worker in workers):
            self._await(waits_s)
        elif not all(worker.at_rest for worker in workers):
            return
        elif waits_s:
            self._clock.sleep_s(min(waits_s))
        else:
            raise NothingToDo

    def check_room(self, size: int, *, now: bool = False) -> None:
        """A process has room for any number of workers."""

    def counts(self) -> dict[int, Mapping[str, StepCounts]]:
        return {number: host.worker.counts() for number, host in self._hosts.items() if host.has_worker}

    def figures(self) -> dict[int, WorkerFigures]:
        return {number: host.worker.figures() for number, host in self._hosts.items() if host.has_worker}

    def rows_in(self, step: str) -> int:
        """Return the number of records that a step of the present workers has taken so far."""
        return sum(host.worker.rows_in(step) for host in self._hosts.values())

    def finished(self, members: Sequence[int], version: int) -> bool:
        for host in self._hosts.values():  # noqa: SIM110  per batch: a generator costs more
            if not host.worker.finished:
                return False
        return True

    def suspended(self, members: Sequence[int], version: int) -> bool:
        return all(host.worker.suspended for host in self._hosts.values())

    def fixed(self) -> dict[int, str]:
        return {number: source for number in self._hosts if (source := self.worker(number).reading.fixed)}

    def remove(self, workers: Sequence[int]) -> None:
        for worker in workers:
            # The worker stays in `_hosts` until it is closed: after a failure here it is closed with the others.
            self._hosts[worker].obey(Close())
            del self._hosts[worker]

    def close(self, *, failed: bool) -> None:
        _each(host.close for host in self._hosts.values())
        self._hosts = {}  # the run is known for as long as its result: the state of its workers is not

    def _load(self, plan: Plan, steps: Collection[str]) -> States:
        """Load the initial states once for all workers."""
        if not steps:
            return {}
        if self._states is None:
            self._states = initial_states(plan, steps)
        return self._states

    def _connected(self, start: StartGroup) -> None:
        self._arrived += [Connected(worker) for worker in start.workers]

    def _carry(self, sender: int, messages: Iterable[Message]) -> None:
        """Deliver messages of ``sender``, and all messages that follow from them."""
        queue: deque[Message] = deque(messages)
        while queue:
            receiver, message = queue.popleft()
            queue.extend(self._hand(receiver, message))

    def _hand(self, receiver: int, message: Content) -> Sequence[Message]:
        """Deliver a message, and return the receiver's messages in response."""
        if receiver == COORDINATOR:
            self._arrived.append(message)
            return []
        host = self._hosts.get(receiver)
        if host is not None:
            return host.worker.receive(message)  # type: ignore[arg-type]  # orders of `WorkerOrder` are sent by `send`
        if isinstance(message, Grant | PackAhead):
            return []  # who has left needs no credit, and packs nothing for a snapshot that was wanted just before (S2)
        raise InternalError(f"{type(message).__name__} is for worker {receiver}, which does not exist")

    def _await(self, waits_s: Iterable[float]) -> None:
        """Wait until an awaited call or a background task has ended, or something else is due."""
        timeout_s = min([WATCH_S, *waits_s]) if isinstance(self._clock, SystemClock) else _NAP_S
        if self.wake.wait(timeout_s):
            self.wake.clear()


def _each(closings: Iterable[Callable[[], None]]) -> None:
    errors: list[Exception] = []
    for close in closings:
        try:
            close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
