"""``union``: several streams as one. Epochs are merged (minimum), control messages wait for all inputs."""

from __future__ import annotations

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet


class Union(Operator):
    """Passes the records of all its inputs on, each input's in order.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> left, right = job.source("left", sources.Memory([1])), job.source("right", sources.Memory([2]))
    >>> sorted(mp.collect(left.union("both", right)))
    [1, 2]
    """

    takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)
