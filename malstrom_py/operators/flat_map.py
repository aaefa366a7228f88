"""``flat_map``: any number of outputs per record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.errors import own_words
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import OWN, Failures, call_each

_SLICE_FIRST: Final = 16
_ROWS_OUT: Final = 4096
"""About how many records are made of one slice of a batch, once it is known how many one record becomes."""


class FlatMap(Operator):
    """Replaces each record by one record per item of ``fn(value)``, in order, each with its key and timestamp.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("lines", sources.Memory(["a b", "", "c"])).flat_map("words", str.split))
    ['a', 'b', 'c']
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Iterable[Any]], blame: object = OWN) -> None:
        super().__init__(context)
        self._fn = fn
        self._blame = fn if blame is OWN else blame
        self._failures = Failures(context)
        self._slice = _SLICE_FIRST

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        start = 0
        while start < len(batch):
            part = batch if start == 0 and self._slice >= len(batch) else batch.cut(start, start + self._slice)
            start += len(part)
            self._flatten(part, out)
            if start < len(batch):
                # One record may become thousands: they go their way before the next ones are made.
                out.drain()

    def _flatten(self, batch: Batch, out: Outlet) -> None:
        taken = len(batch)
        # An iterable may be lazy and raise while it is read, so it is read inside the guarded call.
        batch, lists = call_each(self._items, batch, self._failures, out, blame=self._blame)
        keys, timestamps = batch.keys, batch.timestamps
        counts = list(map(len, lists)) if keys is not None or timestamps is not None else []
        values = list(chain.from_iterable(lists))
        self._slice = max(1, _ROWS_OUT * taken // max(taken, len(values)))
        out.send(
            Batch(
                values,
                keys=None if keys is None else spread(keys, counts),
                timestamps=None if timestamps is None else spread(timestamps, counts),
                part=batch.part,
            )
        )

    def _items(self, value: Any) -> list[Any]:
        items = self._fn(value)
        try:
            return list(items)
        except TypeError:
            refuse_no_items(items, "something to iterate over")
            raise


def refuse_no_items(items: object, wanted: str) -> None:
    """TypeError if nothing can be read of ``items``, what a function gave; it says that ``wanted`` must be returned.

    >>> refuse_no_items([1, 2], "a list")
    """
    try:
        iter(items)  # type: ignore[call-overload]  # whether that can be is the question
    except TypeError as error:
        got = "None" if items is None else type(items).__name__
        raise own_words(TypeError(f"must return {wanted}, got {got}")) from error


def spread(column: list[Any], counts: list[int]) -> list[Any]:
    """Each entry of ``column`` as often as ``counts`` says."""
    return list(chain.from_iterable(map(repeat, column, counts)))
