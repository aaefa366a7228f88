"""All workers of one run in one process, and their coordinator: steps them in turn and carries what they have for
each other.

Deterministic: the same job, input, clock, number of workers and requests at the same steps give the same steps, unless
a step awaits calls that take as long as they take. While it does, a clock other than the system's stands still.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.errors import DeadlineError, InternalError, PlanError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.plan import Plan
from malstrom_py.rescale.channel import Grant, Suspend
from malstrom_py.rescale.placement import first_table, plan_moves
from malstrom_py.rescale.protocol import Report
from malstrom_py.workers import coordinator_machine as coordinator
from malstrom_py.workers.batching import Batching
from malstrom_py.workers.commit import FinalCommit
from malstrom_py.workers.graph import Membership
from malstrom_py.workers.job_size import check_size
from malstrom_py.workers.outgoing import COORDINATOR, Content, Message
from malstrom_py.workers.rescale_report import RescaleReport
from malstrom_py.workers.rescales import Rescales
from malstrom_py.workers.result import StepCounts, merged_counts
from malstrom_py.workers.topology import topology_of
from malstrom_py.workers.worker import Worker

MOVES: Final = 4
"""Into how many moves the slots of a job are cut at most: the fewer move at once, the shorter each is held; but each
move waits until all that stood before its markers has been taken in, so under full load many are slow."""

MOVE_DEADLINE_S: Final = 120.0
"""R7: how long a rescale may go on without any worker getting on with anything."""

WATCH_S: Final = 1.0
"""How long nothing may come back before the workers are asked again: what they await has deadlines of its own."""

_NAP_S: Final = 0.01
"""The same where the clock does not say how long nothing is due."""


class Crew:
    """``workers`` workers over one plan, and those that join them. ``incarnation``: which start of the job this is."""

    def __init__(
        self,
        plan: Plan,
        *,
        workers: int,
        batching: Batching,
        clock: Clock,
        checks: bool = False,
        incarnation: int = 1,
        slots_per_move: int | None = None,
        keys_per_parcel: int | None = None,
    ) -> None:
        self._plan = plan
        self._batching = batching
        self._clock = clock
        self._checks = checks
        self._incarnation = incarnation
        self._slots_per_move = slots_per_move or max(1, plan.slots // MOVES)
        self._keys_per_parcel = keys_per_parcel
        self.wake = threading.Event()
        members = tuple(range(workers))
        table = first_table(plan.slots, members)
        self._workers = {worker: self._built(worker, members, table, 0) for worker in members}
        self._next_worker = workers
        self._machine = self._coordinator(members, table, {})
        self._rescales = Rescales(self._machine)
        self._left: list[dict[str, StepCounts]] = []
        self._draining = False
        self._suspending = False
        self._got_on_s = clock.monotonic_s()
        self.commit = FinalCommit(plan.job, self.sinks, clock.now_s())

    def open(self) -> None:
        """Open the sinks of every worker, then deal the parts of the sources and open these."""
        for worker in self._workers.values():
            worker.open_sinks()
        members = list(self._workers)
        dealt = self._workers[0].list_parts(members)
        parts = {
            (step, str(part)): worker
            for worker, of_worker in dealt.items()
            for step, names in of_worker.items()
            for part in names
            if step in self._workers[0].reading.movable
        }
        self._machine = self._coordinator(tuple(members), self._machine.table, parts)
        self._rescales = Rescales(self._machine)
        for worker in self._workers.values():
            self._carry(worker.id, worker.open_sources(dealt[worker.id]))

    def step(self, *, until_s: float | None = None) -> None:
        """Step every worker once; when none has anything to do, let the time pass until one has, or ``until_s``."""
        busy = self._suspend_when_steady()
        for worker in list(self._workers.values()):
            if worker.id not in self._workers:
                continue  # it has left by what the one before it has done
            done, outgoing = worker.step()
            busy = busy or bool(done or outgoing)
            self._carry(worker.id, outgoing)
        self._watch(busy=busy)
        if not busy and not self.finished and not any(worker.ready for worker in self._workers.values()):
            self._pass_time(until_s)

    def rescale(self, size: int, done: Callable[[RescaleReport], None]) -> None:
        """Go to ``size`` workers while the job runs; ``done`` is told when that has ended, or was overtaken (R9).

        The youngest leave first. `PlanError` if so many cannot be, or one of those that would leave cannot.
        """
        check_size(size)
        members = self.target[:size]
        self.request((*members, *self._new_workers(size - len(members))), done)

    def request(self, members: Sequence[int], done: Callable[[RescaleReport], None]) -> None:
        """Go to just these ``members``, those that are there and new ones."""
        members = tuple(members)
        self._check_leavers(members)
        self._got_on_s = now_s = self._clock.monotonic_s()
        self._rescales.asked(members, now_s, done)
        self._carry(COORDINATOR, self._coordinate(coordinator.Requested(members)))

    def drain(self) -> None:
        """Have the sources read nothing more, so that the job comes to its end."""
        for worker in self._workers.values():
            worker.reading.stop()
        self._draining = True

    def suspend(self) -> None:
        """Have every worker stop behind all that is on its way: once nothing moves any more (R7)."""
        self._suspending = True

    @property
    def suspended(self) -> bool:
        """Whether all have stopped."""
        return all(worker.suspended for worker in self._workers.values())

    @property
    def members(self) -> tuple[int, ...]:
        """The workers that are there."""
        return self._machine.members

    @property
    def target(self) -> tuple[int, ...]:
        """The workers that the last request leads to."""
        return self._machine.target

    @property
    def phase(self) -> str:
        """What the coordinator is about: "steady", "joining", "moving" or "leaving"."""
        return str(self._machine.phase)

    @property
    def finished(self) -> bool:
        """Whether every worker has, and nothing moves."""
        if self._machine.phase is not coordinator.Phase.STEADY:
            return False
        return all(worker.finished for worker in self._workers.values())

    @property
    def sinks(self) -> list[WriteSink]:
        """The sink steps of all workers."""
        return [sink for worker in self._workers.values() for sink in worker.sinks]

    def counts(self) -> dict[str, StepCounts]:
        """What each step has done so far, on all workers together, those that have left among them."""
        return merged_counts([worker.counts() for worker in self._workers.values()], self._left)

    def rows_in(self, step: str) -> int:
        """How many records a step has taken so far, on all workers together."""
        here = sum(worker.rows_in(step) for worker in self._workers.values())
        return here + sum(counts[step].rows_in for counts in self._left)

    def close_before_commit(self) -> None:
        """Close all but the transactional writers of every worker."""
        _each(worker.close_before_commit for worker in self._workers.values())

    def close(self) -> None:
        """Close every worker; the first error is raised when all have been closed."""
        _each(worker.close for worker in self._workers.values())

    def _built(self, worker: int, members: tuple[int, ...], table: tuple[int, ...], version: int) -> Worker:
        return Worker(
            self._plan,
            Membership(worker, members, table, version, self._incarnation),
            batching=self._batching,
            clock=self._clock,
            codec=Codec(self._plan.types),
            checks=self._checks,
            wake=self.wake,
            keys_per_parcel=self._keys_per_parcel,
        )

    def _coordinator(
        self, members: tuple[int, ...], table: tuple[int, ...], parts: dict[tuple[str, str], int]
    ) -> coordinator.CoordinatorMachine:
        return coordinator.CoordinatorMachine(
            topology_of(self._plan),
            members=members,
            table=table,
            parts=parts,
            plan_moves=partial(plan_moves, slots_max=self._slots_per_move),
        )

    def _new_workers(self, count: int) -> range:
        """Numbers for ``count`` workers: none is given twice, so that nothing old can be taken for something new."""
        new = range(self._next_worker, self._next_worker + count)
        self._next_worker += count
        return new

    def _check_leavers(self, members: Sequence[int]) -> None:
        for worker in self._workers.values():
            if worker.id not in members and (source := worker.reading.fixed):
                raise PlanError(
                    f"source {source!r} reads on worker {worker.id} and cannot go on elsewhere, for it has no "
                    f"positions: keep at least {worker.id + 1} workers, or make it a PartitionedSource"
                )

    def _carry(self, sender: int, messages: Iterable[Message]) -> None:
        """Carry what ``sender`` has for others, at once, and all that comes of it."""
        queue: deque[Message] = deque(messages)
        while queue:
            receiver, message = queue.popleft()
            queue.extend(self._hand(receiver, message))

    def _hand(self, receiver: int, message: Content) -> Sequence[Message]:
        """Give a message to its receiver: what it has to say to that."""
        if isinstance(message, coordinator.Connected):
            return self._coordinate(message)
        if isinstance(message, Report):
            return self._coordinate(coordinator.Reported(message))
        worker = self._workers.get(receiver)
        if worker is not None:
            return worker.receive(message)
        if isinstance(message, Grant):
            return []  # its sender has left, and needs no credit any more
        raise InternalError(f"{type(message).__name__} is for worker {receiver}, which is not there")

    def _coordinate(self, event: coordinator.Event) -> list[Message]:
        """Let the coordinator decide, and do what it decides: the orders and news that come of it."""
        messages: list[Message] = []
        self._got_on_s = self._clock.monotonic_s()
        for effect in self._machine.handle(event):
            match effect:
                case coordinator.StartWorkers():
                    messages += self._start(effect)
                case coordinator.Send():
                    messages.append((effect.worker, effect.order))
                case coordinator.Ended():
                    self._remove_all_but(effect.members)
                    self._rescales.ended(self._clock.monotonic_s())
        self._machine.check()
        return messages

    def _start(self, start: coordinator.StartWorkers) -> list[Message]:
        """R1: joiners are built from the table of now and connected both ways."""
        for joiner in start.workers:
            worker = self._built(joiner, start.members, start.table, start.version)
            for other in self._workers.values():
                other.connect(joiner)
                if other.id not in start.members:
                    worker.connect(other.id)
            self._workers[joiner] = worker
            worker.open_sinks()
            self.commit.join(worker.sinks)
            if self._draining:
                worker.reading.stop()
        return [(COORDINATOR, coordinator.Connected(joiner)) for joiner in start.workers]

    def _remove_all_but(self, members: Sequence[int]) -> None:
        """R8: what those that leave have not committed waits for the commit at the end."""
        for leaver in [worker for worker in self._workers.values() if worker.id not in members]:
            # Until it is closed it counts as one of the others, so that whatever fails here has it closed with them.
            leaver.close_before_commit()
            self.commit.leave(leaver.sinks)
            leaver.close()
            del self._workers[leaver.id]
            for other in self._workers.values():
                other.disconnect(leaver.id)
            self._left.append(leaver.counts())

    def _suspend_when_steady(self) -> bool:
        if not self._suspending or self._machine.phase is not coordinator.Phase.STEADY:
            return False
        self._suspending = False
        for worker in list(self._workers.values()):
            self._carry(worker.id, worker.barrier(Suspend()))
        return True

    def _watch(self, *, busy: bool) -> None:
        """R7: a rescale with which nobody gets on ends the job, for without snapshots there is no way back (S6)."""
        if self._machine.phase is coordinator.Phase.STEADY:
            return
        now_s = self._clock.monotonic_s()
        # What a step awaits has deadlines of its own, and may hold up what stands behind it for as long.
        if busy or any(worker.awaiting for worker in self._workers.values()):
            self._got_on_s = now_s
        if now_s - self._got_on_s > MOVE_DEADLINE_S:
            raise DeadlineError(
                f"job {self._plan.job!r}: nothing has happened for {MOVE_DEADLINE_S:g} s in the middle of a rescale, "
                f"which waits for {self._machine.waiting_for()}. Start the job afresh."
            )

    def _pass_time(self, until_s: float | None) -> None:
        """Nobody has anything to do: let the time pass until somebody has, or something has come back."""
        now_s = self._clock.monotonic_s()
        due_s = [due for worker in self._workers.values() if (due := worker.due_s()) is not None]
        # What is overdue and not done waits for a region that is full: it is nothing to wait for.
        waits_s = [due - now_s for due in (*due_s, *(() if until_s is None else (until_s,))) if due > now_s]
        if any(worker.awaiting for worker in self._workers.values()):
            self._await(waits_s)
        elif not all(worker.at_rest for worker in self._workers.values()):
            return
        elif waits_s:
            self._clock.sleep_s(min(waits_s))
        else:
            waits_for = self._machine.waiting_for()
            raise InternalError(
                "no worker has anything to do, yet the job has not finished"
                + (f"; its rescale waits for {waits_for}" if waits_for else "")
            )

    def _await(self, waits_s: Iterable[float]) -> None:
        """Wait until something has come back that a step awaits, or something else is due."""
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
