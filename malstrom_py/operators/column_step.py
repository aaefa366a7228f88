"""Base of the steps that work on whole columns: rows become columns here, where they have to.

Rule: nothing of a step's result may depend on where batches are cut. So columns made of rows are `exact`: what could
only be told by widening later (an int that is a float in another batch) is refused, wherever batches are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.row_columns import RowColumns

if TYPE_CHECKING:
    import polars as pl


class ColumnStep(Operator):
    """Takes rows or columns; gives columns. Of rows it looks at the fields ``names``, or at all."""

    takes_columns = True

    def __init__(self, context: StepContext, *, names: Sequence[str] | None = None) -> None:
        super().__init__(context)
        self._row_columns = RowColumns(self.error, exact=True, names=names)

    def columns_of(self, batch: Batch) -> ColumnBatch:
        """``batch`` as columns. A value that is no dict, dataclass or namedtuple is the column ``value``."""
        if isinstance(batch, ColumnBatch):
            return batch
        self.counters.columns_made += len(batch)
        return ColumnBatch(
            self._row_columns.convert(batch.values), keys=batch.keys, timestamps=batch.timestamps, part=batch.part
        )

    def frame_of(self, columns: ColumnBatch) -> pl.DataFrame:
        """The columns as Polars has them; the error that names one that it cannot have."""
        import polars as pl
        from polars.exceptions import PanicException

        try:
            return columns.frame
        except (Exception, PanicException) as error:
            for field, column in zip(columns.columns.schema, columns.columns.columns, strict=True):
                try:
                    pl.Series(column)
                except (Exception, PanicException):
                    raise self.error(
                        f"column {field.name!r} of Arrow type {field.type} cannot be taken by a Polars expression: "
                        f"cast it in a map_batches step, or leave it out"
                    ) from error
            raise self.error(
                f"these columns cannot be taken by a Polars expression: {columns.columns.schema}"
            ) from error

    def error(self, why: str) -> OperatorError:
        """The error that names this step; for the caller to raise."""
        return OperatorError(f"step {self.context.step!r}: {why}.", step=self.context.step)
