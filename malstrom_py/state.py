"""The keyed state of one step on one worker: values and timers by key, and what control messages do to them.

Rule: everything a step keeps per key is in here, so that moving a key, persisting it and dropping it is done in
one place. Values change by assignment only. A key whose value is None has no state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import compress, repeat
from operator import is_, is_not
from typing import Any

from malstrom_py.codec import Codec
from malstrom_py.errors import InternalError, shown
from malstrom_py.messages import AbsBarrier, Acquire, AnyOf, Collect, Interrogate, StateMessage, every_key


class Timers:
    """Times at which keys want to be woken. Two timers of a key at one time are one.

    >>> timers = Timers()
    >>> for time, key in [(5, "b"), (3, "a"), (5, "b"), (9, "a")]:
    ...     timers.set(key, time)
    >>> list(timers.due(5)), timers.times("a")
    ([('a', 3), ('b', 5)], [9])
    """

    __slots__ = ("_by_key", "_count", "_order", "_queue")

    def __init__(self) -> None:
        # key -> time -> the number of the timer that stands: entries of the queue with other numbers count no more.
        self._by_key: dict[Any, dict[int, int]] = {}
        self._queue: list[tuple[int, int, Any]] = []
        self._order = 0
        self._count = 0

    def set(self, key: Any, time: int) -> None:
        """Wake ``key`` once the step's frontier has reached ``time``."""
        times = self._by_key.setdefault(key, {})
        if time not in times:
            self._order += 1
            self._count += 1
            times[time] = self._order
            heappush(self._queue, (time, self._order, key))

    def due(self, frontier: int) -> Iterator[tuple[Any, int]]:
        """Take out the (key, time) pairs up to ``frontier``, by time, then in the order they were set."""
        while self._queue and self._queue[0][0] <= frontier:
            entry = heappop(self._queue)
            if self._stands(entry):
                time, _, key = entry
                self._forget(key, time)
                yield key, time

    def times(self, key: Any) -> list[int]:
        """The times at which ``key`` will be woken."""
        return sorted(self._by_key.get(key, ()))

    def take(self, key: Any) -> list[int]:
        """The same, and take them out."""
        times = sorted(self._by_key.pop(key, ()))
        self._count -= len(times)
        if len(self._queue) > 64 and len(self._queue) > 4 * self._count:
            # Only those that stand are left, so this pays off four times before it is done again.
            self._queue = list(filter(self._stands, self._queue))
            heapify(self._queue)
        return times

    def keys(self) -> Collection[Any]:
        """The keys that have timers."""
        return self._by_key.keys()

    def __len__(self) -> int:
        return self._count

    def _stands(self, entry: tuple[int, int, Any]) -> bool:
        time, order, key = entry
        return self._by_key.get(key, {}).get(time) == order

    def _forget(self, key: Any, time: int) -> None:
        times = self._by_key[key]
        del times[time]
        self._count -= 1
        if not times:
            del self._by_key[key]


class Defaulting(dict[Any, Any]):
    """Values by key for logics that take whole batches: ``values[key]`` of a key without state is ``default()``.

    Nothing is kept by looking it up.

    >>> values = Defaulting(list)
    >>> values["a"], len(values)
    ([], 0)
    """

    __slots__ = ("_default",)

    def __init__(self, default: Callable[[], Any]) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, key: Any) -> Any:
        return self._default()


class KeyedState:
    """``values``: key -> state, a plain dict that the loops of the steps work on; ``timers``: when keys wake."""

    __slots__ = ("_codec", "_step", "timers", "values")

    def __init__(self, step: str, codec: Codec) -> None:
        self._step = step
        self._codec = codec
        self.values: dict[Any, Any] = {}
        self.timers = Timers()

    def keys(self) -> set[Any]:
        """The keys with state: a value that is not None, or a timer."""
        return {key for key, value in self.values.items() if value is not None} | set(self.timers.keys())

    def handle(self, message: StateMessage) -> None:
        """Do what a control message asks of this step's state."""
        match message:
            case Interrogate():
                self.interrogate(message.predicate, message.keys)
            case Collect():
                taken = self.collect(message.keys)
                if taken is not None:
                    message.states[self._step] = taken
            case Acquire():
                if self._step in message.states:
                    self.acquire(message.states[self._step])
            case AbsBarrier():
                message.backend.persist(self._step, self.snapshot())
            case _:
                """`Rescale` and `SuspendMarker` change no state."""

    def interrogate(self, predicate: Callable[[Any], bool], found: set[Any]) -> None:
        """Add the keys with state that pass ``predicate`` to ``found``."""
        if isinstance(predicate, AnyOf):
            values, timers = self.values, self.timers.keys()
            found.update(key for key in predicate.keys if values.get(key) is not None or key in timers)
        elif predicate is every_key:
            # It is asked of all keys while records wait: so nothing is done for each of them in Python.
            values = self.values
            none = any(map(is_, values.values(), repeat(None)))
            found.update(compress(values, map(is_not, values.values(), repeat(None))) if none else values)
            found.update(self.timers.keys())
        else:
            found.update(filter(predicate, self.keys()))

    def collect(self, keys: Iterable[Any]) -> bytes | None:
        """Take out the state of ``keys``, in their order, encoded for another worker; None if none of them has any.

        Costs by ``keys``, not by all that is held: a move takes many small bites.
        """
        taken = list(keys)
        values = list(map(self.values.pop, taken, repeat(None)))
        times = {key: woken for key in taken if (woken := self.timers.take(key))} if len(self.timers) else {}
        if any(map(is_, values, repeat(None))):
            held = [value is not None or key in times for key, value in zip(taken, values, strict=True)]
            taken, values = list(compress(taken, held)), list(compress(values, held))
        return self._codec.encode_states_in_flight(taken, values, times, step=self._step) if taken else None

    def acquire(self, states: bytes) -> None:
        """Install what `collect` gave on another worker. `InternalError` if a key has state here already (R5)."""
        keys, values, times = self._codec.decode_in_flight(states, step=self._step)
        held: set[Any] = set()
        self.interrogate(AnyOf(set(keys)), held)
        for key in held:
            raise InternalError(
                f"step {self._step!r}: state of key {shown(key)} was acquired onto state of its own (R5)"
            )
        self.values.update(zip(keys, values, strict=True))
        for key, woken in times.items():
            for time in woken:
                self.timers.set(key, time)

    def snapshot(self) -> bytes:
        """All state, encoded at rest."""
        # In the order in which keys got their state, not in that of a set, which differs from process to process.
        held = {key: value for key, value in self.values.items() if value is not None}
        woken = self.timers.keys()
        held |= {key: None for key in woken if key not in held}
        rows = [[key, value, self.timers.times(key)] for key, value in held.items()]
        return self._codec.encode_rows_at_rest(rows, step=self._step)

    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Install what `snapshot` gave, as far as the keys are ``owned`` here (S5: any N restores on any M)."""
        for key, value, times in self._codec.decode_at_rest(state, step=self._step):
            if owned(key):
                self._install(key, value, times)

    def _install(self, key: Any, value: Any, times: Iterable[int]) -> None:
        if value is not None:
            self.values[key] = value
        for time in times:
            self.timers.set(key, time)
