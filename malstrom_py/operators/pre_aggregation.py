"""Pre-aggregation: what the rows of one batch gather per key and pane goes to the key's owner instead of the rows (F5).

Rule: nothing is kept from one batch to the next, so no epoch, barrier, marker or move has to wait for anything. States
are merged only where that gives what the rows in order would: not sums of floats, nor the smallest of values with NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.data.row_form import PARTIALS
from malstrom_py.operators.column_figures import columns_of
from malstrom_py.operators.panes import one_column, split_by_span
from malstrom_py.state.group_index import NotColumnar, keys_as_column
from malstrom_py.state.group_values import is_odd
from malstrom_py.state.groups import Groups
from malstrom_py.state.key_symbols import KeySymbols, SymbolIndex

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_MIN: Final = 64
_LISTS: Final = 8
"""So many times as many rows make it worth to build columns of lists first."""

_WORTH: Final = 0.5
_PAUSE: Final = 15

_SUMS: Final = frozenset({"sum", "mean"})
_WHOLE: Final = frozenset({int, bool, type(None)})

_PLAIN: Final = ({int}, {float}, {str}, {bytes})
"""The types of values of which columns hold what rows do, if all are of one."""


class PreAggregation:
    """Makes of a batch the states of its keys in each pane. See `TimeWindows` for ``span``, ``origin`` and ``reach``.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> combine = PreAggregation([agg.count()], 10, 0, 10)
    >>> keys, times = pa.array(["ant", "bee", "ant"] * 100), pa.array([1, 2, 3] * 100)
    >>> rows = ColumnBatch(pa.RecordBatch.from_pydict({"n": [0] * 300}), key_column=keys, time_column=times)
    >>> states = combine(rows)
    >>> states.keys, states.values, states.timestamps
    (['ant', 'bee'], [(200,), (100,)], [3, 3])
    """

    def __init__(self, aggregations: Sequence[Aggregation[Any, Any]], span: int, origin: int, reach: int) -> None:
        self._aggregations = aggregations
        self._span, self._origin, self._reach = span, origin, reach
        self._pause = 0
        self._too_few = 0
        self._summed = [one.field for one in aggregations if one.arrays in _SUMS and not one.blind]
        self._has_floats = False

    def __call__(self, batch: Batch) -> Batch:
        """Return the states of ``batch``, each at a time in its pane; or ``batch``, unless they are far fewer."""
        rows = len(batch)
        if not isinstance(batch, ColumnBatch) and self._sums_floats(batch):
            return batch
        if rows < _ROWS_MIN or (isinstance(batch, ColumnBatch) and batch.form is PARTIALS):
            return batch
        if self._pause and rows < 2 * self._too_few:
            self._pause -= 1
            return batch
        if not isinstance(batch, ColumnBatch) and rows < _LISTS * _ROWS_MIN:
            return batch
        columns = batch if isinstance(batch, ColumnBatch) else _in_columns(batch, self._aggregations)
        made = None if columns is None else self._combined(columns)
        if made is None or len(made) > _WORTH * rows:
            self._pause, self._too_few = _PAUSE, rows
            return batch
        self._pause = 0
        return made

    def _sums_floats(self, batch: Batch) -> bool:
        """Return whether this or an earlier batch of rows has other values than integers among what is summed up:
        then a batch of integers alone must not be summed up before its turn.
        """
        with suppress(Exception):  # the step that reads the rows decides what an error of a row means
            for name in () if self._has_floats else self._summed:
                self._has_floats |= not set(map(type, map(itemgetter(name), batch.values))) <= _WHOLE
        return self._has_floats

    def _combined(self, batch: ColumnBatch) -> ColumnBatch | None:
        import numpy as np
        import pyarrow as pa

        only_key, times = batch.only_key, batch.time_column
        keys = batch.key_column if only_key is None else only_key
        if keys is None or times is None:
            return None
        split = split_by_span(times, self._span, self._origin, reach=self._reach)
        if split is None:
            return None
        numbers, moments = KeySymbols(), times.to_numpy()
        spans: dict[int, Groups] = {}
        latest: dict[int, int] = {}
        try:
            columns = columns_of(batch, self._aggregations)
            if any(map(_has_nan, self._aggregations, columns)):
                return None
            symbols, columns = split.sorted(numbers.of(keys, rows=len(batch)), columns)
            for piece in split.pieces:
                groups = spans.setdefault(piece.at, Groups(self._aggregations, SymbolIndex(numbers)))
                groups.fold(piece.of_array(symbols), list(map(piece.of, columns)))
                if not groups.is_exact:
                    return None
                latest[piece.at] = max(latest.get(piece.at, MIN_EPOCH), int(moments[split.places(piece)].max()))
            made = [groups.partials() for groups in spans.values()]
            partials = list(map(one_column, zip(*made, strict=True)))
        except NotColumnar:
            return None
        return ColumnBatch(
            pa.RecordBatch.from_arrays(partials, names=[str(number) for number in range(len(partials))]),
            key_column=pa.concat_arrays([groups.keys() for groups in spans.values()]),
            time_column=pa.array(np.concatenate([np.full(len(of), latest[at]) for at, of in spans.items()])),
            form=PARTIALS,
        )


def _in_columns(batch: Batch, aggregations: Sequence[Aggregation[Any, Any]]) -> ColumnBatch | None:
    """Return what is gathered of rows as columns; None if these do not hold it as Python does, or few keys repeat."""
    import pyarrow as pa

    keys, names = batch.keys or [], {one.field for one in aggregations if not one.blind}
    try:
        if set(map(type, batch.timestamps or ())) != {int} or len(set(keys)) > _WORTH * len(keys):
            return None
        lists = {str(name): list(map(itemgetter(name), batch.values)) for name in names}
        if any(set(map(type, column)) not in _PLAIN for column in lists.values()):
            return None
        columns = {name: pa.array(column) for name, column in lists.items()}
        key_column, times = keys_as_column(keys), pa.array(batch.timestamps, pa.int64())
    except Exception:
        return None  # the step that reads the rows decides what an error of a row means, and takes any key
    rows = pa.RecordBatch.from_pydict(columns or {"": pa.nulls(len(keys))})
    return ColumnBatch(rows, key_column=key_column, time_column=times)


def _has_nan(one: Aggregation[Any, Any], column: pa.Array | None) -> bool:
    """Return whether the smallest or largest of ``column`` depends on the order: NaN, or zeros with two signs."""
    import pyarrow as pa

    if one.arrays not in ("min", "max") or column is None or not pa.types.is_floating(column.type):
        return False
    return is_odd(column.fill_null(0).to_numpy(zero_copy_only=False))
