"""`run` and `collect`: a job runs to its end or fails as a whole, and never polls without a pause."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import OperatorError, PlanError, SourceError
from malstrom_py.testing import VirtualClock
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import Journal, JournalSink

IntOutput = mp.Output[int, int]


def scripted_job(source: Scripted, journal: Journal, on_error: Any = "fail") -> mp.Job:
    job = mp.Job("scripted")
    job.source("in", source, on_error=on_error).sink("out", JournalSink("out", journal))
    return job


def test_a_job_runs_from_source_to_sink() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    words = job.source("words", sources.Memory(["ant bee", "asp"])).flat_map("split", str.split)
    words.key_by("letter", lambda word: word[0]).count("seen").sink("out", out)
    result = mp.run(job)
    assert out.by_key == {"a": [1, 2], "b": [1]}
    assert (result.job, result.read, result.written) == ("a", 2, 3)


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


@given(
    values=st.lists(st.integers(-20, 20), max_size=40),
    rows_max=st.integers(1, 10),
    parts=st.integers(1, 4),
)
def test_how_batches_are_cut_does_not_change_what_a_key_sees(values: list[int], rows_max: int, parts: int) -> None:
    out = sinks.Memory()
    job = mp.Job("a")
    # One part per key, so that the order within a key is that of its part.
    stream = job.source("in", sources.Memory(values)).key_by("key", lambda n: n % 3)
    stream.reduce("reduce", lambda left, right: left * 7 + right).sink("out", out)
    mp.run(job, batch=mp.Batching(rows_max=rows_max))
    expected: dict[int, list[int]] = {}
    for value in values:
        seen = expected.setdefault(value % 3, [])
        seen.append(seen[-1] * 7 + value if seen else value)
    assert out.by_key == expected
    split = mp.Job("b").source("in", sources.Memory(values, parts=parts)).key_by("key", lambda n: n % 3).count("n")
    assert sorted(mp.collect(split, batch=mp.Batching(rows_max=rows_max))) == sorted(
        n for seen in expected.values() for n in range(1, len(seen) + 1)
    )


@given(values=st.lists(st.integers(0, 60), max_size=40), rows_max=st.integers(1, 10), parts=st.integers(1, 4))
def test_t1_late_records_are_the_same_however_batches_are_cut(values: list[int], rows_max: int, parts: int) -> None:
    def outcome(rows: int) -> tuple[list[int], list[int]]:
        stream = mp.Job("a").source("in", sources.Memory(values, parts=parts)).assign_timestamps("at", lambda n: n)
        on_time, late = stream.generate_epochs("epochs", mp.limit_out_of_orderness(10))
        batch = mp.Batching(rows_max=rows)
        return sorted(mp.collect(on_time, batch=batch)), sorted(mp.collect(late, batch=batch))

    assert outcome(rows_max) == outcome(1000)
    late: list[int] = []
    for part in (values[n::parts] for n in range(parts)):
        late += [value for index, value in enumerate(part) if value < max(part[:index], default=0) - 10]
    assert outcome(rows_max)[1] == sorted(late)


def test_t5_the_end_reaches_stateful_steps_of_untimed_jobs() -> None:
    class Last(mp.KeyedLogic[int, int, int, int]):
        def on_data(self, message: mp.DataMessage[int, int], key_state: int | None, output: IntOutput) -> int:
            return message.value

        def on_epoch(self, epoch: Epoch, state: Any, output: IntOutput) -> None:
            assert epoch.time == mp.MAX_EPOCH
            for key, value in state.items():
                output.emit(key, value)

    stream = mp.Job("a").source("in", sources.Memory([1, 2, 3, 4])).key_by("parity", lambda n: n % 2)
    assert sorted(mp.collect(stream.stateful_op("last", Last()))) == [3, 4]


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


@pytest.mark.parametrize("error", [PlanError("two formats"), SourceError("gone"), OperatorError("odd")])
def test_typed_errors_of_a_source_end_the_run(error: Exception) -> None:
    with pytest.raises(type(error)):
        mp.run(scripted_job(Scripted({}, list_error=error), Journal()))


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


def test_two_sources_take_turns() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    for name in ("a", "b"):
        job.source(name, Scripted({"p": [[f"{name}{n}"] for n in range(3)]})).sink(f"out-{name}", out)
    seen: list[str] = []
    left = job.source("c", Scripted({"p": [["c0"], ["c1"]]}))
    right = job.source("d", Scripted({"p": [["d0"], ["d1"]]}))
    left.inspect("see-c", seen.append).sink("out-c", out)
    right.inspect("see-d", seen.append).sink("out-d", out)
    mp.run(job)
    assert seen == ["c0", "d0", "c1", "d1"]
    assert len(out.items) == 10


def test_more_parts_than_may_be_open_at_once_are_all_read() -> None:
    source = Scripted({f"p{n}": [[n]] for n in range(300)})
    journal = Journal()
    assert mp.run(scripted_job(source, journal)).written == 300
    assert source.open_at_once_max == 256


def test_collect_gives_all_values_in_order() -> None:
    stream = mp.Job("a").source("in", sources.Memory(range(5)))
    assert mp.collect(stream) == [0, 1, 2, 3, 4]


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


def test_collect_gives_fewer_than_the_count_if_there_are_no_more() -> None:
    assert mp.collect(mp.Job("a").source("in", sources.Memory([1])), count=3) == [1]


def test_collect_of_none_gives_none() -> None:
    assert mp.collect(mp.Job("a").source("in", sources.Memory([1])), count=0) == []


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
