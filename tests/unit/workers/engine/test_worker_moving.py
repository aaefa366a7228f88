"""One worker through a move, the other played by hand: what it does, and leaves undone while slots are on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant, Item
from malstrom_py.rescale.moves.protocol import (
    FindKeys,
    ForgetKeys,
    Marker,
    MarkersIn,
    OpenSlots,
    PartsPolled,
    PollParts,
    RegionDone,
    RescaleMove,
    Shipped,
    StartMove,
    StateChunk,
    Switched,
)
from malstrom_py.testing import VirtualClock
from malstrom_py.testing.single_step import RemoteWorker
from malstrom_py.workers.engine import region_input, state_transfer
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.engine.region_input import INDEX_RESTS
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.messages import COORDINATOR

SLOTS = 2
LINGER_S = 1.0


class Pulse(mp.KeyedLogic[Any, Any, Any, int]):
    """Says on a schedule which keys it has."""

    def __init__(self) -> None:
        self.called = 0

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        return (key_state or 0) + 1

    def on_schedule(self, state: Any, output: Any) -> None:
        self.called += 1
        for key, count in state.items():
            output.emit(key, (key, count), None)


def key_of(pair: Any) -> int:
    key: int = pair[0]
    return key


class OneOfTwo:
    """Worker ``me``, without input, and its messages to the coordinator and to worker 1 (or 0)."""

    def __init__(
        self,
        *,
        me: int = 0,
        members: tuple[int, ...] = (0, 1),
        table: tuple[int, ...] = (0, 1),
        keys_per_chunk: int | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock, self.pulse, self.out = clock or VirtualClock(), Pulse(), sinks.Memory()
        job = mp.Job("moving", slots=SLOTS)
        stream = job.source("in", sources.Memory[int]([]))
        keyed = stream.key_by("key", lambda n: n, partitioner=lambda n: n % SLOTS).stateful_op("pulse", self.pulse)
        again = keyed.key_by("again", key_of, partitioner=lambda n: n % SLOTS)
        again.sink("out", self.out)
        codec, batching = Codec(), Batching(linger_s=LINGER_S)
        self.me, self.other = me, 1 - me
        member = Membership(me, members, table)
        self.worker = Worker(
            job.plan(), member, batching=batching, clock=self.clock, codec=codec, keys_per_chunk=keys_per_chunk
        )
        self.remote = RemoteWorker(self.other, me, ["key", "again"], codec, batching.credit, 1)
        self.messages: list[tuple[int, Any]] = []
        self.worker.open_sinks()
        if me in members:
            self._deliver(self.worker.open_sources({"in": []}))

    def send(self, exchange: str, *items: Item, version: int = 0) -> OneOfTwo:
        for item in items:
            self.remote.put(exchange, item)
        for frame in self.remote.sent():
            self.worker.receive(_of_version(frame, version))
        return self

    def order(self, *orders: Any) -> OneOfTwo:
        for order in orders:
            self._deliver(self.worker.receive(order))
        return self

    def step(self, times: int = 6, *, after_s: float = 0.0) -> OneOfTwo:
        self.clock.advance(after_s)
        for _ in range(times):
            self._deliver(self.worker.step()[1])
            self.worker.check()
        return self

    def told(self) -> list[Any]:
        found = [message for to, message in self.messages if to == COORDINATOR]
        self.messages.clear()
        return found

    def got(self, exchange: str) -> list[Item]:
        """What the other worker has got over ``exchange``."""
        items, grants = self.remote.take(exchange)
        for grant in grants:
            self.worker.receive(grant)
        return items

    def _deliver(self, outgoing: Any) -> None:
        for to, message in outgoing:
            if isinstance(message, Frame | Grant):
                self.remote.receive(message)
            else:
                self.messages.append((to, message))


def _of_version(frame: Frame, version: int) -> Frame:
    return frame if frame.control is not None else replace(frame, version=version)


def rows(*keys: int) -> Batch:
    return Batch(list(keys), keys=list(keys))


SAME = (0, 1)
GAIN = RescaleMove(1, SAME, SAME, (0, 0))
LOSE = RescaleMove(1, SAME, SAME, (1, 1))


def test_r6_nothing_is_sent_on_a_schedule_while_slots_move() -> None:
    """Scheduled output of arrived keys waits until their slots are open."""
    worker = OneOfTwo().send("key", rows(0, 2)).step(after_s=LINGER_S)
    calls = worker.pulse.called
    assert calls > 0
    worker.order(StartMove(GAIN)).step(after_s=LINGER_S)
    assert worker.pulse.called == calls  # its own marker has been taken, the other's has not come
    for exchange in ("key", "again"):
        worker.send(exchange, Marker(GAIN, MIN_EPOCH, MIN_EPOCH))
    worker.step(after_s=5 * LINGER_S)
    assert worker.pulse.called == calls
    worker.order(StateChunk("pulse", 1, 1, (1,)), StateChunk("out", 1, 1, (1,)))
    worker.step(after_s=5 * LINGER_S)
    assert worker.pulse.called == calls
    worker.order(OpenSlots(1, "pulse")).step(after_s=LINGER_S)
    assert worker.pulse.called > calls


def test_r7_a_worker_reports_each_thing_once_and_in_order() -> None:
    worker = OneOfTwo().order(StartMove(LOSE)).step()
    assert worker.told() == [Switched(1, 0)]
    worker.send("key", Marker(LOSE, 5, 5)).step()
    assert worker.told() == [MarkersIn(1, 0, "key"), RegionDone(1, 0, "pulse")]
    worker.send("again", Marker(LOSE, 5, 5)).step()
    assert worker.told() == [MarkersIn(1, 0, "again"), RegionDone(1, 0, "out")]
    assert worker.step().told() == []


def test_r2_a_worker_switches_when_it_knows_which_keys_leave_and_goes_on_until_then() -> None:
    worker = OneOfTwo(keys_per_chunk=1).send("key", rows(0, 2, 4)).step()
    worker.send("key", Epoch(MAX_EPOCH)).send("again", Epoch(MAX_EPOCH)).step()
    worker.got("again")
    worker.got("key")
    worker.order(StartMove(LOSE), PollParts(1, "in")).step(times=1)
    assert (worker.told(), worker.got("key"), worker.worker.finished) == ([], [], False)
    assert worker.worker.ready
    worker.step()
    assert worker.told() == [Switched(1, 0), PartsPolled(1, 0, "in")]
    assert worker.got("key") == [Marker(LOSE, MAX_EPOCH, MAX_EPOCH)]
    worker.send("key", Marker(LOSE, MAX_EPOCH, MAX_EPOCH)).step()
    (parcel, *others) = [message for to, message in worker.messages if to == 1]
    assert (parcel.slots, [other.slots for other in others]) == ((), [(0,)])


def test_r2_a_worker_is_not_finished_while_slots_move() -> None:
    worker = OneOfTwo().send("key", Epoch(MAX_EPOCH)).send("again", Epoch(MAX_EPOCH)).step()
    assert worker.worker.finished
    worker.order(StartMove(GAIN)).step()
    assert not worker.worker.finished
    for exchange in ("key", "again"):
        worker.send(exchange, Marker(GAIN, MAX_EPOCH, MAX_EPOCH))
    worker.step()
    assert not worker.worker.finished
    worker.order(StateChunk("pulse", 1, 1, (1,)), StateChunk("out", 1, 1, (1,)), OpenSlots(1, "pulse")).step()
    worker.send("again", Shipped(1)).step()
    assert worker.worker.finished


def test_r8_a_channel_on_which_something_is_left_is_not_dropped() -> None:
    worker = OneOfTwo().send("again", Epoch(1))
    for exchange in worker.worker._graph.exchanges.values():
        exchange.flush()
        for channel in exchange.remote.values():
            channel.take()
    with pytest.raises(InternalError, match="the channel of worker 1 is dropped before its end"):
        worker.worker.disconnect(1)


def test_r8_credit_for_one_that_has_left_is_forgotten() -> None:
    worker = OneOfTwo(members=(0,), table=(0, 0)).worker
    assert worker.receive(Grant(ChannelId("key", 0, 7), 1, 1, 1)) == []
    worker.connect(7)
    worker.disconnect(7)
    assert worker.receive(Grant(ChannelId("key", 0, 7), 1, 1, 1)) == []


def test_the_collector_looks_at_no_state_on_a_worker_to_which_keys_will_move(monkeypatch: pytest.MonkeyPatch) -> None:
    made_old: list[bool] = []
    monkeypatch.setattr(region_input, "make_old", lambda: made_old.append(True))
    OneOfTwo().order(StartMove(RescaleMove(1, SAME, SAME, (0, 1), more=True, losing=(0,))))
    assert not made_old
    OneOfTwo().order(StartMove(RescaleMove(1, SAME, SAME, (0, 1), more=True, losing=(1,))))
    assert made_old


def test_keys_that_will_leave_are_found_with_rests_until_a_move_waits_for_them() -> None:
    worker = OneOfTwo().send("key", rows(0, 2)).step()
    region_input = worker.worker.region_input("pulse")
    worker.order(FindKeys())
    assert region_input.indexing
    region_input.ship()  # all keys fit into one portion
    assert not region_input.indexing
    worker.order(ForgetKeys(), FindKeys())
    assert region_input.indexing, "called off, and ordered again: all is found again"
    worker.order(StartMove(LOSE)).step(1)
    assert [message for message in worker.told() if isinstance(message, Switched)] == [Switched(1, 0)]


def test_keys_that_nothing_waits_for_are_found_in_a_seventh_of_the_time() -> None:
    clock = Ticking()
    worker = OneOfTwo(clock=clock, keys_per_chunk=1).send("key", rows(0, 2, 4, 6)).step()
    worker.order(FindKeys())
    region_input, steps = worker.worker.region_input("pulse"), 0
    while region_input.indexing:
        steps += region_input.ship() == 0
        assert region_input.due_s is None or region_input.due_s > 0
    assert steps >= 3 * (INDEX_RESTS - 2), "three rests, each of six times as long as what was before it"


class Ticking(VirtualClock):
    """A clock that advances by a millisecond with each look at it."""

    def monotonic_s(self) -> float:
        self.advance(0.001)
        return super().monotonic_s()


def test_keys_are_forgotten_if_too_many_more_come_before_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "_INDEX_SPARE", 10)
    worker = OneOfTwo().send("key", rows(0, 2)).step()
    region_input = worker.worker.region_input("pulse")
    worker.order(FindKeys()).step()
    worker.send("key", rows(*range(4, 20, 2))).step()
    assert region_input._shipping.watching
    worker.send("key", rows(*range(20, 60, 2))).step()
    assert not region_input._shipping.watching
    worker.order(StartMove(LOSE)).step()
    worker.send("key", Marker(LOSE, MIN_EPOCH, MIN_EPOCH)).step()
    assert region_input.keys_moved == 30, "the move finds them"
