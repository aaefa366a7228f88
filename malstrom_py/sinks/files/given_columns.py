"""Columns of a given schema: values that do not fit are refused, and no type is inferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from malstrom_py.data.row_form import fields_of
from malstrom_py.data.rows_to_columns import Column, KindCheck
from malstrom_py.data.schema import ColumnKind, accepts, contains, kind_of, plain, recast
from malstrom_py.data.unfit_values import why_unfit
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.target_columns import TargetColumns, long_place, null_place

if TYPE_CHECKING:
    import pyarrow as pa


class GivenColumns:
    """Converts rows as `RowColumns` does, into explicit `TargetColumns`: an extra field is an error.

    Ints fit columns of floats and Decimals, and numbers fit narrower columns that can hold them. The stream's key is
    left out if there is no column ``key``. A missing field is None; of a table, a column that no row of a batch has is
    an error, and names may differ in case.
    """

    def __init__(self, target: TargetColumns) -> None:
        self._target = target
        self._schema = target.schema
        self._kinds = KindCheck(SinkError)

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """See `RowColumns.convert`."""
        none: list[Any] = [None] * len(values)
        if lists is not None:
            given = self._given(leading)
            own = self._own_names({*lists}, given)
            return self._batch(given.get(name) or lists.get(own.get(name, name), none) for name in self._schema.names)
        rows, given = fields_of(values), self._given(leading)
        own = self._own_names(set().union(*rows), given)
        columns = ((name, own.get(name, name)) for name in self._schema.names)
        return self._batch(given.get(name) or [row.get(mine) for row in rows] for name, mine in columns)

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """See `RowColumns.admit`."""
        names = columns.schema.names
        if len(set(names)) < len(names):
            raise SinkError("two columns have the same name: rename one")
        given = self._given(leading)
        own = self._own_names(set(names), given)
        found: dict[Any, Column] = dict(zip(names, columns.columns, strict=True))
        none: list[Any] = [None] * len(columns)
        there: list[Column] = [
            found[own[name]] if name in own else given.get(name, none) for name in self._schema.names
        ]
        return self._batch(there)

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """See `RowColumns.widened`: an explicit schema never widens."""
        return batch if batch.schema.equals(schema) else batch.cast(schema)

    def _given(self, leading: Mapping[str, Column] | None) -> dict[str, Column]:
        """Return those of the ``leading`` columns that there are, by the names of the target."""
        target = self._target
        return {target.names[target.folded(name)]: each for name, each in (leading or {}).items() if name in target}

    def _own_names(self, names: set[Any], given: Mapping[str, Column]) -> dict[str, Any]:
        """Return the names that the rows have, by those of the target."""
        where = self._target.where
        if extra := [name for name in names if name not in self._target]:
            listed = ", ".join(sorted(map(repr, extra)))
            raise SinkError(f"columns {listed} are not in {where}: drop them in a map step")
        own = {self._target.names[self._target.folded(name)]: name for name in names}
        if len(own) < len(names):
            raise SinkError(f"two columns of the rows have names of one column of {where}: rename one in a map step")
        if self._target.is_table and (lacking := [name for name in self._schema.names if name not in {*own, *given}]):
            listed = ", ".join(map(repr, lacking))
            raise SinkError(
                f"the rows lack columns {listed} of {where}: add them in a map step, with None for no value"
            )
        return own

    def _batch(self, columns: Iterable[Column]) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [self._array(field, column) for field, column in zip(self._schema, columns, strict=True)]
        for name, array in zip(self._schema.names, arrays, strict=True):
            if place := null_place(self._target.required, name, array):
                raise SinkError(
                    f"column {place!r} is None or missing in a row, and {self._target.where} says that it is not "
                    f"nullable: fill it, or leave such rows out, in a step before"
                )
            if too_long := long_place(self._target.lengths, name, array):
                place, length = too_long
                raise SinkError(
                    f"column {place!r} holds a text of {length} characters, and {self._target.where} takes "
                    f"{self._target.lengths[place]}: shorten it in a map step, or give the column a longer type"
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, column: Column) -> pa.Array:
        import pyarrow as pa

        if isinstance(column, list) and _is_map(field.type):
            column = [list(value.items()) if isinstance(value, dict) else value for value in column]
        elif isinstance(column, list):
            if kind_of(field.type) is ColumnKind.DECIMAL and int in set(map(type, column)):
                column = [Decimal(value) if type(value) is int else value for value in column]
            self._kinds.check(field.name, column)
        try:
            if isinstance(column, list) and contains(field.type, _is_map):
                return pa.array(column, field.type)
            found = pa.array(column) if isinstance(column, list) else plain(column)
            if not accepts(field.type, found.type):
                raise pa.ArrowInvalid("another kind of value")
            is_read = isinstance(column, list) and kind_of(found.type) is not ColumnKind.INT
            return pa.array(column, field.type) if is_read else recast(found, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if isinstance(column, list):
                what = ", ".join(sorted({type(value).__name__ for value in column if value is not None}))
            else:
                what = str(column.type)
            why = why_unfit(column) if isinstance(column, list) else None
            if why is not None:
                raise SinkError(f"column {field.name!r} holds {why}, in a map step") from None
            raise SinkError(
                f"column {field.name!r} holds values ({what}) that do not fit its type in {self._target.where}, "
                f"{field.type}: convert them in a map step"
            ) from None


def _is_map(kind: pa.DataType) -> bool:
    return kind_of(kind) is ColumnKind.MAP
