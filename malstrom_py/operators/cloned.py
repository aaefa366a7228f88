"""``cloned``: one stream as several equal ones."""

from __future__ import annotations

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet, StepContext


class Cloned(Operator):
    """Sends every record to each of ``n`` streams. (Using a builder twice does the same, without a step.)

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> one, two = job.source("numbers", sources.Memory([1, 2])).cloned("twice", 2)
    >>> mp.collect(one), mp.collect(two)
    ([1, 2], [1, 2])
    """

    takes_columns = True

    def __init__(self, context: StepContext, *, n: int) -> None:
        super().__init__(context)
        self._n = n

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        for port in range(self._n):
            out.send(batch, port)
