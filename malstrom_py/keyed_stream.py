"""The builder of keyed streams: what `StreamBuilder` has, and the steps that keep one state per key."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from malstrom_py.arguments import at_least, function_of, is_coroutine_function, sides_of
from malstrom_py.cache import Cache
from malstrom_py.errors import PlanError
from malstrom_py.logic import LogicLike, StatelessLike, hooks_of
from malstrom_py.names import check_name
from malstrom_py.operators.base import OnError
from malstrom_py.operators.calls import Asking
from malstrom_py.operators.collect import Collect
from malstrom_py.operators.enrich import Enrich
from malstrom_py.operators.stateful_flat_map import StatefulFlatMap
from malstrom_py.operators.stateful_map import StatefulMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.ttl_map import TtlMap
from malstrom_py.running_figures import By, RunningFigures, number_of
from malstrom_py.time import to_span
from malstrom_py.upgrades import Upgrade

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
S = TypeVar("S")
Info = TypeVar("Info")


class KeyedStreamBuilder(RunningFigures[K, V_co]):
    """A stream whose records have keys of type ``K``. All records of a key meet the same state, in order."""

    @overload
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[W, S | None]],
        *,
        default: Callable[[], S],
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S | None], tuple[W, S | None]],
        *,
        default: None = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, Any], tuple[W, Any]],
        *,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]:
        """One output per record: ``fn(key, value, state) -> (output, new state, or None to drop it)``.

        ``default`` makes the state of a key that has none; without it such a key's state is None.
        """
        factory = partial(StatefulMap, fn=function_of(fn, name), default=self._default(default, name))
        return self._then("stateful_map", name, factory, fn, on_error=on_error, upgrade=upgrade)

    @overload
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[Iterable[W], S | None]],
        *,
        default: Callable[[], S],
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    @overload
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S | None], tuple[Iterable[W], S | None]],
        *,
        default: None = ...,
        on_error: OnError = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]: ...
    def stateful_flat_map(
        self,
        name: str,
        fn: Callable[[K, V_co, Any], tuple[Iterable[W], Any]],
        *,
        default: Callable[[], Any] | None = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, W]:
        """Any number of outputs per record: ``fn(key, value, state) -> (outputs, new state, or None to drop it)``."""
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
        """`stateful_map`, whose state goes once the frontier passes its last record + ``ttl`` (event time)."""
        self._needs_epochs(name, "ttl_map")
        if not isinstance(ttl, timedelta | int) or isinstance(ttl, bool):
            raise PlanError(f"step {name!r}: ttl is a timedelta, or an int in the stream's unit, got {ttl!r}")
        span = to_span(ttl, self.traits.unit or "ms")
        if span <= 0:
            raise PlanError(f"step {name!r}: ttl must be positive, got {ttl!r}")
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
        **upgrade: Unpack[Upgrade],
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
        **upgrade: Unpack[Upgrade],
    ) -> tuple[KeyedStreamBuilder[K, Any], ...]: ...
    def stateful_op(
        self,
        name: str,
        logic: LogicLike[K, V_co, W, S],
        *,
        default: Callable[[], S] | None = None,
        sides: Any = None,
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> Any:
        """Any number of outputs per record, by a `StatefulLogic`, a `KeyedLogic` or a function like ``on_data``.

        With ``sides`` a tuple of streams: the main one, and one per name for what ``output.side(name)`` is sent.
        """
        check_name(name, "step")
        hooks = hooks_of(logic, name)
        if "on_timer" in hooks:
            self._needs_epochs(name, "on_timer")
        if "on_batch" in hooks and on_error != "fail":
            raise PlanError(
                f"step {name!r}: on_batch takes whole batches, so on_error={on_error!r} cannot tell which record "
                f"failed: override on_data instead"
            )
        made = self._default(default, name)
        factory = partial(StatefulOp, logic=logic, default=made, sides=sides_of(sides, name))
        return self._with_sides("stateful_op", name, factory, logic, sides, on_error=on_error, upgrade=upgrade)

    def collect(
        self, name: str, *, size: int | None = None, every: timedelta | None = None, **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, list[V_co]]:
        """A key's values as lists: of ``size`` values, or of what came in ``every`` (the runtime's clock)."""
        if size is None and every is None:
            raise PlanError(f"step {name!r}: collect needs size= or every=, or nothing would come before the end")
        size = None if size is None else at_least(1, size, name)
        if every is not None and (not isinstance(every, timedelta) or every <= timedelta(0)):
            raise PlanError(f"step {name!r}: every is a timedelta above 0, got {every!r}")
        every_s = None if every is None else every.total_seconds()
        return self._then("collect", name, partial(Collect, size=size, every_s=every_s), None, upgrade=upgrade)

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
        """``(value, await async_fn(key))`` per record, in order, with at most ``concurrency`` calls at a time.

        ``by`` takes what is asked about from the value instead of the key; ``combine(value, info)`` makes the output. A
        call may take ``timeout_s``; if it fails it is made ``retries`` times more, after pauses that begin with
        ``retry_backoff_s`` and double, up to 30 s; if it still fails ``on_error`` decides about the record. With a
        ``cache`` (a `Cache`, or a timedelta as its ``ttl``) answers are kept per worker, and records that ask the same
        at the same time share a call; without one each record asks for itself. Calls run in one event loop per worker:
        ``async_fn`` must await what takes long, for what blocks holds up all calls (``asyncio.to_thread`` helps).
        """
        asking = Asking(async_fn, concurrency, retries, retry_backoff_s, timeout_s).checked(name)
        kept = Cache(ttl=cache) if isinstance(cache, timedelta) else cache
        if kept is not None and not isinstance(kept, Cache):
            raise PlanError(f"step {name!r}: cache is an mp.Cache(…), or a timedelta, got {type(cache).__name__}")
        if is_coroutine_function(combine):
            raise PlanError(f"step {name!r}: combine is an ordinary function of value and info: let async_fn await")
        if combine is not None:
            function_of(combine, name)
        factory = partial(Enrich, asking=asking, by=number_of(by, name), cache=kept, combine=combine)
        return self._then("enrich", name, factory, async_fn, on_error=on_error, upgrade=upgrade)

    def _needs_epochs(self, name: str, what: str) -> None:
        if not self.traits.epochs:
            raise PlanError(
                f"step {name!r}: {what} runs on event time, but the stream has no epochs: put assign_timestamps "
                f"and generate_epochs before key_by, and go on with its on-time stream"
            )

    if TYPE_CHECKING:  # the same methods, which here lead to a keyed stream again

        def map(self, name: str, fn: Callable[[V_co], W], *, on_error: OnError = ...) -> KeyedStreamBuilder[K, W]: ...
        def filter_map(
            self, name: str, fn: Callable[[V_co], W | None], *, on_error: OnError = ...
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
