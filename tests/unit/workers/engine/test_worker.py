"""One worker, driven step by step: it reads from each source in turn, counts, idles and closes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.errors import MalstromError
from malstrom_py.rescale.channels.channel import Credit, Frame
from malstrom_py.rescale.moves.protocol import FindKeys
from malstrom_py.rescale.slots import slot_of
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, deal_parts
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.messages import Outgoing
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import Journal, JournalSink, PlainSink, Running, Scheduled, Script


def worker_of(*sources: Scripted, journal: Journal | None = None, failing: str = "") -> tuple[Worker, VirtualClock]:
    job, clock = mp.Job("job"), VirtualClock()
    for n, source in enumerate(sources):
        job.source(f"in{n}", source).sink(f"out{n}", PlainSink(f"out{n}", journal or Journal(), failing))
    return alone(job, clock), clock


def alone(job: mp.Job, clock: VirtualClock) -> Worker:
    """Worker number 3, the only one of its job."""
    member = Membership(3, [3], [3] * job.slots)
    return Worker(job.plan(), member, batching=Batching(rows_max=10), clock=clock, codec=Codec())


def opened(worker: Worker) -> Worker:
    worker.open_sinks()
    worker.open_sources(deal_parts(worker._plan, [3], VirtualClock()).parts[3])
    return worker


def test_a_step_polls_one_part_of_each_source_to_the_end_of_the_graph() -> None:
    worker, _ = worker_of(Scripted({"a": [[1, 2], [3]], "b": [[4]]}), Scripted({"c": [[5]]}))
    opened(worker)
    reads = []
    while not worker.finished:
        reads.append(worker.step()[0])
    assert reads == [3, 1, 1]
    assert (worker.rows_in("out0"), worker.rows_in("out1")) == (4, 1)


def test_sinks_are_opened_before_any_source() -> None:
    journal = Journal()

    class Late(Scripted):
        def list_parts(self) -> list[Part]:
            journal.entries.append("source: list")
            return []

    worker, _ = worker_of(Late({}), journal=journal)
    opened(worker)
    assert journal.entries == ["out0: build", "source: list"]
    assert worker.finished


def test_it_idles_until_the_first_part_is_due() -> None:
    worker, clock = worker_of(Scripted({"a": [None] * 9}), Scripted({"b": [None, [1]]}))
    opened(worker)
    assert worker.due_s() == 0.0
    assert worker.step() == (0, [])
    assert worker.due_s() == pytest.approx(0.005)
    clock.advance(0.005)
    assert worker.step()[0] == 1


def test_counts_are_those_so_far() -> None:
    worker, _ = worker_of(Scripted({"a": [[1], [2]]}))
    opened(worker)
    worker.step()
    assert {name: counts.rows_in for name, counts in worker.counts().items()} == {"in0": 1, "out0": 1}
    assert {counts.epoch for counts in worker.counts().values()} == {None}
    worker.step()
    assert {counts.epoch for counts in worker.counts().values()} == {mp.MAX_EPOCH}


def test_writers_are_told_which_worker_they_are_on() -> None:
    job, sink = mp.Job("job"), JournalSink("out", Journal())
    job.source("in", Scripted({})).sink("out", sink)
    worker = alone(job, VirtualClock())
    assert [operator.context.worker for operator in worker.sinks] == [3]


def test_closing_closes_everything_and_raises_the_first_error() -> None:
    journal = Journal()
    first = Scripted({"a": [[1]]}, close_error=OSError("first"))
    second = Scripted({"b": [[1]]}, close_error=OSError("second"))
    worker, _ = worker_of(first, second, journal=journal, failing="close")
    opened(worker)
    with pytest.raises(MalstromError, match="source 'in0' could not close partition 'a'"):
        worker.close()
    worker.close()
    assert (first.closed, second.closed) == ({"a": 1}, {"b": 1})
    assert (journal.calls("out0"), journal.calls("out1")) == (["build", "close"], ["build", "close"])


def test_closing_what_was_never_opened_does_nothing() -> None:
    journal = Journal()
    worker, _ = worker_of(Scripted({"a": [[1]]}), journal=journal)
    worker.close()
    assert journal.entries == []


# What a worker reads.


def endless(parts: int = 1) -> sources.Generator[int]:
    return sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=parts)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_f2_a_source_that_always_has_something_does_not_starve_another(workers: int) -> None:
    job = mp.Job("two-sources")
    first, second = job.source("first", endless(3)), job.source("second", endless(3))
    first.union("both", second).key_by("key", lambda n: n % 9).sink("out", sinks.Memory())
    running = Running(job, workers=workers, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    running.step(300)
    read = [running.rows_in(name) for name in ("first", "second")]
    assert min(read) > max(read) / 4 > 10
    running.coordinator.close()


def test_f2_a_region_that_stays_full_does_not_have_the_sources_of_another_starve() -> None:
    job = mp.Job("two-regions")
    job.source("full", endless()).key_by("key", lambda n: n).key_by("again", lambda n: n).sink("out", sinks.Memory())
    first, second = job.source("first", endless()), job.source("second", endless())
    first.union("both", second).key_by("free", lambda n: n % 9).sink("free-out", sinks.Memory())
    running = Running(job, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    worker = running.coordinator.group.worker(0)
    inputs = {source.context.step: region_input for source, _, region_input, _ in worker.reading._polls}
    worker.reading.read()
    for _ in range(100):
        assert not inputs["full"].sources_open
        worker._inputs["free-out"].take()
        worker.reading.read()
    read = [running.rows_in(name) for name in ("first", "second")]
    assert min(read) > max(read) / 4 > 10
    running.coordinator.close()


def test_f2_a_source_of_a_region_that_is_full_waits_and_one_of_another_goes_on() -> None:
    job = mp.Job("two-regions")
    job.source("full", endless()).key_by("key", lambda n: n % 9).key_by("again", lambda n: n % 2).sink(
        "out", sinks.Memory()
    )
    job.source("free", endless()).sink("free-out", sinks.Memory())
    running = Running(job, batching=mp.Batching(rows_max=4, credit=Credit(rows=1)))
    reading = running.coordinator.group.worker(0).reading
    full_feed = next(region_input for source, _, region_input, _ in reading._polls if source.context.step == "full")
    read = reading.read()
    assert (read, full_feed.sources_open) == (8, False)
    before = running.rows_in("full")
    assert [reading.read() for _ in range(3)] == [4, 4, 4]
    assert running.rows_in("full") == before
    running.coordinator.close()


def test_which_sources_can_be_read_on_elsewhere() -> None:
    class Whole:
        def build(self, worker: sinks.WorkerInfo) -> object:
            return sources.Memory([1, 2, 3]).build_part(sources.Part("0"), None)

    job = mp.Job("kinds")
    job.source("parts", sources.Memory([1, 2, 3])).sink("a", sinks.Memory())
    job.source("whole", Whole()).sink("b", sinks.Memory())  # type: ignore[arg-type]  # a custom type of part
    running = Running(job)
    reading = running.coordinator.group.worker(0).reading
    assert reading.fixed == "whole"
    while not reading.finished:
        running.step()
    assert reading.fixed == ""
    running.finish()


def test_what_is_stopped_is_at_its_end_where_it_stands() -> None:
    job, out = mp.Job("stopped"), sinks.Memory()
    job.source("in", endless(2)).sink("out", out)
    running = Running(job).step(3)
    reading = running.coordinator.group.worker(0).reading
    assert reading.is_due
    reading.stop()
    assert reading.is_due
    assert reading.read() == 0
    assert (reading.finished, reading.is_due, reading.due_s()) == (True, False, None)
    running.finish()
    assert len(out.items) == running.rows_in("in")


class Columns:
    """A source of one part that can give columns in two ways, and notes in which it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.kind = "arrow"

    def list_parts(self) -> list[sources.Part]:
        return [sources.Part("0")]

    def build_part(self, part: sources.Part, state: object) -> Columns:
        return self

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        self.kind = "frames" if frames else "arrow"

    def poll(self, rows_max: int) -> pa.RecordBatch:
        self.asked.append(self.kind)
        return pa.RecordBatch.from_pydict({"n": [1]})

    def is_finished(self) -> bool:
        return len(self.asked) == 3

    def snapshot(self) -> int:
        return len(self.asked)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("step", "asked"),
    [
        (lambda stream: stream.map_batches("same", lambda batch: batch), ["arrow", "arrow", "arrow"]),
        (lambda stream: stream.filter("some", pl.col("n") > 0), ["arrow", "frames", "frames"]),
    ],
    ids=["arrow", "frames"],
)
def test_a_part_that_gives_columns_is_asked_for_frames_if_a_step_behind_takes_them(step: Any, asked: list[str]) -> None:
    job, source, out = mp.Job("columns"), Columns(), sinks.Memory()
    step(job.source("in", source)).sink("out", out)
    mp.run(job)
    assert (source.asked, len(out.items)) == (asked, 3)


# What a worker sends.


class Later(mp.KeyedLogic[Any, Any, Any, Any]):
    """Sends each value once a second has passed."""

    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        output.set_timer(message.key, timedelta(seconds=1), clock="processing")
        return message.value

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        output.emit(key, key_state)


def between_two(job: mp.Job, clock: VirtualClock) -> tuple[Worker, int, int]:
    """Worker number 3, which owns half of the slots, a key that it owns, and one of worker 4."""
    table = [3 + slot % 2 for slot in range(job.slots)]
    worker = Worker(job.plan(), Membership(3, [3, 4], table), batching=Batching(), clock=clock, codec=Codec())
    own, other = (next(key for key in range(99) if table[slot_of(key, job.slots)] == owner) for owner in (3, 4))
    return worker, own, other


def frames(outgoing: list[Outgoing]) -> int:
    return sum(content.rows for _, content in outgoing if isinstance(content, Frame))


@pytest.mark.parametrize("gathered", [False, True])
def test_what_a_timer_sends_to_another_worker_leaves_in_the_same_step(gathered: bool) -> None:
    """Nothing wakes the worker after it: rows that stayed in a buffer would wait for half a second."""
    job, clock, keys = mp.Job("timers"), VirtualClock(), list[int]()
    read = job.source("in", Scripted({"a": [[1], None, None, None]}))
    later = read.key_by("first", lambda value: keys[0]).stateful_op("later", Later())
    later.key_by("second", lambda value: keys[1]).sink("out", sinks.Memory())
    worker, *keys[:] = between_two(job, clock)
    opened(worker)
    for _ in range(5):
        worker.step(gathered=gathered)
    clock.advance(2.0)
    assert frames(worker.step(gathered=gathered)[1]) == 1


def test_a_worker_whose_state_is_moving_does_not_pause() -> None:
    """State goes ahead of a move while the worker works, in chunks with rests: each would last as long as a pause."""
    job, clock = mp.Job("moving"), VirtualClock()
    counted = job.source("in", Scripted({"a": [list(range(20)), None]})).key_by("key", lambda value: value)
    counted.count("seen").sink("out", sinks.Memory())
    worker, _, _ = between_two(job, clock)
    opened(worker)
    for _ in range(20):
        worker.step(gathered=True)
    assert (worker.waits, worker.settled) == (False, True)
    worker.receive(FindKeys())
    assert (worker.waits, worker.settled) == (True, False)


def test_a_source_whose_polls_take_long_holds_nothing_back_for_a_long_linger() -> None:
    job, clock = mp.Job("slow"), VirtualClock()
    slow = Scheduled(clock, {"a": Script([(0.0, range(20))], end_s=0.0)}, poll_s=0.03)
    job.source("in", slow).sink("out", sinks.Memory())
    batching = Batching(rows_max=1, linger_s=60.0)
    worker = Worker(job.plan(), Membership(3, [3], [3] * job.slots), batching=batching, clock=clock, codec=Codec())
    opened(worker)
    worker.step(gathered=True)
    assert (worker.rows_in("out"), worker.settled) == (1, False)
