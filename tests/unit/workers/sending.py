"""The graph of one worker with its switching, by hand: parts are given and come, and what it sends is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import Marker, PartHandedOver, PartMove, RescaleMove, StartMove
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, build_graph
from malstrom_py.workers.engine.routing_switch import PartPosition, RoutingSwitch
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

BOUND = 0
IDLE_AFTER_S = 10.0
SLOTS = 4
Stream = mp.StreamBuilder[Any, Any]
Times = dict[str, list[int]]


class Silent:
    """Parts with the timestamps that are given; when these are read, nothing comes and nothing ends."""

    def __init__(self, times: Times, ends: Sequence[str] = ()) -> None:
        self.times = times
        self.ends = ends

    def list_parts(self) -> list[Part]:
        return [Part(name) for name in self.times]

    def build_part(self, part: Part, state: Any) -> SilentPart:
        return SilentPart(self.times[part], state or 0, part in self.ends)


class SilentPart:
    def __init__(self, times: list[int], position: int, ends: bool) -> None:
        self._times, self._position, self._ends = times, position, ends

    def poll(self, rows_max: int) -> list[int] | None:
        if self._position == len(self._times):
            return None
        self._position += 1
        return [self._times[self._position - 1]]

    def is_finished(self) -> bool:
        return self._ends and self._position == len(self._times)

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


def judged(stream: Stream, name: str = "epochs", *, idle: bool = True) -> Stream:
    timed = stream.assign_timestamps(f"{name}-at", lambda time: time)
    idle_after = timedelta(seconds=IDLE_AFTER_S) if idle else None
    on_time, late = timed.generate_epochs(name, mp.limit_out_of_orderness(BOUND), idle_after=idle_after)
    late.sink(f"{name}-late", sinks.Memory())
    return on_time


def by_key(stream: Stream) -> None:
    """Times are keys, and slots."""
    on_time = judged(stream)
    on_time.key_by("key", lambda time: time, partitioner=lambda time: time % SLOTS).sink("out", sinks.Memory())


class OneWorker:
    """The graph of ``worker`` among ``members``, with the parts of each source that live there, and its switching."""

    def __init__(
        self,
        build: Callable[..., None],
        *source: Silent,
        worker: int = 0,
        members: tuple[int, ...] = (0, 1),
        here: Sequence[str] = (),
    ) -> None:
        job = mp.Job("job", slots=SLOTS)
        build(*(job.source(f"in{number}", one) for number, one in enumerate(source)))
        plan = job.plan()
        self.clock = VirtualClock()
        member = Membership(worker, members, first_table(SLOTS, members))
        self.graph = build_graph(
            plan, member, batching=Batching(), codec=Codec(), clock=self.clock, pass_barrier=no_barrier
        )
        for operator in self.graph.operators.values():
            if isinstance(operator, WriteSink):
                operator.open()
        self.letters: list[Outgoing] = self.graph.letters
        self.switching = RoutingSwitch(self.graph, member, self.letters)
        self.sources = [self._source(f"in{number}") for number in range(len(source))]
        if worker in members:
            for number, one in enumerate(source):
                parts = [part for part in one.list_parts() if part in here]
                self.call(f"in{number}", partial(self.sources[number].open, parts=parts))

    def _source(self, name: str) -> ReadSource:
        source = self.graph.operators[name]
        assert isinstance(source, ReadSource)
        return source

    def call(self, step: str, function: Callable[..., Any]) -> Any:
        result = self.graph.executor.call(self.graph.nodes[step], function)
        self.graph.executor.run()
        return result

    def poll(self, times: int = 1, *, source: int = 0) -> OneWorker:
        for _ in range(times):
            poll = partial(self.sources[source].poll, rows_max=1, linger_s=0.001, clock=self.clock)
            self.call(f"in{source}", poll)
        return self

    def fall_idle(self) -> OneWorker:
        """Ask all parts until those that have nothing are idle."""
        self.poll(9)
        self.clock.advance(IDLE_AFTER_S + 1)
        return self.poll(9)

    def order(self, move: RescaleMove) -> OneWorker:
        self.switching.receive(StartMove(move))
        self.switching.check()
        return self

    def comes(self, part: PartHandedOver) -> OneWorker:
        self.switching.receive(part)
        self.switching.check()
        return self

    def sent(self, exchange: str = "key") -> list[Any]:
        """What has gone to itself, or for one that is not there, or leaves, to worker 0: keys, epochs, control."""
        router = self.graph.routers[exchange]
        found: list[Any] = []
        while (item := router.loopback.take()) is not None:
            found += item.keys or [] if isinstance(item, Batch) else [item]
        return found

    def to(self, member: int, exchange: str = "key") -> list[Any]:
        """What has gone to another worker: rows as their number, epochs by their time, control."""
        found: list[Any] = []
        for frame in self.graph.routers[exchange].take():
            if frame.channel.receiver != member:
                continue
            found += [frame.control] if frame.control is not None else [frame.rows] * bool(frame.rows)
            found += [Epoch(time, idle) for _, time, idle in frame.epochs]
        return found

    def marker(self, exchange: str = "key") -> Marker:
        (marker,) = [item for item in self.sent(exchange) if isinstance(item, Marker)]
        return marker

    def handed(self) -> list[tuple[int, PartHandedOver]]:
        return [(to, letter) for to, letter in self.letters if isinstance(letter, PartHandedOver)]

    def told(self) -> list[Any]:
        return [letter for to, letter in self.letters if to == COORDINATOR]


def no_barrier(message: object, frontiers: object, let_in: object) -> None:
    raise AssertionError


def move_of(
    *parts: PartMove, old: tuple[int, ...] = (0, 1), new: tuple[int, ...] = (0, 1), version: int = 1
) -> RescaleMove:
    return RescaleMove(version, old, new, first_table(SLOTS, new), parts)


def given(part: str, source: str = "in0") -> PartMove:
    return PartMove(source, part, 0, 1)


def gained(part: str, source: str = "in0") -> PartMove:
    return PartMove(source, part, 1, 0)


def came(part: str, at: int, epoch: int | None, *, source: str = "in0", step: str = "epochs") -> PartHandedOver:
    """A part as worker 1 hands it over, at its ``epoch``; None: it is finished."""
    state = None if epoch is None else {step: epoch}
    return PartHandedOver(1, gained(part, source), PartPosition(at, epoch is None), state)
