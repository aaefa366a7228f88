"""The worker that a step runs on: its identity, and the resources that its functions share (``per_worker``).

- `WorkerInfo`: job, step and worker for which a source or a sink is opened.
- `LoopThread`: an asyncio event loop in its own thread, so that a worker can await many calls while it works.
  Coroutines are started from outside by `call` or `run`; `close` ends the thread; every wait for it has a deadline.
- `Parameter`: a handle on a value of the job that can be set while it runs; its `Resources` have the value of the run.
- `PerWorker`: a handle on a client, model or connection. A handle can make and close its resource and holds none: the
  `Resources` of a worker hold them. The worker makes its `Resources` current while it works, also for its coroutines.
"""

from __future__ import annotations

import inspect
import secrets
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NewType, Self, TypeVar

import msgspec

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.errors import DeadlineError, MalstromError, OperatorError, PlanError, shown
from malstrom_py.errors.text import PER_WORKER, describe_error, describe_function, failed_in, sentence

if TYPE_CHECKING:
    import asyncio

WorkerId = NewType("WorkerId", int)
"""The number of a worker within its job: 0 to the number of workers - 1."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The job, the step and the worker for which a source or a sink is opened.

    ``workers``: how many workers the job had when this one started, itself included. ``unit``: that of the timestamps
    of the stream that a sink gets ("s", "ms", "us" or "ns"); None for a stream without them, and for a source.
    """

    job: str
    step: str
    worker: WorkerId
    workers: int = 1
    unit: str | None = None


T = TypeVar("T")

_END_S: Final = 5.0
"""The timeout of the end of the thread."""


class LoopThread:
    """An event loop in a daemon thread called ``name``. `close` ends the thread."""

    def __init__(self, name: str) -> None:
        import asyncio  # it is slow to import, and few jobs have a loop

        self._loop = asyncio.new_event_loop()
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._stopped), name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``function(*arguments)`` in the loop, in a copy of the caller's context.

        Raises:
            OperatorError: the loop has ended because a task raised SystemExit.
        """
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise self._gone() from error

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float, what: str) -> T:
        """Run ``coroutine`` in the loop and return its result. Do not call this in the loop itself.

        Raises:
            DeadlineError: it took longer than ``timeout_s``; names ``what``.
        """
        import asyncio

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
                raise  # raised by the coroutine itself
            future.cancel()
            raise DeadlineError(
                f"{what} took longer than {timeout_s:g} s: check that it neither waits forever nor blocks the loop",
                wait=what,
                deadline_s=timeout_s,
            ) from None

    def close(self) -> None:
        """Cancel the tasks of the loop and end the thread, if it has not ended.

        Raises:
            DeadlineError: a task in the loop does not end. (The daemon thread ends with the process.)
        """
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                """The loop was closed in between."""
        if threading.current_thread() is self._thread:
            return  # a thread cannot join itself; it ends when the caller returns
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineError(
                f"the event loop of {self._thread.name!r} did not end within {_END_S:g} s: a function in it blocks, or "
                f"swallows its cancellation. Await long operations, and let CancelledError pass.",
                wait="the end of an event loop",
                deadline_s=_END_S,
            )

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
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
    import asyncio

    try:
        # The runner cancels remaining tasks, ends asynchronous generators and the executor's threads, and closes the
        # loop.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_until(stopped))
    except (SystemExit, KeyboardInterrupt):
        """A task raised this, which ends the loop: the next call raises `OperatorError`."""


async def _until(stopped: asyncio.Future[None]) -> None:
    await stopped


T_co = TypeVar("T_co", covariant=True)

_CLOSE_S: Final = 10.0
"""The timeout of closing one resource asynchronously."""

_CURRENT: ContextVar[Resources | None] = ContextVar("malstrom_py.worker_context", default=None)


VALUE_BYTES_MAX: Final = 16_000
"""The largest size of a value of a parameter, packed."""

_VALUES: Final = (bool, int, float, str, bytes, list, dict)


class Parameter(Generic[T_co]):
    """A value of a job that can be set while the job runs, from `Job.parameter`. Functions of steps read `value`."""

    __slots__ = ("_key", "default")

    def __init__(self, job: str, name: str, default: T_co) -> None:
        self._key = job, name
        self.default = default

    @property
    def name(self) -> str:
        """The name, by which it is set."""
        return self._key[1]

    def __repr__(self) -> str:
        return f"parameter {self._key[1]!r} of job {self._key[0]!r}"

    @property
    def value(self) -> T_co:
        """The value that the job has now; it changes between two batches only, on all workers at one cut.

        Raises: PlanError: the caller does not run on a worker of this job.
        """
        resources = _CURRENT.get()
        if resources is None:
            raise PlanError(
                f"{self} was read outside a worker: read value inside a function that a step runs (not while the job "
                f"is built, and not in another thread, unless it runs in contextvars.copy_context())"
            )
        known = resources.parameters
        if known is None:  # of a test of a single step
            return self.default
        try:
            value: T_co = known[self._key]
        except KeyError:
            raise PlanError(
                f"{self} was read on a worker of another job, or was made after that one had started: call "
                f"job.parameter of the job whose functions read it, before it starts"
            ) from None
        return value


def plain_value(what: str, value: object, default: Any = None) -> Any:
    """Return an own copy of ``value``, of the type of ``default`` unless that is None; `PlanError` names ``what``.

    >>> plain_value("parameter 'share'", 1, 0.5), plain_value("parameter 'names'", ["a", 2])
    (1.0, ['a', 2])
    """
    try:
        packed = msgspec.msgpack.encode(value)
        own = msgspec.msgpack.decode(packed)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        packed, own = b"", None
    if type(value) not in _VALUES or own != value:
        raise PlanError(
            f"{what} must be True, False, a number, text, bytes, or a list or dict of these: {shown(value)}"
        )
    if len(packed) > VALUE_BYTES_MAX:
        raise PlanError(f"{what} takes {len(packed):,} bytes, and the limit is {VALUE_BYTES_MAX:,}")
    if type(default) is float and type(own) is int:
        own = float(own)
    if default is not None and type(own) is not type(default):
        kinds = type(default).__name__, type(own).__name__
        raise PlanError(f"{what} must be of the type of its default, {kinds[0]}, got {kinds[1]}")
    return own


def own_values(job: str, defaults: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[tuple[str, str], Any]:
    """Return the values of the parameters of ``job`` for `Resources`: copies, because workers may share a process."""
    return {(job, name): plain_value(name, value) for name, value in {**defaults, **(given or {})}.items()}


class PerWorker(Generic[T_co]):
    """The handle that `per_worker` returns. Calling it in a function of a step returns the worker's resource."""

    __slots__ = ("close", "factory", "token")

    def __init__(self, factory: Callable[[], T_co], close: Callable[[T_co], object] | None) -> None:
        self.factory = factory
        self.close = close
        # Workers in other processes may have several copies of the handle: all of them mean the same resource.
        self.token = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"per_worker({describe_function(self.factory)})"

    def __call__(self) -> T_co:
        """Return the resource of the current worker; make it at the first call."""
        resources = _CURRENT.get()
        if resources is None:
            raise PlanError(
                f"{self} was called outside a worker: call it inside a function that a step runs (not while the job is "
                f"built, and not in another thread, unless it runs in contextvars.copy_context())"
            )
        thing: T_co = resources.get(self)
        return thing


def per_worker(factory: Callable[[], T], close: Callable[[T], object] | None = None) -> PerWorker[T]:
    """Return a handle on a resource of which each worker has one: a client, a model, a connection.

    Calling the handle in a function of a step returns the worker's resource; ``factory()`` makes it at the first call.
    At the worker's end resources are closed after sources and sinks, the last made first: by ``close(resource)``, or by
    the resource's ``aclose()`` or ``close()``, if it has one. Each may be a coroutine function; it is awaited in the
    event loop of the calls of ``enrich``. ``factory`` is an ordinary function; a resource that needs a running loop
    must be requested first in a function of ``enrich``. Other threads need the context of the worker's thread:
    ``asyncio.to_thread`` copies it.

    The functions of a job are sent to workers with their handles; the resource itself is never sent.

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
        PlanError: ``factory`` or ``close`` is not a function; at a call: the caller does not run on a worker.
        OperatorError: at a call: ``factory`` raised. This ends the job: ``on_error=`` is for records only.
    """
    if not callable(factory) or inspect.iscoroutinefunction(factory):
        raise PlanError(
            f"per_worker takes an ordinary function without arguments that returns a resource, such as a class, got "
            f"{'a coroutine function' if callable(factory) else type(factory).__name__}"
        )
    if close is not None and not callable(close):
        raise PlanError(f"per_worker: close must be a function that takes the resource, got {type(close).__name__}")
    return PerWorker(factory, close)


def close_all(closes: Iterable[Callable[[], object]]) -> None:
    """Call each of ``closes``, then raise the first error."""
    errors: list[Exception] = []
    for close in closes:
        try:
            close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


class Resources:
    """The resources of one worker, and the event loop of its asynchronous calls. As a context it makes itself current.

    ``wake`` is set when a call has finished, to wake an idle worker. ``parameters``: the values of parameters, by
    the names of their job and their own; None: their defaults. ``clock``: that of the job.
    """

    def __init__(
        self,
        *,
        worker: int = 0,
        wake: threading.Event | None = None,
        parameters: Mapping[tuple[str, str], Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.parameters = parameters
        self.clock: Final = clock or SystemClock()
        self.wake = wake or threading.Event()
        self.worker = worker
        self._tokens: list[Token[Resources | None]] = []
        # Coroutines call handles in the loop's thread, other functions in the worker's. A factory may call other
        # handles.
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
        """Return the resources of the current worker; raise `PlanError` naming ``step`` if there is none."""
        resources = _CURRENT.get()
        if resources is None:
            raise PlanError(f"step {step!r} needs a worker: run it by a runtime or by an OperatorTester")
        return resources

    @property
    def loop(self) -> LoopThread:
        """The worker's event loop, started at first use."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread(f"malstrom-worker-{self.worker}")
            return self._loop

    def get(self, handle: PerWorker[Any]) -> Any:
        """Return the resource of ``handle`` on this worker; raise `OperatorError` if its factory fails."""
        made = self._made.get(handle.token)
        if made is not None:
            return made[1]
        with self._lock:
            made = self._made.get(handle.token)
            if made is None:
                made = self._made[handle.token] = (handle, self._make(handle))
            return made[1]

    def close(self) -> None:
        """Close the resources, last made first, then end the loop; raise the first error after that."""
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
            raise PlanError(f"{handle} was called after its worker had ended: call it while a step runs")
        try:
            return handle.factory()
        except Exception as error:
            raise self._error(handle, "raised", error) from error

    def _close(self, handle: PerWorker[Any], thing: Any) -> None:
        try:
            closing = _closing(thing) if handle.close is None else handle.close(thing)
            if inspect.isawaitable(closing):
                self.loop.run(_awaited(closing), timeout_s=_CLOSE_S, what=f"closing what {handle} made")
        except MalstromError:
            raise
        except Exception as error:
            raise self._error(handle, "made a resource whose closing raised", error) from error

    def _error(self, handle: PerWorker[Any], what: str, error: Exception) -> OperatorError:
        return OperatorError(
            f"per_worker: the factory {failed_in(handle.factory, error)} {what} {sentence(describe_error(error))} (on "
            f"worker {self.worker}). Fix it, or what it connects to; no record is the cause, so on_error= does not "
            f"apply.",
            function=describe_function(handle.factory),
            rule=PER_WORKER,
        )


def current_clock() -> Clock:
    """Return the clock of the job of the current worker; that of the machine outside workers."""
    resources = _CURRENT.get()
    return SystemClock() if resources is None else resources.clock


def _closing(thing: Any) -> object:
    """Call the ``aclose`` or ``close`` of ``thing``, if any, and return its result, which may be awaitable."""
    if not isinstance(thing, type | ModuleType):  # their functions of that name close other things
        for name in ("aclose", "close"):
            method = getattr(thing, name, None)
            if callable(method):
                return method()
    return None


async def _awaited(closing: Awaitable[object]) -> None:
    await closing
