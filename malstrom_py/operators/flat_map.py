"""``flat_map``: any number of outputs per record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each


class FlatMap(Operator):
    """Replaces each record by one record per item of ``fn(value)``, in order, each with its key and timestamp.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("lines", sources.Memory(["a b", "", "c"])).flat_map("words", str.split))
    ['a', 'b', 'c']
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        # An iterable may be lazy and raise while it is read, so it is read inside the guarded call.
        batch, lists = call_each(self._items, batch, self._failures, out, blame=self._fn)
        keys, timestamps = batch.keys, batch.timestamps
        counts = list(map(len, lists)) if keys is not None or timestamps is not None else []
        out.send(
            Batch(
                list(chain.from_iterable(lists)),
                keys=None if keys is None else spread(keys, counts),
                timestamps=None if timestamps is None else spread(timestamps, counts),
                part=batch.part,
            )
        )

    def _items(self, value: Any) -> list[Any]:
        return list(self._fn(value))


def spread(column: list[Any], counts: list[int]) -> list[Any]:
    """Each entry of ``column`` as often as ``counts`` says."""
    return list(chain.from_iterable(map(repeat, column, counts)))
