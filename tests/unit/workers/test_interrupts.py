"""Ctrl-C is never lost and never cuts a commit in two. Real signals, sent to this process."""

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
from malstrom_py.workers.interrupts import Interrupts


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
    assert "committed: first, second" in raised.value.__notes__[0]
