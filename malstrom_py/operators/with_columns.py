"""``with_columns``: Polars expressions that add columns to each record, or replace them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.column_step import ColumnStep
from malstrom_py.operators.expressions import Expressions

if TYPE_CHECKING:
    import polars as pl


class WithColumns(ColumnStep):
    """Each record keeps its columns and gets those that ``expressions`` make of it; one of the same name is replaced.

    An expression works row by row (``pl.col("a") * 2``; not ``pl.col("a").sum()``).

    >>> import malstrom_py as mp, polars as pl
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> bids = job.source("bids", sources.Memory([{"price": 10}, {"price": 20}]))
    >>> mp.collect(bids.with_columns("in-euros", euros=pl.col("price") * 0.5))
    [{'price': 10, 'euros': 5.0}, {'price': 20, 'euros': 10.0}]
    """

    takes_frames = True

    def __init__(self, context: StepContext, *, expressions: Sequence[pl.Expr]) -> None:
        super().__init__(context)
        self._extend = Expressions(expressions, lambda frame, exprs: frame.with_columns(exprs), self.error)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = self.columns_of(batch)
        out.send(columns.with_frame(self._extend(self.frame_of(columns))))
