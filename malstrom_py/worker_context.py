"""What a step knows of the worker that it runs on: its number, and the resources it shares there (``per_worker``).

Which worker something is built on.

An asyncio event loop in a thread of its own, so that a worker can wait for many calls while it goes on working.

Rule: everything that happens in the loop is started from outside by `call` or `run`, and the thread ends with `close`,
whatever was still going on in it. Every wait for it has a deadline.

``per_worker``: clients, models and connections that are made once per worker, and closed at its end.

Rule: a handle knows how to make and close its thing, and holds none. What has been made is kept by the `Resources` of
one worker, which the worker makes current while it works, also for coroutines that it starts.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Final, Generic, NewType, Self, TypeVar

from malstrom_py.errors import DeadlineError, MalstromError, OperatorError, PlanError
from malstrom_py.errors.text import PER_WORKER, describe_function

WorkerId = NewType("WorkerId", int)
"""The number of a worker within its job: 0 to the number of workers - 1."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker of which job a source or a sink is opened on, and for which step."""

    job: str
    step: str
    worker: WorkerId


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


T_co = TypeVar("T_co", covariant=True)

_CLOSE_S: Final = 10.0
"""How long closing one thing may take, where that is asynchronous."""

_CURRENT: ContextVar[Resources | None] = ContextVar("malstrom_py.worker_context", default=None)


class PerWorker(Generic[T_co]):
    """What `per_worker` returns. Calling it, inside a function that a step runs, gives that worker's thing."""

    __slots__ = ("close", "factory", "token")

    def __init__(self, factory: Callable[[], T_co], close: Callable[[T_co], object] | None) -> None:
        self.factory = factory
        self.close = close
        # A worker elsewhere has copies of the handle, several perhaps: all of them stand for one thing.
        self.token = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"per_worker({describe_function(self.factory)})"

    def __call__(self) -> T_co:
        """The thing of the worker that is at work; made now, if it has none yet."""
        resources = _CURRENT.get()
        if resources is None:
            raise PlanError(
                f"{self} was called outside a worker: call it inside a function that a step runs (not while the job is "
                f"built, and not in a thread of your own, unless that runs in contextvars.copy_context())"
            )
        thing: T_co = resources.get(self)
        return thing


def per_worker(factory: Callable[[], T], close: Callable[[T], object] | None = None) -> PerWorker[T]:
    """A handle on something that each worker has one of: a client, a model, a connection.

    Calling the handle inside a function that a step runs gives the worker's own, which ``factory()`` makes when it is
    first asked for. At the worker's end it is closed, behind sources and sinks, in the reverse order of making: by
    ``close(thing)``, or else by its ``aclose()`` or ``close()``, if it has one. Each may be a coroutine function, and
    is awaited in the event loop in which ``enrich`` makes its calls. ``factory`` is an ordinary function; what needs a
    running loop is made by first asking for it in a function of ``enrich``. Other threads need the context of the
    worker's: ``asyncio.to_thread`` passes it on.

    Functions that a job is made of are shipped to workers, and the handle with them: the thing itself never is.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> class Rates:
    ...     def __init__(self): print("connected")
    ...     def of(self, currency): return {"EUR": 1.0, "USD": 0.9}[currency]
    ...     def close(self): print("closed")
    >>> rates = mp.per_worker(Rates)
    >>> prices = mp.Job("docs").source("prices", sources.Memory([(5, "EUR"), (10, "USD")]))
    >>> mp.collect(prices.map("in-euros", lambda price: price[0] * rates().of(price[1])))
    connected
    closed
    [5.0, 9.0]

    Raises:
        PlanError: ``factory`` or ``close`` is no function; on a call, that there is no worker.
        OperatorError: on a call, that ``factory`` raised. It ends the job: ``on_error=`` is about records.
    """
    if not callable(factory) or inspect.iscoroutinefunction(factory):
        raise PlanError(
            f"per_worker takes an ordinary function without arguments that makes a thing, such as a class, got "
            f"{'a coroutine function' if callable(factory) else type(factory).__name__}"
        )
    if close is not None and not callable(close):
        raise PlanError(f"per_worker: close is a function of the thing that is closed, got {type(close).__name__}")
    return PerWorker(factory, close)


class Resources:
    """What one worker has made, and the event loop of its asynchronous calls. As a context it makes itself current.

    ``wake`` is set whenever a call has come back, for a worker that has nothing else to do.

    >>> numbers = per_worker(lambda: [1, 2])
    >>> with Resources(worker=3):
    ...     numbers() is numbers()
    True
    """

    def __init__(self, *, worker: int = 0, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._worker = worker
        self._tokens: list[Token[Resources | None]] = []
        # Coroutines ask in the loop's thread, other functions in the worker's. A factory may ask for other things.
        self._lock = threading.RLock()
        self._made: dict[str, tuple[PerWorker[Any], Any]] = {}
        self._loop: LoopThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CURRENT.reset(self._tokens.pop())

    @staticmethod
    def current(step: str) -> Resources:
        """Those of the worker at work. `PlanError` naming ``step`` if there is none."""
        resources = _CURRENT.get()
        if resources is None:
            raise PlanError(f"step {step!r} needs a worker: run it by a runtime or by an OperatorTester")
        return resources

    @property
    def loop(self) -> LoopThread:
        """The worker's event loop, started when it is first asked for."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread(f"malstrom-worker-{self._worker}")
            return self._loop

    def get(self, handle: PerWorker[Any]) -> Any:
        """What ``handle`` stands for here. `OperatorError` if it cannot be made."""
        made = self._made.get(handle.token)
        if made is not None:
            return made[1]
        with self._lock:
            made = self._made.get(handle.token)
            if made is None:
                made = self._made[handle.token] = (handle, self._make(handle))
            return made[1]

    def close(self) -> None:
        """Close what was made, last made first, then end the loop; the first error is raised when all is done."""
        self._closed = True
        errors: list[Exception] = []
        with self:
            while self._made:
                handle, thing = self._made.popitem()[1]
                try:
                    self._close(handle, thing)
                except Exception as error:
                    errors.append(error)
        if self._loop is not None:
            try:
                self._loop.close()
            except MalstromError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _make(self, handle: PerWorker[Any]) -> Any:
        if self._closed:
            raise PlanError(f"{handle} was called when its worker had ended: do so while a step runs")
        try:
            return handle.factory()
        except Exception as error:
            raise self._error(handle, f"raised {type(error).__name__}") from error

    def _close(self, handle: PerWorker[Any], thing: Any) -> None:
        try:
            closing = _closing(thing) if handle.close is None else handle.close(thing)
            if inspect.isawaitable(closing):
                self.loop.run(_awaited(closing), timeout_s=_CLOSE_S, what=f"closing what {handle} made")
        except MalstromError:
            raise
        except Exception as error:
            raise self._error(handle, f"made a thing whose closing raised {type(error).__name__}") from error

    def _error(self, handle: PerWorker[Any], what: str) -> OperatorError:
        where = describe_function(handle.factory)
        return OperatorError(
            f"per_worker: the factory {where} {what} (on worker {self._worker}). Mend it, or what it needs; no record "
            f"is to blame, so on_error= does not help.",
            function=where,
            rule=PER_WORKER,
        )


def _closing(thing: Any) -> object:
    """Close ``thing`` in its own way, if it has one: what is returned may have to be awaited."""
    if not isinstance(thing, type | ModuleType):  # whose functions of that name close other things
        for name in ("aclose", "close"):
            method = getattr(thing, name, None)
            if callable(method):
                return method()
    return None


async def _awaited(closing: Awaitable[object]) -> None:
    await closing
