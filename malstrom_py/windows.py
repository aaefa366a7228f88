"""Windows for ``keyed.window``: which records of a key belong together.

Rule: the end of a window is exclusive. A size is a timedelta, or an int in the stream's unit. Windows of event time
close when the watermark reaches their last moment; lateness is decided once, at ``generate_epochs``, so a
closed window never opens again. Windows of ``clock="processing"`` go by the runtime's clock, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import gcd
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args

from malstrom_py.data.row_form import form_of
from malstrom_py.data.time import PER_SECOND, Unit, from_time, to_span, to_time
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error
from malstrom_py.lazy_names import lazy_names

V = TypeVar("V")

Clock = Literal["event", "processing"]

Span = timedelta | int
"""A timedelta, or an int in the stream's unit."""

PANES_MAX: Final = 10_000
"""The largest number of panes in a sliding window."""

__all__ = ["Count", "Session", "Sliding", "WindowResult", "Windows", "count", "session", "sliding", "tumbling"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {}, "WINDOWS")


class WindowResult(NamedTuple, Generic[V]):
    """The result of a window: its ``start`` and ``end`` in the stream's unit (``end`` is exclusive), and its ``value``.

    ``update``: whether it is an early result, which others follow. The record's timestamp is ``end - 1``.
    """

    start: int
    end: int
    value: V
    update: bool = False


WINDOW_RESULT: Final = form_of(WindowResult)
"""The form of results in columns ``start``, ``end``, ``value`` (a struct where it is a dict) and ``update``."""

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
"""The columns of a result in a table, where it is flat."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of ``size`` that start every ``step``, as from ``origin``. ``step`` equal to ``size``: tumbling ones."""

    size: Span
    step: Span
    origin: datetime | int = 0
    clock: Clock = "event"

    def in_unit(self, unit: Unit, name: str) -> tuple[int, int, int]:
        """Return size, step and origin in ``unit``. `PlanError` naming the step if they are not possible."""
        size, step = whole_span(self.size, unit, name, "size"), whole_span(self.step, unit, name, "step")
        if step > size:
            raise PlanError(
                f"step {name!r}: the step of sliding windows is at most their size, got a step of {self.step} and a "
                f"size of {self.size}: records between two windows would be in none. Filter them out first"
            )
        panes = size // gcd(size, step)
        if panes > PANES_MAX:
            raise PlanError(
                f"step {name!r}: a size of {self.size} and a step of {self.step} make {panes:,} panes in a window, and "
                f"at most {PANES_MAX:,} are possible: choose a size that is a multiple of a larger step"
            )
        try:
            origin = to_time(self.origin, unit)
        except (TypeError, ValueError) as error:
            raise PlanError(f"step {name!r}: origin cannot be used: {describe_error(error)}") from error
        if isinstance(self.origin, datetime) and from_time(origin, unit) != self.origin:
            raise PlanError(
                f"step {name!r}: the origin {self.origin} is not a whole number of {unit}, the unit of the stream: "
                f"round it, or give assign_timestamps a finer unit"
            )
        return size, step, origin % step

    def __str__(self) -> str:
        what = f"tumbling({self.size}" if self.step == self.size else f"sliding({self.size}, {self.step}"
        return what + _and_clock(self.clock)


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of records that are less than ``gap`` apart."""

    gap: Span
    clock: Clock = "event"

    def in_unit(self, unit: Unit, name: str) -> int:
        """Return the gap in ``unit``. `PlanError` naming the step if it is not possible."""
        return whole_span(self.gap, unit, name, "gap")

    def __str__(self) -> str:
        return f"session({self.gap}{_and_clock(self.clock)}"


@dataclass(frozen=True, slots=True)
class Count:
    """Windows of ``n`` records, in their order of arrival."""

    n: int

    def __str__(self) -> str:
        return f"count({self.n})"


Windows = Sliding | Session | Count
"""What the functions of this module return, for ``keyed.window``."""


def tumbling(size: Span, *, origin: datetime | int = 0, clock: Clock = "event") -> Sliding:
    """Return windows of ``size``, one after the other. ``origin``: the start of any one of them.

    >>> from datetime import timedelta
    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> job = mp.Job("docs")
    >>> sales = job.source("sales", sources.Memory([("tea", 1, 3), ("tea", 59, 4), ("tea", 61, 5)]))
    >>> timed = sales.assign_timestamps("time", lambda sale: sale[1], unit="s")
    >>> on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    >>> keyed = on_time.key_by("article", lambda sale: sale[0]).map("price", lambda sale: sale[2])
    >>> mp.collect(keyed.window("minutes", windows.tumbling(timedelta(minutes=1))).sum())
    [WindowResult(start=0, end=60, value=7, update=False), WindowResult(start=60, end=120, value=5, update=False)]
    """
    return Sliding(_checked(size, "size"), size, origin, _clock(clock))


def sliding(size: Span, step: Span, *, origin: datetime | int = 0, clock: Clock = "event") -> Sliding:
    """Return windows of ``size`` that start every ``step``: each record is in several of them.

    >>> sliding(60, 20).in_unit("s", "docs")
    (60, 20, 0)
    """
    return Sliding(_checked(size, "size"), _checked(step, "step"), origin, _clock(clock))


def session(gap: Span, *, clock: Clock = "event") -> Session:
    """Return windows that end after ``gap`` without a record: ``end`` is the time of the last record + ``gap``."""
    return Session(_checked(gap, "gap"), _clock(clock))


def count(n: int) -> Count:
    """Return windows of ``n`` records each. The last, incomplete one closes at the end of the stream.

    On a stream with timestamps ``start`` is the smallest of its records and ``end`` the largest + 1.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise PlanError(f"windows.count takes a whole number of at least 1, got {n!r}")
    return Count(n)


def _checked(span: Any, what: str) -> Any:
    is_span = isinstance(span, timedelta | int) and not isinstance(span, bool)
    if not is_span or (span <= timedelta(0) if isinstance(span, timedelta) else span <= 0):
        raise PlanError(
            f"windows: {what} must be a timedelta above 0, or an int above 0 in the stream's unit, got {span!r}"
        )
    return span


def _clock(clock: Any) -> Any:
    if clock not in get_args(Clock):
        raise PlanError(f'windows: clock must be "event" or "processing", got {clock!r}')
    return clock


def whole_span(span: Span, unit: Unit, name: str, what: str) -> int:
    """Return ``span`` in ``unit``. `PlanError` naming the step if it is not a whole number of them."""
    if isinstance(span, timedelta) and span % (timedelta(seconds=1) / min(PER_SECOND[unit], 1_000_000)):
        raise PlanError(f"step {name!r}: the {what} {span} is not a whole number of {unit}, the unit of the stream")
    return to_span(span, unit)


def _and_clock(clock: Clock) -> str:
    return ")" if clock == "event" else f", clock={clock!r})"
