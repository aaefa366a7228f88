"""``flatten``: each item of an iterable value becomes a record."""

from __future__ import annotations

from malstrom_py.operators.base import StepContext
from malstrom_py.operators.flat_map import FlatMap


class Flatten(FlatMap):
    """Replaces each record by one record per item of its value, in order, each with its key and timestamp.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("lists", sources.Memory([[1, 2], [], [3]])).flatten("items"))
    [1, 2, 3]
    """

    def __init__(self, context: StepContext) -> None:
        super().__init__(context, fn=iter, blame=None)
