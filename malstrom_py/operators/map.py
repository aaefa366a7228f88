"""``map``: one output per record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each
from malstrom_py.operators.returning import silence_of_values


class Map(Operator):
    """Replaces each value by ``fn(value)``; keys and timestamps stay.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("numbers", sources.Memory([1, 2, 3])).map("double", lambda n: n * 2))
    [2, 4, 6]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)
        self._silence = silence_of_values(context, fn, "map")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, results = call_each(self._fn, batch, self._failures, out)
        if self._silence is not None and self._silence.over(results):
            self._silence = None
        out.send(batch.with_values(results))
