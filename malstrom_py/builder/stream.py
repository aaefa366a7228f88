"""The builder of streams. A builder is one output stream of a step; using a builder twice is fan-out.

Rule: an error that can be found at a call raises `PlanError` at that call; nothing runs while a job is built.
``malstrom_py.operators`` has one file per step, with what the step does in detail and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar, get_args, overload

from malstrom_py.builder.initial_state import initial_state_of
from malstrom_py.builder.mistakes import names_first, sink_of, stream_tuple
from malstrom_py.builder.plan import (
    DEAD_LETTERS,
    PartitionerLike,
    Port,
    Step,
    StreamRef,
    Traits,
    check_partitioner,
    epochs_traits,
    union_traits,
)
from malstrom_py.builder.state_migration import Upgrade, former_name, migration_of, refuse_unknown, time_to_live
from malstrom_py.data.epochs import EpochGenerator, after_s, max_ahead_of
from malstrom_py.data.time import Unit, check_unit
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_function
from malstrom_py.errors.unknown_names import STREAM, unknown_attribute
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.branching import Branch, Cloned, Split, Union
from malstrom_py.operators.columns import FilterColumns, MapBatches, Select, WithColumns, expressions_of, is_expression
from malstrom_py.operators.event_time import AssignTimestamps, GenerateEpochs
from malstrom_py.operators.flat import key_names
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.keyed import expiring
from malstrom_py.operators.logic import StatelessLike, stateless_hooks_of
from malstrom_py.operators.stateless import Filter, FilterMap, FlatMap, Flatten, Inspect, InspectFrontier, Map
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.operators.write_sink import KeyByPart, WriteParts, WriteSink
from malstrom_py.sinks.base import (
    BaseTransactionalSink,
    PartitionedSink,
    Sink,
    StatelessSink,
    TransactionalSink,
    check_sink,
)
from malstrom_py.validation import (
    NAME_MAX,
    at_least,
    check_name,
    field_getter,
    function_of,
    refuse_class,
    refuse_policy,
    short,
    sides_of,
)

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from malstrom_py.builder.grouped import GroupedStream
    from malstrom_py.builder.job import Job
    from malstrom_py.builder.keyed_stream import KeyedStreamBuilder

__tracebackhide__ = True  # pytest shows the line of the user

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
K2 = TypeVar("K2")
W = TypeVar("W")

KEYED_METHODS = frozenset(
    (
        *("stateful_map", "stateful_flat_map", "stateful_op", "ttl_map", "reduce", "fold", "count", "sum", "min"),
        *("max", "mean", "top_n", "distinct", "collect", "aggregate", "enrich", "window", "final"),
        *("join", "join_interval", "join_asof", "join_table"),
        "map_with_key",
        "flat",
    )
)


_PREDICATE: Final = "a function, or a Polars expression such as pl.col('price') > 1"


@names_first
class StreamBuilder(Generic[K, V_co]):
    """A stream of values of type ``V``. ``K`` is the type of its keys, None for a stream without keys."""

    def __init__(self, job: Job, ref: StreamRef, traits: Traits) -> None:
        self.job = job
        self.ref = ref
        self.traits = traits

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ref.step!r})"

    def _repr_html_(self) -> str:
        """A picture of the steps up to this stream, for a notebook."""
        return self.job.shown_to(self.ref)

    def map(
        self, name: str, fn: Callable[[V_co], W], *, on_error: OnError = "fail", compile: bool = True
    ) -> StreamBuilder[K, W]:
        """Replace each value by ``fn(value)``."""
        factory = partial(Map, fn=function_of(fn, name), compiles=compile and self.job.compiles)
        return self._then("map", name, factory, fn, on_error=on_error)

    def filter(
        self,
        name: str,
        predicate: Callable[[V_co], object] | pl.Expr,
        *,
        on_error: OnError = "fail",
        compile: bool = True,
    ) -> Self:
        """Keep the records for whose value ``predicate`` is true: a function, or a Polars expression of columns."""
        if is_expression(predicate):
            refuse_policy(on_error, name, "an expression")
            (expression,) = expressions_of([predicate], {}, name)
            return self._same(
                "filter", name, partial(FilterColumns, predicate=expression), None, detail=short(predicate)
            )
        compiles = compile and self.job.compiles
        function = partial(Filter, predicate=function_of(predicate, name, _PREDICATE), compiles=compiles)
        return self._same("filter", name, function, predicate, on_error=on_error)

    def filter_map(
        self, name: str, fn: Callable[[V_co], W | None], *, on_error: OnError = "fail", compile: bool = True
    ) -> StreamBuilder[K, W]:
        """Replace each value by ``fn(value)``, and drop the record where that is None."""
        factory = partial(FilterMap, fn=function_of(fn, name), compiles=compile and self.job.compiles)
        return self._then("filter_map", name, factory, fn, on_error=on_error)

    def flat_map(
        self, name: str, fn: Callable[[V_co], Iterable[W]], *, on_error: OnError = "fail"
    ) -> StreamBuilder[K, W]:
        """Replace each record by one record per item of ``fn(value)``, in order."""
        return self._then("flat_map", name, partial(FlatMap, fn=function_of(fn, name)), fn, on_error=on_error)

    def flatten(self: StreamBuilder[K, Iterable[W]], name: str, *, on_error: OnError = "fail") -> StreamBuilder[K, W]:
        """Replace each record by one record per item of its value, in order."""
        return self._then("flatten", name, Flatten, None, on_error=on_error)

    def inspect(self, name: str, fn: Callable[[V_co], object], *, on_error: OnError = "fail") -> Self:
        """Call ``fn(value)`` for its effect; records pass unchanged."""
        return self._same("inspect", name, partial(Inspect, fn=function_of(fn, name)), fn, on_error=on_error)

    def select(
        self, name: str, /, *expressions: pl.Expr | str, **named: pl.Expr | str
    ) -> StreamBuilder[K, dict[str, Any]]:
        """Replace each record's columns by Polars expressions, which work row by row; a str is a column."""
        found = expressions_of(expressions, named, name)
        return self._then("select", name, partial(Select, expressions=found), None, detail=_shown(found))

    def with_columns(
        self, name: str, /, *expressions: pl.Expr | str, **named: pl.Expr | str
    ) -> StreamBuilder[K, dict[str, Any]]:
        """Add columns to each record, or replace them, by Polars expressions, which work row by row."""
        found = expressions_of(expressions, named, name)
        return self._then("with_columns", name, partial(WithColumns, expressions=found), None, detail=_shown(found))

    def map_batches(
        self, name: str, fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> StreamBuilder[K, dict[str, Any]]:
        """Replace the values, many records at a time, by ``fn`` of their columns as an Arrow ``RecordBatch``."""
        return self._then("map_batches", name, partial(MapBatches, fn=function_of(fn, name)), fn)

    def inspect_frontier(self, name: str, fn: Callable[[int], object]) -> Self:
        """Call ``fn(frontier)`` each time event time advances, finally with `MAX_EPOCH`; records pass unchanged."""
        return self._same("inspect_frontier", name, partial(InspectFrontier, fn=function_of(fn, name)), fn)

    def branch(
        self, name: str, predicate: Callable[[V_co], object], *, on_error: OnError = "fail", compile: bool = True
    ) -> tuple[Self, Self]:
        """Return two streams: the records for whose value ``predicate`` is true, and the others."""
        factory = partial(Branch, predicate=function_of(predicate, name), compiles=compile and self.job.compiles)
        ports = (Port("yes"), Port("no"))
        ref = self._add("branch", name, factory, predicate, ports=ports, on_error=on_error)
        return stream_tuple("branch", (self._at(ref, 0), self._at(ref, 1)), ("yes", "no"))  # type: ignore[no-any-return]

    def split(
        self,
        name: str,
        n: int,
        fn: Callable[[V_co], Iterable[int]],
        *,
        on_error: OnError = "fail",
        compile: bool = True,
    ) -> tuple[Self, ...]:
        """Return ``n`` streams: each record goes to those whose numbers ``fn(value)`` returns, one, several or none."""
        compiles = compile and self.job.compiles
        factory = partial(Split, n=at_least(1, n, name, "n"), fn=function_of(fn, name), compiles=compiles)
        ports = tuple(Port(str(number)) for number in range(n))
        ref = self._add("split", name, factory, fn, ports=ports, on_error=on_error)
        return stream_tuple("split", (self._at(ref, number) for number in range(n)))  # type: ignore[no-any-return]

    def cloned(self, name: str, n: int) -> tuple[Self, ...]:
        """Return ``n`` streams with all records each."""
        ports = tuple(Port(str(number)) for number in range(at_least(1, n, name, "n")))
        ref = self._add("cloned", name, partial(Cloned, n=n), None, ports=ports)
        return stream_tuple("cloned", (self._at(ref, number) for number in range(n)))  # type: ignore[no-any-return]

    def union(self, name: str, *streams: StreamBuilder[K, V_co]) -> Self:
        """Merge this stream and ``streams``. All must have the same keying and the same timestamps and watermarks."""
        check_name(name, "step")
        for stream in streams:
            if not isinstance(stream, StreamBuilder):
                raise PlanError(f"step {name!r}: a union takes streams, got {type(stream).__name__}")
        if any(stream.job is not self.job for stream in streams):
            raise PlanError(f"step {name!r}: a union takes streams of one job only")
        traits = union_traits(name, [self.traits, *(stream.traits for stream in streams)])
        ref = self._add("union", name, Union, None, traits=traits, also=tuple(stream.ref for stream in streams))
        return self._at(ref, 0, traits)

    @overload
    def stateless_op(
        self, name: str, logic: StatelessLike[K, V_co, W], *, on_error: OnError = ...
    ) -> StreamBuilder[K, W]: ...
    @overload
    def stateless_op(
        self, name: str, logic: StatelessLike[K, V_co, W], *, sides: Sequence[str], on_error: OnError = ...
    ) -> tuple[StreamBuilder[K, Any], ...]: ...
    def stateless_op(
        self, name: str, logic: StatelessLike[K, V_co, W], *, sides: Any = None, on_error: OnError = "fail"
    ) -> Any:
        """Emit any number of outputs per record, by a logic with ``on_data(message, output)`` or such a function.

        With ``sides``, return a tuple: the main stream, then one stream per name, as sent to ``output.side(name)``.
        """
        stateless_hooks_of(logic, name)
        factory = partial(StatelessOp, logic=logic, sides=sides_of(sides, name))
        return self._with_sides("stateless_op", name, factory, logic, sides, on_error=on_error)

    @overload
    def key_by(
        self,
        name: str,
        key: str,
        *,
        partitioner: PartitionerLike | None = ...,
        on_error: OnError = ...,
        renamed_from: str | None = ...,
        compile: bool = ...,
    ) -> KeyedStreamBuilder[Any, V_co]: ...
    @overload
    def key_by(
        self,
        name: str,
        key: Callable[[V_co], K2],
        *,
        partitioner: PartitionerLike | None = ...,
        on_error: OnError = ...,
        renamed_from: str | None = ...,
        compile: bool = ...,
    ) -> KeyedStreamBuilder[K2, V_co]: ...
    def key_by(
        self,
        name: str,
        key: Callable[[V_co], Any] | str,
        *,
        partitioner: PartitionerLike | None = None,
        on_error: OnError = "fail",
        renamed_from: str | None = None,
        compile: bool = True,
    ) -> KeyedStreamBuilder[Any, V_co]:
        """Key each record by ``key(value)``, or by the column of that name, and distribute by key.

        ``partitioner`` is one of `malstrom_py.partitioners` or a function key -> slot; the default is a stable hash.
        """
        from malstrom_py.builder.keyed_stream import KeyedStreamBuilder

        checked = check_partitioner(partitioner, name)
        traits = replace(
            self.traits, keyed=True, local=False, region=name, partitioner=checked, key_names=key_names(key)
        )
        function = field_getter(key, name)
        column, compiles = key if isinstance(key, str) else None, compile and self.job.compiles
        factory = partial(KeyBy, fn=function, column=column, compiles=compiles)
        options: dict[str, Any] = {"on_error": on_error, "upgrade": {"renamed_from": renamed_from}}
        ref = self._add("key_by", name, factory, function, traits=traits, **options)
        return KeyedStreamBuilder(self.job, ref, traits)

    key_distribute = key_by
    """`key_by` under its name in Malstrom."""

    def key_local(
        self, name: str, key: Callable[[V_co], K2] | str, *, on_error: OnError = "fail", compile: bool = True
    ) -> StreamBuilder[K2, V_co]:
        """Key each record on its worker, without distributing: no stateful step may follow (R11)."""
        traits = replace(self.traits, keyed=False, local=True, key_names=key_names(key))
        function = field_getter(key, name)
        column, compiles = key if isinstance(key, str) else None, compile and self.job.compiles
        factory = partial(KeyLocal, fn=function, column=column, compiles=compiles)
        ref = self._add("key_local", name, factory, function, traits=traits, on_error=on_error)
        return StreamBuilder(self.job, ref, traits)

    def assign_timestamps(
        self,
        name: str,
        fn: Callable[[V_co], int | datetime] | str,
        *,
        unit: Unit = "ms",
        on_error: OnError = "fail",
        compile: bool = True,
    ) -> Self:
        """Time each record by ``fn(value)`` or by a column: an int in ``unit`` (s, ms, us, ns) or aware datetime."""
        if self.traits.epochs:
            raise PlanError(
                f"step {name!r}: timestamps cannot change after generate_epochs, because they could fall below "
                f"a watermark already passed: put assign_timestamps before it"
            )
        function, column = field_getter(fn, name), fn if isinstance(fn, str) else None
        options: dict[str, Any] = {"column": column, "compiles": compile and self.job.compiles}
        factory = partial(AssignTimestamps, fn=function, unit=check_unit(unit, name), **options)
        traits = replace(self.traits, unit=unit)
        return self._same("assign_timestamps", name, factory, function, traits=traits, on_error=on_error)

    def generate_epochs(
        self,
        name: str,
        generator: EpochGenerator,
        *,
        idle_after: timedelta | None = None,
        max_ahead: timedelta | int | None = None,
        renamed_from: str | None = None,
    ) -> tuple[Self, Self]:
        """Return two streams: the records that are on time, with watermarks (epochs), and the late ones, without.

        Lateness is judged per record against the watermark of its source partition. A partition without a record for
        ``idle_after`` does not delay event time. A record more than ``max_ahead`` (a timedelta, or an int in the
        stream's unit) in the future is late, and advances no watermark. Both use the runtime's clock.
        """
        traits, unit = epochs_traits(name, self.traits), self.traits.unit or "ms"
        if not callable(getattr(generator, "tracker", None)):
            raise PlanError(f"step {name!r}: pass a generator, for instance mp.limit_out_of_orderness(…)")
        idle_s, ahead = after_s(idle_after, name, "idle_after"), max_ahead_of(max_ahead, unit, name)
        factory = partial(GenerateEpochs, generator=generator, unit=unit, idle_after_s=idle_s, max_ahead=ahead)
        limits = {"idle_after": idle_after, "max_ahead": max_ahead}
        notes = [short(generator), *(f"{limit}={span}" for limit, span in limits.items() if span is not None)]
        ports = (Port("on_time"), Port("late", epochs=False))
        options: dict[str, Any] = {"detail": ", ".join(notes), "upgrade": {"renamed_from": renamed_from}}
        ref = self._add("generate_epochs", name, factory, None, ports=ports, traits=traits, **options)
        streams = self._at(ref, 0, traits), self._at(ref, 1, replace(traits, epochs=False))
        return stream_tuple("generate_epochs", streams, ("on_time", "late"))  # type: ignore[no-any-return]

    def group_by(self, *columns: str, name: str | None = None) -> GroupedStream:
        """Group records by ``columns``, as a DataFrame does: ``.agg(…)``, or ``.window(…)`` first, adds the steps.

        Their names begin with ``name``, by default ``by-<columns>``.
        """
        from malstrom_py.builder.grouped import GroupedStream

        return GroupedStream(self, columns, name)

    def with_watermark(self, column: str, delay: str | timedelta, *, name: str | None = None) -> Self:
        """Time records by ``column``, and return those that are on time, at most ``delay`` older than the newest.

        It is `assign_timestamps` and the first stream of `generate_epochs`, as steps ``<name>-time`` and
        ``<name>-watermark``. ``name``: by default that of the column.
        """
        from malstrom_py.builder.grouped import with_watermark

        timed: Self = with_watermark(self, column, delay, name)
        return timed

    def sink(self, name: str, sink: Sink, *, renamed_from: str | None = None) -> None:
        """Write the stream to ``sink``. For a `PartitionedSink` the stream is first distributed by partition."""
        check_name(name, "step")
        refuse_class(sink, name)
        upgrade: Upgrade = {"renamed_from": renamed_from}
        if hasattr(sink, "assign_part") and isinstance(sink, PartitionedSink):
            self._sink_parts(name, sink, former_name(renamed_from, name))
            return
        if not isinstance(sink, BaseTransactionalSink | TransactionalSink | StatelessSink):
            lacks = sink_of(sink) or ": it has neither build(worker) nor open(worker), commit, abort and recover"
            raise PlanError(f"step {name!r}: {type(sink).__name__} is not a sink{lacks}")
        check_sink(sink, name)
        factory = partial(WriteSink, sink=sink, flat=self.traits.flat, unit=self.traits.unit)
        self._add("sink", name, factory, None, ports=(), detail=short(sink), upgrade=upgrade)

    def capture_into(self, name: str, target: object, *, replace: bool = False) -> None:
        """Record this stream, its data and its event time, to be replayed by `Job.replay_from`.

        ``target``: a folder that all workers share, or a `capture.InMemory` of a runtime in this process. The
        recording can be read while the job runs and after it failed. Or a `capture.Writer`, which sends the stream of
        each worker to a file object. ``replace``: delete the recording of an earlier run; otherwise the job fails if
        there is one.
        """
        from malstrom_py.capture.frames import Header  # which few jobs need, with all that writes recordings
        from malstrom_py.sinks.capture import capture_sink

        traits, keyed = self.traits, self.traits.keyed or self.traits.local
        header = Header("", "", "", worker=0, keyed=keyed, unit=traits.unit, epochs=traits.epochs)
        self.sink(name, capture_sink(target, header, self.job.types, replace=replace))

    def _sink_parts(self, name: str, sink: PartitionedSink, former: str | None) -> None:
        parts, keyed = f"{name}-parts", self.traits.keyed or self.traits.local
        if len(parts) > NAME_MAX:
            raise PlanError(
                f"step {name!r}: the name of a partitioned sink can have at most {NAME_MAX - len('-parts')} "
                f"characters, "
                f"because the step that distributes by partition is called <name>-parts"
            )
        traits = replace(self.traits, keyed=True, local=False, region=parts, partitioner=None)
        moved: Upgrade = {"renamed_from": None if former is None else f"{former}-parts"}
        by_part_of = partial(KeyByPart, sink=sink)
        ref = self._add("key_by", parts, by_part_of, sink.assign_part, traits=traits, upgrade=moved)
        by_part = StreamBuilder[Any, Any](self.job, ref, traits)
        factory = partial(WriteParts, sink=sink, keyed=keyed)
        by_part._add("sink", name, factory, None, ports=(), detail=short(sink), upgrade={"renamed_from": former})

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Callable[..., NoReturn]:
            if attribute not in KEYED_METHODS:
                raise unknown_attribute(self, attribute, STREAM)

            def refuse(name: str = "?", *_: object, **__: object) -> NoReturn:
                if self.traits.local:
                    raise PlanError(
                        f"step {name!r}: {attribute} keeps state per key, but key_local does not bring all records "
                        f"of a key to one worker: use .key_by('…', fn) instead of it"
                    )
                raise PlanError(
                    f"step {name!r}: {attribute} keeps state per key, but stream {self.ref.step!r} has no keys: "
                    f"put .key_by('…', fn) before it"
                )

            return refuse

    def _add(
        self,
        kind: str,
        name: str,
        factory: OperatorFactory,
        function: object,
        *,
        ports: tuple[Port, ...] = (Port(),),
        traits: Traits | None = None,
        on_error: OnError = "fail",
        detail: str | None = None,
        also: tuple[StreamRef, ...] = (),
        upgrade: Upgrade | None = None,
    ) -> StreamRef:
        check_name(name, "step")
        upgrade = refuse_unknown(upgrade or {}, kind, name)
        if on_error not in get_args(OnError):
            raise PlanError(f"step {name!r}: on_error must be 'fail', 'skip' or 'dead-letter', got {on_error!r}")
        if on_error == "dead-letter":
            ports = (*ports, Port(DEAD_LETTERS, epochs=False))
        label = ("" if function is None else describe_function(function)) if detail is None else detail
        former, migration = former_name(upgrade.get("renamed_from"), name), migration_of(upgrade.get("migrate"), name)
        initial = initial_state_of(upgrade.get("initial_state"), kind, name, factory, self.job.register_state)
        if (ttl := upgrade.get("ttl")) is not None:
            unit = self.traits.unit if self.traits.epochs else None
            factory = partial(expiring, factory=factory, ttl=time_to_live(ttl, unit, name), by_clock=unit is None)
        inputs, traits = (self.ref, *also), traits or self.traits
        return self.job.add(
            Step(name, kind, factory, inputs, ports, on_error, traits, label, former, migration, initial)
        )

    def _at(self, ref: StreamRef, port: int, traits: Traits | None = None) -> Self:
        return type(self)(self.job, StreamRef(ref.step, port), traits or self.traits)

    def _same(self, kind: str, name: str, factory: OperatorFactory, function: object, **options: Any) -> Self:
        """Add a step that keeps the type of values."""
        ref = self._add(kind, name, factory, function, **options)
        return self._at(ref, 0, options.get("traits"))

    def _then(
        self, kind: str, name: str, factory: OperatorFactory, function: object, **options: Any
    ) -> StreamBuilder[K, Any]:
        """Add a step that changes the type of values; a keyed stream stays keyed."""
        return self._same(kind, name, factory, function, **options)

    def _with_sides(
        self, kind: str, name: str, factory: OperatorFactory, logic: object, sides: Sequence[str] | None, **options: Any
    ) -> Any:
        """Add a step; return its stream or, with ``sides``, the tuple of all its streams, the main one first."""
        main = self._then(kind, name, factory, logic, ports=(Port(), *map(Port, sides or ())), **options)
        if sides is None:
            return main
        streams = (main, *(main._at(main.ref, port) for port, _ in enumerate(sides, 1)))
        return stream_tuple(kind, streams, ("main", *(side for side in sides)))


def _shown(expressions: Sequence[pl.Expr]) -> str:
    return short(", ".join(map(str, expressions)))
