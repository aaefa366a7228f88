"""Results of background tasks are handled in the thread of the run, in `turn`, and never delay the end of a program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from malstrom_py.workers.engine.background import ThreadBackground

WAIT_S = 30.0


@pytest.fixture(name="wake")
def _wake() -> threading.Event:
    return threading.Event()


@pytest.fixture(name="background")
def _background(wake: threading.Event) -> Iterator[ThreadBackground]:
    made = ThreadBackground(wake)
    yield made
    made.close()


def until(background: ThreadBackground, wake: threading.Event, holds: Callable[[], bool]) -> None:
    while not holds():
        assert wake.wait(WAIT_S), "nothing has come back"
        wake.clear()
        background.turn()


def test_what_it_came_to_is_told_in_the_thread_that_turns(background: ThreadBackground, wake: threading.Event) -> None:
    told: list[Any] = []
    background.submit(threading.get_ident, lambda ident: told.append((ident, threading.get_ident())))
    until(background, wake, lambda: bool(told))
    (there, here), *rest = told
    assert (here, rest) == (threading.get_ident(), [])
    assert there != here
    assert background.pending == 0


def test_an_exception_is_told_like_a_result(background: ThreadBackground, wake: threading.Event) -> None:
    told: list[Any] = []

    def fail() -> None:
        raise ValueError("as the test wants it")

    background.submit(fail, told.append)
    until(background, wake, lambda: bool(told))
    assert isinstance(told[0], ValueError)


def test_what_is_urgent_waits_for_nothing_that_is_not(background: ThreadBackground, wake: threading.Event) -> None:
    held, told = threading.Event(), list[str]()
    background.submit(lambda: held.wait(WAIT_S), lambda _: told.append("slow"), urgent=False)
    background.submit(lambda: None, lambda _: told.append("urgent"))
    until(background, wake, lambda: bool(told))
    assert told == ["urgent"]
    held.set()
    until(background, wake, lambda: len(told) == 2)


def test_work_of_one_kind_is_done_in_its_order(background: ThreadBackground, wake: threading.Event) -> None:
    told: list[Any] = []
    for number in range(20):
        background.submit(lambda number=number: number, told.append)  # type: ignore[misc]
    until(background, wake, lambda: len(told) == 20)
    assert told == list(range(20))


def test_close_does_not_wait_and_begins_nothing_more(wake: threading.Event) -> None:
    background, held, begun = ThreadBackground(wake), threading.Event(), list[int]()
    started = threading.Event()

    def hold() -> None:
        started.set()
        held.wait(WAIT_S)

    background.submit(hold, lambda _: None)
    background.submit(lambda: begun.append(1), lambda _: None)
    assert started.wait(WAIT_S)
    background.close()
    held.set()
    for thread in threading.enumerate():
        if thread.name == "malstrom-snapshots":
            assert thread.daemon
            thread.join(WAIT_S)
    assert begun == []
