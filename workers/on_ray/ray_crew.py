"""The workers of a job on Ray, as the run in its coordinator drives them: hired, connected, told, asked, let go.

Rule: batches go from worker to worker, and orders and reports over the same streams; the rest are calls of actors.
Whoever fails, the run is told the error nearest to the root: a user's own before a death, a death before a lost stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, Final

import ray

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, MalstromError, PeerError
from malstrom_py.plan import Plan
from malstrom_py.workers import coordinator_machine as coordinator
from malstrom_py.workers.commit import FinalCommit
from malstrom_py.workers.coordination import Coordination
from malstrom_py.workers.failures import unpack
from malstrom_py.workers.graph import Membership, build_sinks, deal_parts, movable_parts
from malstrom_py.workers.job_size import check_size
from malstrom_py.workers.on_ray.cluster import check_room
from malstrom_py.workers.on_ray.hands import ANSWER_S, Asked, Hand, answers, value_of
from malstrom_py.workers.on_ray.setup import JobSetup
from malstrom_py.workers.on_ray.shipment import pack_plan
from malstrom_py.workers.outgoing import COORDINATOR, Content, Message
from malstrom_py.workers.rescale_report import Moving
from malstrom_py.workers.rescales import Done
from malstrom_py.workers.result import StepCounts, merged_counts
from malstrom_py.workers.standing import Standing, Tally
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.worker_host import Finished
from malstrom_py.workers.worker_loop import Wake

TURN_S: Final = 0.5
"""How long the coordinator waits at most before it looks around; whatever happens ends the wait."""

ROOT_S: Final = 2.0
"""How long it waits for the root of a failure when all it knows is that a stream was lost."""

FINISH_S: Final = 600.0
"""How long sinks may take to make durable what they were given."""

SETTLE_S: Final = 2.0
"""How long those who make durable what they were given may go on once one of them has failed."""

CLOSE_S: Final = 60.0
"""How long workers that have finished may take to close, before their processes are ended."""

GIVE_UP_S: Final = 3.0
"""The same where the job has failed: everyone is to know of it within ten seconds."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


class RayCrew:
    """The workers of ``plan``, started as ``setup`` says. ``transport`` is the coordinator's end of the streams."""

    def __init__(self, setup: JobSetup, plan: Plan, transport: Transport, clock: Clock) -> None:
        self._setup = setup
        self._plan = plan
        self._transport = transport
        self._clock = clock
        self.wake = Wake(transport)
        self.commit = FinalCommit(plan.job, build_sinks(plan, clock), clock.now_s(), deliver=True)
        self.coordination = Coordination(plan, self, members=range(setup.workers), clock=clock)
        self._shared_plan: Any = None
        self._hands: dict[int, Hand] = {}
        self._newcomers: list[Hand] = []
        self._joining: Iterator[None] | None = None
        self._standings: dict[int, Standing] = {}
        self._counts: dict[int, Mapping[str, StepCounts]] = {}
        self._left: list[Mapping[str, StepCounts]] = []
        self._fixed: dict[int, str] = {}
        self._draining = False
        self._has_finished = False
        self._suspending = False

    def open(self) -> None:
        """Deal the parts, hire the first workers, open their sinks, connect all with all, and open the sources."""
        members = self.coordination.members
        # Listed before the plan is copied, so that what a source learns by it, all workers know.
        dealt = deal_parts(self._plan, members, self._clock)
        self.coordination.deal(movable_parts(dealt.parts, dealt.movable))
        self._shared_plan = ray.put(pack_plan(self._plan))
        self._newcomers = hands = [self._hire(worker) for worker in members]
        for _ in self._come_up(hands):
            self._transport.receive(TURN_S)
        self._hands, self._newcomers = {hand.worker: hand for hand in hands}, []
        table = self.coordination.table
        built = [
            (hand, hand.ask("build", Membership(hand.worker, members, table, 0, self._setup.incarnation), (), False))
            for hand in hands
        ]
        self._answers(built, "open its sinks")
        self._answers([(hand, hand.ask("reach", self._addresses_but(hand))) for hand in hands], "reach the others")
        for hand in hands:
            self._transport.connect(hand.worker, hand.address)
        opened = [(hand, hand.ask("open_sources", dealt.parts[hand.worker])) for hand in hands]
        self._fixed = dict(zip(members, self._answers(opened, "open its sources"), strict=True))
        self._ask_all(hands, "start")

    def step(self, *, until_s: float | None = None) -> None:
        """Take what workers tell, do what follows from it; when nothing comes, wait for a while."""
        self.wake.clear()
        self._check_ended()
        self._go_on_joining()
        if self._suspending and self.coordination.is_steady:
            self._suspending = False
            self._ask_all(list(self._hands.values()), "suspend")
        try:
            came = self._transport.receive(0.0 if self.finished else TURN_S)
        except PeerError as error:
            raise self._root_of(error) from None
        for content in came:
            self._take(content)
        self.coordination.check_deadline()

    def rescale(self, size: int, done: Done) -> None:
        """Go to ``size`` workers while the job runs; ``done`` is told what came of it (R9).

        The youngest leave first. `PlanError` if the cluster has no room for so many, or one of those that would leave
        cannot.
        """
        check_size(size)
        if not self._setup.autoscaling:
            check_room(size, self._setup.options.needs)
        members = self.coordination.resized(size)
        self.coordination.check_leavers(members, self._fixed)
        self._send(self.coordination.request(members, done))

    def drain(self) -> None:
        """Have the sources read nothing more."""
        self._draining = True
        self._ask_all(list(self._hands.values()), "drain")

    def suspend(self) -> None:
        """Have every worker stop behind all that is on its way, once nothing moves any more (R7)."""
        self._suspending = True

    @property
    def members(self) -> tuple[int, ...]:
        """The workers that are there."""
        return self.coordination.members

    @property
    def moving(self) -> Moving | None:
        """How far the rescale under way has come; None while nothing moves."""
        return self.coordination.moving

    @property
    def phase(self) -> str:
        """What the coordinator is about: "steady", "joining", "moving" or "leaving"."""
        return self.coordination.phase

    @property
    def suspended(self) -> bool:
        """Whether all have stopped."""
        return self._all_stand(lambda standing: standing.suspended)

    @property
    def finished(self) -> bool:
        """Whether every worker has, and nothing moves."""
        return self.coordination.is_steady and self._all_stand(lambda standing: standing.finished)

    def counts(self) -> dict[str, StepCounts]:
        """What each step has done, on all workers together, as far as they have told."""
        known = [self._counts[worker] for worker in self.members if worker in self._counts]
        return merged_counts(known, self._left) if known else {}

    def pre_commit(self) -> None:
        """Have all workers end: pre-commit, and close all but the transactional writers."""
        self._finish(list(self._hands.values()))
        self._has_finished = True

    def close_before_commit(self) -> None:
        """That was part of `pre_commit`."""

    def close(self) -> None:
        """Close every worker and end its process; the first error is raised when all have been ended."""
        hands, self._hands = [*self._hands.values(), *self._newcomers], {}
        self._newcomers, self._joining = [], None
        try:
            self._let_go(
                [hand for hand in hands if hand.is_up and not hand.has_ended],
                timeout_s=CLOSE_S if self._has_finished else GIVE_UP_S,
            )
        finally:
            for hand in hands:
                hand.kill()
            self._transport.close(linger_s=0.0)

    # For the coordination.

    def start(self, start: coordinator.StartWorkers) -> Sequence[Message]:
        """R1: have joiners come up. What has to be waited for is gone on with in `step`."""
        self._newcomers = [self._hire(worker) for worker in start.workers]
        self._joining = self._join(start, self._newcomers)
        self.wake.set()
        return []

    def remove_all_but(self, members: Sequence[int]) -> None:
        """R8: let go those who have said Bye. What they have not committed waits for the commit at the end."""
        leavers = [hand for hand in self._hands.values() if hand.worker not in members]
        if not leavers:
            return
        numbers = [hand.worker for hand in leavers]
        stay = [hand for hand in self._hands.values() if hand not in leavers]
        self._ask_all(stay, "part_with", numbers)
        for worker in numbers:
            self._transport.disconnect(worker)
        self._finish(leavers)
        self._let_go(leavers, timeout_s=CLOSE_S)
        for hand in leavers:
            hand.kill()
            del self._hands[hand.worker]
            self._left.append(self._counts.pop(hand.worker))
            self._standings.pop(hand.worker, None)
        _LOG.info("workers %s have left", numbers)

    # Inside.

    def _hire(self, worker: int) -> Hand:
        return Hand(self._setup, worker, self._shared_plan, self.wake.set)

    def _addresses_but(self, but: Hand) -> dict[int, Any]:
        """Where everyone else is reached by one worker."""
        hands = [*self._hands.values(), *self._newcomers]
        others = {hand.worker: hand.address for hand in hands if hand is not but}
        return {COORDINATOR: self._transport.address, **others}

    def _come_up(self, hands: Sequence[Hand]) -> Iterator[None]:
        """Until all ``hands`` have told their addresses."""
        deadline_s = self._setup.start_timeout_s
        until_s = self._clock.monotonic_s() + deadline_s
        while not all(hand.is_up for hand in hands):
            if self._clock.monotonic_s() >= until_s:
                missing = [str(hand.worker) for hand in hands if not hand.is_up]
                raise DeadlineError(
                    f"worker {', '.join(missing)} of job {self._setup.job!r} did not come up within {deadline_s:g} s: "
                    f"see `ray status` for whether the cluster has room (each needs {self._setup.options.needs}), or "
                    f"allow more with RayRuntime(start_timeout_s=)",
                    wait="workers to come up",
                    deadline_s=deadline_s,
                )
            yield
        for hand in hands:
            hand.come_up()

    def _join(self, start: coordinator.StartWorkers, joiners: list[Hand]) -> Iterator[None]:
        """R1, step by step. What fails before anybody else knows of the joiners calls the rescale off."""
        until_s = self._clock.monotonic_s() + self._setup.start_timeout_s
        try:
            for _ in self._come_up(joiners):
                self.coordination.got_on()  # this has a deadline of its own
                yield
            others = [*start.members, *start.workers]
            built = []
            for hand in joiners:
                member = Membership(hand.worker, start.members, start.table, start.version, self._setup.incarnation)
                more = [other for other in others if other not in start.members and other != hand.worker]
                built.append((hand, hand.ask("build", member, more, self._draining)))
            while not _all_done(built) and self._clock.monotonic_s() < until_s:
                self.coordination.got_on()
                yield
            answers(built, "open its sinks", timeout_s=0.0, waited_s=self._setup.start_timeout_s)
        except MalstromError as error:
            self._call_off(error)
            return
        addresses = {hand.worker: hand.address for hand in joiners}
        asked = [(hand, hand.ask("welcome", addresses)) for hand in self._hands.values()]
        asked += [(hand, hand.ask("reach", self._addresses_but(hand))) for hand in joiners]
        while not _all_done(asked):
            yield
        answers(asked, "reach the others")
        for hand in joiners:
            self._transport.connect(hand.worker, hand.address)
            self._hands[hand.worker] = hand
        self._newcomers = []
        started = [(hand, hand.ask("start")) for hand in joiners]
        while not _all_done(started):
            yield
        answers(started, "start")
        _LOG.info("workers %s have joined", list(addresses))
        for worker in addresses:
            self._send(self.coordination.handle(coordinator.Connected(worker)))

    def _go_on_joining(self) -> None:
        joining = self._joining
        if joining is None:
            return
        try:
            next(joining)
        except StopIteration:
            if self._joining is joining:  # what waited behind it may have begun to join already
                self._joining = None

    def _call_off(self, error: MalstromError) -> None:
        _LOG.warning("the rescale is called off: %s", error)
        newcomers, self._newcomers, self._joining = self._newcomers, [], None
        for hand in newcomers:
            hand.kill()
        self._send(self.coordination.handle(coordinator.CalledOff(error)))

    def _take(self, content: Content) -> None:
        match content:
            case Standing():
                self._standings[content.worker] = content
            case Tally():
                self._counts[content.worker] = content.counts
                self.coordination.got_on()
            case _:
                report: Any = content
                self._send(self.coordination.handle(coordinator.Reported(report)))

    def _send(self, messages: Sequence[Message]) -> None:
        for receiver, content in messages:
            self._transport.send(receiver, [content])

    def _all_stand(self, as_wanted: Callable[[Standing], bool]) -> bool:
        version = self.coordination.version
        found = [self._standings.get(worker) for worker in self.members]
        return all(standing is not None and standing.version == version and as_wanted(standing) for standing in found)

    def _finish(self, hands: Sequence[Hand]) -> None:
        asked = [(hand, hand.ask("finish", self.commit.contexts)) for hand in hands]
        try:
            self._answers(asked, "make durable what it has written", timeout_s=FINISH_S)
        except MalstromError:
            wait_for([future for _, future in asked], timeout=SETTLE_S)  # what they have made by then is discarded
            raise
        finally:
            errors = [self._finished(hand, future) for hand, future in asked]
        for error in errors:
            if error is not None:
                raise error

    def _finished(self, hand: Hand, future: Future[Any]) -> BaseException | None:
        """Note what a worker has left, if it has answered: what went wrong there."""
        try:
            end: Finished = value_of(future, hand.worker)
        except (MalstromError, TimeoutError):
            return None  # it is told as the answer
        self.commit.add(end.payloads)
        self._counts[hand.worker] = end.counts
        return None if end.error is None else unpack(end.error)

    def _answers(self, asked: Asked, what: str, *, timeout_s: float = ANSWER_S) -> list[Any]:
        """What workers answer, unless one of all of them dies or fails meanwhile."""
        return answers(asked, what, timeout_s=timeout_s, look=self._check_ended)

    def _ask_all(self, hands: Sequence[Hand], what: str, *arguments: Any) -> list[Any]:
        return self._answers([(hand, hand.ask(what, *arguments)) for hand in hands], what.replace("_", " "))

    def _let_go(self, hands: Sequence[Hand], *, timeout_s: float) -> None:
        asked = [(hand, hand.ask("close")) for hand in hands]
        answers(asked, "close", timeout_s=timeout_s)

    def _check_ended(self) -> None:
        if any(hand.has_ended for hand in self._hands.values()):
            raise self._root_of(None)

    def _root_of(self, error: MalstromError | None) -> MalstromError:
        """The error nearest to the root of a failure that has shown as ``error``, or as the end of a worker."""
        until_s = self._clock.monotonic_s() + ROOT_S
        while True:
            ends = [end for hand in self._hands.values() if (end := hand.ended_by()) is not None]
            nearest = min(ends, key=lambda end: end[0], default=None)
            found_root = nearest is not None and nearest[0] == 0
            if found_root or self._clock.monotonic_s() >= until_s:
                break
            self._clock.sleep_s(0.05 if nearest is None or nearest[0] > 1 else ROOT_S / 4)
            if nearest is not None and nearest[0] == 1:
                until_s = 0.0  # a death: look once more whether it was a user's error that came first
        if nearest is not None:
            return nearest[1]
        return error or PeerError(f"the workers of job {self._setup.job!r} have ended before the job did")


def _all_done(asked: Asked) -> bool:
    return all(future.done() for _, future in asked)
