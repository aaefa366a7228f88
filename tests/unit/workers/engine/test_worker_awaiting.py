"""Workers with steps that hold records back: what waits is bounded, nothing is lost, and nothing is left in the end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.codec import Codec
from malstrom_py.errors import OperatorError
from malstrom_py.operators.enrich.enrich import ANSWERED_MAX, Enrich
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, deal_parts
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.transport.messages import COORDINATOR

ROWS_MAX, CONCURRENCY, CREDIT = 16, 5, 64
QUEUE_MAX = CONCURRENCY + 2 * ROWS_MAX
"""What may wait in a step: more than concurrency and one batch let nothing in, and then it takes one batch at most."""


class Door:
    """A coroutine function all of whose calls wait until it is opened."""

    def __init__(self) -> None:
        self.opened: Future[None] = Future()
        self.calls = 0
        self.cancelled = 0

    async def __call__(self, key: Any) -> Any:
        self.calls += 1
        try:
            await asyncio.shield(asyncio.wrap_future(self.opened))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return key

    def open(self) -> None:
        self.opened.set_result(None)


class Hand:
    """Steps workers by hand, ``slow`` (if any) once while the others are stepped twenty times."""

    def __init__(self, plan: Plan, workers: int = 1, *, slow: int | None = None) -> None:
        members = range(workers)
        table = first_table(plan.slots, members)
        batching = Batching(rows_max=ROWS_MAX, credit=Credit(rows=CREDIT, size=1 << 20))
        self.slow = slow
        self.clock = VirtualClock()
        self.wake = threading.Event()
        self.queue_most = 0
        self.workers = [
            Worker(
                plan,
                Membership(worker, members, table),
                batching=batching,
                clock=self.clock,
                codec=Codec(plan.types),
                wake=self.wake,
            )
            for worker in members
        ]
        for worker in self.workers:
            worker.open_sinks()
        parts = deal_parts(plan, members, self.clock).parts
        for worker in self.workers:
            self.deliver(worker.open_sources(parts[worker.id]))

    def deliver(self, outgoing: Any) -> None:
        for receiver, message in outgoing:
            if receiver != COORDINATOR:
                self.workers[receiver].receive(message)

    def turn(self, number: int = 0) -> int:
        done = 0
        for worker in self.workers:
            if worker.id != self.slow or number % 20 == 0:
                some, outgoing = worker.step()
                self.deliver(outgoing)
                done += some + len(outgoing)
                held = [len(op._queue) for op in worker._graph.operators.values() if isinstance(op, Enrich)]
                self.queue_most = max([self.queue_most, *held])
        self.clock.advance(0.001)
        return done

    def run(self) -> None:
        for number in range(100_000):
            if all(worker.finished for worker in self.workers):
                return
            if not self.turn(number) and any(worker.awaiting for worker in self.workers):
                self.wake.wait(0.001)
                self.wake.clear()
        raise AssertionError("it does not come to an end")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def rows_in(self, step: str) -> int:
        return sum(worker.rows_in(step) for worker in self.workers)


def enriched(door: Any, rows: int, parts: int = 1) -> tuple[mp.Job, list[Any]]:
    job, out = mp.Job("enriched"), list[Any]()
    by_key = job.source("in", sources.Memory(range(rows), parts=parts)).key_by("key", lambda number: number % 7)
    stream = by_key.enrich("e", door, concurrency=CONCURRENCY, combine=lambda value, info: value)
    stream.sink("out", sinks.Callable(out.append))
    return job, out


def test_f2_slow_calls_bound_what_waits_and_what_is_read() -> None:
    for rows in (500, 5000):
        door = Door()
        job, out = enriched(door, rows)
        hand = Hand(job.plan())
        for number in range(300):
            hand.turn(number)
        assert hand.queue_most <= QUEUE_MAX
        assert door.calls <= CONCURRENCY
        assert hand.rows_in("in") <= QUEUE_MAX + CREDIT + ROWS_MAX, "what is read is not bounded"
        assert not hand.workers[0].finished
        door.open()
        hand.run()
        hand.close()
        assert hand.queue_most <= CONCURRENCY + ANSWERED_MAX + 2 * ROWS_MAX, "answers waiting for an earlier one"
        assert out == list(range(rows))


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_f2_what_has_come_back_waits_while_the_next_region_is_slow(slow: int) -> None:
    async def look(key: int) -> int:
        return key

    most = []
    for rows in (600, 2400):
        job, out = mp.Job("slow"), list[int]()
        by_key = job.source("in", sources.Memory(range(rows), parts=3)).key_by("key", lambda number: number % 50)
        stream = by_key.enrich("e", look, concurrency=CONCURRENCY, combine=lambda value, info: value)
        stream.key_by("again", lambda number: number % 31).sink("out", sinks.Callable(out.append))
        hand = Hand(job.plan(), 3, slow=slow)
        hand.run()
        hand.close()
        assert sorted(out) == list(range(rows))
        most.append(hand.queue_most)
    frame = 2 * ROWS_MAX - 1  # what has been gathered, and the batch that makes it enough
    assert max(most) <= CONCURRENCY + ANSWERED_MAX + frame


def test_a_worker_is_finished_only_when_nothing_waits() -> None:
    door = Door()
    job, out = enriched(door, 3)
    hand = Hand(job.plan())
    for _ in range(5):
        hand.turn()
    (worker,) = hand.workers
    assert (worker.awaiting, worker.finished, worker.ready, out) == (True, False, False, [])
    assert worker.counts()["e"].keys == 3
    door.open()
    hand.run()
    hand.close()
    assert (worker.awaiting, worker.finished, out) == (False, True, [0, 1, 2])
    assert worker.counts()["e"].keys == 0


@pytest.mark.parametrize("virtual", [False, True])
def test_a_crew_that_awaits_calls_neither_spins_nor_sleeps_past_them(virtual: bool) -> None:
    door = Door()
    job, out = enriched(door, 3)
    clock = VirtualClock() if virtual else SystemClock()
    plan = job.plan()
    coordinator = Coordinator(plan, LocalWorkers(plan, clock, Batching(rows_max=ROWS_MAX)), workers=1, clock=clock)
    coordinator.open()
    later = threading.Timer(0.1, door.open)
    later.start()
    steps = 0
    while not coordinator.finished:
        coordinator.step()
        steps += 1
    later.join()
    coordinator.close()
    assert out == [0, 1, 2]
    assert steps < 60, "it was asked again and again while there was nothing"


def test_a_source_that_is_due_is_polled_while_calls_are_under_way() -> None:
    door = Door()

    class Late(sources.Generator[int]):
        """Gives its second record only when the first one's call has begun, and then opens the door."""

    def numbers(part: int, start: int) -> Any:
        yield 0
        while not door.calls:
            yield None
        door.open()
        yield 1

    job, out = mp.Job("late"), list[Any]()
    stream = job.source("in", Late(numbers)).filter("some", lambda number: number is not None)
    stream.key_by("key", str).enrich("e", door).sink("out", sinks.Callable(out.append))
    mp.run(job, batch=mp.Batching(rows_max=1))
    assert out == [(0, "0"), (1, "1")]


def test_a_run_that_is_over_before_its_calls_gives_them_up() -> None:
    door, before, clock = Door(), set(threading.enumerate()), VirtualClock()

    def numbers(part: int, start: int) -> Any:
        yield 1
        while True:
            clock.advance(1.0 if door.calls else 0.0)
            yield None

    stream = mp.Job("over").source("in", sources.Generator(numbers)).filter("some", lambda number: number is not None)
    calls = stream.key_by("key", str).enrich("e", door)
    assert mp.collect(calls, timeout_s=0.05, clock=clock, batch=mp.Batching(rows_max=1)) == []
    assert door.cancelled == door.calls == 1
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failure_elsewhere_cancels_what_is_under_way_and_leaves_no_thread(workers: int) -> None:
    door, before = Door(), set(threading.enumerate())
    job, out = enriched(door, 100, parts=3)

    def fail(number: int) -> float:
        return 1 / (0 if door.calls else 1)

    again = job.source("again", sources.Generator(lambda part, start: iter(range(10**9))))
    again.map("fail", fail).sink("other", sinks.Callable(lambda value: None))
    with pytest.raises(OperatorError, match="'fail' failed"):
        mp.run(job, workers, batch=mp.Batching(rows_max=8))
    assert door.calls > 0
    assert door.cancelled == door.calls
    assert out == []
    assert set(threading.enumerate()) <= before


def test_a_call_that_fails_ends_the_run_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    door = Door()

    async def look(key: int) -> int:
        if key == 3:
            raise ConnectionError
        return int(await door(key))

    job, _ = enriched(look, 100)
    door.open()
    with pytest.raises(OperatorError, match="'e' failed for key 3: ConnectionError in"):
        mp.run(job, 2)
    assert set(threading.enumerate()) <= before


def test_calls_of_several_steps_and_workers_go_on_at_once() -> None:
    together: set[tuple[str, int]] = set()
    door = Door()

    def asking(step: str) -> Any:
        async def look(key: int) -> int:
            together.add((step, key))
            if len(together) == 4:
                door.open()
            await door(key)
            return key

        return look

    job, out = mp.Job("together"), sinks.Memory()
    by_key = job.source("in", sources.Memory(range(2), parts=2)).key_by("key", lambda number: number)
    one, other = (by_key.enrich(step, asking(step)) for step in ("one", "other"))
    one.union("both", other).sink("out", out)
    mp.run(job, 2)
    assert Counter(out.items) == Counter([(0, 0), (0, 0), (1, 1), (1, 1)])
