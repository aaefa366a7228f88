"""Runs a model by a seed: the seed decides what happens next, who is slow, what is asked for and what breaks."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from malstrom_py.errors import PeerError
from malstrom_py.workers.coordinator import machine as cm
from tests.simulation.protocol_model.oracle import Violation
from tests.simulation.protocol_model.setups import Fault, Machines, Request, Setup, draw
from tests.simulation.protocol_model.world import Action, Stale, World

STEPS_MAX = 40_000
SPEEDS = (1.0, 1.0, 1.0, 0.2, 0.02)


@dataclass
class Outcome:
    """What a run has met; ``trace`` is a hash of all that happened, in order."""

    hits: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    trace: str = ""
    steps: int = 0
    incarnations: int = 1
    log: list[str] = field(default_factory=list)


class Run:
    """One run of ``setup``; all its choices come from ``rng``."""

    def __init__(
        self, setup: Setup, rng: random.Random, machines: Machines | None, *, steps_max: int, logged: bool
    ) -> None:
        self.setup, self.rng, self.machines = setup, rng, machines
        self.steps_max, self.logged = steps_max, logged
        self.world = self.new_world()
        self.requests = list(setup.requests)
        self.faults = list(setup.faults)
        self.next_worker = setup.workers
        self.step = 0
        self.outcome = Outcome()
        self.speeds: dict[object, float] = {}
        self.digest = hashlib.sha256()

    def new_world(self, *, incarnation: int = 0, stale: tuple[Stale, ...] = ()) -> World:
        """The job from its beginning."""
        make = (self.machines and self.machines.world) or World
        world: World = make(self.setup, self.machines, incarnation=incarnation, stale=stale)
        return world

    def play(self) -> Outcome:
        """To the end; `Violation` if anything is wrong."""
        for step in range(self.steps_max):
            self.step = step
            try:
                if not self.one_step():
                    break
            except PeerError as error:
                self.restart(error)
        else:
            raise Violation("no end: livelock (P8)")
        self.world.check_end()
        self.absorb()
        self.outcome.steps = self.step
        self.outcome.trace = self.digest.hexdigest()
        return self.outcome

    def one_step(self) -> bool:
        """Let something happen; whether anything could."""
        actions = self.world.actions()
        if self.requests and self.due(self.requests[0], actions):
            self.ask(self.requests.pop(0), actions)
            return True
        if self.faults and actions and self.may_break(self.faults[0]):
            self.strike(self.faults.pop(0))
        elif not actions:
            return False
        else:
            action = self.choose(actions)
            self.note(action)
            self.world.act(action)
        return True

    def note(self, action: Action) -> None:
        """Into the trace."""
        line = f"{self.step} {action}"
        self.digest.update(line.encode())
        if self.logged:
            self.outcome.log.append(line)

    def choose(self, actions: list[Action]) -> Action:
        """Workers and channels are fast or slow for the whole run, and so are kinds of actions."""
        speed = self.speed
        weights = [speed(action[0]) * speed(action[1]) * speed(action[2:]) for action in actions]
        return self.rng.choices(actions, weights)[0]

    def speed(self, thing: object) -> float:
        """How fast ``thing`` is, drawn when first met."""
        if thing not in self.speeds:
            self.speeds[thing] = min(SPEEDS) if thing in self.setup.slow else self.rng.choice(SPEEDS)
        return self.speeds[thing]

    # -- requests --

    def due(self, request: Request, actions: list[Action]) -> bool:
        """Whether its moment has come; at the latest when nothing else can happen."""
        if not actions:
            return True
        if self.step < request.step:
            return False
        world = self.world
        match request.when:
            case "moving":
                return world.coordinator.phase is not cm.CoordinatorPhase.STEADY
            case "pressure":
                return any(channel.backlog for channel in world.channels.values())
            case "quiet":
                return world.quiet()
            case "end":
                return False
        return True

    def ask(self, request: Request, actions: list[Action]) -> None:
        """Rescale to some of those that are there and some new ones."""
        world = self.world
        if not actions:
            world.hit("request at end of stream")
        elif world.quiet():
            world.hit("request with nothing flowing")
        if any(channel.backlog for channel in world.channels.values()):
            world.hit("request under back-pressure")
        here = list(world.coordinator.members)
        keep = self.rng.sample(here, min(request.size, request.kept, len(here)))
        new = range(self.next_worker, self.next_worker + request.size - len(keep))
        self.next_worker += len(new)
        if new and len(keep) < len(here):
            world.hit("join and leave together")
        self.note(("request", *sorted(keep), *new))
        world.request(tuple(sorted((*keep, *new))))

    # -- faults --

    def may_break(self, fault: Fault) -> bool:
        """Whether its moment has come."""
        return self.step >= fault.step and (not fault.moving or self.moving)

    @property
    def moving(self) -> bool:
        """Whether a move is in flight."""
        return self.world.coordinator.phase in {cm.CoordinatorPhase.COPYING, cm.CoordinatorPhase.MOVING}

    def strike(self, fault: Fault) -> None:
        """Break something."""
        self.note((fault.kind,))
        world = self.world
        if fault.kind in ("worker", "coordinator"):
            world.hit(f"{fault.kind} crash")
            if self.moving:
                world.hit(f"{fault.kind} crash inside a move")
            if world.coordinator.phase is cm.CoordinatorPhase.COPYING:
                world.hit("state ahead of a move that was never made")
            raise world.fail(f"a {fault.kind}")
        others = [channel for channel in world.channels.values() if channel.key.sender != channel.key.receiver]
        longest = max(others, key=lambda channel: len(channel.current_frames()), default=None)
        # Another frame of this incarnation must follow, or the fault could not be detected.
        if longest is None or len(longest.current_frames()) < 2:
            return
        frame = longest.current_frames()[0]
        if fault.kind == "gap":
            longest.sent.remove(frame)
            longest.free(frame.cost)
        else:
            longest.sent.appendleft(frame)
        world.hit(f"{fault.kind} made")

    def restart(self, error: PeerError) -> None:
        """S6: the job has ended with its typed error; start it again, while its zombies still send."""
        old = self.world
        self.absorb()
        self.note((str(error),))
        self.outcome.incarnations += 1
        if "expected number" in str(error):
            old.oracle.require(bool(old.hits["gap made"] or old.hits["repeat made"]), f"{error} for no reason (F1)")
            self.outcome.hits["repeat detected" if old.hits["repeat made"] else "gap detected"] += 1
        self.world = self.new_world(incarnation=old.incarnation + 1, stale=old.zombies())
        self.next_worker = self.setup.workers

    def absorb(self) -> None:
        """Count what this incarnation has met."""
        self.outcome.hits += self.world.hits
        self.outcome.messages += self.world.messages


def play(
    setup: Setup,
    seed: int,
    machines: Machines | None = None,
    *,
    steps_max: int = STEPS_MAX,
    logged: bool = False,
) -> Outcome:
    """Run ``setup`` on the schedule of ``seed``."""
    return Run(setup, random.Random(seed), machines, steps_max=steps_max, logged=logged).play()


def run(
    seed: int,
    machines: Machines | None = None,
    *,
    steps_max: int = STEPS_MAX,
    logged: bool = False,
    ahead: bool | None = None,
) -> Outcome:
    """One random run to its end; `Violation`, or any other error, if anything is wrong.

    ``ahead``: whether state goes ahead of each move; None: in half of the seeds.
    """
    rng = random.Random(seed)
    setup = replace(draw(rng), ahead=sends_ahead(seed) if ahead is None else ahead)
    return Run(setup, rng, machines, steps_max=steps_max, logged=logged).play()


def sends_ahead(seed: int) -> bool:
    """Whether state goes ahead of the moves of a seed."""
    return random.Random(f"ahead {seed}").random() < 0.5
