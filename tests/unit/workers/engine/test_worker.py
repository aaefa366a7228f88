"""One worker, driven step by step: it reads from each source in turn, counts, idles and closes."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py.codec import Codec
from malstrom_py.errors import MalstromError
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership, deal_parts
from malstrom_py.workers.engine.worker import Worker
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import Journal, JournalSink, PlainSink


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
    with pytest.raises(MalstromError, match="source 'in0' could not close part 'a'"):
        worker.close()
    worker.close()
    assert (first.closed, second.closed) == ({"a": 1}, {"b": 1})
    assert (journal.calls("out0"), journal.calls("out1")) == (["build", "close"], ["build", "close"])


def test_closing_what_was_never_opened_does_nothing() -> None:
    journal = Journal()
    worker, _ = worker_of(Scripted({"a": [[1]]}), journal=journal)
    worker.close()
    assert journal.entries == []
