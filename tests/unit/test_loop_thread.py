"""The event loop of a worker: what runs in it, how it is waited for, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest

from malstrom_py import worker_context as loop_thread
from malstrom_py.errors import DeadlineError, OperatorError
from malstrom_py.worker_context import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    before = set(threading.enumerate())
    loop = LoopThread("under-test")
    yield loop
    loop.close()
    assert set(threading.enumerate()) <= before


async def forever() -> None:
    await asyncio.Event().wait()


def test_what_a_coroutine_returns_and_raises_comes_back(loop: LoopThread) -> None:
    async def half(number: int) -> float:
        await asyncio.sleep(0)
        return 1 / number

    assert loop.run(half(2), timeout_s=60, what="half") == 0.5
    with pytest.raises(ZeroDivisionError):
        loop.run(half(0), timeout_s=60, what="half")


def test_a_timeout_of_the_coroutine_itself_is_its_own(loop: LoopThread) -> None:
    async def impatient() -> None:
        raise TimeoutError("of a socket")

    with pytest.raises(TimeoutError, match="of a socket"):
        loop.run(impatient(), timeout_s=60, what="it")


def test_what_is_called_there_sees_the_context_of_the_caller(loop: LoopThread) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    variable.set("the caller's")
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    def look() -> None:
        seen.append((variable.get(), threading.current_thread().name))
        done.set()

    loop.call(look)
    assert done.wait(60)
    assert seen == [("the caller's", "under-test")]


def test_it_works_beside_a_loop_that_runs_in_the_calling_thread(loop: LoopThread) -> None:
    async def answer() -> int:
        return 42

    async def notebook() -> int:
        return loop.run(answer(), timeout_s=60, what="the answer")

    assert asyncio.run(notebook()) == 42


def test_closing_ends_what_still_goes_on(loop: LoopThread) -> None:
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    kept = numbers()

    async def work() -> None:
        await anext(kept)
        try:
            await forever()
        finally:
            ended.append("task")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)  # starts a thread of the loop's own executor
        return task

    task = loop.run(begin(), timeout_s=60, what="beginning")
    loop.close()
    assert task.cancelled()
    assert ended == ["task", "generator"]
    assert loop.ended


def test_a_loop_that_is_closed_takes_nothing(loop: LoopThread) -> None:
    loop.close()
    with pytest.raises(OperatorError, match="'under-test' has ended"):
        loop.call(print)
    with pytest.raises(OperatorError, match="'under-test' has ended"):
        loop.run(forever(), timeout_s=60, what="it")


def test_a_task_that_asks_the_program_to_end_ends_the_loop_and_says_so(loop: LoopThread) -> None:
    async def leave() -> None:
        raise SystemExit

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.append(asyncio.get_running_loop().create_task(leave()))
        await asyncio.wait(tasks)

    with pytest.raises(OperatorError, match="raised SystemExit"):
        loop.run(begin(), timeout_s=60, what="it")
    loop.close()
    assert isinstance(tasks[0].exception(), SystemExit)


def test_what_does_not_end_is_told_when_it_is_closed(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_END_S", 0.01)
    began, gate = threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        gate.wait(60)

    loop.call(block)
    assert began.wait(60)
    with pytest.raises(DeadlineError, match="did not end within"):
        loop.close()
    gate.set()
    monkeypatch.undo()


def test_it_can_be_closed_from_inside(loop: LoopThread) -> None:
    loop.call(loop.close)
    for _ in range(2):
        loop.close()
    assert loop.ended
