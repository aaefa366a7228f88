"""Calls of DataFrames on streams: ``group_by`` with windows and ``agg``, and ``with_watermark``.

Rule: they add steps that jobs may add themselves, and nothing else. The names of the steps follow from those of the
columns, so that a job that is started again finds its state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.builder.mistakes import named_before
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.errors import PlanError
from malstrom_py.validation import check_name
from malstrom_py.windows import Windows, session, sliding, tumbling

if TYPE_CHECKING:
    from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
    from malstrom_py.builder.stream import StreamBuilder

__tracebackhide__ = True  # pytest shows the line of the user

_PIECE: Final = r"(\d+)\s+(microsecond|millisecond|second|minute|hour|day|week)s?"
_LENGTH: Final = re.compile(rf"\s*(?:interval\s+)?{_PIECE}(?:\s+{_PIECE})*\s*", re.IGNORECASE)


@named_before
class GroupedWindows:
    """The windows of groups; `agg` adds the steps."""

    def __init__(self, group: GroupedStream, windows: Windows) -> None:
        self._group, self._windows, self._name = group, windows, group._name

    def agg(self, **aggs: Aggregation[Any, Any]) -> StreamBuilder[None, dict[str, Any]]:
        """Send a row for each group and window when it closes.

        Its fields are the columns of the group, ``window_start``, ``window_end``, and the aggregates.
        """
        group = self._group
        _check_names(group.columns, ("window_start", "window_end", *aggs))
        windowed = group.keyed().window(f"{group._name}-window", self._windows)
        return windowed.aggregate(**aggs).flat(f"{group._name}-rows")


@named_before
class GroupedStream:
    """The records of a stream by the values of columns; `agg` adds the steps, for all times or for each window."""

    def __init__(self, stream: StreamBuilder[Any, Any], columns: tuple[Any, ...], name: str | None) -> None:
        for column in columns or (None,):
            if not isinstance(column, str):
                raise PlanError(
                    f"group_by takes the names of columns, got {type(column).__name__ if columns else 'nothing'}: "
                    f"compute the column before it by with_columns, or use key_by('name', fn), which takes a function"
                )
        _check_names(columns, ())
        self._stream, self.columns = stream, columns
        self._name = _step_name("by-" + "-".join(columns), name, "group_by")

    def keyed(self) -> KeyedStreamBuilder[Any, Any]:
        """Add the step that keys the stream."""
        key: Any = self.columns[0] if len(self.columns) == 1 else itemgetter(*self.columns)
        return self._stream.key_by(self._name, key)

    def window(self, size: str | timedelta, slide: str | timedelta | None = None) -> GroupedWindows:
        """Gather the records in windows of ``size``, such as "1 minute", that begin every ``slide``."""
        length = span_of(size, "window")
        step = length if slide is None else span_of(slide, "window")
        return GroupedWindows(self, tumbling(length) if slide is None else sliding(length, step))

    def session_window(self, gap: str | timedelta) -> GroupedWindows:
        """Gather the records in windows that end when none has come for ``gap``."""
        return GroupedWindows(self, session(span_of(gap, "session_window")))

    def agg(self, **aggs: Aggregation[Any, Any]) -> KeyedStreamBuilder[Any, dict[str, Any]]:
        """Send for each record the row of its group so far; only the last one with ``.final()`` after it.

        Its fields are the aggregates and the columns of the group.
        """
        _check_names(self.columns, tuple(aggs))
        keyed: Any = self.keyed()  # names of aggregates may be those of options, which is then refused
        figures: KeyedStreamBuilder[Any, dict[str, Any]] = keyed.aggregate(f"{self._name}-agg", **aggs)
        if len(self.columns) == 1:
            return figures.map_with_key(f"{self._name}-rows", self.columns[0])
        return figures.map_with_key(f"{self._name}-rows", _with_columns(self.columns))


def _with_columns(columns: tuple[str, ...]) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
    return lambda key, row: {**row, **dict(zip(columns, key, strict=True))}


def _check_names(columns: tuple[str, ...], others: tuple[str, ...]) -> None:
    names = [*columns, *others]
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise PlanError(f"group_by and agg: rows would have two fields {repeated[0]!r}: give each its own name")


def _step_name(of_columns: str, name: str | None, call: str) -> str:
    """Return ``name``, or that of the columns if it may be one."""
    if name is not None:
        return check_name(name, "step")
    try:
        return check_name(of_columns, "step")
    except PlanError as error:
        raise PlanError(f"{call}: {error}: give name=") from None


def with_watermark(stream: Any, column: str, delay: str | timedelta, name: str | None) -> Any:
    """Time ``stream`` by ``column``, and return its records that are on time."""
    if not isinstance(column, str):
        raise PlanError(f"with_watermark takes the name of a column of times, got {type(column).__name__}")
    made = _step_name(column, name, "with_watermark")
    timed = stream.assign_timestamps(f"{made}-time", column, unit="us")  # as Spark's
    generator = limit_out_of_orderness(span_of(delay, "with_watermark"))
    return timed.generate_epochs(f"{made}-watermark", generator)[0]


def span_of(length: object, call: str) -> timedelta:
    """Return a length of time in Spark's words; `PlanError` if it is none.

    >>> span_of("1 minute 30 seconds", "window")
    datetime.timedelta(seconds=90)
    """
    if isinstance(length, timedelta):
        return length
    if isinstance(length, str) and _LENGTH.fullmatch(length):
        pieces = re.findall(_PIECE, length.lower())
        with suppress(OverflowError):
            return sum((timedelta(**{f"{unit}s": int(number)}) for number, unit in pieces), timedelta())
    raise PlanError(
        f"{call}: a length of time is a timedelta or text such as '1 minute' or '1 hour 30 minutes', in units from "
        f"microseconds to weeks: months and years differ in length, so give days, got {length!r}"
    )
