"""Has workers of a job on Ray come up, and connects them: the first ones, and those that join while it runs.

Rule: whoever waits here has a deadline, and is told at once if the cluster has lost the room that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import ray

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, PeerError
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.ray.cluster import in_words, room_now
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.node_watch import Lookout
from malstrom_py.workers.ray.worker_handle import Asked, Hand, answers
from malstrom_py.workers.ray.worker_registry import Roster
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import COORDINATOR

LOOK_S: Final = 1.0
"""How often it is looked whether there is room still."""


class Hiring:
    """Hires for ``roster``, as ``setup`` says. ``plan`` is packed; ``streams`` is the coordinator's end of them.
    ``told`` is called, in any thread, when somebody has come up, answered or ended. ``lookout``: knows the nodes where
    nobody can be hired.
    """

    def __init__(
        self,
        setup: JobSetup,
        roster: Roster,
        plan: bytes,
        streams: Transport,
        clock: Clock,
        told: Callable[[], None],
        lookout: Lookout,
    ) -> None:
        self.newcomers: list[Hand] = []
        self._setup = setup
        self._roster = roster
        self._plan = ray.put(plan)
        self._streams = streams
        self._clock = clock
        self._told = told
        self._lookout = lookout
        self._avoided: frozenset[str] = frozenset()

    def hire(self, workers: Sequence[int]) -> None:
        """Have ``workers`` come up, on nodes that are not silent."""
        self._avoided = self._lookout.silent
        self.newcomers = [self._hired(worker) for worker in workers]

    def come_up(self) -> Iterator[None]:
        """Until all newcomers have told their addresses."""
        deadline_s = self._setup.start_timeout_s
        look_s = self._clock.monotonic_s()
        until_s = look_s + deadline_s
        while not all(hand.is_up for hand in self.newcomers):
            now_s = self._clock.monotonic_s()
            if now_s >= until_s:
                needs = in_words(self._setup.options.needs)
                missing = [str(hand.worker) for hand in self.newcomers if not hand.is_up]
                raise DeadlineError(
                    f"worker {', '.join(missing)} of job {self._setup.job!r} did not come up within {deadline_s:g} s: "
                    f"see `ray status` for whether the cluster has room (each needs {needs}), or "
                    f"allow more with RayRuntime(start_timeout_s=)",
                    wait="workers to come up",
                    deadline_s=deadline_s,
                )
            if now_s >= look_s and not self._setup.autoscaling:
                look_s = now_s + LOOK_S
                self._check_room()
            self._hire_elsewhere()
            yield
        for hand in self.newcomers:
            hand.come_up()

    def addresses_but(self, but: Hand) -> dict[int, Any]:
        """Where everyone else is reached by one worker."""
        hands = [*self._roster.hands.values(), *self.newcomers]
        others = {hand.worker: hand.address for hand in hands if hand is not but}
        return {COORDINATOR: self._streams.address, **others}

    def build(self, start: events.StartWorkers, *, draining: bool, got_on: Callable[[], None]) -> Iterator[None]:
        """R1: have the newcomers come up, and build what they run, from the table of now."""
        until_s = self._clock.monotonic_s() + self._setup.start_timeout_s
        for _ in self.come_up():
            got_on()  # this has a deadline of its own
            yield
        others = [*start.members, *start.workers]
        built = []
        for hand in self.newcomers:
            member = Membership(hand.worker, start.members, start.table, start.version, self._setup.incarnation)
            more = [other for other in others if other not in start.members and other != hand.worker]
            built.append((hand, hand.ask("build", member, more, draining)))
        while not _all_done(built) and self._clock.monotonic_s() < until_s:
            self._roster.check_nodes(self.newcomers)
            got_on()
            yield
        answers(built, "open its sinks", timeout_s=0.0, waited_s=self._setup.start_timeout_s)

    def connect(self) -> Iterator[None]:
        """R1: connect those who are there with the newcomers, who are among them from then on."""
        joiners = self.newcomers
        addresses = {hand.worker: hand.address for hand in joiners}
        asked = [(hand, hand.ask("welcome", addresses)) for hand in self._roster.hands.values()]
        asked += [(hand, hand.ask("reach", self.addresses_but(hand))) for hand in joiners]
        while not _all_done(asked):
            self._roster.check_nodes(joiners)
            yield
        answers(asked, "reach the others")
        for hand in joiners:
            self._streams.connect(hand.worker, hand.address)
            self._roster.hands[hand.worker] = hand
        self.newcomers = []
        started = [(hand, hand.ask("start")) for hand in joiners]
        while not _all_done(started):
            yield
        answers(started, "start")

    def give_up(self) -> None:
        """Those who were to join are not."""
        newcomers, self.newcomers = self.newcomers, []
        for hand in newcomers:
            hand.kill()

    def _hired(self, worker: int) -> Hand:
        return Hand(self._setup, worker, self._plan, self._told, self._avoided)

    def _hire_elsewhere(self) -> None:
        """A node has fallen silent: hire others for those who may be there. Ray says who is only once they are up."""
        if self._lookout.silent <= self._avoided:
            return
        self._avoided = self._avoided | self._lookout.silent
        for at, hand in enumerate(self.newcomers):
            if not hand.is_up or hand.node in self._avoided:
                hand.kill()
                self.newcomers[at] = self._hired(hand.worker)

    def _check_room(self) -> None:
        room = room_now(self._setup.options.needs, but=self._lookout.silent)
        wanted = len(self._roster.hands) + len(self.newcomers)
        if room < wanted:
            raise PeerError(
                f"job {self._setup.job!r} waits for {wanted} workers to come up, and the Ray cluster has room for "
                f"{room} by now: it has lost a node. Add one, or run fewer workers"
            )


def _all_done(asked: Asked) -> bool:
    return all(future.done() for _, future in asked)


def parts_of(
    parts: Mapping[str, Sequence[Part]], begun: Mapping[str, Mapping[Part, RestoredPart]]
) -> dict[str, dict[Part, RestoredPart]]:
    """Where those of ``parts`` stand that were begun."""
    return {
        step: {part: begun[step][part] for part in some if part in begun.get(step, {})} for step, some in parts.items()
    }
