"""``filter_map``: map and filter in one call; None drops the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.operators.returning import silence_of


class FilterMap(Operator):
    """Replaces each value by ``fn(value)``, and drops the record (counted as filtered) where that is None.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> texts = job.source("texts", sources.Memory(["1", "x", "3"]))
    >>> mp.collect(texts.filter_map("parse", lambda t: int(t) if t.isdigit() else None))
    [1, 3]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)
        self._silence = silence_of(context, fn, "filter_map")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, results = call_each(self._fn, batch, self._failures, out)
        if self._silence is not None and self._silence.over(results):
            self._silence = None
        kept = batch.with_values(results).compress([result is not None for result in results])
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)
