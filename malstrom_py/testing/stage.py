"""The stage that a step under test runs on: the real graph of one worker, fake others, open inputs, recorded outputs.

Rule: between two calls nothing is under way here but what the fake workers hold, and what a step awaits until
`finish_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Control,
    Interrogate,
    PartOpened,
    PersistenceBackend,
    Rescale,
    StateMessage,
    SuspendMarker,
)
from malstrom_py.operators.base import Operator
from malstrom_py.operators.enrich import Enrich
from malstrom_py.rescale.channel import Barrier, Suspend
from malstrom_py.rescale.placement import first_table
from malstrom_py.rescale.router import Router
from malstrom_py.resources import Resources
from malstrom_py.testing.lone_step import LoneStep, Recorder
from malstrom_py.testing.remotes import RemoteWorker
from malstrom_py.workers.batching import Batching
from malstrom_py.workers.graph import Membership, build_graph

_INCARNATION: Final = 1

_table = lru_cache(maxsize=16)(first_table)
"""Tests build stages by the thousand, of few sizes."""

_WATCH_S: Final = 0.1
"""How long nothing may come back before a step is asked again: what it awaits has deadlines of its own."""


class _Nowhere:
    def persist(self, operator: str, state: bytes) -> None:
        """Barriers of fake workers bring no backend; nobody asks for what is persisted at one of theirs alone."""


class Stage:
    """Runs ``step`` as worker 0 of ``workers``."""

    def __init__(self, step: LoneStep, *, workers: int, batching: Batching, clock: Clock) -> None:
        plan = step.plan
        self._step = step
        self._clock = clock
        self._linger_s = batching.linger_s
        self._schedule_at_s = clock.monotonic_s() + batching.linger_s
        self.codec = Codec(plan.types)
        self.backend: PersistenceBackend = _Nowhere()
        self._barriers: dict[str, AbsBarrier] = {}
        member = Membership(0, range(workers), _table(plan.slots, range(workers)), incarnation=_INCARNATION)
        graph = build_graph(
            plan, member, batching=batching, codec=self.codec, clock=clock, pass_barrier=self._pass_barrier
        )
        self._executor, self._nodes, self._feeds = graph.executor, graph.nodes, graph.feeds
        self._inboxes = graph.inboxes
        self.operators: Mapping[str, Operator] = graph.operators
        self.resources = Resources()
        self._holding = [(self._nodes[name], op) for name, op in graph.operators.items() if op.holding]
        self.enriching = {name: op for name, op in graph.operators.items() if isinstance(op, Enrich)}
        self.routers: Mapping[str, Router] = graph.routers
        self.remotes = {
            worker: RemoteWorker(worker, 0, list(self.routers), self.codec, batching.credit, _INCARNATION)
            for worker in range(1, workers)
        }

    def push(self, message: Batch | Control, input: str) -> None:
        """Let ``message`` in at one input, with all that comes of it."""
        with self.resources:
            self._executor.push(self._nodes[input], message)
            self._executor.run()
            self._settle()

    def control(self, message: Control) -> None:
        """Let ``message`` in at all inputs; what acts on state goes through the regions behind exchanges as well."""
        with self.resources:
            match message:
                case AbsBarrier() | SuspendMarker():
                    self._in_band(message)
                case Interrogate() | Collect() | Acquire() | Rescale():
                    for feed in reversed(self._feeds):
                        feed.inject(message)
                case _:
                    for name in self._step.inputs:
                        self._executor.push(self._nodes[name], message)
                    self._executor.run()
            self._settle()

    def open(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Announce the source part of each input; ``states``: step -> part -> what was kept for it."""
        for name in self._step.inputs:
            part = part_of(name)
            kept = {step: parts[part] for step, parts in states.items() if part in parts}
            self.push(PartOpened(part, kept or None), name)

    def schedule(self) -> None:
        """Call ``on_schedule`` of the steps that want it, if ``linger_s`` has passed since it was last called."""
        if self._clock.monotonic_s() < self._schedule_at_s:
            return
        self._schedule_at_s = self._clock.monotonic_s() + self._linger_s
        with self.resources:
            for name, operator in self.operators.items():
                if operator.scheduled:
                    self._executor.call(self._nodes[name], partial(operator.on_schedule, clock=self._clock))
            self._executor.run()
            self._settle()

    def finish_calls(self) -> None:
        """Let each step that holds something back go on until it does not, one step after the other, so that what comes
        out does not depend on how long calls take. `DeadlineError` if one does not come back.
        """
        with self.resources:
            for node, operator in self._holding:
                while operator.awaiting:
                    if not self._executor.call(node, operator.resume) and self.resources.wake.wait(_WATCH_S):
                        self.resources.wake.clear()
                    self._executor.run()
                    self._settle()

    def settle(self) -> None:
        """Carry and take in what the channels hold, until nothing moves."""
        with self.resources:
            self._settle()

    def close(self) -> None:
        """Give up what is awaited, and close what was made for this worker."""
        try:
            for operator in self.enriching.values():
                operator.close()
        finally:
            self.resources.close()

    def _settle(self) -> None:
        self._carry()
        moved = True
        while moved:
            moved = False
            for feed in self._feeds:
                taken, grants = feed.take()
                moved = moved or taken > 0
                for grant in grants:
                    self.remotes[grant.channel.sender].receive(grant)
            self._carry()

    def recorder(self, name: str) -> Recorder:
        """What records an output."""
        recorder = self.operators[name]
        assert isinstance(recorder, Recorder)
        return recorder

    def epoch(self) -> int:
        """The smallest epoch that the inputs have reached."""
        return min(self._executor.frontier(self._nodes[name]) for name in self._step.inputs)

    def _in_band(self, message: AbsBarrier | SuspendMarker) -> None:
        """In band: it crosses an exchange behind the rows before it and is aligned behind it (S1)."""
        barrier: Barrier | Suspend = Suspend()
        if isinstance(message, AbsBarrier):
            self._barriers[message.snapshot] = message
            self.backend = message.backend
            barrier = Barrier(message.snapshot)
        for feed in self._feeds:
            feed.at_sources(barrier)

    def _pass_barrier(
        self, message: Barrier, frontiers: Mapping[str, int], let_in: Callable[[StateMessage], None]
    ) -> None:
        let_in(self._barriers.get(message.snapshot) or AbsBarrier(message.snapshot, self.backend))

    def _carry(self) -> None:
        for router in self.routers.values():
            router.flush()
            for frame in router.take():
                self.remotes[frame.channel.receiver].receive(frame)
        for remote in self.remotes.values():
            for sent in remote.sent():
                self._inboxes[sent.channel.exchange].receive(sent)


def part_of(input: str) -> str:
    """The name of the one source part that the rows of an unkeyed input come from."""
    return f"{input}/part"
