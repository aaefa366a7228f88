"""A worker whose parts are all idle follows the others: one worker by hand, then several at work (T2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.codec import Codec
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.rescale.channels.channel import Item
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.testing.single_step import RemoteWorker
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.engine.idle_sources import IdleSource
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.messages import COORDINATOR
from tests.unit.workers.harness import Scheduled, Script

BOUND = 4
IDLE_AFTER_S = 5
Stream = mp.StreamBuilder[Any, Any]


def judged(stream: Stream, *, name: str = "epochs", idle: bool = True) -> Stream:
    timed = stream.assign_timestamps(f"{name}-at", lambda reading: reading.at)
    idle_after = timedelta(seconds=IDLE_AFTER_S) if idle else None
    on_time, late = timed.generate_epochs(name, mp.limit_out_of_orderness(BOUND), idle_after=idle_after)
    late.sink(f"{name}-late", sinks.Memory())
    return on_time


class OneOfThree:
    """Worker 0 of three with one part per source, and the other two played by hand."""

    def __init__(
        self, build: Callable[..., None], *scripts: Script, credit: mp.Credit | None = None, rows_max: int = 10
    ) -> None:
        self.clock = VirtualClock()
        self.job = mp.Job("job")
        parts = [{f"part{number}": script} for number, script in enumerate(scripts)]
        build(*(self.job.source(f"in{n}", Scheduled(self.clock, part)) for n, part in enumerate(parts)))
        batching = mp.Batching(rows_max=rows_max, credit=credit or mp.Credit())
        plan = self.job.plan()
        member = Membership(0, range(3), first_table(plan.slots, range(3)))
        codec = Codec()
        self.worker = Worker(plan, member, batching=batching, clock=self.clock, codec=codec)
        exchanges = [step.name for step in plan.steps if step.kind == "key_by"]
        self.others = {n: RemoteWorker(n, 0, exchanges, codec, batching.credit, 1) for n in (1, 2)}
        self.worker.open_sinks()
        self._deliver(
            self.worker.open_sources({f"in{n}": [Part(name) for name in part] for n, part in enumerate(parts)})
        )

    def send(self, sender: int, *items: Item, exchange: str = "key") -> OneOfThree:
        for item in items:
            self.others[sender].put(exchange, item)
        for frame in self.others[sender].sent():
            self.worker.receive(frame)
        return self

    def settle(self) -> OneOfThree:
        """Step until nothing comes of it."""
        while True:
            done, outgoing = self.worker.step()
            self._deliver(outgoing)
            if not done and not outgoing and not self.worker.ready:
                return self

    def wait(self, duration_s: float) -> OneOfThree:
        """Let time pass as a runtime does: from one moment at which the worker has something to do to the next."""
        until_s = self.clock.monotonic_s() + duration_s
        while self.settle().clock.monotonic_s() < until_s:
            due_s = self.worker.due_s()
            # What is due but cannot be done, for lack of credit, is looked at ten times a second.
            next_s = max(until_s if due_s is None else due_s, self.clock.monotonic_s() + 0.1)
            self.clock.advance(min(next_s, until_s) - self.clock.monotonic_s())
        return self.settle()

    def said(self, *, to: int = 1, exchange: str = "key") -> list[Epoch]:
        """What has been broadcast since the last call; its credit goes back."""
        items, grants = self.others[to].take(exchange)
        for grant in grants:
            self.worker.receive(grant)
        return [item for item in items if isinstance(item, Epoch)]

    def _deliver(self, outgoing: Any) -> None:
        for receiver, message in outgoing:
            if receiver != COORDINATOR:
                self.others[receiver].receive(message)


def by_key(stream: Stream) -> None:
    judged(stream).key_by("key", lambda reading: reading.number).sink("out", sinks.Memory())


def at(*arrivals: tuple[float, list[int]], end_s: float = 1e6) -> Script:
    return Script(arrivals, end_s)


ONE_RECORD = at((0.0, [100]))


def idle_worker(script: Script = ONE_RECORD) -> OneOfThree:
    worker = OneOfThree(by_key, script).wait(IDLE_AFTER_S + 1)
    worker.said()
    worker.said(to=2)
    return worker


def test_t2_it_never_follows_to_the_maximum_epoch() -> None:
    worker = idle_worker().send(1, Epoch(500), Epoch(MAX_EPOCH)).send(2, Epoch(600), Epoch(MAX_EPOCH)).settle()
    assert all(epoch.time < MAX_EPOCH for epoch in [*worker.said(), *worker.wait(100.0).said()])
    assert not worker.worker.finished


def test_t2_it_is_not_behind_what_it_has_said_itself() -> None:
    assert idle_worker().send(1, Epoch(50)).send(2, Epoch(60)).settle().said() == []


def test_t2_when_it_wakes_it_is_judged_by_what_it_has_said_and_says_that_it_is_awake() -> None:
    worker = idle_worker(at((0.0, [100]), (20.0, [299, 300, 301, 302])))
    worker.send(1, Epoch(500)).send(2, Epoch(300)).settle()
    assert worker.said() == [Epoch(300, idle=True)]
    assert worker.wait(14.5).said() == [Epoch(300)]
    assert worker.worker.counts()["epochs"].late == 2
    # The others continue without a follower until it is idle again.
    assert worker.send(2, Epoch(500)).settle().said() == []
    assert worker.wait(IDLE_AFTER_S + 1).said() == [Epoch(300, idle=True), Epoch(500, idle=True)]


def test_t7_where_all_are_silent_each_goes_by_the_clock_from_the_slowest_that_has_had_a_record() -> None:
    worker = idle_worker().send(1, Epoch(50, idle=True)).send(2, Epoch(MIN_EPOCH + 1), Epoch(MAX_EPOCH)).settle()
    assert worker.wait(0.04).said() == []  # the slowest has 50, and this one is at 95
    said = worker.wait(3.0).said()
    assert said == worker.said(to=2)
    assert all(epoch.idle for epoch in said)
    assert 2_500 < said[-1].time <= 50 + 3_040
    assert len(said) < 31


def test_t7_where_none_has_ever_had_a_record_there_is_no_time() -> None:
    worker = idle_worker(at())
    worker.send(1, Epoch(MIN_EPOCH, idle=True)).send(2, Epoch(MAX_EPOCH))
    assert worker.wait(100.0).said() == []


def test_t7_the_clock_stops_where_one_is_active_again_and_starts_from_there() -> None:
    worker = idle_worker().send(1, Epoch(95, idle=True)).send(2, Epoch(95, idle=True)).wait(1.0)
    before = worker.said()[-1].time
    assert 95 < before <= 1_095
    worker.send(1, Epoch(before + 10)).settle()
    assert worker.wait(50.0).said() == [Epoch(before + 10, idle=True)]
    worker.send(2, Epoch(before + 10, idle=True)).send(1, Epoch(before + 20, idle=True)).settle()
    assert before + 10 < worker.wait(1.0).said()[-1].time <= before + 1_010


@pytest.mark.parametrize("by", ["a part here", "another generator"])
def test_t7_a_silence_that_was_interrupted_begins_anew_also_if_no_channel_has_shown_it(by: str) -> None:
    clock, said, fed = VirtualClock(), list[int](), SimpleNamespace(idle=True)
    generator = SimpleNamespace(idle=True, sent=0, idle_after_s=5.0, unit="s", context=SimpleNamespace(clock=clock))
    generator.follow = print  # it is bound, not called
    executor: Any = SimpleNamespace(
        merged=lambda _: fed, call=lambda _, follow: said.append(follow.keywords["time"]), run=lambda: None
    )
    channels: Any = SimpleNamespace(active=lambda _: None, silent=lambda _: 100)
    region: Any = SimpleNamespace(sources_open=True)
    source = IdleSource(executor, 0, generator, region, [("key", 1, channels)])  # type: ignore[arg-type]
    source.follow()
    clock.advance(10.0)
    source.follow()
    interrupted = generator if by == "a part here" else fed
    interrupted.idle = False
    source.follow()
    interrupted.idle = True
    clock.advance(10.0)
    source.follow()
    assert said == [100, 110, 100]


def test_f2_it_does_not_follow_while_its_region_has_a_backlog() -> None:
    worker = OneOfThree(by_key, ONE_RECORD, credit=mp.Credit(rows=1)).wait(IDLE_AFTER_S + 1)
    # That it is idle still waits for credit.
    worker.send(1, Epoch(500)).send(2, Epoch(300)).settle()
    assert worker.worker.counts()["epochs"].epoch == 95
    said = [epoch for _ in range(5) for epoch in [*worker.settle().said(), *worker.said(to=2)[:0]]]
    assert said == [Epoch(95), Epoch(95, idle=True), Epoch(300, idle=True)]


def test_t2_a_part_that_is_not_asked_for_lack_of_room_does_not_become_idle() -> None:
    worker = OneOfThree(by_key, at(*((float(s), [100 + s]) for s in range(60))), credit=mp.Credit(rows=1))
    worker.wait(55.0)
    taken = worker.worker.counts()["in0"].rows_in
    assert 0 < taken < 10
    epochs = [epoch for _ in range(200) for epoch in [*worker.settle().said(), *worker.said(to=2)]]
    assert not any(epoch.idle for epoch in epochs)
    assert worker.worker.counts()["in0"].rows_in > 50
    assert worker.worker.counts()["epochs"].late == 0


# Several exchanges and several generators in one region.


def two_exchanges(first: Stream, second: Stream) -> None:
    """``alone`` is fed by the first generator, ``key`` by both."""
    on_time = judged(first, name="first")
    on_time.key_by("alone", lambda reading: reading.number).sink("out-alone", sinks.Memory())
    joined = on_time.union("joined", judged(second, name="second"))
    joined.key_by("key", lambda reading: reading.number).sink("out", sinks.Memory())


def test_t2_a_generator_that_feeds_two_exchanges_follows_the_slower_one() -> None:
    worker = OneOfThree(two_exchanges, ONE_RECORD, ONE_RECORD).wait(IDLE_AFTER_S + 1)
    for exchange in ("key", "alone"):
        assert worker.said(exchange=exchange)[-1] == Epoch(95, idle=True)
    worker.send(1, Epoch(500), exchange="alone").send(2, Epoch(300), exchange="alone")
    worker.send(1, Epoch(400)).send(2, Epoch(200)).settle()
    assert worker.said(exchange="alone") == [Epoch(200, idle=True)]
    assert worker.said() == [Epoch(200, idle=True)]
    # On "alone" no sender is active: only the frontier of "key" is followed.
    worker.send(1, Epoch(500, idle=True), exchange="alone").send(2, Epoch(MAX_EPOCH), exchange="alone")
    worker.send(2, Epoch(450)).settle()
    assert worker.said()[-1] == Epoch(400, idle=True)


def test_t2_an_idle_generator_beside_an_active_one_holds_nothing_back_and_follows_only_where_it_is_alone() -> None:
    active = at(*((float(second), [100 + second]) for second in range(60)))
    worker = OneOfThree(two_exchanges, ONE_RECORD, active).wait(12.0)
    assert worker.said()[-1].time >= 105
    assert not worker.said()
    assert worker.said(exchange="alone")[-1] == Epoch(95, idle=True)
    worker.send(1, Epoch(110)).send(2, Epoch(110)).settle()
    assert worker.said() == []  # here the active one says how far it is
    worker.send(1, Epoch(900), exchange="alone").send(2, Epoch(900), exchange="alone").settle()
    assert worker.said(exchange="alone") == [Epoch(900, idle=True)]
    assert worker.said() == []


def test_a_job_without_idle_after_has_nothing_to_ask() -> None:
    def plain(stream: Stream) -> None:
        judged(stream, idle=False).key_by("key", lambda reading: reading.number).sink("out", sinks.Memory())

    worker = OneOfThree(plain, ONE_RECORD).wait(100.0).send(1, Epoch(500)).send(2, Epoch(300)).settle()
    assert worker.said() == [Epoch(95)]
    assert worker.worker._graph.followers == []
