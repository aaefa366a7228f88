"""The builder of windows: what ``keyed.window(…)`` returns, whose methods add the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, get_args

from malstrom_py import agg
from malstrom_py.agg import Aggregation
from malstrom_py.builder.mistakes import named_before
from malstrom_py.builder.plan import Port
from malstrom_py.data.time import Unit, to_span
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import OperatorFactory
from malstrom_py.operators.flat import FlatResults
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import (
    CLOSE,
    CountWindows,
    Emit,
    Gathering,
    SessionWindows,
    gather_all,
    gather_fold,
    gather_list,
    gather_one,
    gather_reduce,
)
from malstrom_py.validation import check_name, function_of
from malstrom_py.windows import Clock, Count, Session, Sliding, WindowResult, Windows

if TYPE_CHECKING:
    from malstrom_py.builder.keyed_stream import KeyedStreamBuilder

__tracebackhide__ = True  # pytest shows the line of the user

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
S = TypeVar("S")

By = Callable[[V], W] | str | None
"""The part of a value that an aggregate takes: a function, a column's name, or None for the value itself."""


@named_before
class WindowedStream(Generic[K, V_co]):
    """The windows of a keyed stream. Each method adds the step; `KeyedStreamBuilder.window` says what it sends."""

    def __init__(
        self,
        stream: KeyedStreamBuilder[K, V_co],
        name: str,
        windows: Windows,
        emit: Literal["close"] | timedelta | int,
        clock: Clock,
        options: dict[str, Any],
        *,
        compiles: bool = True,
    ) -> None:
        check_name(name, "step")
        if not isinstance(windows, Sliding | Session | Count):
            raise PlanError(
                f"step {name!r}: window takes windows.tumbling(…) or the like, got {type(windows).__name__}"
            )
        self._stream = stream
        self._name, self._windows, self._options, self._compiles = name, windows, options, compiles
        self._unit: Unit = "ms"
        self._by_clock = not isinstance(windows, Count) and windows.clock == "processing"
        if not isinstance(windows, Count) and not self._by_clock:
            stream._needs_epochs(name, "window")
            self._unit = stream.traits.unit or "ms"
        self._emit = self._emit_of(emit, clock)

    def aggregate(self, **aggs: Aggregation[Any, Any]) -> KeyedStreamBuilder[K, WindowResult[dict[str, Any]]]:
        """Send a dict of aggregates of each window's records: ``total=agg.sum("price"), n=agg.count()``."""
        self._stream._check_aggregations(aggs, self._name)
        return self._add(partial(gather_all, aggs), ", ".join(f"{name}={one}" for name, one in aggs.items()))

    def fold(
        self, fn: Callable[[S, V_co], S], *, default: Callable[[], S], merge: Callable[[S, S], S] | None = None
    ) -> KeyedStreamBuilder[K, WindowResult[S]]:
        """Send ``fn(accumulated, value)`` over each window's records, starting with ``default()``.

        ``merge(earlier, later)`` returns the result of two parts of a window, which arrived one after the other. With
        it sliding windows add each record once; sessions need it, because a record may join two of them. ``fn`` may
        change what it is given only if it cannot fail.
        """
        if merge is None and isinstance(self._windows, Session):
            raise PlanError(
                f"step {self._name!r}: a record may join two sessions, so fold needs merge=, for both results"
            )
        function_of(fn, self._name)
        made = self._stream._default(default, self._name)
        joined = None if merge is None else function_of(merge, self._name, "merge= to be a function")
        return self._add(partial(gather_fold, fn, made, joined), describe_function(fn))

    def reduce(self, fn: Callable[[V_co, V_co], V_co]) -> KeyedStreamBuilder[K, WindowResult[V_co]]:
        """Send each window's values, combined by ``fn(accumulated, value)``, which is associative."""
        return self._add(partial(gather_reduce, function_of(fn, self._name)), describe_function(fn))

    def collect(self) -> KeyedStreamBuilder[K, WindowResult[list[V_co]]]:
        """Send the list of each window's values, in the order of arrival."""
        return self._add(gather_list, "collect")

    def count(self) -> KeyedStreamBuilder[K, WindowResult[int]]:
        """Send the number of each window's records."""
        return self._one(agg.count())

    def sum(self, by: By[V_co, Any] = None, *, skip_nulls: bool = False) -> KeyedStreamBuilder[K, WindowResult[Any]]:
        """Send the sum of each window's values."""
        return self._one(agg.sum(by, skip_nulls=skip_nulls))

    def min(self, by: By[V_co, Any] = None, *, skip_nulls: bool = False) -> KeyedStreamBuilder[K, WindowResult[Any]]:
        """Send the smallest of each window's values."""
        return self._one(agg.min(by, skip_nulls=skip_nulls))

    def max(self, by: By[V_co, Any] = None, *, skip_nulls: bool = False) -> KeyedStreamBuilder[K, WindowResult[Any]]:
        """Send the largest of each window's values."""
        return self._one(agg.max(by, skip_nulls=skip_nulls))

    def mean(self, by: By[V_co, Any] = None, *, skip_nulls: bool = False) -> KeyedStreamBuilder[K, WindowResult[float]]:
        """Send the mean of each window's values."""
        return self._one(agg.mean(by, skip_nulls=skip_nulls))

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            if attribute.startswith("_"):
                raise AttributeError(attribute, name=attribute, obj=self)
            raise AttributeError(
                f"WindowedStream has no method {attribute!r}: say first what becomes of each window's records, for "
                f"instance .window({self._name!r}, …).aggregate(n=agg.count()), or .count(), .sum(by), .collect(); "
                f"that returns a stream, which has .{attribute}(…)",
                name=attribute,
                obj=self,
            )

    def _one(self, one: Aggregation[Any, Any]) -> KeyedStreamBuilder[K, WindowResult[Any]]:
        return self._add(partial(gather_one, one), repr(one))

    def _add(self, gather: Callable[[], Gathering], how: str) -> KeyedStreamBuilder[K, WindowResult[Any]]:
        stream, name, windows = self._stream, self._name, self._windows
        stream.job.register_type(WindowResult)
        unit: Unit | None = "ms" if self._by_clock else stream.traits.unit
        flat = FlatResults(stream.traits.key_names, unit, early=self._emit != CLOSE)
        traits = replace(stream.traits, results=flat)
        if self._by_clock:
            traits = replace(traits, unit=None, epochs=False)
        factory: OperatorFactory
        if isinstance(windows, Count):
            factory = partial(CountWindows, gather=gather, n=windows.n)
        else:
            common: dict[str, Any] = {"gather": gather, "emit": self._emit, "by_clock": self._by_clock}
            if isinstance(windows, Session):
                factory = partial(SessionWindows, gap=windows.in_unit(self._unit, name), **common)
            else:
                size, step, origin = windows.in_unit(self._unit, name)
                common["compiles"] = self._compiles
                factory = partial(TimeWindows, size=size, step=step, origin=origin, **common)
        ports = (Port(epochs=traits.epochs),)
        detail = f"{windows}, {how}"
        return stream._then("window", name, factory, None, traits=traits, ports=ports, detail=detail, **self._options)

    def _emit_of(self, emit: object, clock: object) -> Emit:
        if clock not in get_args(Clock):
            raise PlanError(f'step {self._name!r}: clock must be "event" or "processing", got {clock!r}')
        if emit == "close":
            return CLOSE
        if not isinstance(self._windows, Count):
            if isinstance(emit, timedelta) and emit > timedelta(0):
                by_clock = self._by_clock or clock == "processing"
                return Emit(every=max(1, to_span(emit, "ms" if by_clock else self._unit)), by_clock=by_clock)
            if isinstance(emit, int) and not isinstance(emit, bool) and emit > 0:
                return Emit(rows=emit)
        raise PlanError(
            f'step {self._name!r}: emit must be "close" or, of windows of time, a timedelta above 0 or a number of '
            f"records, got {emit!r}"
        )
