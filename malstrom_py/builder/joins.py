"""The builder of joins: the steps with two inputs, which differ, of a keyed stream."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Unpack, cast, get_args, overload

from malstrom_py.builder.mistakes import names_first
from malstrom_py.builder.plan import union_traits
from malstrom_py.builder.state_migration import Upgrade
from malstrom_py.builder.stream import StreamBuilder
from malstrom_py.data.time import Unit
from malstrom_py.errors import PlanError
from malstrom_py.operators.base import OperatorFactory
from malstrom_py.operators.join import Direction, How, Pair
from malstrom_py.operators.window_join import WindowJoin
from malstrom_py.validation import check_name
from malstrom_py.windows import Session, Sliding, Span, Windows, whole_span

if TYPE_CHECKING:
    from malstrom_py.builder.keyed_stream import KeyedStreamBuilder

__tracebackhide__ = True  # pytest shows the line of the user

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")

LeftHow = Literal["inner", "left"]
"""Whether left records without a partner are dropped or come out with None."""


@names_first
class Joins(StreamBuilder[K, V_co]):
    """The joins of a keyed stream, which is the left one. The values of a join are `Pair`s ``(left, right)``.

    Both streams are keyed by the same partitioner and timed alike, else `PlanError`.
    """

    @overload
    def join(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        window: Windows,
        how: Literal["inner"] = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W]]: ...
    @overload
    def join(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        window: Windows,
        how: Literal["left"],
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W | None]]: ...
    @overload
    def join(
        self, name: str, right: KeyedStreamBuilder[K, W], *, window: Windows, how: How, **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, Pair[V_co | None, W | None]]: ...
    def join(
        self,
        name: str,
        right: KeyedStreamBuilder[K, Any],
        *,
        window: Windows,
        how: How = "inner",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Any]:
        """Pair the records of two streams that have the same key and are in the same ``window``, when it closes.

        Each left record is paired with each right one. ``how="left"`` sends left records without a partner too, as
        ``(left, None)``; ``"outer"`` those of both streams.
        """
        _check_choice(name, "how", how, How)
        if not isinstance(window, Sliding | Session) or window.clock != "event":
            raise PlanError(
                f"step {name!r}: a join needs windows of event time: windows.tumbling(…), sliding(…) or session(…)"
            )
        unit = self._timed_unit(name, "join", right)
        factory: OperatorFactory
        if isinstance(window, Session):
            from malstrom_py.operators.session_join import SessionJoin  # jobs are defined without the joins they lack

            factory = partial(SessionJoin, how=how, gap=window.in_unit(unit, name))
        else:
            size, step, origin = window.in_unit(unit, name)
            factory = partial(WindowJoin, how=how, size=size, step=step, origin=origin)
        return self._joined("join", name, right, factory, f"{window}, {how}", upgrade)

    @overload
    def join_interval(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        lower: Span,
        upper: Span,
        how: Literal["inner"] = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W]]: ...
    @overload
    def join_interval(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        lower: Span,
        upper: Span,
        how: Literal["left"],
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W | None]]: ...
    @overload
    def join_interval(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        lower: Span,
        upper: Span,
        how: How,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co | None, W | None]]: ...
    def join_interval(
        self,
        name: str,
        right: KeyedStreamBuilder[K, Any],
        *,
        lower: Span,
        upper: Span,
        how: How = "inner",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Any]:
        """Pair records of the same key if ``lower <= right time - left time <= upper``, as soon as both have come.

        ``lower`` and ``upper`` are timedeltas or ints in the stream's unit, and may be negative. A pair has the later
        of the two times. ``how="left"`` sends left records without a partner too, at their time + ``upper``, or their
        own if that is later; ``"outer"`` those of both streams, right ones at their time - ``lower``.
        """
        _check_choice(name, "how", how, How)
        unit = self._timed_unit(name, "join_interval", right)
        low, high = _span(lower, unit, name, "lower"), _span(upper, unit, name, "upper")
        if low > high:
            raise PlanError(f"step {name!r}: lower is above upper, so no records would match: {lower} and {upper}")
        from malstrom_py.operators.time_join import IntervalJoin  # jobs are defined without the joins that they lack

        factory = partial(IntervalJoin, lower=low, upper=high, how=how)
        return self._joined("join_interval", name, right, factory, f"{lower} to {upper}, {how}", upgrade)

    @overload
    def join_asof(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        tolerance: Span | None = ...,
        direction: Direction = ...,
        how: Literal["left"] = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W | None]]: ...
    @overload
    def join_asof(
        self,
        name: str,
        right: KeyedStreamBuilder[K, W],
        *,
        tolerance: Span | None = ...,
        direction: Direction = ...,
        how: Literal["inner"],
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W]]: ...
    def join_asof(
        self,
        name: str,
        right: KeyedStreamBuilder[K, Any],
        *,
        tolerance: Span | None = None,
        direction: Direction = "backward",
        how: LeftHow = "left",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Any]:
        """Pair each left record with the latest right record of its key that is not later.

        ``direction="forward"`` takes the earliest that is not earlier, ``"nearest"`` the nearer of the two, the earlier
        one if both are as near. ``tolerance``: the largest distance. A left record without a partner comes as
        ``(left, None)``; with ``how="inner"`` it is dropped. The answer comes once the watermark proves it.
        """
        _check_choice(name, "direction", direction, Direction)
        _check_choice(name, "how", how, LeftHow)
        unit = self._timed_unit(name, "join_asof", right)
        within = None if tolerance is None else _span(tolerance, unit, name, "tolerance")
        if within is not None and within < 0:
            raise PlanError(f"step {name!r}: tolerance must not be negative, got {tolerance}")
        from malstrom_py.operators.time_join import AsofJoin

        factory = partial(AsofJoin, direction=direction, tolerance=within, keeps=how == "left")
        detail = direction if tolerance is None else f"{direction}, within {tolerance}"
        return self._joined("join_asof", name, right, factory, f"{detail}, {how}", upgrade)

    @overload
    def join_table(
        self,
        name: str,
        table: KeyedStreamBuilder[K, W | None],
        *,
        how: Literal["inner"] = ...,
        wait: bool | Span = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W]]: ...
    @overload
    def join_table(
        self,
        name: str,
        table: KeyedStreamBuilder[K, W | None],
        *,
        how: Literal["left"],
        wait: bool | Span = ...,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Pair[V_co, W | None]]: ...
    def join_table(
        self,
        name: str,
        table: KeyedStreamBuilder[K, Any],
        *,
        how: LeftHow = "inner",
        wait: bool | Span = False,
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, Any]:
        """Pair each record, when it is processed, with the latest value of its key in the stream ``table``.

        A None in the table removes the key's value. A record without a value is dropped; with ``how="left"`` it comes
        as ``(left, None)``. With ``wait=True`` it first waits for a value, until the end of the stream; with a
        timedelta, or an int in the stream's unit, for that span of event time.

        Both streams may come from one source only with ``wait=True``, and then a value that changes is an
        `OperatorError`: which value a record finds would depend on how batches are cut. `join_asof` goes by the times
        of records.
        """
        _check_choice(name, "how", how, LeftHow)
        self._check_right(name, "join_table", table)
        span = None
        if not isinstance(wait, bool):
            self._needs_epochs(name, "wait=")
            span = _span(wait, self.traits.unit or "ms", name, "wait")
            if span <= 0:
                raise PlanError(f"step {name!r}: wait must be above 0, True or False, got {wait}")
        shared = self._shared_sources(table)
        if shared and wait is not True:
            self._refuse_one_source(name, shared[0], how)
        from malstrom_py.operators.table_join import TableJoin

        factory = partial(TableJoin, keeps=how == "left", waits=wait is not False, wait=span, fixed=bool(shared))
        return self._joined("join_table", name, table, factory, f"{how}, wait={wait}", upgrade)

    def _joined(
        self,
        kind: str,
        name: str,
        right: StreamBuilder[K, Any],
        factory: OperatorFactory,
        detail: str,
        upgrade: Upgrade,
    ) -> KeyedStreamBuilder[K, Any]:
        self.job.register_type(Pair)
        traits = union_traits(name, [self.traits, right.traits], "join")
        ref = self._add(kind, name, factory, None, traits=traits, also=(right.ref,), detail=detail, upgrade=upgrade)
        return cast("KeyedStreamBuilder[K, Any]", self._at(ref, 0, traits))

    def _timed_unit(self, name: str, what: str, right: object) -> Unit:
        """Check both streams; return their unit."""
        self._check_right(name, what, right)
        self._needs_epochs(name, what)
        return self.traits.unit or "ms"

    def _check_right(self, name: str, what: str, right: object) -> None:
        check_name(name, "step")
        if not isinstance(right, Joins):
            raise PlanError(
                f"step {name!r}: {what} takes a keyed stream as its right one, got {type(right).__name__}: put the "
                f"same key_by before both"
            )
        if right.job is not self.job:
            raise PlanError(f"step {name!r}: {what} takes streams of one job only")
        union_traits(name, [self.traits, right.traits], "join")

    def _shared_sources(self, other: StreamBuilder[K, Any]) -> list[str]:
        """Return the sources that both streams come from."""
        return sorted(set(self.job.steps_before("source", self.ref)) & set(self.job.steps_before("source", other.ref)))

    def _refuse_one_source(self, name: str, source: str, how: LeftHow) -> NoReturn:
        """Refuse a table that changes and the records that ask it as branches of one source.

        They have one order in the source, and none here: a batch goes through one branch, and then the other.
        """
        needs = "" if self.traits.epochs else ", after assign_timestamps and generate_epochs"
        raise PlanError(
            f"step {name!r}: both streams of this join_table come from the source {source!r}, so which value a "
            f"record finds would depend on how batches are cut. For the value as of the record's time write "
            f".join_asof({name!r}, …, how={how!r}){needs}. If the table's values never change, write wait=True. "
            f"Where any order will do, read the source twice, by two job.source steps"
        )

    def _needs_epochs(self, name: str, what: str) -> None:
        if self.traits.epochs:
            return
        if self.traits.split and self.traits.unit is not None:
            step, *_ = self.job.steps_before("generate_epochs", self.ref)
            raise PlanError(
                f"step {name!r}: {what} runs on event time, but this is the late stream of step {step!r}, which has no "
                f"watermarks: use the first stream that it returns"
            )
        raise PlanError(
            f"step {name!r}: {what} runs on event time, but the stream has no watermarks: put assign_timestamps "
            f"and generate_epochs before key_by, and use its on-time stream"
        )


def _check_choice(name: str, argument: str, given: object, choices: Any) -> None:
    check_name(name, "step")
    if given not in get_args(choices):
        possible = " or ".join(f'"{choice}"' for choice in get_args(choices))
        raise PlanError(f"step {name!r}: {argument} must be {possible}, got {given!r}")


def _span(span: Any, unit: Unit, name: str, what: str) -> int:
    if not isinstance(span, timedelta | int) or isinstance(span, bool):
        raise PlanError(f"step {name!r}: {what} must be a timedelta, or an int in the stream's unit, got {span!r}")
    return whole_span(span, unit, name, what)
