"""The queue of records that a step holds back, and the calls of a user's coroutine function that they wait for.

Rule: entries of the queue are in the order of arrival, and an epoch comes after every record that it must not overtake.
Calls run in an event loop beside the worker's thread: results reach the worker through one queue, which only the
worker's thread reads. At most ``concurrency`` calls run; the next one starts as soon as one ends, independently of the
worker's thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import DeadlineError, InternalError, PlanError, mark_safe
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.state.artefact import artefact, by_slot, entries_in
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.entries import encoded_entries
from malstrom_py.validation import at_least, callable_of, is_coroutine_function
from malstrom_py.worker_context import LoopThread, Resources

ABSENT: Final[Any] = object()
"""Returned where the cache has no answer."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The configuration of ``enrich(cache=)``: at most ``size`` answers per worker, each for ``ttl`` of the runtime's
    clock (None: until it is evicted).

    >>> from datetime import timedelta
    >>> Cache(ttl=timedelta(minutes=10), size=500)
    Cache(ttl=datetime.timedelta(seconds=600), size=500)

    Raises:
        PlanError: ``ttl`` is not a timedelta above 0, or ``size`` is not a whole number of at least 1.
    """

    ttl: timedelta | None = None
    size: int = 10_000

    def __post_init__(self) -> None:
        if self.ttl is not None and (not isinstance(self.ttl, timedelta) or self.ttl <= timedelta(0)):
            raise PlanError(f"mp.Cache: ttl must be a timedelta above 0, or None for no limit, got {self.ttl!r}")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise PlanError(f"mp.Cache: size must be a whole number of at least 1, got {self.size!r}")


class Answers:
    """The answers that one worker keeps, by the thing asked about.

    >>> answers = Answers(Cache(ttl=timedelta(seconds=5), size=2))
    >>> for thing in "ab":
    ...     answers.put(thing, thing.upper(), now_s=0)
    >>> answers.get("a", now_s=4.9)
    'A'
    >>> answers.put("c", "C", now_s=5)
    >>> [answers.get(thing, now_s=5) is ABSENT for thing in "abc"]  # a is too old, b was used least recently
    [True, True, False]
    """

    def __init__(self, cache: Cache) -> None:
        self._size = cache.size
        self._ttl_s = None if cache.ttl is None else cache.ttl.total_seconds()
        self._entries: OrderedDict[Any, tuple[Any, float]] = OrderedDict()

    def get(self, thing: Any, *, now_s: float) -> Any:
        """Return the answer about ``thing``, or `ABSENT`. TypeError if ``thing`` cannot be hashed."""
        entry = self._entries.get(thing)
        if entry is None:
            return ABSENT
        if self._ttl_s is not None and now_s - entry[1] >= self._ttl_s:
            del self._entries[thing]
            return ABSENT
        self._entries.move_to_end(thing)
        return entry[0]

    def put(self, thing: Any, answer: Any, *, now_s: float) -> None:
        """Store ``answer``, received at ``now_s``."""
        self._entries[thing] = (answer, now_s)
        self._entries.move_to_end(thing)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class Held:
    """A record and the call it waits for; None before the call. ``image``: its encoded form on arrival (test mode)."""

    __slots__ = ("call", "image", "key", "timestamp", "value")

    def __init__(self, key: Any, value: Any, timestamp: int | None, call: Call | None = None) -> None:
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.call = call
        self.image: bytes | None = None

    def as_batch(self) -> Batch:
        """Return a batch of this record."""
        return Batch([self.value], keys=[self.key], timestamps=None if self.timestamp is None else [self.timestamp])


class Gathered:
    """Rows for ``out``, gathered into batches until the next epoch."""

    __slots__ = ("_keys", "_out", "_timestamps", "_values")

    def __init__(self, out: Outlet) -> None:
        self._out = out
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []

    def add(self, held: Held, value: Any) -> None:
        """Add ``held`` with its new ``value``."""
        if self._timestamps and (self._timestamps[-1] is None) is not (held.timestamp is None):
            self.send()  # a batch is timed as a whole
        self._keys.append(held.key)
        self._values.append(value)
        self._timestamps.append(held.timestamp)

    def send(self) -> None:
        """Send the gathered rows."""
        if self._values:
            timestamps: Any = None if self._timestamps[0] is None else self._timestamps
            self._out.send(Batch(self._values, keys=self._keys, timestamps=timestamps))
            self._keys, self._values, self._timestamps = [], [], []


def encoded(held: Held, context: StepContext) -> bytes:
    """Return the record as a snapshot stores it. `CodecError` names its key if it cannot be stored."""
    return context.codec.encode_rows_at_rest([(held.key, held.value, held.timestamp)], step=context.step)


def in_one_slot(keys: Sequence[Any]) -> list[int]:
    """Return slot 0 for each of ``keys``: for a step whose keys are on no other worker."""
    return [0] * len(keys)


def artefact_of(queue: Iterable[Held | Epoch], slots_of: SlotsOf, context: StepContext) -> bytes:
    """Return a full keyed artefact of the records: key -> [value, timestamp, place in the queue] of each.

    Raises:
        CodecError: a record cannot be stored; names its key.
        InternalError: the queue has an epoch, which a keyed artefact cannot hold.
    """
    rows: dict[bytes, tuple[Any, list[Any]]] = {}
    entries = list(queue)
    if any(isinstance(entry, Epoch) for entry in entries):
        raise InternalError(f"step {context.step!r} was persisted while it held back epochs")
    held = [entry for entry in entries if isinstance(entry, Held)]
    names = context.codec.encode_each_at_rest(
        [one.key for one in held], step=context.step, keys=[one.key for one in held]
    )
    for place, (name, one) in enumerate(zip(names, held, strict=True)):
        rows.setdefault(name, (one.key, []))[1].append([one.value, one.timestamp, place])
    keys = [key for key, _ in rows.values()]
    made = encoded_entries(context.codec, keys, [some for _, some in rows.values()], {}, step=context.step)
    return artefact(by_slot(slots_of(keys), list(rows), made), delta=False)


def held_in(chain: Sequence[bytes], slots: Collection[int], context: StepContext) -> list[Held]:
    """Return the records of ``slots`` from the artefacts of one worker, in the order of its queue.

    Raises:
        SnapshotError, CodecError: an artefact is damaged, or holds a class that is not registered.
    """
    placed: list[tuple[int, Held]] = []
    for entry in entries_in(chain, context.codec, slots=slots, step=context.step):
        placed += [(place, Held(entry.key, value, timestamp)) for value, timestamp, place in entry.value]
    return [one for _, one in sorted(placed, key=itemgetter(0))]


_BACKOFF_MAX_S: Final = 30.0
_CANCEL_S: Final = 5.0
_GRACE_S: Final = 2.0
"""How much longer than its attempts a call may take to return."""

_REAL: Final = SystemClock()
"""Timeouts of calls are in real time, even if the runtime's clock is virtual."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How to call ``function``: with a timeout, and ``retries`` retries after a failure, with doubling pauses."""

    function: Callable[[Any], Coroutine[Any, Any, Any]]
    concurrency: int = 16
    retries: int = 0
    retry_backoff_s: float = 0.1
    timeout_s: float = 30.0

    def checked(self, step: str) -> Asking:
        """Return self if all arguments are valid, else raise `PlanError` naming ``step``."""
        function = callable_of(self.function, step)
        if not is_coroutine_function(function):
            raise PlanError(
                f"step {step!r}: enrich takes a coroutine function, async def …, and {describe_function(function)} is "
                f"not one: use map for functions that await nothing"
            )
        at_least(1, self.concurrency, step, "concurrency")
        at_least(0, self.retries, step, "retries")
        for name, seconds, least in (
            ("retry_backoff_s", self.retry_backoff_s, 0.0),
            ("timeout_s", self.timeout_s, 1e-6),
        ):
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not isfinite(seconds) or seconds < least:
                what = "above 0" if least else "of at least 0"
                raise PlanError(f"step {step!r}: {name} must be a number of seconds {what}, got {seconds!r}")
        return self

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait before a retry; ``attempt`` counts from 1."""
        return min(self.retry_backoff_s * 2.0 ** min(attempt - 1, 64), _BACKOFF_MAX_S)

    @property
    def patience_s(self) -> float:
        """The longest time of a call, with all its attempts and the pauses between them."""
        pauses_s = sum(self.pause_s(attempt) for attempt in range(1, min(self.retries, 64) + 1))
        pauses_s += max(0, self.retries - 64) * _BACKOFF_MAX_S
        return (self.retries + 1) * self.timeout_s + pauses_s + _GRACE_S


class Call:
    """One call, about ``thing``. Once it is ``done``, ``answer`` is valid unless ``error`` is set. ``made``: whether
    the function was called; if not, ``error`` is from an earlier stage.
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
        """Return a call about ``thing`` that failed with ``error`` before the function was called."""
        call = cls(thing, done=True)
        call.error, call.made = error, False
        return call


class Calls:
    """The calls of one step on one worker."""

    def __init__(self, asking: Asking, step: str) -> None:
        self._asking = asking
        self._step = step
        self._new: list[Call] = []
        self._back: deque[Call] = deque()
        self._under_way = 0
        self._since_s = 0.0
        self._resources: Resources | None = None
        self._loop: LoopThread | None = None
        # The following attributes are used in the event loop only.
        self._waiting: deque[tuple[Call, Context]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def ask(self, thing: Any) -> Call:
        """Prepare a call about ``thing``, which begins with `start`."""
        call = Call(thing)
        self._new.append(call)
        return call

    def start(self) -> None:
        """Pass the prepared calls to the event loop."""
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
        """Remove and return the calls that have ended; they are marked as done."""
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
        """Wait until a call ends, then `take`. `DeadlineError` if none ends."""
        taken = self.take()
        while not taken and self._under_way and self._resources is not None:
            self.check()
            self._resources.wake.wait(max(0.0, self._since_s + self._asking.patience_s - _REAL.monotonic_s()))
            self._resources.wake.clear()
            taken = self.take()
        return taken

    @property
    def under_way(self) -> int:
        """The number of calls started and not taken back yet."""
        return self._under_way

    def check(self) -> None:
        """Raise `DeadlineError` if calls are under way and none has ended for longer than one may take."""
        patience_s = self._asking.patience_s
        if self._under_way and _REAL.monotonic_s() - self._since_s > patience_s:
            where = describe_function(self._asking.function)
            raise DeadlineError(
                f"step {self._step!r}: no call of {where} has returned for {patience_s:g} s, though each attempt ends "
                f"after timeout_s: it blocks the event loop, or swallows its cancellation. Await what takes long, run "
                f"blocking calls with asyncio.to_thread, and let CancelledError pass.",
                wait=f"calls of step {self._step!r}",
                deadline_s=patience_s,
            )

    def close(self) -> None:
        """Cancel the calls under way. `DeadlineError` if they do not end."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.ended:
            loop.run(self._cancel(), timeout_s=_CANCEL_S, what=f"cancelling the calls of step {self._step!r}")

    def _add(self, calls: list[Call], context: Context) -> None:
        self._waiting.extend((call, context) for call in calls)
        self._begin()

    def _begin(self) -> None:
        """Start calls up to ``concurrency``. Each runs in a copy of the worker's context from the time of `start`."""
        while self._waiting and len(self._tasks) < self._asking.concurrency and not self._closing:
            call, context = self._waiting.popleft()
            self._tasks.add(asyncio.get_running_loop().create_task(self._make(call), context=context.copy()))

    async def _make(self, call: Call) -> None:
        try:
            call.answer = await self._attempts(call.thing)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: it ends the job in the worker's thread, not the loop
            call.error = _for_worker(error)
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
                error = late  # the function swallowed its cancellation: an answer after the timeout does not count
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
    """Whether the call itself was cancelled, rather than a task that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _for_worker(error: BaseException) -> BaseException:
    """Return ``error`` for the worker: a cancellation becomes a RuntimeError, so that it does not cancel the worker."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    cancelled = mark_safe(RuntimeError("the call was cancelled"))
    cancelled.__cause__ = error
    return cancelled
