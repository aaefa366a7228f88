"""`run` and `collect`: a job runs to its end or fails as a whole, and never polls without a pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import OperatorError, PlanError, SourceError
from malstrom_py.testing import VirtualClock
from tests.unit.operators.scripted import Scripted
from tests.unit.polled import Polled
from tests.unit.workers.harness import Journal, JournalSink

IntOutput = mp.Output[int, int]


def scripted_job(source: Scripted, journal: Journal, on_error: Any = "fail") -> mp.Job:
    job = mp.Job("scripted")
    job.source("in", source, on_error=on_error).sink("out", JournalSink("out", journal))
    return job


def test_a_job_is_checked_before_anything_runs() -> None:
    journal = Journal()
    job = scripted_job(Scripted({}), journal)
    job.source("useless", sources.Memory([1]))
    with pytest.raises(PlanError):
        mp.run(job)
    assert journal.entries == []


def test_a_job_can_be_run_again_with_fresh_state() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    job.source("in", sources.Memory([1, 2])).key_by("all", lambda _: "all").sum("sum").sink("out", out)
    runtime = mp.InProcess()
    assert [(runtime.run(job).written, list(out.items)) for _ in range(2)] == [(2, [1, 3]), (2, [1, 3])]


@pytest.mark.parametrize("workers", [1, 8], ids=["one worker", "workers without a part"])
@pytest.mark.parametrize("is_timed", [False, True])
def test_t5_the_end_reaches_stateful_steps(is_timed: bool, workers: int) -> None:
    class Last(mp.KeyedLogic[int, int, int, int]):
        def on_data(self, message: mp.DataMessage[int, int], key_state: int | None, output: IntOutput) -> int:
            return message.value

        def on_epoch(self, epoch: Epoch, state: Any, output: IntOutput) -> None:
            if epoch.time == mp.MAX_EPOCH:
                for key, value in state.items():
                    output.emit(key, value, 9 if is_timed else None)

    job, out = mp.Job("a"), sinks.Memory()
    stream: Any = job.source("in", sources.Memory([1, 2, 3, 4]))
    if is_timed:
        timed = stream.assign_timestamps("at", lambda n: n)
        stream, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
        late.sink("late", sinks.Memory())
    stream.key_by("parity", lambda n: n % 2).stateful_op("last", Last()).sink("out", out)
    mp.run(job, workers)
    assert out.by_key == {1: [3], 0: [4]}


def test_an_error_of_a_user_stops_the_job_closes_all_and_shows_nothing() -> None:
    journal, source = Journal(), Scripted({"a": [[1], [0], [2]], "b": [[1]] * 9})
    job, sink = mp.Job("a"), JournalSink("out", journal)
    job.source("in", source).map("inverse", lambda n: 1 // n).sink("out", sink)
    with pytest.raises(OperatorError, match="step 'inverse'"):
        mp.run(job)
    assert sink.visible == []
    assert journal.calls("out")[-2:] == ["abort", "close"]
    assert source.closed == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "source",
    [
        Scripted({"a": [[1]]}, list_error=OSError("disk")),
        Scripted({"a": [[1]], "b": OSError("disk")}),
        Scripted({"a": [[1], OSError("disk")]}),
        Scripted({"a": [[1], [2]]}, close_error=OSError("disk")),
        Scripted({"a": [[1]]}, list_error=SourceError("disk")),
    ],
    ids=["list", "open", "poll", "close", "typed"],
)
def test_a_source_that_fails_is_named_and_nothing_is_shown(source: Scripted) -> None:
    journal = Journal()
    job = scripted_job(source, journal)
    with pytest.raises(SourceError, match=r"source 'in'.*(OSError|disk)"):
        mp.run(job, clock=VirtualClock())
    assert "commit" not in journal.calls("out")
    calls = journal.calls("out")
    assert calls.count("abort") == 1
    assert calls.count("close") == calls.count("open")
    assert set(source.closed.values()) <= {1}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_middle_closes_all_and_shows_nothing(stop: type[BaseException]) -> None:
    journal, source = Journal(), Scripted({"a": [[1], stop()], "b": [[1]] * 5})
    with pytest.raises(stop):
        mp.run(scripted_job(source, journal))
    assert journal.calls("out")[-2:] == ["abort", "close"]
    assert source.closed == {"a": 1, "b": 1}


def test_an_idle_source_is_polled_less_and_less_often() -> None:
    clock, source = VirtualClock(), Scripted({"a": [*[None] * 1_000, [1]]})
    journal = Journal()
    mp.run(scripted_job(source, journal), clock=clock, batch=mp.Batching(linger_s=0.005))
    assert source.parts["a"].polls == 1_001
    assert len(clock.slept_s) == 1_000  # one sleep per poll that brought nothing
    assert clock.slept_s[:3] == pytest.approx([0.005, 0.01, 0.02])
    assert max(clock.slept_s) == 0.5
    assert clock.monotonic_s() > 490


def test_with_several_idle_parts_it_sleeps_until_the_first_is_due() -> None:
    clock, source = VirtualClock(), Scripted({name: [*[None] * 20, [1]] for name in "abc"})
    mp.run(scripted_job(source, Journal()), clock=clock)
    assert sum(part.polls for part in source.parts.values()) == 63
    assert len(clock.slept_s) <= 60


def test_without_a_linger_it_pauses_all_the_same() -> None:
    clock, source = VirtualClock(), Scripted({"a": [*[None] * 50, [1]]})
    mp.run(scripted_job(source, Journal()), clock=clock, batch=mp.Batching(linger_s=0))
    assert all(pause > 0 for pause in clock.slept_s)
    assert len(clock.slept_s) == 50


def test_a_busy_source_is_never_slept_on() -> None:
    clock = VirtualClock()
    mp.run(scripted_job(Scripted({"a": [[1]] * 50, "b": [[1]] * 20}), Journal()), clock=clock)
    assert clock.slept_s == []


def test_collect_runs_only_what_leads_to_the_stream() -> None:
    journal, job = Journal(), mp.Job("a")
    stream = job.source("in", sources.Memory([1]))
    stream.inspect("boom", lambda n: 1 // 0).sink("out", JournalSink("out", journal))
    other = job.source("other", sources.Memory([2]))
    assert mp.collect(stream.map("ten", lambda n: n * 10)) == [10]
    assert mp.collect(other) == [2]
    assert journal.entries == []


def test_collect_stops_at_the_count_and_closes_what_is_open() -> None:
    source = Scripted({"a": [[1, 2], [3, 4], [5, 6]], "endless": [None] * 1_000})
    assert mp.collect(mp.Job("a").source("in", source), count=3, clock=VirtualClock()) == [1, 2, 3]
    assert source.closed == {"a": 1, "endless": 1}


def test_collect_stops_when_its_time_is_over() -> None:
    clock, source = VirtualClock(), Scripted({"a": [[1], *[None] * 10_000]})
    assert mp.collect(mp.Job("a").source("in", source), timeout_s=5.0, clock=clock) == [1]
    assert 5.0 <= clock.monotonic_s() <= 5.5
    assert source.closed == {"a": 1}


@pytest.mark.parametrize(
    ("count", "timeout_s"), [(-1, None), (1.5, None), (True, None), (None, -1), (None, float("nan"))]
)
def test_collect_checks_its_limits(count: Any, timeout_s: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.collect: (count|timeout_s)"):
        mp.collect(mp.Job("a").source("in", sources.Memory([1])), count=count, timeout_s=timeout_s)


def test_collect_of_a_failing_stream_raises() -> None:
    with pytest.raises(OperatorError, match="step 'inverse'"):
        mp.collect(mp.Job("a").source("in", sources.Memory([0])).map("inverse", lambda n: 1 // n))


@pytest.mark.parametrize("workers", [0, -1, 1025, 1.0, "2", None, True], ids=repr)
def test_the_number_of_workers_is_checked_before_the_job_is(workers: Any) -> None:
    with pytest.raises(PlanError, match="workers must be a whole number from 1 to 128, got"):
        mp.run(mp.Job("empty"), workers)
    with pytest.raises(PlanError, match="workers must be a whole number from 1 to 128, got"):
        mp.InProcess(workers)


# Arguments.


job: Any = mp.Job("arguments")
stream: Any = job.source("in", sources.Memory([1]))
stream.sink("out", sinks.Memory())
wrong: Any = 100


def as_any(thing: object) -> Any:
    return thing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mp.run(stream), r"mp.run takes a job, got StreamBuilder: end the stream with .sink"),
        (lambda: mp.run(wrong), "mp.run takes a job, got int"),
        (lambda: mp.InProcess().run(stream), r"InProcess.run takes a job, got StreamBuilder"),
        (lambda: mp.run(job, batch=wrong), r"batch must be an mp.Batching\(rows_max=…\), got int"),
        (lambda: mp.collect(stream, batch=wrong), "got int"),
        (lambda: mp.InProcess(batch=wrong), "got int"),
        (lambda: mp.run(job, clock=wrong), "clock must have the methods now_s, monotonic_s, sleep_s, got int"),
        (lambda: mp.collect(stream, clock=wrong), "got int"),
        (lambda: mp.run(job, clock=as_any(SystemClock)), "pass an instance as clock, SystemClock"),
        (lambda: mp.collect(job), r"mp.collect takes a stream, .* and mp.run\(job\) a job; got Job"),
        (lambda: mp.collect(wrong), "mp.collect takes a stream, .*; got int"),
        (lambda: mp.collect(stream, timeout_s=as_any("5")), "timeout_s must be a number of seconds"),
        (lambda: mp.collect(stream, timeout_s=float("nan")), "timeout_s must be a number of seconds"),
        (lambda: job.dead_letters(["in"]), "the name of a step must be a str, got list"),
    ],
)
def test_a_wrong_argument_is_a_plan_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(mp.PlanError, match=message):
        call()


# Several workers.


class PerWorker:
    """A source without parts: every worker opens it."""

    def build(self, worker: sinks.WorkerInfo) -> Any:
        return sources.Memory([(worker.worker, number) for number in range(10)]).build_part(sources.Part("0"), None)


def test_a_stateless_source_is_read_by_every_worker() -> None:
    job, out = mp.Job("stateless"), sinks.Memory()
    job.source("in", PerWorker()).sink("out", out)
    mp.run(job, 3)
    assert Counter(worker for worker, _ in out.items) == {0: 10, 1: 10, 2: 10}


def test_collect_every_runs_on_the_runtimes_clock() -> None:
    clock = VirtualClock()

    slow = Polled(
        lambda part, at, rows_max: [at + 1] if clock.monotonic_s() >= 10 * at else None,
        ended=lambda part, at: at == 2,
    )
    job = mp.Job("every")
    keyed = job.source("slow", slow).key_by("all", lambda n: "all")
    assert mp.collect(keyed.collect("lists", every=timedelta(seconds=3)), clock=clock) == [[1], [2]]


def test_f4_an_illegal_key_is_refused_with_one_worker_too() -> None:
    for bad, name in ((float("nan"), "float"), (frozenset({1}), "frozenset"), (object(), "object")):
        job = mp.Job("keys")
        keyed = job.source("in", sources.Memory([bad])).key_by("step-k", lambda value: value)
        with pytest.raises(mp.CodecError, match=rf"step-k.*{name}"):
            mp.collect(keyed)


def test_f4_an_illegal_key_goes_the_way_of_on_error() -> None:
    job = mp.Job("keys")
    numbers = job.source("in", sources.Memory([1.0, float("nan"), 2.0]))
    keyed = numbers.key_by("k", lambda value: value, on_error="dead-letter")
    keyed.sink("out", out := sinks.Memory())
    job.dead_letters("k").sink("dead", dead := sinks.Memory())
    result = mp.run(job)
    assert (out.items, result.dead_letters) == ([1.0, 2.0], 1)
    assert "CodecError" in dead.items[0].error


def test_time_passes_on_a_virtual_clock_however_short_the_linger_is() -> None:
    clock = VirtualClock()

    silent = Polled(lambda part, at, rows_max: None if at else [1, 2], ended=lambda part, at: clock.monotonic_s() > 10)
    job, out = mp.Job("silent"), sinks.Memory()
    lists = job.source("in", silent).key_by("one", lambda n: 1).collect("lists", every=timedelta(seconds=1))
    lists.sink("out", out)
    mp.run(job, clock=clock, batch=mp.Batching(linger_s=0))
    assert out.items == [[1, 2]]
