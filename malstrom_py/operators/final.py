"""``final``: sends the last value of each key at the end of the stream, such as the last of running figures."""

from __future__ import annotations

from malstrom_py import agg
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.column_figures import ColumnFigures, keys_columns_of, record_batch
from malstrom_py.operators.keyed import StatefulOperator, keys_of
from malstrom_py.state.figure_states import FigureStates, shape_of_one, shape_of_records
from malstrom_py.state.group_index import GroupIndex, NotColumnar


def _last_rows(batch: ColumnBatch) -> ColumnBatch:
    """Return the last row of each key, in the order in which the keys first come."""
    import numpy as np
    import pyarrow as pa

    try:
        codes = GroupIndex().ids(keys_columns_of(batch))
    except NotColumnar:
        return batch
    last = np.full(int(codes.max(initial=-1)) + 1, -1)
    last[codes] = np.arange(len(codes))
    return batch.take(pa.array(last))


class Final(StatefulOperator):
    """Sends the last value of each key at the end of the stream.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> words = mp.Job("docs").source("words", sources.Memory(["ant", "bee", "ant"])).key_by("word", str)
    >>> mp.collect(words.count("n").final())
    [2, 1]
    """

    takes_columns = True
    keeps_on_disk = True

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._over_columns: ColumnFigures | None = None
        self._form: RowForm = DICTS
        self._computed = False
        self._names: list[str] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch) and self._over_columns is None:
            self._over_columns = self._last_of(batch)
        if self._over_columns is not None:
            same = isinstance(batch, ColumnBatch) and batch.form is self._form
            if same and batch.columns is not None and batch.columns.schema.names == self._names:
                if self._over_columns.fold(batch):
                    return
            else:
                self.state.to_rows()
        if isinstance(batch, ColumnBatch):
            batch = _last_rows(batch)  # of the others no row is made
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        # A tuple, because a value may be None, which means that a key has no state.
        self.state.values.update(zip(keys, zip(batch.values), strict=True))
        if self.state.untried:
            self.state.try_first()

    def _last_of(self, batch: ColumnBatch) -> ColumnFigures | None:
        """Return what keeps the last row of each key in columns; None if rows of that form are kept as values."""
        names = batch.columns.schema.names
        if batch.form not in (DICTS, SCALAR) or not names or len(set(names)) < len(names):
            return None
        self._form, self._computed, self._names = batch.form, batch.computed, names
        if batch.form is SCALAR:
            return ColumnFigures(self.state, [agg.last()], shape_of_one())
        return ColumnFigures(self.state, [agg.last(name) for name in names], shape_of_records(names))

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if epoch.time == MAX_EPOCH:
            self._send_last(out)
            for _ in self.state.bring_all():
                self._send_last(out)
        out.forward(epoch)

    def _send_last(self, out: Outlet) -> None:
        """Send the values in memory, and forget them."""
        last = self.state.values
        self.changes(last)
        if isinstance(last, FigureStates) and len(last):
            keys, figures = last.groups.finish()
            of_names = dict(zip(self._names, figures, strict=True))
            columns = record_batch(of_names)
            out.send(ColumnBatch(columns, key_column=keys, form=self._form, computed=self._computed))
        elif len(last):
            out.send(Batch([value for (value,) in last.values()], keys=list(last)))
        last.clear()
