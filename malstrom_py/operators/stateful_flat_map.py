"""``stateful_flat_map``: one state per key, any number of outputs per record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.flat_map import refuse_no_items, spread
from malstrom_py.operators.keyed import keys_of
from malstrom_py.operators.stateful_map import StatefulMap, no_pair


class StatefulFlatMap(StatefulMap):
    """Calls ``fn(key, value, state) -> (outputs, new state)``: one record per item of ``outputs``, in order.

    A new state of None drops the key's state; a key without state starts from ``default()``, or from None.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> def missing(key, number, last):
    ...     return range(last + 1, number), number
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([1, 2, 5])).key_by("all", lambda n: "all")
    >>> mp.collect(numbers.stateful_flat_map("missing", missing, default=int))
    [3, 4]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Iterable[Any], Any]],
        default: Callable[[], Any] | None,
    ) -> None:
        def listed(key: Any, value: Any, state: Any) -> tuple[list[Any], Any]:
            # Outputs may be lazy and raise while they are read: read them before the state is set.
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

        super().__init__(context, fn=listed, default=default)
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
