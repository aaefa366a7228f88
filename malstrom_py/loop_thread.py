"""An asyncio event loop in a thread of its own, so that a worker can wait for many calls while it goes on working.

Rule: everything that happens in the loop is started from outside by `call` or `run`, and the thread ends with `close`,
whatever was still going on in it. Every wait for it has a deadline.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

from malstrom_py.errors import DeadlineError, OperatorError

T = TypeVar("T")

_END_S: Final = 5.0
"""How long the thread may take to end."""


class LoopThread:
    """Starts the thread, a daemon called ``name``. It ends with `close`.

    >>> async def answer():
    ...     return threading.current_thread().name
    >>> loop = LoopThread("docs")
    >>> loop.run(answer(), timeout_s=5, what="the answer")
    'docs'
    >>> loop.close()
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._stopped), name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have ``function(*arguments)`` called in the loop, in a copy of the caller's context.

        Raises:
            OperatorError: the loop has ended, as it does when a task in it raises SystemExit.
        """
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise self._gone() from error

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float, what: str) -> T:
        """Wait for what ``coroutine`` returns or raises. Not to be called in the loop itself.

        Raises:
            DeadlineError: naming ``what``, past ``timeout_s``.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise self._gone() from error
        try:
            return future.result(timeout_s)
        except CancelledError as error:
            raise self._gone() from error
        except TimeoutError:
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise DeadlineError(
                f"{what} took longer than {timeout_s:g} s: see that nothing in it waits for ever, or blocks the loop",
                wait=what,
                deadline_s=timeout_s,
            ) from None

    def close(self) -> None:
        """Cancel what still goes on in the loop and end the thread; nothing to do if it has ended.

        Raises:
            DeadlineError: something in the loop does not end. (As a daemon the thread ends with the process.)
        """
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                """It was closed in between."""
        if threading.current_thread() is self._thread:
            return  # it cannot wait for itself; it ends when what called this returns
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineError(
                f"the event loop of {self._thread.name!r} did not end within {_END_S:g} s: a function in it blocks, or "
                f"swallows its cancellation. Await what takes long, and let CancelledError pass.",
                wait="the end of an event loop",
                deadline_s=_END_S,
            )

    @property
    def ended(self) -> bool:
        """Whether the thread is gone."""
        return not self._thread.is_alive()

    def _gone(self) -> OperatorError:
        return OperatorError(
            f"the event loop of {self._thread.name!r} has ended: a task in it raised SystemExit or KeyboardInterrupt. "
            f"Raise an Exception instead."
        )

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)


def _serve(loop: asyncio.AbstractEventLoop, stopped: asyncio.Future[None]) -> None:
    try:
        # The runner cancels what is left, ends asynchronous generators and the executor's threads, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_until(stopped))
    except (SystemExit, KeyboardInterrupt):
        """A task has raised it, which ends the loop: whoever needs it next is told so."""


async def _until(stopped: asyncio.Future[None]) -> None:
    await stopped
