"""The values of a step and the times of their keys: timers, and until when states last.

Rule: the times of a key are where its value is. Those of a key without a value are in memory. What time makes due on
disk is found by an index, in the order of time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import InternalError
from malstrom_py.state.entries import BY_CLOCK, ENDS, NO_TIMES, TIMERS, Held, Times
from malstrom_py.state.many_values import SETTLES, StepValues
from malstrom_py.state.timers import Timers

if TYPE_CHECKING:
    from malstrom_py.state.expiry import Expiry

_OF_TIMER: Final = 400
_OF_END: Final = 250
"""About so many bytes of memory a key with a timer takes more, and one with an end."""


class TimedValues(StepValues):
    """The values of ``step``; the ``timers`` of keys; ``clock_timers``: those of the runtime's clock, in ms.

    ``expiry``: until when states last; None: for ever.
    """

    __slots__ = ("clock_timers", "expiry", "step", "timers")

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step
        self.timers, self.clock_timers = Timers(), Timers()
        self.expiry: Expiry | None = None

    @property
    def has_times(self) -> bool:
        return self.expiry is not None or self.has_timers(TIMERS) or self.has_timers(BY_CLOCK)

    def has_timers(self, kind: int) -> bool:
        """Return whether keys have timers, of the kind `TIMERS` or `BY_CLOCK`."""
        in_memory = self.timers if kind == TIMERS else self.clock_timers
        return len(in_memory) > 0 or (self.cold is not None and self.cold.indexes[kind].count > 0)

    @property
    def bytes_of_times(self) -> int:
        """About how many bytes of memory the times of keys take."""
        until = 0 if self.expiry is None else len(self.expiry.until)
        return (len(self.timers) + len(self.clock_timers)) * _OF_TIMER + until * _OF_END

    def fired(self, timers: Timers, reached: int) -> Iterator[tuple[Any, int]]:
        """Remove and yield the timers that are due, by time, each once the value of its key is in memory.

        ``timers``: `timers` or `clock_timers`, for those on disk too.
        """
        kind = TIMERS if timers is self.timers else BY_CLOCK
        while True:
            bound = self._bring_first(kind, reached)
            count = 0
            for key, time in islice(timers.due(bound), SETTLES):
                count += 1
                if self.missing((key,)):
                    self.bring((key,))
                yield key, time
            if count < SETTLES and not (self.cold is not None and self.cold.indexes[kind].is_due(reached)):
                return
            self.settle()

    def _bring_first(self, kind: int, reached: int) -> int:
        """Bring some keys whose timers are due. Return a time up to ``reached`` before which no others on disk are."""
        if self.memory is None or not len(self.memory.cold):
            return reached
        self.memory.bring_due(kind, reached)
        return self.memory.cold.indexes[kind].bound(reached)

    def expire(self, limit: int) -> None:
        """Drop the states that last until ``limit`` at most. Requires `expiry`."""
        expiry = self._lasting()
        self.note(expiry.undated)
        self.end(expiry.expired(limit))
        while self.cold is not None and self.cold.indexes[ENDS].is_due(limit):
            self._expire_on_disk(expiry, limit)

    def _expire_on_disk(self, expiry: Expiry, limit: int) -> None:
        """Do as `expire` for some states on disk. None comes into memory: a batch may be under way."""
        assert self.memory is not None
        keys, values, times, ends = self.memory.cold.take_due(ENDS, limit)[0]
        self.note(keys)
        if ends is not None:  # no key has timers
            return
        until = limit + 1 + expiry.ttl
        dated: dict[Any, Times] = {}
        for key in keys:
            found = times.get(key, NO_TIMES)
            if found.until is None:
                dated[key] = found._replace(until=until)
            else:
                self._set_timers(key, found)
        if dated:
            states = [value for key, value in zip(keys, values, strict=True) if key in dated]
            self.memory.cold.put(Held(list(dated), states, dated), needed=self.due_at)

    def _lasting(self) -> Expiry:
        if self.expiry is None:
            raise InternalError(f"step {self.step!r}: its state does not expire")
        return self.expiry

    def end(self, keys: Collection[Any]) -> None:
        """Drop the states of ``keys``, whose time to live has ended."""
        self.note(keys)
        self.drop_values(keys)

    def date(self, key: Any, time: int | None) -> None:
        """Let the state of ``key``, which a timer has made, last from ``time`` on; None: from the next epoch.

        Requires `expiry`.
        """
        expiry = self._lasting()
        if key not in expiry.until:
            if time is None:
                expiry.undated.add(key)
            else:
                expiry.touch((key,), (time,))

    def touch(self, keys: Sequence[Any], times: Sequence[int]) -> None:
        """Let the states of ``keys`` last from these times on. `note` was called for the keys. Requires `expiry`."""
        expiry, values = self._lasting(), self.values
        expiry.touch(keys, times)
        if len(expiry.until) + len(expiry.undated) != len(values):  # some keys have no state any more
            expiry.forget([key for key in set(keys) if values.get(key) is None])

    def timed_keys(self) -> Iterator[Any]:
        """Return the keys with timers; one with timers of both kinds comes twice."""
        return chain(self.timers.keys(), self.clock_timers.keys())

    def _times_of(self, keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Times]:
        """Return the times of those of ``keys``, with ``values``, that have some. Without a value none lasts."""
        timers, by_clock = self.timers, self.clock_timers
        until = {} if self.expiry is None else self.expiry.until
        if not (len(timers) or len(by_clock) or until):
            return {}
        lasting = (None if value is None else until.get(key) for key, value in zip(keys, values, strict=True))
        times = (
            (key, Times(timers.times(key), by_clock.times(key), end)) for key, end in zip(keys, lasting, strict=True)
        )
        return {key: found for key, found in times if found.timers or found.by_clock or found.until is not None}

    def _take_times(self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Times]) -> None:
        """Set the times of ``keys``, which have come with these values."""
        expiry = self.expiry
        if expiry is not None and expiry.was_timer:
            times = {key: Times(until=max(timers, default=until)) for key, (timers, _, until) in times.items()}
        for key, (timers, by_clock, _) in times.items():
            for time in timers:
                self.timers.set(key, time)
            for time in by_clock:
                self.clock_timers.set(key, time)
        if expiry is not None:
            lasting = [key for key, value in zip(keys, values, strict=True) if value is not None]
            until = {key: end for key in lasting if (end := times.get(key, NO_TIMES).until) is not None}
            expiry.put(until)
            undated = [key for key in lasting if key not in until]
            expiry.undated.update(undated)
            self.note(undated)

    def _set_timers(self, key: Any, times: Times) -> None:
        """Set the timers of a key, which have not changed."""
        self.timers.put_back(key, times.timers)
        self.clock_timers.put_back(key, times.by_clock)

    def states_of(self, keys: Sequence[Any]) -> tuple[list[Any], dict[Any, Times]]:
        """Return the values of ``keys``, None for a key without one, and the times of those that have some."""
        _, values, on_disk, _ = self.held_of(keys)
        times = self._times_of(keys, values)
        return values, {**times, **on_disk} if times else on_disk

    def put_away(self, keys: Sequence[Any]) -> Held:
        held, expiry = super().put_away(keys), self.expiry
        in_use = [timers for timers in (self.timers, self.clock_timers) if len(timers)]
        until = {} if in_use or expiry is None else expiry.until
        ends = [until[key] for key in held.keys if key in until]
        if held.keys and len(ends) == len(held.keys):
            held = held._replace(ends=ends)
        elif in_use or expiry is not None:
            held = held._replace(times=self._times_of(held.keys, held.values))
            for timers in in_use:
                for key in held.times:
                    timers.put_away(key)
        if expiry is not None:
            expiry.put_away(held.keys)
        return held

    def put_back(self, held: Held) -> None:
        keys, _, times, ends = held
        for key, of_key in times.items():
            if of_key.timers or of_key.by_clock:
                self._set_timers(key, of_key)
        if self.expiry is not None:
            pairs = times.items() if ends is None else ()
            until = {key: found.until for key, found in pairs if found.until is not None}
            self.expiry.put(until if ends is None else dict(zip(keys, ends, strict=True)))
            if ends is None and len(until) < len(keys):
                self.expiry.undated.update(key for key in keys if key not in until)
        super().put_back(held)
