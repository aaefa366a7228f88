"""``select``: Polars expressions that make the columns of each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.column_step import ColumnStep
from malstrom_py.operators.expressions import Expressions, roots_of

if TYPE_CHECKING:
    import polars as pl


class Select(ColumnStep):
    """Each record becomes what ``expressions`` make of it; keys and timestamps stay.

    An expression works row by row (``pl.col("a") * 2``; not ``pl.col("a").sum()``). Downstream, columns stay columns
    as long as steps take them; a function of a value gets a dict.

    >>> import malstrom_py as mp, polars as pl
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> bids = job.source("bids", sources.Memory([{"price": 10, "item": "a"}, {"price": 20, "item": "b"}]))
    >>> mp.collect(bids.select("in-euros", "item", euros=pl.col("price") * 0.5))
    [{'item': 'a', 'euros': 5.0}, {'item': 'b', 'euros': 10.0}]
    """

    takes_frames = True

    def __init__(self, context: StepContext, *, expressions: Sequence[pl.Expr]) -> None:
        super().__init__(context, names=roots_of(expressions))
        self._select = Expressions(expressions, lambda frame, exprs: frame.select(exprs), self.error)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = self.columns_of(batch)
        out.send(columns.with_frame(self._select(self.frame_of(columns))))
