"""The steps that call a function with the state of a key: ``stateful_map``, ``stateful_flat_map`` and ``ttl_map``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.errors import mark_safe
from malstrom_py.errors.text import refuse_no_items
from malstrom_py.operators.base import ColumnsRead, Outlet, StepContext, read_by
from malstrom_py.operators.keyed import FoldingOperator, Rows, keys_of
from malstrom_py.operators.stateless import spread


class StatefulMap(FoldingOperator):
    """Calls ``fn(key, value, state) -> (output, new state)``; a new state of None drops the key's state.

    A key without state starts from ``default()``, or from None without a default.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> def rise(key, value, highest):
    ...     return value > highest, max(value, highest)
    >>> job = mp.Job("docs")
    >>> levels = job.source("levels", sources.Memory([("a", 3), ("b", 1), ("a", 2)]))
    >>> keyed = levels.key_by("river", lambda level: level[0]).map("level", lambda level: level[1])
    >>> mp.collect(keyed.stateful_map("rise", rise, default=int))
    [True, True, False]

    Columns remain columns where ``fn`` only adds to its state, or keeps the largest, the smallest or the last.
    """

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options["fn"], 1)

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        from malstrom_py.operators.compiled_folds import is_decided

        is_shown = cls is StatefulMap and is_decided(options["fn"], options["default"], takes_key=True)
        return (options["fn"],) if is_shown else ()

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        default: Callable[[], Any] | None,
        compiles: bool = True,
    ) -> None:
        super().__init__(context, function=fn, folds=fn, default=default, takes_key=True, compiles=compiles)
        self._fn = fn
        self._default = default

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, default, dropped = self.states, self._fn, self._default, self.dropped_at
        get = states.get
        if default is None:  # the same without the test, which costs a twentieth
            for key, value in rows:
                answer = fn(key, value, get(key))
                try:
                    result, state = answer
                except (TypeError, ValueError) as error:
                    raise no_pair(answer, "(output, state)") from error
                if state is None:
                    states.pop(key, None)
                    dropped[key] = len(results)
                else:
                    states[key] = state
                results.append(result)
            return
        for key, value in rows:
            state = get(key)
            answer = fn(key, value, default() if state is None else state)
            try:
                result, state = answer
            except (TypeError, ValueError) as error:
                raise no_pair(answer, "(output, state)") from error
            if state is None:
                states.pop(key, None)
                dropped[key] = len(results)
            else:
                states[key] = state
            results.append(result)


def no_pair(answer: object, pair: str) -> TypeError:
    """Return the error about a function that returned ``answer`` instead of a ``pair``."""
    got = "None" if answer is None else type(answer).__name__
    if isinstance(answer, tuple | list):
        got = f"a {got} of {len(answer)}"
    return mark_safe(TypeError(f"must return {pair}, got {got}"))


class StatefulFlatMap(StatefulMap):
    """Calls ``fn(key, value, state) -> (outputs, new state)``: one record per item of ``outputs``, in order.

    A new state of None drops the key's state; a key without state starts from ``default()``, or from None.
    """

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Iterable[Any], Any]],
        default: Callable[[], Any] | None,
    ) -> None:
        def listed(key: Any, value: Any, state: Any) -> tuple[list[Any], Any]:
            # Outputs may be lazy and raise while they are read: read them before setting the state.
            answer = fn(key, value, state)
            try:
                outputs, state = answer
            except (TypeError, ValueError) as error:
                raise no_pair(answer, "(outputs, state)") from error
            try:
                return list(outputs), state
            except TypeError:
                refuse_no_items(outputs, "(outputs, state), outputs something to iterate over")
                raise

        super().__init__(context, fn=listed, default=default, compiles=False)
        self.function = fn

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        keys, timestamps = keys_of(batch, self.context.step), batch.timestamps
        counts = list(map(len, results))
        out.send(
            Batch(
                list(chain.from_iterable(results)),
                keys=spread(keys, counts),
                timestamps=None if timestamps is None else spread(timestamps, counts),
            )
        )


class TtlMap(StatefulMap):
    """Calls ``fn(key, value, state) -> (output, new state)``. A key's state is dropped once the step's frontier passes
    its last record + ``ttl`` (in the stream's unit); the key then starts from ``default()`` again.
    """

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[..., Any]]:
        return (options["fn"],)

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        ttl: int,
        default: Callable[[], Any] | None,
    ) -> None:
        super().__init__(context, fn=fn, default=default, compiles=False)
        self.expire_after(ttl, by_clock=False)
