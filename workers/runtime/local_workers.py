"""All workers of one run and their coordinator in one thread: steps the workers in turn and delivers their messages.

Deterministic: the same job, input, clock, number of workers, and requests at the same steps give the same run, unless a
step awaits asynchronous calls. A clock other than the system's does not advance during such a call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.errors import InternalError
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.rescale.channels.channel import Grant
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import Report
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.coordinator.coordinator import CoordinatedWorkers, Coordinator
from malstrom_py.workers.coordinator.recovery import RunStart, SnapshotUse, begin, beginning_steps, listed, restore
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.coordinator.sink_commits import SinkCommits, pre_committed
from malstrom_py.workers.engine.background import Background, ThreadBackground
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, build_sinks, movable_parts
from malstrom_py.workers.engine.initial_states import initial_states
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import StepCounts, merged_counts
from malstrom_py.workers.transport.messages import COORDINATOR, Connected, Content, Message

WATCH_S: Final = 1.0
"""The longest wait for awaited calls before the workers are stepped again. The calls have their own deadlines."""

_NAP_S: Final = 0.01
"""The same with a clock other than the system's."""


class LocalWorkers(CoordinatedWorkers):
    """``workers`` workers of one plan, and workers that join later. ``keeping``: how the job keeps snapshots, if any.

    ``incarnation``: the number of this start of the job, for a job without snapshots.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        workers: int,
        batching: Batching,
        clock: Clock,
        keeping: SnapshotUse | None = None,
        checks: bool = False,
        incarnation: int = 1,
        slots_per_move: int | None = None,
        keys_per_parcel: int | None = None,
    ) -> None:
        super().__init__(plan, clock)
        self._batching = batching
        self._checks = checks
        self._warned: set[str] = set()
        self._incarnation = incarnation
        self._keys_per_parcel = keys_per_parcel
        self._keeping = keeping
        self.wake = threading.Event()
        self._workers: dict[int, Worker] = {}
        self.coordination = Coordinator(plan, self, members=range(workers), clock=clock, slots_per_move=slots_per_move)
        self._begun: RunStart | None = None
        self._left: list[dict[str, StepCounts]] = []
        self._draining = False
        self.commit = SinkCommits(plan.job, build_sinks(plan, clock), clock.now_s())

    def begin(self) -> RunStart | None:
        """Claim the job, choose the snapshot to resume from, and recover the sinks. Call this first."""
        if self._keeping is None:
            self.commit.recover()
            return None
        self._begun = begin(self._plan, self._keeping, self.commit, self._clock)
        self._incarnation = self._begun.incarnation
        return self._begun

    def open(self, pins: Mapping[str, Any] | None = None) -> None:
        """Build the workers and open their sinks, then assign the parts of the sources and open the sources."""
        members = self.coordination.members
        table = first_table(self._plan.slots, members)
        self._workers = {worker: self._built(worker, members, table, 0) for worker in members}
        for worker in self._workers.values():
            worker.open_sinks()
        resumption = None if self._begun is None else self._begun.resumption
        known = {} if resumption is None else resumption.known
        dealt = self._workers[0].list_parts(list(self._workers), known)
        self.coordination.deal(movable_parts(dealt, self._workers[0].reading.movable))
        begun: dict[str, dict[Part, RestoredPart]] = {}
        if self._begun is not None and resumption is not None:
            begun = resumption.begun(listed(dealt))
            opened = resumption.opened(self._plan, listed(dealt))
            restore(opened, self._begun.checkpointer, list(self._workers.values()))
        states = initial_states(self._plan, beginning_steps(self._plan, resumption))
        for worker in self._workers.values():
            worker.start_with(states)
        if self._begun is not None:
            self._keep_snapshots(self._begun, pins or {})
        for worker in self._workers.values():
            self._carry(worker.id, worker.open_sources(dealt[worker.id], begun))

    def step(self, *, until_s: float | None = None) -> None:
        """Step every worker once. When all are idle, wait until one has work, or until ``until_s``."""
        turned = self.coordination.turn()
        self._carry(COORDINATOR, turned)
        busy = self._suspend_when_steady() or bool(turned)
        for worker in list(self._workers.values()):
            if worker.id not in self._workers:
                continue  # an earlier worker's step has removed this one
            done, outgoing = worker.step(len(self._workers))
            busy = busy or bool(done or outgoing)
            self._save_cut(worker)
            self._carry(worker.id, outgoing)
        self._watch(busy=busy)
        if not busy and not self._is_over and not any(worker.ready for worker in self._workers.values()):
            self._pass_time(until_s)

    def rescale(self, size: int, done: Done) -> None:
        """Rescale to ``size`` workers; ``done`` is called when the rescale has ended or was superseded (R9).

        The youngest workers leave first. `PlanError` for an invalid size, or if a leaving worker has to stay.
        """
        check_size(size)
        self.request(self.coordination.resized(size), done)

    def request(self, members: Sequence[int], done: Done) -> None:
        """Rescale to exactly these ``members``, present or new."""
        fixed = {worker.id: worker.reading.fixed for worker in self._workers.values()}
        self.coordination.check_leavers(members, fixed)
        self._carry(COORDINATOR, self.coordination.request(members, done))

    def finish(self) -> None:
        """Make the last snapshot, with the job's result: all input is read and written."""
        assert self.coordination.snapshotting is not None
        self.coordination.snapshotting.finish()

    def drain(self) -> None:
        """Stop the sources, so that the job finishes."""
        for worker in self._workers.values():
            worker.reading.stop()
        self._draining = True

    @property
    def all_suspended(self) -> bool:
        """Whether every worker is suspended."""
        return all(worker.suspended for worker in self._workers.values())

    @property
    def finished(self) -> bool:
        """Whether every worker has finished, with no rescale or snapshot in progress."""
        return self.may_finish and all(worker.finished for worker in self._workers.values())

    @property
    def _is_over(self) -> bool:
        """Whether the run ends after this step. A stopped job does not wait for timers or intervals."""
        return (self.finished and not self.coordination.is_saving) or self.suspended

    def counts(self) -> dict[str, StepCounts]:
        """Return the counts of each step so far, over all workers, including those that have left."""
        here = [worker.counts() for worker in self._workers.values()]
        return merged_counts(here, self._left) if here else {}

    def rows_in(self, step: str) -> int:
        """Return the number of records that a step has taken so far, over all workers."""
        here = sum(worker.rows_in(step) for worker in self._workers.values())
        return here + sum(counts[step].rows_in for counts in self._left)

    def pre_commit(self) -> None:
        """Pre-commit all transactional writers: their rows become durable but not visible."""
        for worker in self._workers.values():
            self.commit.add(pre_committed(worker.sinks, self.commit.contexts))

    def close_before_commit(self) -> None:
        """Close all but the transactional writers of every worker."""
        _each(worker.close_before_commit for worker in self._workers.values())

    def close(self) -> None:
        """Close every worker, then raise the first error."""
        self.coordination.close()
        _each(worker.close for worker in self._workers.values())

    def _built(self, worker: int, members: tuple[int, ...], table: tuple[int, ...], version: int) -> Worker:
        return Worker(
            self._plan,
            Membership(worker, members, table, version, self._incarnation, self._warned),
            batching=self._batching,
            clock=self._clock,
            codec=Codec(self._plan.types),
            tracked=self._keeping is not None,
            checks=self._checks,
            wake=self.wake,
            keys_per_parcel=self._keys_per_parcel,
        )

    def _carry(self, sender: int, messages: Iterable[Message]) -> None:
        """Deliver messages of ``sender``, and all messages that follow from them."""
        queue: deque[Message] = deque(messages)
        while queue:
            receiver, message = queue.popleft()
            queue.extend(self._hand(receiver, message))

    def _hand(self, receiver: int, message: Content) -> Sequence[Message]:
        """Deliver a message, and return the receiver's messages in response."""
        if isinstance(message, Connected):
            return self.coordination.handle(message)
        if isinstance(message, Report):
            return self.coordination.handle(events.ReportReceived(message))
        worker = self._workers.get(receiver)
        if worker is not None:
            return worker.receive(message)  # type: ignore[arg-type]  # only a coordinator in another process gets news
        if isinstance(message, Grant):
            return []  # the channel's sender has left and needs no credit
        raise InternalError(f"{type(message).__name__} is for worker {receiver}, which does not exist")

    def start(self, start: events.StartWorkers) -> list[Message]:
        """Build the joining workers from the current table, and connect them in both directions (R1)."""
        for joiner in start.workers:
            worker = self._built(joiner, start.members, start.table, start.version)
            for other in self._workers.values():
                other.connect(joiner)
                if other.id not in start.members:
                    worker.connect(other.id)
            self._workers[joiner] = worker
            worker.open_sinks()
            if self._draining:
                worker.reading.stop()
        return [(COORDINATOR, Connected(joiner)) for joiner in start.workers]

    def remove_all_but(self, members: Sequence[int]) -> None:
        """Remove all other workers. What they have pre-committed waits for the commit at the end (R8)."""
        for leaver in [worker for worker in self._workers.values() if worker.id not in members]:
            # The worker stays in `_workers` until it is closed: after a failure here it is closed with the others.
            leaver.close_before_commit()
            self.commit.add(pre_committed(leaver.sinks, self.commit.contexts))
            leaver.close()
            del self._workers[leaver.id]
            for other in self._workers.values():
                other.disconnect(leaver.id)
            self._left.append(leaver.counts())

    def _suspend_when_steady(self) -> bool:
        if not self._suspending or not self.coordination.is_steady:
            return False
        self._suspending = False
        for worker in list(self._workers.values()):
            self._carry(worker.id, worker.suspend())
        return True

    def _keep_snapshots(self, begun: RunStart, pins: Mapping[str, Any]) -> None:
        assert self._keeping is not None
        self.coordination.keep_snapshots(
            begun, self._keeping.snapshots, self._background(), self.commit, pins, self._result
        )

    def _background(self) -> Background:
        return ThreadBackground(self.wake)

    def _save_cut(self, worker: Worker) -> None:
        cut = worker.take_cut()
        if cut is not None and self.coordination.snapshotting is not None:
            self.coordination.snapshotting.save(cut)

    def _watch(self, *, busy: bool) -> None:
        """Check the deadline of a rescale (R7). Awaited calls count as progress: they have their own deadlines."""
        if busy or any(worker.awaiting for worker in self._workers.values()):
            self.coordination.got_on()
        self.coordination.check_deadline()

    def _pass_time(self, until_s: float | None) -> None:
        """Wait until a worker has work or an awaited call has returned: all are idle."""
        now_s = self._clock.monotonic_s()
        due_s = [due for worker in self._workers.values() if (due := worker.due_s()) is not None]
        due_s += self.coordination.due_s()
        # Overdue work waits for credit, not for time.
        waits_s = [due - now_s for due in (*due_s, *(() if until_s is None else (until_s,))) if due > now_s]
        if self.coordination.is_saving or any(worker.awaiting for worker in self._workers.values()):
            self._await(waits_s)
        elif not all(worker.at_rest for worker in self._workers.values()):
            return
        elif waits_s:
            self._clock.sleep_s(min(waits_s))
        else:
            waits_for = self.coordination.waiting_for()
            raise InternalError(
                "no worker has anything to do, yet the job has not finished"
                + (f"; its rescale waits for {waits_for}" if waits_for else "")
            )

    def _await(self, waits_s: Iterable[float]) -> None:
        """Wait until an awaited call has returned, or something else is due."""
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
