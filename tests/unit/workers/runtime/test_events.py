"""What a user sees of a job's events: from a handle, by ``on_event=``, and in a logic on a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.clock import VirtualClock
from malstrom_py.operators.logic import KeyedLogic
from malstrom_py.workers.engine.source_notices import BACK_PRESSURE_S, SourceNotices
from tests.lives import check_lives

FINISHED = [
    events.WorkerJoined(0),
    events.WorkerJoined(1),
    events.Input("in", {"worker": 0, "rows": 1}),
    events.Input("in", {"worker": 1, "rows": 1}),
    events.InputClosed("in"),
    events.Stop(events.StopCause.ALL_INPUTS_CLOSED, 0),
    events.Stop(events.StopCause.ALL_INPUTS_CLOSED, 1),
    events.Ended("finished"),
]


def a_job(source: Any, name: str = "docs") -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job(name), sinks.Memory()
    job.source("in", source).key_by("key", lambda n: n % 5).count("n").sink("out", out)
    return job, out


def test_a_late_subscriber_gets_all_events_and_each_call_reads_for_itself() -> None:
    job, _ = a_job(sources.Memory([0, 1], parts=2))
    seen: list[events.AnyEvent] = []
    handle = mp.InProcess(2, batch=mp.Batching(rows_max=1), on_event=seen.append).start(job, control=False)
    handle.wait(timeout_s=60)
    assert list(handle.events()) == list(handle.events(follow=False)) == seen == FINISHED


def _until(reader: Iterator[events.AnyEvent], kind: type) -> Iterator[events.AnyEvent]:
    for event in reader:
        yield event
        if isinstance(event, kind):
            return


class Listening(KeyedLogic[int, int, int, int]):
    def __init__(self, *, fail_at: int | None = None) -> None:
        self.seen: list[Any] = []
        self.fail_at = fail_at

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        if message.value == self.fail_at:
            self.fail_at = None
            raise ValueError("once")
        output.send(message)
        return (key_state or 0) + 1

    def on_event(self, event: events.AnyEvent) -> None:
        self.seen.append(
            (event.id, event.data.to_pydict()) if isinstance(event, events.Input) and event.data else event
        )


def test_a_logic_is_notified_of_its_inputs_and_of_the_end() -> None:
    logic, job = Listening(), mp.Job("docs")
    keyed = job.source("in", sources.Memory([1, 2])).key_by("key", lambda n: n % 2)
    keyed.stateful_op("op", logic).sink("out", sinks.Memory())
    mp.run(job)
    assert logic.seen == [
        events.WorkerJoined(0),
        ("key", {"key": [1, 0], "value": [1, 2]}),
        events.InputClosed("key"),
        events.Stop(events.StopCause.ALL_INPUTS_CLOSED, 0),
    ]


def test_a_failure_is_one_event_for_the_job_and_one_for_each_worker_of_the_next_run(tmp_path: Path) -> None:
    logic, job, out = Listening(fail_at=7), mp.Job("docs"), sinks.Memory()
    keyed = job.source("in", sources.Memory(range(10), parts=2)).key_by("key", lambda n: n % 5)
    keyed.stateful_op("op", logic).sink("out", out)
    seen: list[events.AnyEvent] = []
    runtime = mp.InProcess(
        2, snapshots=mp.Snapshots(tmp_path), restart=mp.Restart(backoff_s=0.01), on_event=seen.append
    )
    runtime.run(job)
    assert sorted(out.items) == list(range(10))
    check_lives(seen, sources=["in"], run_failures=1)
    (failure,) = [event for event in seen if isinstance(event, events.NodeFailed)]
    assert failure.affected_input_ids == ("in", "key")
    assert "step 'op'" in failure.error
    assert ": once. Correct the function" in failure.error
    assert logic.seen.count(failure) == 2


def test_an_error_in_on_event_fails_the_job_and_names_the_step() -> None:
    class Wrong(Listening):
        def on_event(self, event: events.AnyEvent) -> None:
            raise ValueError

    job = mp.Job("docs")
    keyed = job.source("in", sources.Memory([1, 2])).key_by("key", lambda n: n % 2)
    keyed.stateful_op("op", Wrong()).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError, match="step 'op'"):
        mp.run(job)


def test_a_job_that_fails_says_so_in_its_last_event() -> None:
    job, _ = a_job(sources.Memory([1, "x"]))
    seen: list[events.AnyEvent] = []
    with pytest.raises(mp.OperatorError) as failed:
        mp.run(job, on_event=seen.append)
    check_lives(seen, sources=["in"], run_failures=1)
    assert seen[-1] == events.Ended("failed", str(failed.value))


class _Source:
    """As much of a source as a notice takes."""

    finished = False
    ended = ()

    class context:  # noqa: N801
        step = "in"


def test_back_pressure_is_an_event_once_it_lasts_a_second_and_ends_with_the_next_read() -> None:
    clock = VirtualClock()
    notices: Any = SourceNotices(3, clock)
    for _ in range(3):
        notices.held(_Source)
        notices.polled(_Source, 0)
    assert not notices.take()
    notices.held(_Source)
    clock.sleep_s(BACK_PRESSURE_S)
    notices.held(_Source)
    notices.held(_Source)
    assert [notice.event for _, notice in notices.take()] == [events.BackPressureBegun("in", 3)]
    notices.polled(_Source, 0)
    notices.polled(_Source, 0)
    assert [notice.event for _, notice in notices.take()] == [events.BackPressureEnded("in", 3)]


def test_a_job_that_always_restarts_reads_what_is_new_until_it_is_stopped(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", sinks.Memory()
    folder.mkdir()
    (folder / "1.jsonl").write_text('{"n": 1}\n')
    job = mp.Job("docs-always")
    job.source("in", sources.Files(f"{folder}/*.jsonl", new_files=True)).map("n", lambda row: row["n"]).sink("out", out)
    always = mp.Restart(max_restarts=10_000, backoff_s=0.01, backoff_max_s=0.05, when="always")
    handle = mp.InProcess(snapshots=mp.Snapshots(tmp_path / "kept"), restart=always).start(job, control=False)
    reader = handle.events()
    list(_until(reader, events.Restarting))
    (folder / "2.jsonl").write_text('{"n": 2}\n')
    while out.items != [1, 2]:
        list(_until(reader, events.Restarting))
    handle.stop(drain=True, timeout_s=60)
    assert out.items == [1, 2]
    assert list(handle.events())[-1] == events.Ended("finished")


def test_a_job_that_always_restarts_is_finished_when_no_restart_is_left(tmp_path: Path) -> None:
    job, out = a_job(sources.Memory(range(10)))
    seen: list[events.AnyEvent] = []
    always = mp.Restart(max_restarts=2, backoff_s=0.0, when="always")
    result = mp.run(job, snapshots=mp.Snapshots(tmp_path), restart=always, on_event=seen.append)
    assert (result.read, len(out.items)) == (10, 10)
    assert [event for event in seen if isinstance(event, events.Restarting)] == [events.Restarting("", 0.0)] * 2
    check_lives(seen, sources=["in"], run_failures=0)


def test_a_restart_policy_is_checked() -> None:
    with pytest.raises(mp.PlanError, match='when must be "failure" or "always", got \'never\''):
        mp.Restart(when="never")  # type: ignore[arg-type]
    with pytest.raises(mp.PlanError, match="restart needs a snapshot"):
        mp.InProcess(restart=mp.Restart(when="always"))


def test_after_a_union_the_input_is_the_union_and_rows_tell_their_origin() -> None:
    class Inputs(KeyedLogic[int, tuple[str, int], tuple[str, int], int]):
        def __init__(self) -> None:
            self.seen: set[str] = set()

        def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
            output.send(message)
            return 0

        def on_event(self, event: events.AnyEvent) -> None:
            if isinstance(event, events.Input | events.InputClosed):
                self.seen.add(event.id)

    logic, out, job = Inputs(), sinks.Memory(), mp.Job("united")
    left = job.source("left", sources.Memory(range(5))).map("of-left", lambda n: ("left", n))
    right = job.source("right", sources.Memory(range(5))).map("of-right", lambda n: ("right", n))
    both = left.union("both", right)
    both.key_by("key", lambda pair: pair[1]).stateful_op("seen", logic).sink("out", out)
    mp.run(job)
    assert logic.seen == {"key"}
    assert {name for name, _ in out.items} == {"left", "right"}
