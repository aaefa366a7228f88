"""The sending side of a worker in a move: parts move, frontiers may decrease, all exchanges switch together (R2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, Epoch
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import (
    Marker,
    PartHandedOver,
    PartMove,
    PartsPolled,
    PollParts,
    RescaleMove,
    StartMove,
    Switched,
)
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
        self.messages: list[Outgoing] = self.graph.messages
        self.switching = RoutingSwitch(self.graph, member, self.messages)
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
        sending = self.graph.exchanges[exchange]
        found: list[Any] = []
        while (item := sending.loopback.take()) is not None:
            found += item.keys or [] if isinstance(item, Batch) else [item]
        return found

    def to(self, member: int, exchange: str = "key") -> list[Any]:
        """What has gone to another worker: rows as their number, epochs by their time, control."""
        found: list[Any] = []
        for frame in self.graph.exchanges[exchange].remote[member].take():
            found += [frame.control] if frame.control is not None else [frame.rows] * bool(frame.rows)
            found += [Epoch(time, idle) for _, time, idle in frame.epochs]
        return found

    def marker(self, exchange: str = "key") -> Marker:
        (marker,) = [item for item in self.sent(exchange) if isinstance(item, Marker)]
        return marker

    def handed(self) -> list[tuple[int, PartHandedOver]]:
        return [(to, message) for to, message in self.messages if isinstance(message, PartHandedOver)]

    def told(self) -> list[Any]:
        return [message for to, message in self.messages if to == COORDINATOR]


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


# Without parts.


def test_r2_all_exchanges_switch_at_once_with_what_was_and_is_promised_on_each() -> None:
    def two(first: Stream, second: Stream) -> None:
        on_time = judged(first, "first")
        on_time.key_by("alone", lambda time: time).sink("alone-out", sinks.Memory())
        joined = on_time.union("joined", judged(second, "second"))
        joined.key_by("key", lambda time: time).key_by("after", lambda time: time).sink("out", sinks.Memory())

    worker = OneWorker(two, Silent({"a": [10]}), Silent({"b": [20]}), here=["a", "b"])
    worker.poll().poll(source=1)
    for name in ("alone", "key", "after"):
        worker.sent(name)
    worker.order(move_of())
    markers = {name: worker.marker(name) for name in ("alone", "key", "after")}
    assert {name: (marker.before, marker.after) for name, marker in markers.items()} == {
        "alone": (9, 9),
        "key": (9, 9),
        "after": (MIN_EPOCH, MIN_EPOCH),  # its region has reached nothing yet
    }
    assert worker.told() == [Switched(1, 0)]


def test_r2_the_exchange_of_a_keyed_region_is_promised_what_the_region_has_reached() -> None:
    def chain(stream: Stream) -> None:
        first = judged(stream).key_by("key", lambda time: time).map("same", lambda time: time)
        first.key_by("after", lambda time: time).sink("out", sinks.Memory())

    worker = OneWorker(chain, Silent({"a": [10, 30], "b": [20]}), here=["a"]).poll(2)
    executor = worker.graph.executor
    executor.push(worker.graph.nodes["key"] + 2, Epoch(7))
    executor.run()
    worker.order(move_of(gained("b"))).comes(came("b", 0, 3))
    markers = worker.marker(), worker.marker("after")
    assert [(marker.before, marker.after) for marker in markers] == [(29, 3), (7, 7)]


# Gaining.


def union_of_two(first: Stream, second: Stream) -> None:
    joined = judged(first, "first").union("joined", judged(second, "second"))
    joined.key_by("key", lambda time: time).sink("out", sinks.Memory())


@pytest.mark.parametrize(("other", "after"), [(15, 15), (80, 19)])
def test_r2_behind_several_sources_the_smallest_promise_counts(other: int, after: int) -> None:
    worker = OneWorker(union_of_two, Silent({"a": [100], "b": [20]}), Silent({"x": [other + 1]}), here=["a", "x"])
    worker.poll().poll(source=1)
    worker.sent()
    worker.order(move_of(gained("b"))).comes(came("b", 0, 19, step="first"))
    marker = worker.marker()
    assert (marker.before, marker.after) == (min(99, other), after)


# Joining and leaving.


def test_t2_idle_parts_that_are_kept_are_raised_first_and_never_to_the_maximum() -> None:
    """An idle part is as far as what was said without it, also when a gained one takes the promise back."""
    worker = OneWorker(by_key, Silent({"a": [10], "b": [*range(50, 99)], "c": [30, 40]}), here=["a", "b"]).fall_idle()
    reached = max(item.time for item in worker.sent() if isinstance(item, Epoch))
    worker.order(move_of(given("b"), gained("c"))).comes(came("c", 1, 29))
    marker = worker.marker()
    assert (marker.before, marker.after, marker.idle) == (reached, 29, False)
    tracker = worker.graph.operators["epochs"]._parts["in0/a"].tracker  # type: ignore[attr-defined]
    assert tracker.epoch == reached


def test_r2_parts_of_several_sources_are_all_taken() -> None:
    worker = OneWorker(union_of_two, Silent({"a": [100], "b": [20]}), Silent({"x": [90], "y": [5]}), here=["a", "x"])
    worker.poll().poll(source=1)
    worker.order(move_of(gained("b"), gained("y", "in1")))
    worker.comes(came("y", 0, 4, source="in1", step="second")).comes(came("b", 0, 19, step="first"))
    assert worker.marker().after == 4
    worker.switching.receive(PollParts(1, "in1"))
    assert worker.sources[0].next_poll_s() is not None
    worker.poll(2, source=1)
    assert worker.sources[1].counters.rows_in == 2
    assert worker.told()[-1] == PartsPolled(1, 0, "in1")


def test_a_source_without_exchanges_gives_and_takes_too() -> None:
    def straight(stream: Stream) -> None:
        stream.sink("out", sinks.Memory())

    worker = OneWorker(straight, Silent({"a": [10, 30], "b": [20]}), here=["a"]).poll()
    worker.order(move_of(given("a"), gained("b")))
    worker.switching.receive(PollParts(1, "in0"))
    assert worker.told() == []
    worker.comes(PartHandedOver(1, gained("b"), PartPosition(0, False), {}))
    assert worker.told() == [Switched(1, 0), PartsPolled(1, 0, "in0")]
    assert worker.poll().sources[0].counters.rows_in == 2
    assert worker.handed()[0][1].position == PartPosition(1, is_finished=False)


def test_parts_of_whole_sources_stay() -> None:
    class Whole:
        def build(self, worker: sinks.WorkerInfo) -> Any:
            return sources.Memory([1, 2]).build_part(Part("0"), None)

    job = mp.Job("job", slots=SLOTS)
    job.source("in0", Whole()).key_by("key", lambda time: time).sink("out", sinks.Memory())
    member = Membership(0, (0, 1), first_table(SLOTS, (0, 1)))
    graph = build_graph(
        job.plan(), member, batching=Batching(), codec=Codec(), clock=VirtualClock(), pass_barrier=no_barrier
    )
    switching = RoutingSwitch(graph, member, graph.messages)
    source = graph.operators["in0"]
    assert isinstance(source, ReadSource)
    graph.executor.call(graph.nodes["in0"], partial(source.open, parts=[Part("worker-0")]))
    switching.receive(StartMove(move_of()))
    assert (source.parts_left, source.finished) == (["worker-0"], False)


def test_r2_while_parts_are_awaited_nothing_is_promised_on_what_a_source_feeds() -> None:
    worker = OneWorker(by_key, Silent({"a": [10, 30], "b": [20]}), here=["a"]).poll()
    worker.sent()
    worker.order(move_of(gained("b")))
    # An epoch of another region that feeds the same exchange is in the marker, as ``after``.
    worker.graph.exchanges["key"].on_epoch(Epoch(25))
    assert worker.sent() == []
    worker.comes(came("b", 0, 15))
    assert worker.marker().before == 9
