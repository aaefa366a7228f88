"""A place where coroutines ask and wait until a test answers; and a step that asks there, outside any worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import AbsBarrier, Epoch, StateMessage
from malstrom_py.operators.enrich.calls import Asking
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.worker_context import Resources
from tests.unit.operators.stepping import Stepped

WAIT_S = 20.0
TIMED: dict[str, Any] = {"timed": True}


class Desk:
    """``ask`` is a coroutine function. ``asked``: what it was asked, in order; ``most``: calls at the same time."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.most = 0
        self._open = 0
        self._answers: dict[Any, Future[Any]] = {}
        self._came = threading.Condition()

    async def ask(self, thing: Any) -> Any:
        with self._came:
            self.asked.append(thing)
            self._open += 1
            self.most = max(self.most, self._open)
            answer = self._answers.setdefault(thing, Future())
            self._came.notify_all()
        try:
            return await asyncio.shield(asyncio.wrap_future(answer))
        finally:
            self._open -= 1

    def answer(self, *things: Any, error: BaseException | None = None) -> None:
        """Answer what is or will be asked about ``things``: each by its text in capitals, or by ``error``."""
        for thing in things:
            with self._came:
                future = self._answers.setdefault(thing, Future())
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(str(thing).upper())

    def forget(self, *things: Any) -> None:
        """The next who ask about ``things`` wait for another answer."""
        for thing in things:
            del self._answers[thing]

    def wait(self, count: int) -> None:
        """Wait until there have been ``count`` questions."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.asked) >= count, WAIT_S), f"only {self.asked} came"


class Enriching(Stepped):
    """The step ``enrich`` that asks ``desk``; its calls run beside the test."""

    def __init__(self, desk: Desk, resources: Resources, options: dict[str, Any], stepping: dict[str, Any]) -> None:
        self.desk = desk
        self._resources = resources
        names = ("concurrency", "retries", "retry_backoff_s", "timeout_s")
        asking = Asking(desk.ask, **{name: options.pop(name) for name in names if name in options})
        super().__init__(cast("Callable[[Any], Enrich]", partial(Enrich, asking=asking, **options)), **stepping)

    @property
    def step(self) -> Enrich:
        return cast("Enrich", self.operator)

    def settle(self, held: int = 0) -> None:
        """Wait until no more than ``held`` records and epochs wait."""
        for _ in range(int(WAIT_S / 0.1)):
            self.call(self.step.resume)
            if self.held <= held:
                break
            self._resources.wake.wait(0.1)
            self._resources.wake.clear()
        assert self.held == held

    @property
    def held(self) -> int:
        """How many records and epochs wait."""
        return len(self.step._queue)

    def send(self, message: StateMessage) -> Any:
        """Let a control message through."""
        self.push(message)
        return message


@contextmanager
def enriching(stepping: dict[str, Any] | None = None, **options: Any) -> Iterator[Enriching]:
    """The step as in `Enriching`, and in the end no thread of it is left."""
    before = set(threading.enumerate())
    with Resources() as resources:
        step = Enriching(Desk(), resources, options, {"keyed": True, **(stepping or {})})
        try:
            yield step
        finally:
            step.step.close()
            resources.close()
    assert set(threading.enumerate()) <= before


def row(key: str, value: Any, timestamp: int) -> Batch:
    return Batch([value], keys=[key], timestamps=[timestamp])


def told(step: Enriching) -> list[Any]:
    """What has come out: epochs, and values with what was said about them."""
    found: list[Any] = []
    for message in step.messages():
        if isinstance(message, Batch):
            found += message.values
        elif isinstance(message, Epoch):
            found.append(message)
    return found


def barrier(step: Enriching) -> bytes:
    backend = CapturingPersistenceBackend()
    step.send(AbsBarrier("s", backend))
    return backend.states["under-test"]
