"""Batches of dicts as columns, where the plan says that columns of the fields that it reads pay."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.json_columns import DictColumns
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.sources.base import BasePart, lag_of

ROWS_FEW: Final = 512
ROWS_MANY: Final = 100_000
"""Arrow takes as long to load as this many dicts save."""

_TRIES: Final = 8


class DictBatches:
    """Makes columns of the fields ``names``, if many rows are there at first, of all batches that columns hold.

    That ends after several that they do not hold, and where batches are small: then columns cost more than rows.

    >>> DictBatches(["n"]).convert(Batch([{"n": 1}]), [])  # one row is few
    Batch(1 rows of values)
    """

    def __init__(self, names: Collection[str]) -> None:
        self._columns = DictColumns(names)
        self._small = SmallBatches(ROWS_FEW)
        self._are_many: bool | None = None
        self._tries = _TRIES

    def convert(self, batch: Batch, parts: Iterable[BasePart[Any]]) -> Batch:
        """Return ``batch`` as columns, or unchanged. ``parts``: those that are read, with ``batch`` of one of them."""
        if isinstance(batch, ColumnBatch) or not len(batch) or self._are_many is False:
            return batch
        if self._are_many is None:
            self._are_many = len(batch) + sum(lag_of(part.lag_rows) or 0 for part in parts) >= ROWS_MANY
        if not self._are_many or self._small.came(len(batch)):
            self._are_many = False
            return batch
        if (columns := self._columns.convert(batch.values)) is None:
            self._tries -= 1
            self._are_many = self._tries > 0
            return batch
        return ColumnBatch(columns, part=batch.part, computed=True)
