"""Ctrl-C and SIGTERM are never lost and never cut a commit in two. Real signals, sent to this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, DeadlineError, JobEnded, OperationInProgress
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.runtime import interrupts as interrupts_module
from malstrom_py.workers.runtime.interrupts import Interrupts, PlannedStop


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_where_the_program_is() -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        press()


def test_one_that_was_swallowed_is_raised_at_the_next_check() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        with suppress(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def presses_while_held(times: int, done: list[int]) -> None:
    with Interrupts() as interrupts, interrupts.held():
        for number in range(times):
            press()
            done.append(number)


def test_it_waits_for_a_held_block_and_the_second_does_not() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        presses_while_held(1, done)
    assert done == [0]
    with pytest.raises(KeyboardInterrupt):
        presses_while_held(3, done)
    assert done == [0, 0]


def test_pythons_own_handler_is_back_afterwards() -> None:
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_of_the_program_is_asked_and_need_not_raise() -> None:
    taken = list[int]()
    with handled_by(lambda number, frame: taken.append(number)), Interrupts() as interrupts:
        press()
        interrupts.check()
    assert taken == [signal.SIGINT]


def test_a_handler_of_the_program_that_raises_is_waited_with_as_well_and_its_word_noted() -> None:
    done, taken = list[int](), list[int]()

    def raises(number: int, frame: FrameType | None) -> None:
        taken.append(number)
        raise KeyboardInterrupt

    with handled_by(raises):
        with pytest.raises(KeyboardInterrupt):
            presses_while_held(1, done)
        assert (done, taken) == ([0], [signal.SIGINT])
        with Interrupts() as interrupts:
            with suppress(KeyboardInterrupt):
                press()
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    def later(number: int, frame: FrameType | None) -> None:
        """Another library's."""

    try:
        with Interrupts():
            signal.signal(signal.SIGINT, later)
        assert signal.getsignal(signal.SIGINT) is later
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_are_left_alone() -> None:
    thread = threading.Thread(target=lambda: Interrupts().__enter__())
    thread.start()
    thread.join(10)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_user_function_that_swallows_it_does_not_keep_the_job_running() -> None:
    def swallows(value: int) -> int:
        if value == 3:
            with suppress(BaseException):
                press()
        return value

    job, out, seen = mp.Job("swallowed"), sinks.Memory(), list[int]()
    numbers = job.source("in", sources.Generator(lambda part, start: iter(range(start, 1 << 40))))
    numbers.map("swallows", swallows).inspect("seen", seen.append).sink("out", out)
    with pytest.raises(KeyboardInterrupt) as raised:
        mp.run(job, batch=mp.Batching(rows_max=10))
    assert seen == [0, 1, 2, 3]
    assert out.items == []
    assert "nothing was committed" in raised.value.__notes__[0]


class PressedWhileCommitting(sinks.Memory):
    def commit(self, context: sinks.CommitContext, payloads: Sequence[bytes]) -> None:
        press()
        super().commit(context, payloads)


def test_it_does_not_cut_a_commit_in_two() -> None:
    job, first, second = mp.Job("commit"), PressedWhileCommitting(), sinks.Memory()
    numbers = job.source("in", sources.Memory([1, 2]))
    numbers.sink("first", first)
    numbers.sink("second", second)
    with pytest.raises(KeyboardInterrupt) as raised:
        mp.run(job)
    assert first.items == second.items == [1, 2]
    assert "sinks 'first', 'second' had committed" in raised.value.__notes__[0]


def test_where_there_are_snapshots_it_says_what_they_have_committed() -> None:
    store = MemoryStore()
    kept = mp.Snapshots(store, interval_s=None)
    pressed = [False]

    def press(number: int) -> int:
        if pressed[0]:
            raise KeyboardInterrupt
        return number

    job, out = mp.Job("pressed"), sinks.Memory()
    job.source("in", sources.Generator(lambda part, start: iter(range(start, 10**9)))).map("press", press).sink(
        "o", out
    )
    runtime = mp.InProcess(progress=False, snapshots=kept)
    last = runtime.start(job, control=False).stop(drain=False)
    pressed[0] = True
    with pytest.raises(KeyboardInterrupt) as raised:
        runtime.run(job)
    said = f"its sinks have committed what is in its last snapshot; it can resume from snapshot {last}; so far job"
    assert said in raised.value.__notes__[0]


def test_a_job_that_is_stopped_says_what_it_had_done() -> None:
    job = mp.Job("counted")
    job.source("in", sources.Generator(lambda part, start: iter(range(start, 10**9)))).sink("out", sinks.Memory())
    handle = mp.InProcess(progress=False, snapshots=mp.Snapshots(MemoryStore())).start(job, control=False)
    handle.stop(drain=False)
    with pytest.raises(JobEnded) as raised:
        handle.wait()
    assert raised.value.result.job == "counted"
    assert set(raised.value.result.steps) == {"in", "out"}


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def ours() -> Iterator[None]:
    """A handler of the program's own, for SIGTERM is not to end the tests."""
    former = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, former)


def test_a_sigterm_asks_for_a_stop_once_and_by_another_thread(ours: None) -> None:
    asked: list[threading.Thread] = []
    came, lock, former = threading.Event(), threading.Lock(), signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        with lock:  # the main thread has it where the signal comes
            asked.append(threading.current_thread())
        came.set()

    with PlannedStop(stop):
        with lock:
            terminate()
            terminate()
        assert came.wait(60)
    assert len(asked) == 1
    assert asked[0] is not threading.main_thread()
    assert signal.getsignal(signal.SIGTERM) is former


def test_a_handler_that_comes_meanwhile_gets_the_signal_afterwards(ours: None) -> None:
    def theirs(number: int, frame: FrameType | None) -> None:
        """A library's."""

    came = threading.Event()
    with PlannedStop(came.set) as stopping:
        stopping.come_first(theirs)
        terminate()
        assert came.wait(60)
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_a_sigterm_waits_for_a_savepoint_and_ends_where_the_job_has(
    ours: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(SystemClock, "sleep_s", lambda self, duration_s: None)
    savepoint = OperationInProgress("wait", operation="savepoint")
    answers: list[Exception] = [
        savepoint,
        savepoint,
        DeadlineError("silent"),
        ControlError("hung up"),
        JobEnded("it has"),
    ]
    came = threading.Event()

    def stop() -> None:
        answer = answers.pop(0)
        if not answers:
            came.set()
        raise answer

    with PlannedStop(stop):
        terminate()
        assert came.wait(60)
    assert answers == []


def test_a_sigterm_that_is_ignored_stays_ignored_and_another_thread_leaves_it_alone() -> None:
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with PlannedStop(lambda: pytest.fail("it was ignored")):
            terminate()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, former)

    def elsewhere() -> None:
        with PlannedStop(lambda: None):
            assert signal.getsignal(signal.SIGTERM) is former

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kept", [False, True])
def test_a_sigterm_in_the_middle_of_a_run_stops_it_as_a_handle_does(kept: bool, ours: None) -> None:
    def signalled(number: int) -> int:
        if number == 1_000:
            terminate()
        return number

    job, out = mp.Job("signalled"), sinks.Memory()
    read = job.source("in", sources.Generator(lambda part, start: iter(range(start, 10**9))))
    read.map("signalled", signalled).sink("out", out)
    store = mp.Snapshots(MemoryStore(), interval_s=None)
    runtime = mp.InProcess(progress=False, snapshots=store if kept else None)
    if not kept:
        assert runtime.run(job, stop_on_sigterm=True).written == len(out.items) > 1_000
        return
    with pytest.raises(JobEnded) as raised:
        runtime.run(job, stop_on_sigterm=True)
    (last,) = store.checkpointer("signalled").list_checkpoints()
    assert (raised.value.how, raised.value.snapshot) == ("stopped", last)
    assert out.items == list(range(len(out.items)))
    assert len(out.items) > 1_000


class Ended(Exception):
    """What `end_process` raises here instead of ending the process of the tests."""


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test changes. The end of the process is raised."""
    now = [10.0]
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda self: now[0])

    def end_process(code: int, line: str) -> None:
        raise Ended(code, line)

    monkeypatch.setattr(interrupts_module, "end_process", end_process)
    return now


def test_a_second_sigterm_ends_the_process_unless_it_is_the_same_one(ours: None, now_s: list[float]) -> None:
    came = threading.Event()
    with PlannedStop(came.set):
        terminate()
        now_s[0] += 1.0
        terminate()
        assert came.wait(60)
        now_s[0] += 0.5
        with pytest.raises(Ended) as raised:
            terminate()
    assert raised.value.args[0] == 143
    assert raised.value.args[1].startswith("terminated: a second SIGTERM")


def test_a_stop_past_its_limit_is_abandoned_and_then_the_process_ends(
    ours: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_module, "LAST_S", 0.0)
    ended, abandoned, codes = threading.Event(), list[str](), list[int]()

    def end_process(code: int, line: str) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(interrupts_module, "end_process", end_process)
    blocked = threading.Event()
    with PlannedStop(blocked.wait, abandon=abandoned.append, limit_s=0.0):
        terminate()
        assert ended.wait(60)
    blocked.set()
    assert codes == [1]
    assert abandoned == ["the stop that SIGTERM began has not ended within 0 s"]


@pytest.mark.parametrize("limit_s", [-1, True, "2", float("nan")])
def test_a_limit_that_is_none_is_refused(limit_s: float) -> None:
    job = mp.Job("limited")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    with pytest.raises(mp.PlanError, match="stop_timeout_s must be a number of seconds"):
        mp.InProcess().run(job, stop_on_sigterm=True, stop_timeout_s=limit_s)
