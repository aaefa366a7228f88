"""The builder of keyed streams: the steps that keep one state per key, besides those of `StreamBuilder`.

In this order: maps with state, custom logic, lists, enrichment, windows, and running aggregates per record. `Joins` has
the joins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from malstrom_py.agg import Aggregation
from malstrom_py.builder.joins import Joins
from malstrom_py.builder.mistakes import names_first
from malstrom_py.builder.plan import Port
from malstrom_py.builder.state_migration import Kept, Migrate, Upgrade, time_to_live
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.builder.windowed_stream import WindowedStream
from malstrom_py.errors import PlanError
from malstrom_py.operators.aggregate import Aggregate, Count, Distinct, Fold, Max, Mean, Min, Reduce, Sum, TopN
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.columns import KeyAsField
from malstrom_py.operators.final import Final
from malstrom_py.operators.flat import Flat
from malstrom_py.operators.logic import LogicLike, StatelessLike, hooks_of
from malstrom_py.operators.stateful_map import StatefulFlatMap, StatefulMap, TtlMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless import MapWithKey
from malstrom_py.validation import (
    at_least,
    check_name,
    field_getter,
    function_of,
    is_coroutine_function,
    kind_of_default,
    refuse_policy,
    sides_of,
)
from malstrom_py.windows import Clock, Windows

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from malstrom_py.operators.enrich.calls import Cache

__tracebackhide__ = True  # pytest shows the line of the user

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
S = TypeVar("S")
Info = TypeVar("Info")

By = Callable[[V], W] | str | None
"""The part of a value that an aggregate takes: a function, a column's name, or None for the value itself."""


def number_of(by: Callable[[Any], Any] | str | None, step: str) -> Callable[[Any], Any] | None:
    """Return ``by`` as a function of a value; None for the value itself."""
    return None if by is None else field_getter(by, step)


@names_first
class KeyedStreamBuilder(Joins[K, V_co]):
    """A stream whose records have keys of type ``K``. All records of a key use the same state, in order."""

    @overload
    def map_with_key(self, name: str, fn: str) -> KeyedStreamBuilder[K, dict[str, Any]]: ...
    @overload
    def map_with_key(
        self, name: str, fn: Callable[[K, V_co], W], *, on_error: OnError = ..., compile: bool = ...
    ) -> KeyedStreamBuilder[K, W]: ...
    def map_with_key(
        self, name: str, fn: Callable[[K, V_co], W] | str, *, on_error: OnError = "fail", compile: bool = True
    ) -> KeyedStreamBuilder[K, Any]:
        """Replace each value by ``fn(key, value)``; with a name by a dict of its fields and its key under that name.

        Columns stay columns with a name.
        """
        if isinstance(fn, str):
            refuse_policy(on_error, name, "the name of a field")
            return self._then("map_with_key", name, partial(KeyAsField, name=fn), None, detail=repr(fn))
        factory = partial(MapWithKey, fn=function_of(fn, name), compiles=compile and self.job.compiles)
        return self._then("map_with_key", name, factory, fn, on_error=on_error)

    @overload
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[W, S | None]],
        *,
        default: Callable[[], S],
        on_error: OnError = ...,
        compile: bool = ...,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S | None], tuple[W, S | None]],
        *,
        default: None = ...,
        on_error: OnError = ...,
        compile: bool = ...,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]: ...
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, Any], tuple[W, Any]],
        *,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]:
        """Emit one output per record: ``fn(key, value, state) -> (output, new state, or None to drop it)``.

        ``default()`` returns the state of a new key; without ``default`` that state is None.
        """
        factory = partial(
            StatefulMap,
            fn=function_of(fn, name),
            default=self._default(default, name),
            compiles=compile and self.job.compiles,
        )
        return self._then("stateful_map", name, factory, fn, on_error=on_error, upgrade=upgrade)

    @overload
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[Iterable[W], S | None]],
        *,
        default: Callable[[], S],
        on_error: OnError = ...,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S | None], tuple[Iterable[W], S | None]],
        *,
        default: None = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]: ...
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, Any], tuple[Iterable[W], Any]],
        *,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]:
        """Emit 0 to many outputs per record: ``fn(key, value, state) -> (outputs, new state, or None to drop it)``."""
        factory = partial(StatefulFlatMap, fn=function_of(fn, name), default=self._default(default, name))
        return self._then("stateful_flat_map", name, factory, fn, on_error=on_error, upgrade=upgrade)

    @overload
    def ttl_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[W, S | None]],
        *,
        ttl: timedelta | int,
        default: Callable[[], S],
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def ttl_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S | None], tuple[W, S | None]],
        *,
        ttl: timedelta | int,
        default: None = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    def ttl_map(
        self,
        name: str,
        fn: Callable[[K, V_co, Any], tuple[W, Any]],
        *,
        ttl: timedelta | int,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]:
        """Map as `stateful_map`; drop a key's state when the frontier passes its last record + ``ttl`` (event time)."""
        self._needs_epochs(name, "ttl_map")
        span = time_to_live(ttl, self.traits.unit, name)
        factory = partial(TtlMap, fn=function_of(fn, name), ttl=span, default=self._default(default, name))
        return self._then("ttl_map", name, factory, fn, on_error=on_error, upgrade=upgrade)

    @overload
    def stateful_op(
        self,
        name: str,
        logic: LogicLike[K, V_co, W, S],
        *,
        default: Callable[[], S] | None = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def stateful_op(
        self,
        name: str,
        logic: LogicLike[K, V_co, W, S],
        *,
        default: Callable[[], S] | None = ...,
        sides: Sequence[str],
        on_error: OnError = ...,
        **upgrade: Unpack[Kept],
    ) -> tuple[KeyedStreamBuilder[K, Any], ...]: ...
    def stateful_op(
        self,
        name: str,
        logic: LogicLike[K, V_co, W, S],
        *,
        default: Callable[[], S] | None = None,
        sides: Any = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Kept],
    ) -> Any:
        """Emit any number of outputs per record, by a `StatefulLogic`, a `KeyedLogic` or a function like ``on_data``.

        With ``sides``, return a tuple: the main stream, then one stream per name, as sent to ``output.side(name)``.
        """
        check_name(name, "step")
        hooks = hooks_of(logic, name)
        if "on_batch" in hooks and on_error != "fail":
            raise PlanError(
                f"step {name!r}: on_batch takes whole batches, so on_error={on_error!r} cannot identify the failed "
                f"record: override on_data instead"
            )
        made = self._default(default, name)
        factory = partial(
            StatefulOp, logic=logic, default=made, sides=sides_of(sides, name), event_time=self.traits.epochs
        )
        return self._with_sides("stateful_op", name, factory, logic, sides, on_error=on_error, upgrade=upgrade)

    def collect(
        self, name: str, *, size: int | None = None, every: timedelta | None = None, **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, list[V_co]]:
        """Emit a key's values as lists: of ``size`` values, or of those within ``every`` (by the runtime's clock)."""
        if size is None and every is None:
            raise PlanError(
                f"step {name!r}: collect needs size= or every=: without either it emits nothing until the end"
            )
        size = None if size is None else at_least(1, size, name, "size")
        if every is not None and (not isinstance(every, timedelta) or every <= timedelta(0)):
            raise PlanError(f"step {name!r}: every must be a timedelta above 0, got {every!r}")
        every_s = None if every is None else every.total_seconds()
        return self._then("collect", name, partial(CollectStep, size=size, every_s=every_s), None, upgrade=upgrade)

    @overload
    def enrich(
        self,
        name: str,
        async_fn: Callable[[Any], Coroutine[Any, Any, Info]],
        *,
        combine: Callable[[V_co, Info], W],
        by: By[V_co, Any] = ...,
        concurrency: int = ...,
        cache: Cache | timedelta | None = ...,
        retries: int = ...,
        retry_backoff_s: float = ...,
        timeout_s: float = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def enrich(
        self,
        name: str,
        async_fn: Callable[[Any], Coroutine[Any, Any, Info]],
        *,
        combine: None = ...,
        by: By[V_co, Any] = ...,
        concurrency: int = ...,
        cache: Cache | timedelta | None = ...,
        retries: int = ...,
        retry_backoff_s: float = ...,
        timeout_s: float = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, tuple[V_co, Info]]: ...
    def enrich(
        self,
        name: str,
        async_fn: Callable[[Any], Coroutine[Any, Any, Any]],
        *,
        by: By[V_co, Any] = None,
        concurrency: int = 16,
        cache: Cache | timedelta | None = None,
        retries: int = 0,
        retry_backoff_s: float = 0.1,
        timeout_s: float = 30.0,
        combine: Callable[[V_co, Any], Any] | None = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Any]:
        """Emit ``(value, await async_fn(key))`` per record, in order, with at most ``concurrency`` calls in flight.

        ``by`` takes the argument of the call from the value instead of the key; ``combine(value, info)`` returns the
        output. The timeout of a call is ``timeout_s``. A failed call is retried ``retries`` times, with a backoff that
        starts at ``retry_backoff_s`` and doubles up to 30 s; then ``on_error`` decides about the record. With a
        ``cache`` (a `Cache`, or a timedelta as its ``ttl``) answers are cached per worker, and concurrent records with
        the same argument share a call; without a cache each record makes its own call. Calls run in one event loop per
        worker: ``async_fn`` must await operations that take long, because blocking code delays all calls
        (``asyncio.to_thread`` helps).
        """
        from malstrom_py.operators.enrich.calls import Asking, Cache  # with asyncio, which is slow to import
        from malstrom_py.operators.enrich.enrich import Enrich

        asking = Asking(async_fn, concurrency, retries, retry_backoff_s, timeout_s).checked(name)
        kept = Cache(ttl=cache) if isinstance(cache, timedelta) else cache
        if kept is not None and not isinstance(kept, Cache):
            raise PlanError(f"step {name!r}: cache must be an mp.Cache(…), or a timedelta, got {type(cache).__name__}")
        if is_coroutine_function(combine):
            raise PlanError(
                f"step {name!r}: combine must be an ordinary function of value and info: await in async_fn instead"
            )
        if combine is not None:
            function_of(combine, name)
        factory = partial(Enrich, asking=asking, by=number_of(by, name), cache=kept, combine=combine)
        return self._then("enrich", name, factory, async_fn, on_error=on_error, upgrade=upgrade)

    def window(
        self,
        name: str,
        windows: Windows,
        *,
        emit: Literal["close"] | timedelta | int = "close",
        clock: Clock = "event",
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Upgrade],
    ) -> WindowedStream[K, V_co]:
        """Gather the records of each key into ``windows`` of `malstrom_py.windows`; a method of the result says how.

        Each window sends one final `WindowResult` under its key when it closes; `flat` and sinks of tables make flat
        rows of them. With ``emit`` it also sends early ones, marked ``update=True``: a timedelta, in event time or,
        with ``clock="processing"``, on the runtime's clock; or a number of records. No record is late here: lateness is
        decided at ``generate_epochs``.
        """
        options: dict[str, Any] = {"on_error": on_error, "upgrade": upgrade}
        return WindowedStream(self, name, windows, emit, clock, options, compiles=compile and self.job.compiles)

    def flat(self, name: str) -> StreamBuilder[None, dict[str, Any]]:
        """Replace each result of a window by a flat dict, without a key: for a table, or a message.

        Its items are the key by the name of its column (``key`` if a function made it), ``window_start`` and
        ``window_end`` as datetimes in UTC, and the aggregates by their names, or ``value``; with early results also
        ``update``. Windows of a number of records without timestamps have no start and end here. Columns stay columns.
        Sinks of tables do the same with results of windows: this step is for others.
        """
        flat = self.traits.flat
        if flat is None:
            raise PlanError(
                f"step {name!r}: flat takes the results of windows, and no window is before it: put it after "
                f".window('…', …).aggregate(…)"
            )
        traits = replace(self.traits, keyed=False, partitioner=None, key_names=("key",), results=None)
        ref = self._add("flat", name, partial(Flat, flat=flat), None, traits=traits, detail=", ".join(flat.keys))
        return StreamBuilder(self.job, ref, traits)

    def reduce(
        self,
        name: str,
        fn: Callable[[V_co, V_co], V_co],
        *,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, V_co]:
        """Emit per record its key's values so far, combined by ``fn(accumulated, value)``."""
        return self._then(
            "reduce",
            name,
            partial(Reduce, fn=function_of(fn, name), compiles=compile and self.job.compiles),
            fn,
            on_error=on_error,
            upgrade=upgrade,
        )

    def fold(
        self,
        name: str,
        fn: Callable[[S, V_co], S],
        *,
        default: Callable[[], S],
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, S]:
        """Emit per record ``fn(accumulated, value)``, starting with ``default()``."""
        compiles = compile and self.job.compiles
        factory = partial(Fold, fn=function_of(fn, name), default=self._default(default, name), compiles=compiles)
        return self._then("fold", name, factory, fn, on_error=on_error, upgrade=upgrade)

    def count(self, name: str, **upgrade: Unpack[Kept]) -> KeyedStreamBuilder[K, int]:
        """Emit per record the number of records of its key so far."""
        return self._then("count", name, Count, None, upgrade=upgrade)

    def sum(
        self,
        name: str,
        *,
        by: By[V_co, Any] = None,
        skip_nulls: bool = False,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, Any]:
        """Emit per record the sum of its key's values so far."""
        options: dict[str, Any] = {"skip_nulls": skip_nulls, "compiles": compile and self.job.compiles}
        factory = partial(Sum, by=number_of(by, name), **options)
        return self._then("sum", name, factory, by, on_error=on_error, upgrade=upgrade)

    def min(
        self,
        name: str,
        *,
        by: By[V_co, Any] = None,
        skip_nulls: bool = False,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, Any]:
        """Emit per record the smallest of its key's values so far."""
        options: dict[str, Any] = {"skip_nulls": skip_nulls, "compiles": compile and self.job.compiles}
        factory = partial(Min, by=number_of(by, name), **options)
        return self._then("min", name, factory, by, on_error=on_error, upgrade=upgrade)

    def max(
        self,
        name: str,
        *,
        by: By[V_co, Any] = None,
        skip_nulls: bool = False,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, Any]:
        """Emit per record the largest of its key's values so far."""
        options: dict[str, Any] = {"skip_nulls": skip_nulls, "compiles": compile and self.job.compiles}
        factory = partial(Max, by=number_of(by, name), **options)
        return self._then("max", name, factory, by, on_error=on_error, upgrade=upgrade)

    def mean(
        self,
        name: str,
        *,
        by: By[V_co, Any] = None,
        skip_nulls: bool = False,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, float]:
        """Emit per record the mean of its key's values so far."""
        options: dict[str, Any] = {"skip_nulls": skip_nulls, "compiles": compile and self.job.compiles}
        factory = partial(Mean, by=number_of(by, name), **options)
        return self._then("mean", name, factory, by, on_error=on_error, upgrade=upgrade)

    def aggregate(
        self,
        name: str,
        /,
        *,
        on_error: OnError = "fail",
        renamed_from: str | None = None,
        migrate: Migrate | None = None,
        initial_state: Any = None,
        ttl: timedelta | int | None = None,
        **aggs: Aggregation[Any, Any],
    ) -> KeyedStreamBuilder[K, dict[str, Any]]:
        """Emit per record a dict of aggregates of its key's records so far: ``total=agg.sum("price"), n=agg.count()``.

        `malstrom_py.agg` lists the aggregates. A record that one aggregate cannot take changes no state.
        """
        check_name(name, "step")
        self._check_aggregations(aggs, name)
        detail = ", ".join(f"{label}={one}" for label, one in aggs.items())
        factory = partial(Aggregate, aggregations=aggs, compiles=self.job.compiles)
        kept: Kept = {"renamed_from": renamed_from, "migrate": migrate, "initial_state": initial_state, "ttl": ttl}
        return self._then("aggregate", name, factory, None, on_error=on_error, detail=detail, upgrade=kept)

    def top_n(
        self,
        name: str,
        n: int,
        *,
        by: By[V_co, Any] = None,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, list[V_co]]:
        """Emit per record the list of its key's ``n`` largest values so far, largest first."""
        compiles = compile and self.job.compiles
        factory = partial(TopN, n=at_least(1, n, name, "n"), by=number_of(by, name), compiles=compiles)
        return self._then("top_n", name, factory, by, on_error=on_error, upgrade=upgrade)

    def distinct(
        self,
        name: str,
        *,
        by: By[V_co, Any] = None,
        on_error: OnError = "fail",
        compile: bool = True,
        **upgrade: Unpack[Kept],
    ) -> KeyedStreamBuilder[K, V_co]:
        """Keep the first record of each value (or of each ``by``) per key."""
        factory = partial(Distinct, by=number_of(by, name), compiles=compile and self.job.compiles)
        return self._then("distinct", name, factory, by, on_error=on_error, upgrade=upgrade)

    def final(self, name: str | None = None, **upgrade: Unpack[Upgrade]) -> KeyedStreamBuilder[K, V_co]:
        """Send the last value of each key, once, at the end of the stream: of a running aggregate the final one.

        ``name``: by default that of the step before, with ``-final``. The stream has no timestamps after it.
        """
        traits = replace(self.traits, unit=None, epochs=False)
        ports = (Port(epochs=False),)
        step = f"{self.ref.step}-final" if name is None else name
        return self._then("final", step, Final, None, traits=traits, ports=ports, upgrade=upgrade)

    def _check_aggregations(self, aggs: Mapping[str, object], name: str) -> None:
        """Check the arguments of `aggregate`, and register the types of their states."""
        if not aggs:
            raise PlanError(f"step {name!r}: name at least one aggregate, such as n=agg.count()")
        for label, one in aggs.items():
            if not isinstance(one, Aggregation):
                raise PlanError(
                    f"step {name!r}: {label} must be an aggregate, which agg.count() or agg.sum('price') return, "
                    f"got {type(one).__name__}"
                )
            if one.timed and self.traits.unit is None:
                raise PlanError(
                    f"step {name!r}: {label}={one} goes by the timestamps of records, which this stream does not have: "
                    f"use assign_timestamps before it, or agg.{'first' if one.name == 'earliest' else 'last'}, which "
                    f"goes by their arrival"
                )
            self._default(one.init, name, f"init of {label}")

    def _default(self, default: object, step: str, what: str = "default") -> Any:
        """Check ``default`` and register the type of state that it returns; this calls it once."""
        if default is None:
            return None
        self.job.register_state(kind_of_default(default, step, what=what))
        return default

    if TYPE_CHECKING:  # the inherited methods: on a keyed stream they return a keyed stream

        def _then(
            self, kind: str, name: str, factory: OperatorFactory, function: object, **options: Any
        ) -> KeyedStreamBuilder[K, Any]: ...

        def map(
            self, name: str, fn: Callable[[V_co], W], *, on_error: OnError = ..., compile: bool = ...
        ) -> KeyedStreamBuilder[K, W]: ...
        def filter_map(
            self, name: str, fn: Callable[[V_co], W | None], *, on_error: OnError = ..., compile: bool = ...
        ) -> KeyedStreamBuilder[K, W]: ...
        def flat_map(
            self, name: str, fn: Callable[[V_co], Iterable[W]], *, on_error: OnError = ...
        ) -> KeyedStreamBuilder[K, W]: ...
        def flatten(
            self: KeyedStreamBuilder[K, Iterable[W]], name: str, *, on_error: OnError = ...
        ) -> KeyedStreamBuilder[K, W]: ...
        @overload
        def stateless_op(
            self, name: str, logic: StatelessLike[K, V_co, W], *, on_error: OnError = ...
        ) -> KeyedStreamBuilder[K, W]: ...
        @overload
        def stateless_op(
            self, name: str, logic: StatelessLike[K, V_co, W], *, sides: Sequence[str], on_error: OnError = ...
        ) -> tuple[KeyedStreamBuilder[K, Any], ...]: ...
        def stateless_op(self, name: str, logic: Any, *, sides: Any = ..., on_error: OnError = ...) -> Any: ...
        def select(
            self, name: str, /, *expressions: pl.Expr | str, **named: pl.Expr | str
        ) -> KeyedStreamBuilder[K, dict[str, Any]]: ...
        def with_columns(
            self, name: str, /, *expressions: pl.Expr | str, **named: pl.Expr | str
        ) -> KeyedStreamBuilder[K, dict[str, Any]]: ...
        def map_batches(
            self, name: str, fn: Callable[[pa.RecordBatch], pa.RecordBatch]
        ) -> KeyedStreamBuilder[K, dict[str, Any]]: ...
