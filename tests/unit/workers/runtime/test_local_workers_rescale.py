"""Workers join and leave while their job runs: nothing is lost, nothing comes twice, leavers are counted."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SinkError
from tests.unit.workers.harness import Ledger, Running, check_two_stages, two_stages


def test_who_joins_has_a_number_that_nobody_had_before() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger))
    members = []
    for size in (3, 1, 2, 4, 1, 2):
        running.ask(size).settle()
        members.append(running.coordinator.members)
    assert members == [(0, 1, 2), (0,), (0, 3), (0, 3, 4, 5), (0,), (0, 6)]
    running.finish()
    check_two_stages(ledger.visible)
    assert {worker for worker, _ in ledger.calls} <= set(range(7))


def test_r8_what_a_leaver_has_not_committed_joins_the_commit_at_the_end() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger), workers=2)
    running.step(10).ask(1).settle()
    written = [call for call in ledger.calls if call == (1, "write")]
    assert written
    assert ledger.calls_of(1) == ["open", "pre_commit", "close"]
    assert ledger.visible == []
    assert ledger.staged
    running.finish()
    assert ledger.calls_of(0) == ["open", "pre_commit", "close"]
    assert ledger.staged == {}
    check_two_stages(ledger.visible)


# Requests.


def test_r9_a_request_that_was_overtaken_starts_nobody() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger), slots_per_move=1)
    running.step(2).ask(2).step(1).ask(9).ask(2).settle()
    assert {worker for worker, _ in ledger.calls} == {0, 1}
    assert [report.superseded_by for report in running.reports] == [None, 2, None]
    assert running.reports[-1].moves == 0
    running.finish()


# Sources that cannot be read on elsewhere.


class PerWorker:
    """A source without parts: each worker that runs from the start reads ``count`` rows."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.built: list[int] = []

    def build(self, worker: sinks.WorkerInfo) -> Any:
        self.built.append(worker.worker)
        items = [(worker.worker, number) for number in range(self.count)]
        return sources.Memory(items).build_part(sources.Part("0"), None)


def test_who_reads_what_cannot_be_read_on_elsewhere_does_not_leave() -> None:
    job, out, source = mp.Job("fixed"), sinks.Memory(), PerWorker(60)
    job.source("clock", source).key_by("key", lambda row: row[1]).sink("out", out)
    running = Running(job, workers=2).step(3)
    with pytest.raises(PlanError, match=r"source 'clock' reads on worker 1 .*keep at least 2 workers"):
        running.ask(1)
    assert (running.coordinator.phase, running.reports) == ("steady", [])
    # Others may join, read none of its rows, and leave again.
    running.ask(4).settle().ask(2).settle()
    assert source.built == [0, 1]
    while not running.coordinator.group.worker(1).reading.finished:
        running.step()
    running.ask(1).settle()
    assert running.coordinator.members == (0,)
    running.finish()
    assert sorted(out.items) == [(worker, number) for worker in (0, 1) for number in range(60)]


# Ends.


@pytest.mark.parametrize("moment", ["before", "during", "both"])
def test_a_job_that_is_drained_reads_nothing_more_whoever_joins(moment: str) -> None:
    job, out = mp.Job("drained"), sinks.Memory()
    endless = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=3)
    job.source("in", endless).key_by("key", lambda n: n % 9).count("count").sink("out", out)
    running = Running(job, workers=2, slots_per_move=8).step(6)
    if moment != "before":
        running.ask(4).step(1)
        assert running.coordinator.phase == "moving"
    running.coordinator.drain()
    if moment != "during":
        running.ask(3)
    read = running.rows_in("in")
    running.settle()
    counts = running.finish()
    assert counts["in"].rows_in == counts["out"].rows_in == read
    assert counts["out"].epoch == mp.MAX_EPOCH


def test_r7_a_job_is_suspended_once_nothing_moves() -> None:
    job, out = mp.Job("suspended"), sinks.Memory()
    endless = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=3)
    job.source("in", endless).key_by("key", lambda n: n % 9).key_by("again", lambda n: n % 4).sink("out", out)
    running = Running(job, workers=2, slots_per_move=64).step(3).ask(3).step(1)
    running.coordinator.suspend()
    assert running.coordinator.phase == "moving"
    for _ in range(1_000):
        if running.coordinator.suspended:
            break
        running.coordinator.step()
    assert running.coordinator.suspended
    assert (running.coordinator.phase, len(running.reports)) == ("steady", 1)
    assert running.rows_in("in") == running.rows_in("out")
    running.coordinator.close()


class Connection:
    """Something that each worker has one of."""

    log: list[str]

    def __init__(self) -> None:
        self.log = LOG
        self.log.append("made")
        self.closed = False

    def use(self, value: Any) -> Any:
        assert not self.closed
        return value

    def close(self) -> None:
        self.closed = True
        self.log.append("closed")


LOG: list[str] = []


class Pulse(mp.KeyedLogic[Any, Any, Any, int]):
    """Uses a worker's connection on a schedule, whether there are keys or not."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.emit(message.key, message.value, None)
        return 1

    def on_schedule(self, state: Any, output: Any) -> None:
        self._handle().use(None)


def test_r8_who_has_left_does_nothing_more() -> None:
    LOG.clear()
    handle = mp.per_worker(Connection)
    job, out = mp.Job("gone"), sinks.Memory()
    keyed = job.source("in", sources.Memory(range(300), parts=2)).key_by("key", lambda n: n % 9)
    keyed.stateful_op("pulse", Pulse(handle)).sink("out", out)
    running = Running(job, workers=3, batching=mp.Batching(rows_max=2, linger_s=0.0)).step(4)
    assert LOG == ["made"] * 3
    running.ask(1).settle()
    assert LOG == ["made"] * 3 + ["closed"] * 2
    running.finish()
    assert LOG == ["made"] * 3 + ["closed"] * 3
    assert sorted(out.items) == list(range(300))


@pytest.mark.parametrize("call", ["pre_commit", "close"])
def test_s6_a_leaver_that_cannot_be_closed_fails_the_job_and_everything_is_closed_once(call: str) -> None:
    ledger, other = Ledger(failing={1: call}), Ledger()
    job = mp.Job("failing")
    keyed = job.source("in", sources.Memory(range(200), parts=2)).key_by("key", lambda n: n % 9)
    keyed.sink("a", ledger)
    keyed.sink("b", other)
    running = Running(job, workers=3).step(3)
    with pytest.raises(SinkError, match="sink 'a' could not"):
        running.ask(2).ask(1).settle()
    running.coordinator.commit.abort()
    running.coordinator.close()
    for sink in (ledger, other):
        assert sink.staged == {}
        assert sink.visible == []
        assert {worker: sink.calls_of(worker).count("close") for worker in range(3)} == {0: 1, 1: 1, 2: 1}


def test_s6_a_joiner_that_cannot_open_its_sinks_fails_the_job_and_what_was_open_is_closed() -> None:
    fine, failing = Ledger(), Ledger(failing={1: "open"})
    job = mp.Job("failing")
    stream = job.source("in", sources.Memory(range(200), parts=2)).key_by("key", lambda n: n % 9)
    stream.sink("a", fine)
    stream.sink("b", failing)
    running = Running(job).step(3)
    with pytest.raises(SinkError, match="sink 'b' could not"):
        running.ask(2)
    running.coordinator.commit.abort()
    running.coordinator.close()
    assert [fine.calls_of(worker) for worker in (0, 1)] == [["open", "close"]] * 2
    assert [failing.calls_of(worker) for worker in (0, 1)] == [["open", "close"], ["open"]]
