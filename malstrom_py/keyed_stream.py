"""The builder of keyed streams: what `StreamBuilder` has, and the steps that keep one state per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from malstrom_py.errors import PlanError
from malstrom_py.logic import LogicLike, hooks_of
from malstrom_py.names import check_name
from malstrom_py.operators.base import OnError, OperatorFactory
from malstrom_py.operators.count import Count
from malstrom_py.operators.fold import Fold
from malstrom_py.operators.max import Max
from malstrom_py.operators.mean import Mean
from malstrom_py.operators.min import Min
from malstrom_py.operators.reduce import Reduce
from malstrom_py.operators.stateful_map import StatefulMap
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.sum import Sum
from malstrom_py.stream import StreamBuilder, _function, field_getter

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
S = TypeVar("S")

By = Callable[[V], W] | str | None
"""Which number of a value an aggregate takes: a function, a column's name, or None for the value itself."""


class KeyedStreamBuilder(StreamBuilder[K, V_co]):
    """A stream whose records have keys of type ``K``. All records of a key meet the same state, in order."""

    def stateful_map(
        self,
        name: str,
        fn: Callable[[K, V_co, S], tuple[W, S | None]],
        *,
        default: Callable[[], S] | None = None,
        on_error: OnError = "fail",
    ) -> KeyedStreamBuilder[K, W]:
        """One output per record: ``fn(key, value, state) -> (output, new state, or None to drop it)``.

        ``default`` makes the state of a key that has none; without it such a key's state is None.
        """
        factory = partial(StatefulMap, fn=_function(fn, name), default=_default(default, name))
        return self._then("stateful_map", name, factory, fn, on_error=on_error)

    def stateful_op(
        self,
        name: str,
        logic: LogicLike[K, V_co, W, S],
        *,
        default: Callable[[], S] | None = None,
        on_error: OnError = "fail",
    ) -> KeyedStreamBuilder[K, W]:
        """Any number of outputs per record, by a `StatefulLogic`, a `KeyedLogic` or a function like ``on_data``."""
        check_name(name, "step")
        if "on_batch" in hooks_of(logic, name) and on_error != "fail":
            raise PlanError(
                f"step {name!r}: on_batch takes whole batches, so on_error={on_error!r} cannot tell which record "
                f"failed: override on_data instead"
            )
        factory = partial(StatefulOp, logic=logic, default=_default(default, name))
        return self._then("stateful_op", name, factory, logic, on_error=on_error)

    def reduce(
        self, name: str, fn: Callable[[V_co, V_co], V_co], *, on_error: OnError = "fail"
    ) -> KeyedStreamBuilder[K, V_co]:
        """Per record its key's values so far, combined by ``fn(accumulated, value)``."""
        return self._then("reduce", name, partial(Reduce, fn=_function(fn, name)), fn, on_error=on_error)

    def fold(
        self, name: str, fn: Callable[[S, V_co], S], *, default: Callable[[], S], on_error: OnError = "fail"
    ) -> KeyedStreamBuilder[K, S]:
        """Per record ``fn(accumulated, value)``, from ``default()`` on."""
        factory = partial(Fold, fn=_function(fn, name), default=_function(default, name))
        return self._then("fold", name, factory, fn, on_error=on_error)

    def count(self, name: str) -> KeyedStreamBuilder[K, int]:
        """Per record the number of records of its key so far."""
        return self._then("count", name, Count, None)

    def sum(self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail") -> KeyedStreamBuilder[K, Any]:
        """Per record the sum of its key's values so far."""
        return self._then("sum", name, partial(Sum, by=_by(by, name)), by, on_error=on_error)

    def min(self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail") -> KeyedStreamBuilder[K, Any]:
        """Per record the smallest of its key's values so far."""
        return self._then("min", name, partial(Min, by=_by(by, name)), by, on_error=on_error)

    def max(self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail") -> KeyedStreamBuilder[K, Any]:
        """Per record the largest of its key's values so far."""
        return self._then("max", name, partial(Max, by=_by(by, name)), by, on_error=on_error)

    def mean(self, name: str, *, by: By[V_co, Any] = None, on_error: OnError = "fail") -> KeyedStreamBuilder[K, float]:
        """Per record the mean of its key's values so far."""
        return self._then("mean", name, partial(Mean, by=_by(by, name)), by, on_error=on_error)

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
        def _then(
            self, kind: str, name: str, factory: OperatorFactory, function: object, **options: Any
        ) -> KeyedStreamBuilder[K, Any]: ...


def _default(default: object, step: str) -> Any:
    if default is not None and not callable(default):
        raise PlanError(
            f"step {step!r}: default is a function that makes a state, such as default=list, "
            f"got {type(default).__name__}"
        )
    return default


def _by(by: Callable[[Any], Any] | str | None, step: str) -> Callable[[Any], Any] | None:
    return None if by is None else field_getter(by, step)
