"""The running figures of keyed streams: per record what is known of its key so far, such as how many or how much."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from malstrom_py.agg import Aggregation
from malstrom_py.arguments import at_least, field_getter, function_of, kind_of_default
from malstrom_py.errors import PlanError
from malstrom_py.names import check_name
from malstrom_py.operators.aggregate import Aggregate
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.count import Count
from malstrom_py.operators.distinct import Distinct
from malstrom_py.operators.fold import Fold
from malstrom_py.operators.max import Max
from malstrom_py.operators.mean import Mean
from malstrom_py.operators.min import Min
from malstrom_py.operators.reduce import Reduce
from malstrom_py.operators.sum import Sum
from malstrom_py.operators.top_n import TopN
from malstrom_py.stream import StreamBuilder
from malstrom_py.upgrades import Migrate, Upgrade

if TYPE_CHECKING:
    from malstrom_py.keyed_stream import KeyedStreamBuilder

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
S = TypeVar("S")

By = Callable[[V], W] | str | None
"""Which number of a value an aggregate takes: a function, a column's name, or None for the value itself."""


class RunningFigures(StreamBuilder[K, V_co]):
    """The part of a `KeyedStreamBuilder` that has these steps."""

    def reduce(
        self, name: str, fn: Callable[[V_co, V_co], V_co], *, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, V_co]:
        """Per record its key's values so far, combined by ``fn(accumulated, value)``."""
        return self._then(
            "reduce", name, partial(Reduce, fn=function_of(fn, name)), fn, on_error=on_error, upgrade=upgrade
        )

    def fold(
        self,
        name: str,
        fn: Callable[[S, V_co], S],
        *,
        default: Callable[[], S],
        on_error: OnError = "fail",
        **upgrade: Unpack[Upgrade],
    ) -> KeyedStreamBuilder[K, S]:
        """Per record ``fn(accumulated, value)``, from ``default()`` on."""
        factory = partial(Fold, fn=function_of(fn, name), default=self._default(default, name))
        return self._then("fold", name, factory, fn, on_error=on_error, upgrade=upgrade)

    def count(self, name: str, **upgrade: Unpack[Upgrade]) -> KeyedStreamBuilder[K, int]:
        """Per record the number of records of its key so far."""
        return self._then("count", name, Count, None, upgrade=upgrade)

    def sum(
        self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, Any]:
        """Per record the sum of its key's values so far."""
        return self._then("sum", name, partial(Sum, by=number_of(by, name)), by, on_error=on_error, upgrade=upgrade)

    def min(
        self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, Any]:
        """Per record the smallest of its key's values so far."""
        return self._then("min", name, partial(Min, by=number_of(by, name)), by, on_error=on_error, upgrade=upgrade)

    def max(
        self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, Any]:
        """Per record the largest of its key's values so far."""
        return self._then("max", name, partial(Max, by=number_of(by, name)), by, on_error=on_error, upgrade=upgrade)

    def mean(
        self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, float]:
        """Per record the mean of its key's values so far."""
        return self._then("mean", name, partial(Mean, by=number_of(by, name)), by, on_error=on_error, upgrade=upgrade)

    def aggregate(
        self,
        name: str,
        /,
        *,
        on_error: OnError = "fail",
        renamed_from: str | None = None,
        migrate: Migrate | None = None,
        initial_state: Any = None,
        **aggs: Aggregation[Any, Any],
    ) -> KeyedStreamBuilder[K, dict[str, Any]]:
        """Per record a dict of figures over its key's records so far: ``total=agg.sum("price"), n=agg.count()``.

        See `malstrom_py.agg` for what there is. A record that one of them cannot take leaves all of them as they were.
        """
        check_name(name, "step")
        if not aggs:
            raise PlanError(f"step {name!r}: name at least one aggregate, such as n=agg.count()")
        for label, one in aggs.items():
            if not isinstance(one, Aggregation):
                raise PlanError(
                    f"step {name!r}: {label} is an aggregate, which agg.count() or agg.sum('price') return, "
                    f"got {type(one).__name__}"
                )
            self._default(one.init, name, f"init of {label}")
        detail = ", ".join(f"{label}={one}" for label, one in aggs.items())
        factory = partial(Aggregate, aggregations=aggs)
        upgrade: Upgrade = {"renamed_from": renamed_from, "migrate": migrate, "initial_state": initial_state}
        return self._then("aggregate", name, factory, None, on_error=on_error, detail=detail, upgrade=upgrade)

    def top_n(
        self, name: str, n: int, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, list[V_co]]:
        """Per record the list of its key's ``n`` largest values so far, largest first."""
        factory = partial(TopN, n=at_least(1, n, name), by=number_of(by, name))
        return self._then("top_n", name, factory, by, on_error=on_error, upgrade=upgrade)

    def distinct(
        self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail", **upgrade: Unpack[Upgrade]
    ) -> KeyedStreamBuilder[K, V_co]:
        """The first record of each value (or of each ``by``) per key."""
        return self._then(
            "distinct", name, partial(Distinct, by=number_of(by, name)), by, on_error=on_error, upgrade=upgrade
        )

    def _default(self, default: object, step: str, what: str = "default") -> Any:
        """``default`` if it can make a state. It is called here once, so that what it makes may be persisted."""
        if default is None:
            return None
        self.job.register_state(kind_of_default(default, step, what=what))
        return default

    if TYPE_CHECKING:  # the same method, which here leads to a keyed stream again

        def _then(
            self, kind: str, name: str, factory: OperatorFactory, function: object, **options: Any
        ) -> KeyedStreamBuilder[K, Any]: ...


def number_of(by: Callable[[Any], Any] | str | None, step: str) -> Callable[[Any], Any] | None:
    """What ``by`` takes of a value, as a function; None for the value itself."""
    return None if by is None else field_getter(by, step)
