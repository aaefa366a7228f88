"""``inspect``: look at records without changing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, call_each


class Inspect(Operator):
    """Calls ``fn(value)`` for its effect and passes each record on as it is.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("numbers", sources.Memory([1, 2])).inspect("show", print))
    1
    2
    [1, 2]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any], object]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, _ = call_each(self._fn, batch, self._failures, out)
        out.send(batch)
