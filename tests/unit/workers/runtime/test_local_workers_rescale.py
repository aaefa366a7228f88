"""A crew that grows and shrinks while its job runs: nothing is lost, nothing comes twice, who leaves is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.workers.reports.job_status import WORKERS_MAX
from tests.unit.workers.harness import Ledger, Running, check_two_stages, rows, two_stages
from tests.unit.workers.runtime.test_local_workers import STEPS, readings, timed_job


def test_r8_one_to_two_to_three_to_one_under_traffic() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger, count=200), slots_per_move=16)
    members = [running.crew.members]
    for size in (2, 3, 1):
        running.step(5).ask(size).settle()
        members.append(running.crew.members)
    assert members == [(0,), (0, 1), (0, 1, 2), (0,)]
    assert not running.crew.finished
    counts = running.finish()
    check_two_stages(ledger.visible, count=200)
    assert {name: step.rows_in for name, step in counts.items()} == dict.fromkeys(counts, 800)
    assert [(report.members, report.superseded_by) for report in running.reports] == [
        ((0, 1), None),
        ((0, 1, 2), None),
        ((0,), None),
    ]
    assert running.reports[0].slots == 32
    assert running.reports[-1].version == sum(report.moves for report in running.reports)


def test_who_joins_has_a_number_that_nobody_had_before() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger))
    members = []
    for size in (3, 1, 2, 4, 1, 2):
        running.ask(size).settle()
        members.append(running.crew.members)
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


def test_what_leavers_have_counted_stays_counted() -> None:
    running = Running(two_stages(sinks.Memory()), workers=3)
    running.step(8)
    before = {name: step.rows_in for name, step in running.crew.counts().items()}
    running.ask(1).settle()
    after = running.crew.counts()
    assert all(after[name].rows_in >= count for name, count in before.items())
    assert running.rows_in("again") == after["again"].rows_in
    assert after["counted"].keys == 7
    assert running.finish()["out"].rows_in == 240


@settings(max_examples=40, deadline=None)
@given(
    start=st.integers(1, 4),
    asked=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=6),
    rows_max=st.integers(1, 7),
    credit=st.integers(1, 30),
    slots_per_move=st.sampled_from([1, 5, 64]),
    keys_per_parcel=st.sampled_from([1, 2, 256]),
)
def test_r9_requests_at_any_moment_lose_nothing_and_the_last_one_wins(
    start: int,
    asked: list[tuple[int, int]],
    rows_max: int,
    credit: int,
    slots_per_move: int,
    keys_per_parcel: int,
) -> None:
    ledger = Ledger()
    batching = mp.Batching(rows_max=rows_max, credit=Credit(rows=credit, size=1))
    running = Running(
        two_stages(ledger),
        workers=start,
        batching=batching,
        slots_per_move=slots_per_move,
        keys_per_parcel=keys_per_parcel,
    )
    for steps, size in asked:
        running.step(steps).ask(size)
    running.settle()
    assert len(running.crew.members) == (asked[-1][1] if asked else start)
    running.finish()
    assert len(running.reports) == len(asked)
    check_two_stages(ledger.visible)
    assert all(ledger.calls_of(worker) == ["open", "pre_commit", "close"] for worker, _ in ledger.calls)


def whatever_the_epochs(by_key: dict[Any, list[Any]], name: str) -> dict[Any, Any]:
    """What does not hang on how many epochs came: of those that wait while slots move the last one is let in (R3)."""
    if name == "stateful_op at epochs":
        return {key: outputs[-1] for key, outputs in by_key.items()}
    if name == "collect":
        return {key: [value for values in outputs for value in values] for key, outputs in by_key.items()}
    if name == "ttl_map":  # a state whose end waits with its epoch lasts a little longer
        return {key: [value for value, _ in outputs] for key, outputs in by_key.items()}
    return by_key


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("sizes", [(3, 1, 2), (2, 4, 3)], ids=str)
def test_p2_every_step_gives_per_key_what_it_gives_without_a_rescale(name: str, sizes: tuple[int, ...]) -> None:
    """State, timers and what hangs on epochs: one part, so that the order per key is determined."""
    items = readings(1000)
    alone, out, late = timed_job(items, STEPS[name])
    Running(alone, rows_max=5).finish()  # on a virtual clock too: a real one may cut batches, and so move epochs
    moved, moved_out, moved_late = timed_job(items, STEPS[name])
    running = Running(moved, rows_max=5, slots_per_move=256).through(sizes, between=10)
    assert not running.crew.finished
    running.finish()
    assert whatever_the_epochs(moved_out.by_key, name) == whatever_the_epochs(out.by_key, name)
    assert moved_late.items == late.items


def test_a_key_that_moves_from_worker_one_to_worker_zero_keeps_its_order_in_memory() -> None:
    job, out = mp.Job("order", slots=8), sinks.Memory()
    job.source("in", sources.Memory(range(400))).key_by("key", lambda n: n % 8).sink("out", out)
    running = Running(job, workers=2)
    running.step(40)
    written = {worker.id: worker.rows_in("out") for worker in running.crew.group.hosted}
    assert min(written.values()) > 10
    running.ask(1).settle().step(10).ask(3).settle()
    running.finish()
    assert out.by_key == {key: list(range(key, 400, 8)) for key in range(8)}
    assert sorted(out.items) == list(range(400))


@pytest.mark.parametrize("sizes", [(2,), (3, 1), (4, 2, 1)], ids=str)
def test_parts_of_a_source_that_feeds_no_exchange_move_too(sizes: tuple[int, ...]) -> None:
    job, out = mp.Job("no-exchange"), sinks.Memory()
    job.source("in", sources.Memory(rows(4, 50), parts=4)).map("same", lambda row: row).sink("out", out)
    running = Running(job).through(sizes, between=2)
    assert running.reports[0].parts > 0
    assert running.finish()["out"].rows_in == 200
    for part in range(4):
        assert [number for of, number in out.items if of == part] == list(range(50))


def test_t5_a_job_whose_sources_are_at_their_end_still_rescales_and_ends_everywhere() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger, parts=1, count=40), workers=1, rows_max=100)
    while running.crew.counts()["in"].rows_in < 40:
        running.step()
    running.ask(3).settle().ask(2).settle()
    counts = running.finish()
    check_two_stages(ledger.visible, parts=1, count=40)
    assert counts["again"].epoch == mp.MAX_EPOCH


# Requests.


def test_r9_of_requests_that_come_during_a_rescale_the_last_one_wins_and_none_is_lost() -> None:
    running = Running(two_stages(sinks.Memory()), slots_per_move=1)
    running.step(2).ask(2).step(1)
    assert running.crew.phase == "moving"
    running.ask(4).ask(1).ask(3)
    assert running.reports == []
    running.settle()
    first, *others = running.reports
    assert (first.members, first.superseded_by) == ((0, 1), None)
    assert [(len(report.members), report.superseded_by) for report in others] == [(3, 3), (3, 3), (3, None)]
    # Who is there stays: of what was overtaken nothing was begun.
    assert running.crew.members[:2] == (0, 1)
    running.finish()


def test_r9_a_request_that_was_overtaken_starts_nobody() -> None:
    ledger = Ledger()
    running = Running(two_stages(ledger), slots_per_move=1)
    running.step(2).ask(2).step(1).ask(9).ask(2).settle()
    assert {worker for worker, _ in ledger.calls} == {0, 1}
    assert [report.superseded_by for report in running.reports] == [None, 2, None]
    assert running.reports[-1].moves == 0
    running.finish()


def test_a_request_for_as_many_as_there_are_has_ended_at_once() -> None:
    running = Running(two_stages(sinks.Memory()), workers=2).step(3).ask(2)
    (report,) = running.reports
    assert (report.members, report.moves, report.slots, report.parts) == ((0, 1), 0, 0, 0)
    assert running.crew.phase == "steady"
    running.finish()


@pytest.mark.parametrize("size", [0, -1, WORKERS_MAX + 1, 1.0, "2", True])
def test_a_size_that_cannot_be_is_refused_and_nothing_has_happened(size: Any) -> None:
    running = Running(two_stages(sinks.Memory()), workers=2).step(2)
    with pytest.raises(PlanError, match="workers must be a whole number from 1 to"):
        running.ask(size)
    assert (running.crew.phase, running.crew.members, running.reports) == ("steady", (0, 1), [])
    running.ask(3).settle()
    assert running.crew.members == (0, 1, 2)
    running.finish()


def test_r10_slots_are_balanced_and_few_move() -> None:
    running = Running(two_stages(sinks.Memory()), workers=4).ask(5).settle()
    owned = [running.crew.table.count(worker) for worker in running.crew.members]
    assert (sorted(owned), running.reports[0].slots) == ([12, 13, 13, 13, 13], 12)
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
    assert (running.crew.phase, running.reports) == ("steady", [])
    # Others may join, read none of its rows, and leave again.
    running.ask(4).settle().ask(2).settle()
    assert source.built == [0, 1]
    while not running.crew.group.worker(1).reading.finished:
        running.step()
    running.ask(1).settle()
    assert running.crew.members == (0,)
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
        assert running.crew.phase == "moving"
    running.crew.drain()
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
    running.crew.suspend()
    assert running.crew.phase == "moving"
    for _ in range(1_000):
        if running.crew.suspended:
            break
        running.crew.step()
    assert running.crew.suspended
    assert (running.crew.phase, len(running.reports)) == ("steady", 1)
    assert running.rows_in("in") == running.rows_in("out")
    running.crew.close()


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
    running.crew.commit.abort()
    running.crew.close()
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
    running.crew.commit.abort()
    running.crew.close()
    assert [fine.calls_of(worker) for worker in (0, 1)] == [["open", "close"]] * 2
    assert [failing.calls_of(worker) for worker in (0, 1)] == [["open", "close"], ["open"]]
