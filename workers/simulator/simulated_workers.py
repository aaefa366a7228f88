"""The workers of a simulated run: the schedule decides which step or delivery is next.

Rule: every message between workers and coordinator waits in a queue until the schedule delivers it. Messages of one
channel arrive in order, all others in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

from malstrom_py.rescale.channels.channel import Frame, Grant
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.workers.coordinator.worker_group import StartGroup
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.error_transfer import blame
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.runtime.local_workers import WATCH_S, LocalWorkers
from malstrom_py.workers.simulator.row_costs import RowCosts
from malstrom_py.workers.simulator.simulated_job import Queues, Sent, SimulatedJob
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Connected,
    Content,
    Message,
    Notice,
    WorkerOrder,
    WorkerReply,
)


class SimulatedWorkers(LocalWorkers):
    """The workers of the present run of ``job``: their messages wait in queues until they are delivered."""

    def __init__(self, job: SimulatedJob) -> None:
        super().__init__(
            job.plan,
            job.clock,
            job.batching,
            checks=job.checks,
            state=job.state,
            incarnation=job.incarnation,
            keys_per_chunk=job.schedule.keys_per_chunk(),
        )
        self._coverage = job.coverage
        self._move_first_s = job.schedule.move_first_s()
        self._gathers = job.schedule.gathers()
        self._queues: Queues = {}
        self._zombies = job.zombies
        self._costs = RowCosts(job.row_cost_s)
        # Who had nothing to do, and has got nothing since.
        self._resting: set[int] = set()
        self._resting_at_s = 0.0
        self.at_last_cut: dict[int, Mapping[str, StepCounts]] = {}
        """The counts of each worker when it stopped at a last barrier."""

    @property
    def on_its_way(self) -> Queues:
        """The messages in flight: after a crash, the zombies of the next incarnation."""
        mine: Queues = {(self._incarnation, way): queue for way, queue in self._queues.items() if queue}
        return {**self._zombies, **mine}

    @property
    def ways(self) -> list[Hashable]:
        """The ways on which something is."""
        return [*self._queues, *(("zombie", way) for way in self._zombies)]

    def brings(self, way: Hashable, kind: type) -> bool:
        """Return whether a message of ``kind`` is first on ``way``."""
        queue = self._queues.get(way)
        return queue is not None and isinstance(queue[0].content, kind)

    @property
    def awake(self) -> list[int]:
        """The workers that may have something to do."""
        now_s = self._clock.monotonic_s()
        if now_s != self._resting_at_s:  # the job may have been given the clock as well
            self._resting.clear()
            self._resting_at_s = now_s
        busy = self._costs.busy(self._hosts, now_s)
        return [worker for worker in self._hosts if worker not in self._resting and worker not in busy]

    @property
    def backlogged(self) -> bool:
        """Whether anything waits for credit anywhere."""
        return any(worker.backlogged for worker in self.hosted)

    @property
    def quiet(self) -> bool:
        """Whether no record or epoch is in flight."""
        return not any(isinstance(sent.content, Frame) for queue in self._queues.values() for sent in queue)

    @property
    def in_flight(self) -> bool:
        """Whether any message of this incarnation is in flight."""
        return any(self._queues.values())

    def send(self, worker: int, content: Content) -> None:
        if isinstance(content, WorkerOrder):
            self._resting.discard(worker)
        super().send(worker, content)

    def work(self, number: int) -> None:
        """Let a worker take one step."""
        worker = self.worker(number)
        worker.turns.first_s = self._move_first_s
        try:
            done, outgoing = worker.step(gathered=self._gathers())
        except Exception as error:
            blame(error, number)
            raise
        self._costs.spend(worker, self._clock.monotonic_s())
        messages = self._without_notices(outgoing)
        if not done and not messages and worker.at_rest:
            self._resting.add(number)
        self._take_cut(worker)
        self._carry(number, messages)
        self._coverage.stepped(worker)
        worker.check()

    def arrive(self, way: Hashable) -> Content | None:
        """Deliver the first message on ``way``, and return it; None if it was dropped: of an old incarnation."""
        queues, place = self._queues, way
        if way not in queues:
            assert isinstance(way, tuple)
            queues, place = self._zombies, way[1]
        incarnation, receiver, content = queues[place].popleft()
        if not queues[place]:
            del queues[place]
        if incarnation != self._incarnation:
            self._drop(receiver, content)
            return None
        host = self._hosts.get(receiver)
        worker = None if host is None else host.worker
        self._coverage.arrives(worker, content)
        self._carry(receiver, self._hand(receiver, content))
        self._resting.discard(receiver)
        if worker is not None:
            worker.check()
        return content

    def rest(self, *, until_s: float | None = None) -> bool:
        """Wait for awaited calls, or else pass the time to the next timer, at most until ``until_s``. Return whether
        there was any.
        """
        now_s = self._clock.monotonic_s()
        due_s = self._costs.due_s(self.hosted, now_s) + ([] if until_s is None else [until_s])
        wait_s = min(due_s, default=0.0) - now_s
        if any(worker.awaiting for worker in self.hosted):
            if self.wake.wait(WATCH_S):
                self.wake.clear()
            self._resting.clear()
        elif wait_s > 0:
            self._clock.sleep_s(wait_s)
        else:
            return False
        return True

    def figures(self) -> dict[int, WorkerFigures]:
        return self._costs.figures(self.hosted) if self._costs else super().figures()

    def _without_notices(self, outgoing: Sequence[Message]) -> Sequence[Message]:
        """Pass notices for the events of the job to the coordinator; they are no part of the schedule."""
        notices = [content for _, content in outgoing if isinstance(content, Notice)]
        self._arrived += notices
        return [message for message in outgoing if not isinstance(message[1], Notice)] if notices else outgoing

    def _drop(self, receiver: int, content: Content) -> None:
        if not isinstance(content, Frame):
            self._coverage.hit("stale letter dropped")  # letters come from handles that name an incarnation
            if isinstance(content, StateChunk) and content.ahead:
                self._coverage.hit("stale copy dropped")
        elif receiver in self._hosts:
            self._coverage.hit("stale frame dropped")
            self.worker(receiver).receive(content)

    def _connected(self, start: StartGroup) -> None:
        if start.joins:
            self._carry(COORDINATOR, [(COORDINATOR, Connected(worker)) for worker in start.workers])
        else:
            super()._connected(start)

    def _take_cut(self, worker: Worker) -> None:
        cut = worker.take_cut()
        if cut is None:
            return
        self._coverage.cut(worker, cut)
        if worker.suspended:
            self.at_last_cut[worker.id] = worker.counts()
        self._arrived.append(cut)

    def _carry(self, sender: int, messages: Iterable[Message]) -> None:
        for receiver, content in messages:
            if isinstance(content, WorkerReply | Notice):
                self._arrived.append(content)
                continue
            way: Hashable = ("letters", sender, receiver)
            if isinstance(content, Frame | Grant):
                way = (type(content).__name__, *content.channel)
            self._queues.setdefault(way, deque()).append(Sent(self._incarnation, receiver, content))
