"""Running figures over columns: what a step with aggregations does with a `ColumnBatch`, without an object per row.

Rule: the state is in arrays from the first batch of columns on, for as long as batches are columns and arrays do what
rows would. Otherwise it becomes a dict, and arrays again once enough columns have come (`KeyedState.may_be_arrays`);
results are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from malstrom_py.agg import Aggregation, Field
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import DICTS, SCALAR
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.state.figure_states import FigureStates, Shape
from malstrom_py.state.group_index import NotColumnar, keys_as_column, keys_as_columns
from malstrom_py.state.groups import Groups
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.top_lane import Top

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.operators.compiled import CompiledFunction

T = TypeVar("T")


class FieldColumns:
    """Columns of the ``fields`` of aggregations: of a name its column, of a function its results, if these are proven.

    ``compiles``: whether functions are computed on columns; others are called for each row. ``is_sent``: the rows are
    sent with them.
    """

    def __init__(self, context: StepContext, fields: Iterable[Field], *, compiles: bool, is_sent: bool = False) -> None:
        self._is_sent = is_sent
        self._compiled: dict[int, CompiledFunction] = {}
        functions = [field for field in fields if callable(field)]
        if functions:
            from malstrom_py.operators.compiled import CompiledFunction  # a job is defined without it

            self._compiled = {id(one): CompiledFunction(context, one, compiles=compiles) for one in functions}

    @property
    def are_compiled(self) -> bool:
        """Whether there are functions, all of which may be computed on columns."""
        return bool(self._compiled) and all(one.why_not is None for one in self._compiled.values())

    def of(self, field: Field, batch: ColumnBatch) -> pa.Array | None:
        """Return the column of ``field``; None if there is none."""
        compiled = self._compiled.get(id(field))
        if compiled is None:
            return column_for(field, batch)
        column = compiled.column(batch, is_sent=self._is_sent)
        if column is None and compiled.has_made_columns and callable(field):
            with suppress(Exception):  # the step calls it again, row by row, and decides what an error of a row means
                made = compiled.again(batch, list(map(field, batch.values)))
                return column_for(None, made) if isinstance(made, ColumnBatch) else None
        return column


def functions_of(aggregations: Iterable[Aggregation[Any, Any]]) -> list[Callable[[Any], Any]]:
    """Return the functions that are fields of ``aggregations``."""
    return [one.field for one in aggregations if callable(one.field)]


class ColumnFigures:
    """The aggregations of one step over columns, with their states in ``state``, each of which has ``shape``.

    ``fields``: their columns, if some are of functions.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> from malstrom_py.codec import Codec
    >>> from malstrom_py.operators.base import StepContext
    >>> from malstrom_py.state.figure_states import shape_of_one
    >>> state = KeyedState("step", Codec())
    >>> figures = ColumnFigures(state, [agg.sum("n")], shape_of_one())
    >>> columns = pa.RecordBatch.from_pydict({"n": [3, 4, 5]})
    >>> (sums,) = figures.scan(ColumnBatch(columns, key_column=pa.array(["ann", "bob", "ann"])))
    >>> sums.to_pylist(), dict(state.values)
    ([3, 4, 8], {'ann': 8, 'bob': 4})
    """

    def __init__(
        self,
        state: KeyedState,
        aggregations: Sequence[Aggregation[Any, Any]],
        shape: Shape,
        fields: FieldColumns | None = None,
    ) -> None:
        self._state = state
        self._column_for = column_for if fields is None else fields.of
        self._aggregations = aggregations
        if Groups.supports(aggregations):
            state.arrays = partial(FigureStates, aggregations, shape)

    def scan(self, batch: Batch) -> list[pa.Array] | None:
        """Add the rows of ``batch``. Per aggregation return the result after each row; None if rows must do it."""
        return in_arrays(self._state, batch, self._scan)

    def fold(self, batch: Batch) -> bool:
        """Add the rows of ``batch``; False if rows must do it."""
        return in_arrays(self._state, batch, self._fold) is not None

    def _scan(self, batch: ColumnBatch) -> list[pa.Array]:
        return self._groups().scan(*self._columns(batch))

    def _fold(self, batch: ColumnBatch) -> int:
        self._groups().fold(*self._columns(batch))
        return len(batch)

    def _columns(self, batch: ColumnBatch) -> tuple[pa.Array | pa.RecordBatch, list[pa.Array | None]]:
        return keys_columns_of(batch), columns_of(batch, self._aggregations, self._column_for)

    def _groups(self) -> Groups:
        groups: Groups = self._state.to_arrays().groups
        return groups


def in_arrays(
    state: KeyedState, batch: Batch, add: Callable[[ColumnBatch], T], *, small: SmallBatches | None = None
) -> T | None:
    """Return what ``add`` returns for a batch of columns, which it adds to states in arrays; None if rows must do it.

    Then the states are in a dict, for a while. ``small``: batches of few rows are done by rows, too.
    """
    if isinstance(batch, ColumnBatch) and not (small and small.came(len(batch))) and state.may_be_arrays(len(batch)):
        try:
            added = add(batch)
        except NotColumnar:
            """The row path does it, or reports why not."""
        else:
            if state.untried:
                state.try_first()
            return added
    state.to_rows()
    return None


def columns_of(
    batch: ColumnBatch,
    aggregations: Iterable[Aggregation[Any, Any]],
    of: Callable[[Field, ColumnBatch], pa.Array | None] | None = None,
) -> list[pa.Array | None]:
    """Return the column of each aggregation's field, None for one that reads none. `NotColumnar` if one is missing."""
    return [None if one.blind else _column_of(one, batch, of or column_for) for one in aggregations]


def _column_of(
    one: Aggregation[Any, Any], batch: ColumnBatch, of: Callable[[Field, ColumnBatch], pa.Array | None]
) -> pa.Array:
    if isinstance(one, Top) and one.field is not None:
        return records_of(batch, one.field)
    column = of(one.field, batch)
    if column is None:
        raise NotColumnar("a field that is not a column")
    return column


def column_for(field: object, batch: ColumnBatch) -> pa.Array | None:
    """Return the column of ``field``, a name, or None: of the values themselves. None if it is not a column."""
    if field is None:
        return batch.columns.column(0) if batch.form is SCALAR else None
    return batch.column(field) if isinstance(field, str) else None


def records_of(batch: ColumnBatch, field: object) -> pa.Array:
    """Return the records of ``batch`` as one column. `NotColumnar` if they have no column ``field``."""
    if batch.form is not DICTS or field not in batch.columns.schema.names:
        raise NotColumnar("values that are not records with such a column")
    return batch.columns.to_struct_array()


def keys_columns_of(batch: ColumnBatch) -> pa.Array | pa.RecordBatch:
    """Return the keys of ``batch`` as a column, or as columns if they are tuples. `NotColumnar` if none holds them."""
    if batch.key_columns is not None:
        return batch.key_columns
    return keys_as_columns(batch.keys or []) if batch.key_column is None else batch.key_column


def keys_column_of(batch: ColumnBatch) -> pa.Array:
    """Return the keys of ``batch`` as a column. `NotColumnar` if no column holds them."""
    keys = batch.key_column
    return keys_as_column(batch.keys or []) if keys is None else keys


def record_batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return columns by name as the values of a `ColumnBatch`."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
