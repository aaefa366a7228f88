"""Calls of a user's coroutine function, made in the worker's event loop while the worker goes on.

Rule: what a call has come to reaches the worker through one queue and is looked at in the worker's own thread. At most
``concurrency`` calls are under way; the next one starts as soon as one ends, whatever the worker is doing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import DeadlineError, PlanError, mark_safe
from malstrom_py.errors.text import describe_function
from malstrom_py.validation import at_least, callable_of, is_coroutine_function
from malstrom_py.worker_context import LoopThread, Resources

_BACKOFF_MAX_S: Final = 30.0
_CANCEL_S: Final = 5.0
_GRACE_S: Final = 2.0
"""How much longer than its attempts a call may take to come back."""

_REAL: Final = SystemClock()
"""Calls take the time that they take, whatever the runtime's clock says."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How ``function`` is called: for ``timeout_s``, and if it fails ``retries`` times more, after doubling pauses."""

    function: Callable[[Any], Coroutine[Any, Any, Any]]
    concurrency: int = 16
    retries: int = 0
    retry_backoff_s: float = 0.1
    timeout_s: float = 30.0

    def checked(self, step: str) -> Asking:
        """It, if it makes sense, else `PlanError` naming ``step``."""
        function = callable_of(self.function, step)
        if not is_coroutine_function(function):
            raise PlanError(
                f"step {step!r}: enrich takes a coroutine function, async def …, and {describe_function(function)} is "
                f"none: where nothing is awaited, map will do"
            )
        at_least(1, self.concurrency, step)
        at_least(0, self.retries, step)
        for name, seconds, least in (
            ("retry_backoff_s", self.retry_backoff_s, 0.0),
            ("timeout_s", self.timeout_s, 1e-6),
        ):
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not isfinite(seconds) or seconds < least:
                what = "above 0" if least else "of at least 0"
                raise PlanError(f"step {step!r}: {name} is a number of seconds {what}, got {seconds!r}")
        return self

    def pause_s(self, attempt: int) -> float:
        """How long to wait before ``attempt`` (1 is the first after the first)."""
        return min(self.retry_backoff_s * 2.0 ** min(attempt - 1, 64), _BACKOFF_MAX_S)

    @property
    def patience_s(self) -> float:
        """How long a call may take, with all its attempts and the pauses between them."""
        pauses_s = sum(self.pause_s(attempt) for attempt in range(1, min(self.retries, 64) + 1))
        pauses_s += max(0, self.retries - 64) * _BACKOFF_MAX_S
        return (self.retries + 1) * self.timeout_s + pauses_s + _GRACE_S


class Call:
    """One call, about ``thing``. Once it is ``done``, either ``error`` is there or ``answer`` counts. ``made``: whether
    it is one of the function at all; where not, ``error`` is of what came before.
    """

    __slots__ = ("answer", "done", "error", "made", "thing")

    def __init__(self, thing: Any, answer: Any = None, *, done: bool = False) -> None:
        self.thing = thing
        self.answer = answer
        self.error: BaseException | None = None
        self.done = done
        self.made = True

    @classmethod
    def unmade(cls, thing: Any, error: Exception) -> Call:
        """The call about ``thing`` that cannot be made because of ``error``."""
        call = cls(thing, done=True)
        call.error, call.made = error, False
        return call


class Calls:
    """The calls of one step on one worker.

    >>> async def double(number):
    ...     return 2 * number
    >>> with Resources() as resources:
    ...     calls = Calls(Asking(double), "docs")
    ...     call = calls.ask(21)
    ...     calls.start()
    ...     print(calls.wait() == [call], call.answer)
    ...     calls.close()
    ...     resources.close()
    True 42
    """

    def __init__(self, asking: Asking, step: str) -> None:
        self._asking = asking
        self._step = step
        self._new: list[Call] = []
        self._back: deque[Call] = deque()
        self._under_way = 0
        self._since_s = 0.0
        self._resources: Resources | None = None
        self._loop: LoopThread | None = None
        # What follows is touched in the loop only.
        self._waiting: deque[tuple[Call, Context]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def ask(self, thing: Any) -> Call:
        """Ask about ``thing``, once `start` is called."""
        call = Call(thing)
        self._new.append(call)
        return call

    def start(self) -> None:
        """Hand over what has been asked."""
        if not self._new:
            return
        if self._loop is None:
            self._resources = Resources.current(self._step)
            self._loop = self._resources.loop
        if not self._under_way:
            self._since_s = _REAL.monotonic_s()
        new, self._new = self._new, []
        self._under_way += len(new)
        self._loop.call(self._add, new, copy_context())

    def take(self) -> list[Call]:
        """The calls that have come back since, which are done now."""
        taken: list[Call] = []
        while self._back:
            call = self._back.popleft()
            call.done = True
            taken.append(call)
        if taken:
            self._under_way -= len(taken)
            self._since_s = _REAL.monotonic_s()
        return taken

    def wait(self) -> list[Call]:
        """The same, once there is one. `DeadlineError` if none comes back."""
        taken = self.take()
        while not taken and self._under_way and self._resources is not None:
            self.check()
            self._resources.wake.wait(max(0.0, self._since_s + self._asking.patience_s - _REAL.monotonic_s()))
            self._resources.wake.clear()
            taken = self.take()
        return taken

    @property
    def under_way(self) -> int:
        """How many calls have been asked for and not been answered."""
        return self._under_way

    def check(self) -> None:
        """`DeadlineError` if calls are under way of which none has come back for longer than one may take."""
        patience_s = self._asking.patience_s
        if self._under_way and _REAL.monotonic_s() - self._since_s > patience_s:
            where = describe_function(self._asking.function)
            raise DeadlineError(
                f"step {self._step!r}: no call of {where} has come back for {patience_s:g} s, though each attempt ends "
                f"after timeout_s: it blocks the event loop, or swallows its cancellation. Await what takes long, run "
                f"what blocks with asyncio.to_thread, and let CancelledError pass.",
                wait=f"calls of step {self._step!r}",
                deadline_s=patience_s,
            )

    def close(self) -> None:
        """Cancel what is under way. `DeadlineError` if it does not end."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.ended:
            loop.run(self._cancel(), timeout_s=_CANCEL_S, what=f"cancelling the calls of step {self._step!r}")

    def _add(self, calls: list[Call], context: Context) -> None:
        self._waiting.extend((call, context) for call in calls)
        self._begin()

    def _begin(self) -> None:
        """Begin what may begin. A call sees the worker's context, as it was when it was asked, and changes its own."""
        while self._waiting and len(self._tasks) < self._asking.concurrency and not self._closing:
            call, context = self._waiting.popleft()
            self._tasks.add(asyncio.get_running_loop().create_task(self._make(call), context=context.copy()))

    async def _make(self, call: Call) -> None:
        try:
            call.answer = await self._attempts(call.thing)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: it ends the job in the worker's thread, not the loop
            call.error = _told(error)
        task = asyncio.current_task()
        if task is not None:
            self._tasks.discard(task)
        self._back.append(call)
        if self._resources is not None:
            self._resources.wake.set()
        self._begin()

    async def _attempts(self, thing: Any) -> Any:
        asking = self._asking
        attempt = 0
        while True:
            scope = asyncio.timeout(asking.timeout_s)
            late = mark_safe(TimeoutError(f"no answer within {asking.timeout_s:g} s"))
            error: BaseException
            try:
                async with scope:
                    answer = await asking.function(thing)
                if not scope.expired():
                    return answer
                error = late  # it has swallowed its cancellation: an answer that comes too late is none
            except (Exception, asyncio.CancelledError) as raised:
                error = late if isinstance(raised, TimeoutError) and scope.expired() else raised
            attempt += 1
            if attempt > asking.retries or _is_cancelled():
                raise error from None
            await asyncio.sleep(asking.pause_s(attempt))

    async def _cancel(self) -> None:
        self._closing = True
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _is_cancelled() -> bool:
    """Whether it is the call itself that is cancelled, and not something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _told(error: BaseException) -> BaseException:
    """``error`` as the worker is to meet it: a cancellation in the loop must not pass for one of the worker."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    told = mark_safe(RuntimeError("the call was cancelled"))
    told.__cause__ = error
    return told
