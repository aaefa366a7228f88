"""Base of the steps that work on whole columns: rows become columns here, where they have to.

Rule: nothing of a step's result may depend on where batches are cut. So columns made of rows have one schema for as
long as the step lives: the names of its first batch, with types that only widen (`RowColumns`).
"""

from __future__ import annotations

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.row_columns import RowColumns


class ColumnStep(Operator):
    """Takes rows or columns; gives columns."""

    takes_columns = True

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._row_columns = RowColumns(self.error)

    def columns_of(self, batch: Batch) -> ColumnBatch:
        """``batch`` as columns. A value that is no dict, dataclass or namedtuple is the column ``value``."""
        if isinstance(batch, ColumnBatch):
            return batch
        self.counters.columns_made += len(batch)
        return ColumnBatch(
            self._row_columns.convert(batch.values), keys=batch.keys, timestamps=batch.timestamps, part=batch.part
        )

    def error(self, why: str) -> OperatorError:
        """The error that names this step; for the caller to raise."""
        return OperatorError(f"step {self.context.step!r}: {why}.", step=self.context.step)
