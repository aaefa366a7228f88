"""``filter`` by a Polars expression: the records it is true for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.column_step import ColumnStep
from malstrom_py.operators.expressions import Expressions, roots_of

if TYPE_CHECKING:
    import polars as pl


class FilterColumns(ColumnStep):
    """Keeps the records for which ``predicate`` is true; false and null are counted as filtered.

    The predicate works row by row and gives booleans.

    >>> import malstrom_py as mp, polars as pl
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> bids = job.source("bids", sources.Memory([{"price": 10}, {"price": None}, {"price": 30}]))
    >>> mp.collect(bids.filter("dear", pl.col("price") > 20))
    [{'price': 30}]
    """

    takes_frames = True

    def __init__(self, context: StepContext, *, predicate: pl.Expr) -> None:
        super().__init__(context, names=roots_of([predicate]))
        self._mask = Expressions([predicate], lambda frame, exprs: frame.select(exprs), self.error)
        self._is_seen = False

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        kept = self._kept(batch)
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)

    def _kept(self, batch: Batch) -> Batch:
        columns = self.columns_of(batch)
        if self._is_seen and batch is columns and not columns.is_keyed and not columns.is_timed:
            # No other columns to keep in step, so no mask.
            return columns.with_frame(self._mask.filtered(self.frame_of(columns)))
        mask = self._verdicts(self.frame_of(columns))
        # Rows stay the very rows they were.
        return columns.where(mask) if batch is columns else batch.compress(mask.to_list())

    def _verdicts(self, frame: pl.DataFrame) -> pl.Series:
        import polars as pl

        verdicts = self._mask(frame)
        if verdicts.width != 1 or verdicts.dtypes[0] not in (pl.Boolean, pl.Null):
            kinds = ", ".join(map(str, verdicts.dtypes))
            raise self.error(f"filter takes one expression that gives booleans, this one gave {kinds}")
        self._is_seen = self._is_seen or frame.height > 1
        return verdicts.to_series().cast(pl.Boolean)
