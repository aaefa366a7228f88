"""The calls of enriching steps in a simulated job: each time a worker looks for answers, its event loop takes one step.

The loop's time is the number of its steps. With a thread and the system's clock, a seed would be another run each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from malstrom_py import worker_context
from malstrom_py.operators.enrich.calls import Call, Calls

STEP_S: Final = 0.0001


class SteppedLoop(asyncio.SelectorEventLoop):
    """Is given in place of a `LoopThread`."""

    def __init__(self, _name: str) -> None:
        self._steps = 0
        super().__init__()

    def time(self) -> float:
        return self._steps * STEP_S

    def step(self) -> None:
        """Run what is due."""
        self._steps += 1
        self.call(self.stop)
        self.run_forever()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call."""
        self.call_soon(function, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, Any], *, timeout_s: float, what: str) -> Any:
        """Run a coroutine to its end."""
        return self.run_until_complete(coroutine)

    @property
    def ended(self) -> bool:
        """Whether it was closed."""
        return self.is_closed()


@contextmanager
def calls_stepped() -> Iterator[None]:
    """Have the loops of workers take their steps by turns."""
    right = Calls.take

    def take(calls: Calls) -> list[Call]:
        if isinstance(calls._loop, SteppedLoop) and calls.under_way:
            calls._loop.step()
            if calls._resources is not None:
                calls._resources.wake.set()  # no thread does it: a worker that waits for answers looks again
        return right(calls)

    with mock.patch.object(worker_context, "LoopThread", SteppedLoop), mock.patch.object(Calls, "take", take):
        yield
