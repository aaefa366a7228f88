"""Event time: units, conversions, and the merging of frontiers. Inside a job, a time is an int64.

Rule: this module reads no wall clock; callers pass the time of the runtime's clock.
"""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, SupportsIndex, get_args

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import PlanError, mark_safe

Unit = Literal["s", "ms", "us", "ns"]

PER_SECOND: Final[dict[str, int]] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units per second."""

NAIVE: Final = (
    "the datetime has no time zone: add one, for instance with .replace(tzinfo=timezone.utc), or read the file with "
    'sources.Files(..., timezone="UTC")'
)
"""The error text for a datetime without a zone."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def check_unit(unit: str, step: str) -> Unit:
    """Return ``unit`` if it is s, ms, us or ns; else raise `PlanError` naming ``step``."""
    if unit not in get_args(Unit):
        raise PlanError(f"step {step!r}: unit {unit!r} is not one of 's', 'ms', 'us', 'ns'")
    return unit  # type: ignore[return-value]  # narrowed by the check above


def to_time(moment: object, unit: Unit) -> int:
    """Return a moment as int64 in ``unit``: an int unchanged, an aware datetime converted (rounded down).

    Raises TypeError for anything else, such as a naive datetime or None, and ValueError outside int64.

    >>> to_time(datetime(2013, 1, 1, tzinfo=UTC), "ms")
    1356998400000
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise mark_safe(TypeError(NAIVE))
        time = _scale((moment - _EPOCH) // _MICROSECOND, unit)
    elif moment is None:
        raise mark_safe(TypeError("the timestamp is None"))
    else:
        time = _index(moment)
    # MIN_EPOCH and MAX_EPOCH mean "no epoch yet" and "the end", so no record may have them.
    if not MIN_EPOCH < time < MAX_EPOCH:
        raise mark_safe(ValueError(f"the timestamp does not fit an int64 in unit {unit!r}"))
    return time


def to_span(span: timedelta | int, unit: Unit) -> int:
    """Return a span as a whole number of ``unit``; a timedelta is rounded up so that no bound shrinks.

    >>> to_span(timedelta(hours=24), "ms")
    86400000
    """
    if isinstance(span, timedelta):
        microseconds = span // _MICROSECOND
        return -_scale(-microseconds, unit)
    return span


def from_clock(now_s: float, unit: Unit) -> int:
    """Return a clock's seconds since 1970 as int64 in ``unit`` (to the microsecond, then rounded down).

    >>> from_clock(1.5, "ms")
    1500
    """
    return _scale(round(now_s * 1_000_000), unit)


def from_time(time: int, unit: Unit) -> datetime:
    """An int64 time as an aware datetime in UTC (microseconds; finer digits are cut). For people to read.

    Raises OverflowError beyond the years datetime knows.
    """
    return _EPOCH + timedelta(microseconds=time * 1_000_000 // PER_SECOND[unit])


def _scale(microseconds: int, unit: Unit) -> int:
    return microseconds * PER_SECOND[unit] // 1_000_000


def _index(moment: object) -> int:
    # bool is an int in Python, but a mistake as a moment. __index__ admits numpy's integers.
    if isinstance(moment, bool) or not isinstance(moment, SupportsIndex):
        kind = type(moment).__name__
        why = f"a timestamp must be an int in the step's unit or an aware datetime, got {kind}"
        if isinstance(moment, str):
            why += ": parse it, with datetime.fromisoformat(text) for instance, which needs an offset such as Z in it"
        raise mark_safe(TypeError(why))
    return operator.index(moment)


class Frontier:
    """The largest epoch of each of several inputs, merged as their minimum. It never decreases.

    T2: an *idle* input does not hold back the minimum. If all inputs are idle or finished, and at least one is idle,
    the merged frontier is idle.

    >>> frontier = Frontier(2)
    >>> frontier.advance(0, 5), frontier.advance(1, 3), frontier.advance(1, 9)
    (None, 3, 5)
    >>> frontier.advance(0, 5, idle=True)
    9
    """

    __slots__ = ("_idle", "_inputs", "idle", "time")

    def __init__(self, inputs: int) -> None:
        self._inputs = [MIN_EPOCH] * inputs
        self._idle = [False] * inputs
        self.time = MIN_EPOCH
        self.idle = False

    def advance(self, index: int, time: int, *, idle: bool = False) -> int | None:
        """Record that input ``index`` reached ``time``; return the merged frontier if its time or idleness changed."""
        inputs = self._inputs
        if time <= inputs[index] and idle is self._idle[index]:
            return None
        inputs[index] = max(time, inputs[index])
        if idle or self.idle or True in self._idle:
            return self._merged_with_idle(index, idle)
        merged = min(inputs)
        if merged <= self.time:
            return None
        self.time = merged
        return merged

    def active(self) -> int | None:
        """Return the minimum over inputs that are neither idle nor finished; None if there are none."""
        active = [time for time, idle in zip(self._inputs, self._idle, strict=True) if not idle and time != MAX_EPOCH]
        return min(active, default=None)

    def inputs(self) -> list[int]:
        """Return the largest epoch of each input."""
        return list(self._inputs)

    def _merged_with_idle(self, index: int, idle: bool) -> int | None:
        self._idle[index] = idle
        before, was_idle = self.time, self.idle
        active = self.active()
        self.idle = active is None and True in self._idle
        if self.idle:
            held = [time for time, at_rest in zip(self._inputs, self._idle, strict=True) if at_rest]
            self.time = max(before, min(held))
        else:
            self.time = max(before, min(self._inputs) if active is None else active)
        return None if self.time == before and self.idle is was_idle else self.time
