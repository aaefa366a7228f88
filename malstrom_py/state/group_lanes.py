"""Lanes: the states of one aggregation by id, in arrays; here those that add: count, sum and mean.

Rule: `Lane.check` raises what can be raised, so that after it nothing fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.data.row_form import python_values
from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.state import group_kernels
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.column_image import parts_of, values_of
from malstrom_py.state.group_index import GroupedRows, NotColumnar
from malstrom_py.state.group_values import (
    Array,
    Values,
    arrow_of,
    divided,
    dtype_of,
    largest_of,
    longer,
    number_column,
    numbers_of,
    validity,
)

if TYPE_CHECKING:
    import pyarrow as pa

SAFE: Final = 2.0**62
CAPACITY: Final = 64


class Lane:
    """The arrays of one aggregation. ``arrays``: names of attributes, each with the value of an absent state."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        self.skips = aggregation.skips_nulls
        self.type: pa.DataType | None = None
        self.has = np.zeros(CAPACITY, np.bool_)

    def fields(self) -> dict[str, Any]:
        """Return the attributes that are arrays by id, and what an absent state has there."""
        return {"has": False}

    def grow(self, capacity: int) -> None:
        for name, absent in self.fields().items():
            setattr(self, name, longer(getattr(self, name), capacity, absent))

    def pick(self, ids: Array) -> None:
        for name in self.fields():
            setattr(self, name, getattr(self, name)[ids])

    def clear(self, ids: Array) -> None:
        for name, absent in self.fields().items():
            getattr(self, name)[ids] = absent

    def values(self, column: pa.Array | None) -> Values | None:
        raise NotImplementedError

    def check(self, rows: GroupedRows, values: Any) -> None:
        """Raise `NotColumnar` if ``values`` do not fit what is there."""
        self.check_type(values.type if values.any else None)

    def check_type(self, type_: pa.DataType | None) -> None:
        if type_ is not None and self.type is not None and type_ != self.type:
            raise NotColumnar(f"values of {type_} after values of {self.type}")

    def learn(self, values: Values) -> None:
        """Fix the type of this lane by its first value."""
        if self.type is None and values.any:
            self.retype(values.type)

    def retype(self, type_: Any) -> None:
        self.type = type_

    def add(self, rows: GroupedRows, values: Any, *, each: bool) -> Any:
        """Add rows. ``each``: return the result after each, as a column."""
        raise NotImplementedError

    def merge(self, other: Any, ids: Array, theirs: Array) -> None:
        """Add the states of ``theirs`` in another lane to ``ids``. `NotColumnar` if arrays do not hold a sum."""
        rows, values = GroupedRows(ids), other.values_at(theirs)
        self.check(rows, values)
        self.fold_partials(rows, values)

    def values_at(self, ids: Array) -> Values:
        """Return the states of ``ids`` as `partial_values` would of their `columns`."""
        raise NotImplementedError

    def finish(self, ids: Array) -> pa.Array:
        raise NotImplementedError

    @property
    def is_exact(self) -> bool:
        """Whether adding in any order, in parts, gives the same states: not where floats are added."""
        return True

    def partial_values(self, columns: list[pa.Array]) -> Any:
        """Return what `check` and `fold_partials` take for the result of `columns`; may raise `NotColumnar`."""
        return self.values(columns[0])

    def fold_partials(self, rows: GroupedRows, values: Any) -> None:
        """Add states, one per row."""
        self.add(rows, values, each=False)

    def states(self, ids: Array) -> list[Any]:
        """Return the states of ``ids`` as the row path has them."""
        return self.states_in(self.columns(ids))

    def states_in(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return the states of which `columns` has made these."""
        lists = [python_values(column, "a state") for column in columns]
        return list(values_of(self.shape(0), lists, len(columns[0])))

    def arrays_of(self, states: list[Any]) -> Any:
        """Return what `set` takes for Python ``states``; `NotColumnar` if they do not fit."""
        return self.arrays_of_columns(list(map(number_column, parts_of(self.shape(0), states))))

    def set(self, ids: Array, arrays: Any) -> None:
        raise NotImplementedError

    def arrivals(self, ids: Array) -> list[int | None]:
        """Return the number of the row that each of ``ids`` keeps, None where no order of arrival counts."""
        return [None] * len(ids)

    def set_arrivals(self, ids: Array, arrivals: Sequence[int]) -> None:
        """Set what `arrivals` returns, after `set`."""

    def columns(self, ids: Array) -> list[pa.Array]:
        """Return the states of ``ids`` as columns, which `shape` makes the states of the row path."""
        return [self.finish(ids)]

    def shape(self, first: int) -> StoredShape:
        """Return the shape of a state whose `columns` are numbered from ``first`` on."""
        return first

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        """Return what `set` takes, for the result of `columns`; `NotColumnar` if they do not fit."""
        raise NotImplementedError


class CountLane(Lane):
    """``has`` is not used without skip_nulls; with it a key without a count has the state None."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        super().__init__(aggregation)
        self.seen = np.zeros(CAPACITY, np.int64)

    def fields(self) -> dict[str, Any]:
        return {"seen": 0}

    def values(self, column: pa.Array | None) -> Values | None:
        if not self.skips or column is None:
            return None
        valid = validity(column)
        return None if valid is None else Values(valid, valid, None)

    def check(self, rows: GroupedRows, values: Values | None) -> None:
        """A count takes all."""

    def add(self, rows: GroupedRows, values: Values | None, *, each: bool) -> Any:
        counts = group_kernels.add_count(rows, None if values is None else values.valid, self.seen, each=each)
        return None if counts is None else arrow_of(counts, None, None)

    def values_at(self, ids: Array) -> Values:
        return Values(self.seen[ids], None, None)

    def partial_values(self, columns: list[pa.Array]) -> Values:
        return numbers_of(columns[0])

    def fold_partials(self, rows: GroupedRows, values: Values) -> None:
        group_kernels.add_sum(rows, values.data, self.seen)

    def finish(self, ids: Array) -> pa.Array:
        return arrow_of(self.seen[ids], None, None)

    def set(self, ids: Array, arrays: Array) -> None:
        self.seen[ids] = arrays

    def columns(self, ids: Array) -> list[pa.Array]:
        seen = self.seen[ids]
        return [arrow_of(seen, seen > 0 if self.skips else None, None)]

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Array:
        return _counts(columns[0], nulls=self.skips)


def _counts(column: pa.Array, *, nulls: bool) -> Array:
    """Return a column of counts, null as 0. `NotColumnar` if it is another, or has nulls without ``nulls``."""
    values = _not_bools(column)
    if values.data.dtype.kind == "f" or (values.valid is not None and not nulls):
        raise NotColumnar("a column that is not of counts")
    return values.data


def _not_bools(column: pa.Array) -> Values:
    """Return a column of states that are numbers: bools that are added become ints."""
    if kind_of(column.type) is ColumnKind.BOOL:
        raise NotColumnar("a state that is a bool")
    return numbers_of(column)


class SumLane(Lane):
    """``reach``: no total is further from 0."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        super().__init__(aggregation)
        self.totals = np.zeros(CAPACITY, np.int64)
        self.reach = 0.0

    def fields(self) -> dict[str, Any]:
        return {"has": False, "totals": 0} if self.skips else {"totals": 0}

    def retype(self, type_: Any) -> None:
        super().retype(type_)
        self.totals = self.totals.astype(dtype_of(type_))

    def values(self, column: pa.Array | None) -> Values:
        values = numbers_of(column)
        if values.valid is None:
            return values
        if not self.skips:
            raise NotColumnar("None among values that are added")
        data = values.data.copy()
        data[~values.valid] = -0.0 if data.dtype.kind == "f" else 0  # what changes no sum, not even its sign
        return Values(data, values.valid, values.type)

    def check(self, rows: GroupedRows, values: Values) -> None:
        super().check(rows, values)
        if values.data.dtype.kind == "f" or not len(values.data):
            return
        size = max(-float(values.data.min()), float(values.data.max()))
        reach = self.reach + size * len(values.data)
        if reach >= SAFE:
            if not group_kernels.sums_fit(rows, values.data, self.totals):
                raise NotColumnar("a sum may leave 64 bits")
            reach = 0.0 if self.totals.dtype.kind == "f" else largest_of(self.totals)
            reach = min(SAFE, reach + size * len(values.data))
        self.reach = reach

    def add(self, rows: GroupedRows, values: Values, *, each: bool) -> Any:
        had = self._running_has(rows, values.valid) if each and values.valid is not None else None
        totals = self._running_totals(rows, values, each=each)
        if values.any or not each:
            return None if totals is None else arrow_of(totals, had, self.type)
        return arrow_of(totals, self._has(rows.ids), self.type or values.type)

    def _running_totals(self, rows: GroupedRows, values: Values, *, each: bool) -> Array | None:
        self.learn(values)
        self._have(rows, values)
        if values.any:
            return group_kernels.add_sum(rows, values.data, self.totals, each=each)
        return self.totals[rows.ids] if each else None

    def _running_has(self, rows: GroupedRows, valid: Array) -> Array:
        import numpy as np

        counts: Any = group_kernels.add_count(rows, valid, self.has.astype(np.int64), each=True)
        return counts > 0

    def _have(self, rows: GroupedRows, values: Values) -> None:
        if self.skips:
            self.has[rows.ids if values.valid is None else rows.ids[values.valid]] = True

    def _has(self, ids: Array) -> Array | None:
        return self.has[ids] if self.skips else None

    def values_at(self, ids: Array) -> Values:
        return Values(self.totals[ids], ids < 0 if self.type is None else self._has(ids), self.type)

    @property
    def is_exact(self) -> bool:
        return self.totals.dtype.kind != "f"

    def finish(self, ids: Array) -> pa.Array:
        return arrow_of(self.totals[ids], self._has(ids), self.type)

    def set(self, ids: Array, arrays: Any) -> None:
        totals, has, type_, _ = arrays
        if type_ is not None:
            if self.type is None:
                self.retype(type_)
            self.totals[ids] = totals
            if totals.dtype.kind != "f" and len(totals):
                self.reach = max(self.reach, largest_of(totals))
        if has is not None:
            self.has[ids] = has

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        return self._arrays_of_column(columns[0], None)

    def _arrays_of_column(self, column: pa.Array, seen: Array | None) -> Any:
        import numpy as np

        values = _not_bools(column)
        if values.valid is not None and not self.skips:
            raise NotColumnar("a sum that is None")
        self.check_type(values.type if values.any else None)
        if values.data.dtype.kind != "f" and len(values.data) and largest_of(values.data) >= SAFE:
            raise NotColumnar("a sum beyond 62 bits")
        has = np.ones(len(values.data), np.bool_) if values.valid is None else values.valid
        return values.data, has if self.skips else None, values.type if values.any else None, seen


class MeanLane(SumLane):
    """A sum, and how many values it is of."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        super().__init__(aggregation)
        self.seen = np.zeros(CAPACITY, np.int64)

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "seen": 0}

    def add(self, rows: GroupedRows, values: Values, *, each: bool) -> Any:
        totals = self._running_totals(rows, values, each=each)
        counts = group_kernels.add_count(rows, values.valid, self.seen, each=each)
        return None if totals is None else divided(totals, counts)

    def values_at(self, ids: Array) -> Values:
        return super().values_at(ids)._replace(seen=self.seen[ids])

    def partial_values(self, columns: list[pa.Array]) -> Values:
        return self.values(columns[1])._replace(seen=numbers_of(columns[0]).data)

    def fold_partials(self, rows: GroupedRows, values: Values) -> None:
        self._running_totals(rows, values, each=False)
        group_kernels.add_sum(rows, values.seen, self.seen)

    def finish(self, ids: Array) -> pa.Array:
        return divided(self.totals[ids], self.seen[ids])

    def set(self, ids: Array, arrays: Any) -> None:
        super().set(ids, arrays)
        self.seen[ids] = arrays[3]

    def columns(self, ids: Array) -> list[pa.Array]:
        seen = self.seen[ids]
        there = seen > 0 if self.skips else None
        return [arrow_of(seen, there, None), arrow_of(self.totals[ids], there, self.type)]

    def shape(self, first: int) -> StoredShape:
        pair = (first, first + 1)
        return {"where": first, "is": pair, "else": None} if self.skips else pair

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        seen, totals = columns
        return self._arrays_of_column(totals, _counts(seen, nulls=self.skips))
