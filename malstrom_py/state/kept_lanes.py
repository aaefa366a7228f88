"""The lanes that keep one of the values of a key: min, max, first and last; those of functions of the user's, which do
as ``+``, ``<`` and ``>`` of Python do; and the lane of each aggregation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.state import group_kernels
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import GroupedRows, NotColumnar
from malstrom_py.state.group_lanes import CAPACITY, CountLane, Lane, MeanLane, SumLane
from malstrom_py.state.group_values import (
    Array,
    Values,
    arrow_of,
    comparable,
    dtype_of,
    is_odd,
)
from malstrom_py.state.top_lane import TopLane

if TYPE_CHECKING:
    import pyarrow as pa


class _Kept(Lane):
    """Keeps one of the values: the base of min, max, first and last."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        super().__init__(aggregation)
        self.kept = np.zeros(CAPACITY, np.int64)

    def values(self, column: pa.Array | None) -> Values | None:
        return comparable(column)

    def retype(self, type_: Any) -> None:
        import numpy as np

        super().retype(type_)
        self.kept = np.full(len(self.kept), self.fields()["kept"], dtype_of(type_))

    def finish(self, ids: Array) -> pa.Array:
        return arrow_of(self.kept[ids], self.has[ids], self.type)

    def _kept_of(self, column: pa.Array) -> tuple[Array, pa.DataType | None, Array]:
        """Return the values of a column, their type if there is one, and which are not null."""
        import numpy as np

        values = comparable(column)
        type_ = values.type if values.any else None
        self.check_type(type_)
        return values.data, type_, np.ones(len(values.data), np.bool_) if values.valid is None else values.valid

    def set(self, ids: Array, arrays: Any) -> None:
        kept, type_, has = arrays[:3]
        if type_ is not None and self.type is None:
            self.retype(type_)
        if type_ is not None:
            self.kept[ids] = kept
        self.kept[ids[~has]] = self.fields()["kept"]
        self.has[ids] = has


class _Best(_Kept):
    """Keeps the smallest, or the ``largest``."""

    def __init__(self, aggregation: Aggregation[Any, Any], *, largest: bool) -> None:
        super().__init__(aggregation)
        self.largest = largest
        self.kept[:] = self.fields()["kept"]

    def fields(self) -> dict[str, Any]:
        """An absent value loses against all others."""
        import numpy as np

        if self.type is not None and dtype_of(self.type) == "float64":
            return {"has": False, "kept": -np.inf if self.largest else np.inf}
        return {"has": False, "kept": -(2**63) if self.largest else 2**63 - 1}

    def values(self, column: pa.Array | None) -> Values | None:
        values = comparable(column)
        if values.valid is not None and not self.skips:
            raise NotColumnar("None among values that are compared")
        return values

    def add(self, rows: GroupedRows, values: Values, *, each: bool) -> Any:
        self.learn(values)
        if not values.any:
            return arrow_of(self.kept[rows.ids], self.has[rows.ids], self.type or values.type) if each else None
        of = self.kept, self.has
        best, has = group_kernels.add_best(rows, values.data, values.valid, *of, largest=self.largest, each=each)
        return None if best is None else arrow_of(best, None if values.valid is None else has, self.type)

    def values_at(self, ids: Array) -> Values:
        return Values(self.kept[ids], self.has[ids], self.type)

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        return self._kept_of(columns[0])


class _Edge(_Kept):
    """``none``: the value kept is None; ``knows_none``: there may be such. ``at``: the number of the row that is kept,
    if the rows have numbers (`GroupedRows.arrived`): then parts are merged in the order of arrival.
    """

    def __init__(self, aggregation: Aggregation[Any, Any], *, latest: bool) -> None:
        import numpy as np

        super().__init__(aggregation)
        self.latest = latest
        self.knows_none = False
        self.none = np.zeros(CAPACITY, np.bool_)
        self.at: Array | None = None

    def fields(self) -> dict[str, Any]:
        numbered = {} if self.at is None else {"at": self._unnumbered}
        return {"has": False, "kept": 0, "none": False, **numbered}

    @property
    def _unnumbered(self) -> int:
        """What is at the place of an absent value: each value comes before it, or after it."""
        return -(2**63) if self.latest else 2**63 - 1

    def _numbered(self) -> Array:
        import numpy as np

        if self.at is None:
            self.at = np.full(len(self.has), self._unnumbered)
        return self.at

    def add(self, rows: GroupedRows, values: Values, *, each: bool) -> Any:
        import numpy as np

        self.learn(values)
        pairs: list[tuple[Array, Array]] = [(values.data.astype(self.kept.dtype, copy=False), self.kept)]
        if rows.arrived is not None:
            pairs.append((rows.arrived, self._numbered()))
        if self.skips or (values.valid is None and not self.knows_none):
            (kept, *_), has = group_kernels.add_edge(rows, values.valid, self.has, pairs, latest=self.latest)
        else:
            self.knows_none = True
            none = np.zeros(len(rows), np.bool_) if values.valid is None else ~values.valid
            pairs.append((none, self.none))
            (kept, *_, is_none), has = group_kernels.add_edge(rows, None, self.has, pairs, latest=self.latest)
            has = ~is_none
        return arrow_of(kept, has, self.type or values.type) if each else None

    def merge(self, other: _Edge, ids: Array, theirs: Array) -> None:
        self.check_type(other.type)
        if self.type is None and other.type is not None:
            self.retype(other.type)
        new = other.has[theirs]
        if other.at is not None:
            at, their_at = self._numbered()[ids], other.at[theirs]
            new &= their_at >= at if self.latest else their_at < at
        elif not self.latest:
            new &= ~self.has[ids]
        ids, theirs = ids[new], theirs[new]
        if other.at is not None:
            self._numbered()[ids] = other.at[theirs]
        self.knows_none = self.knows_none or other.knows_none
        if self.knows_none:
            self.none[ids] = other.none[theirs]
        if other.type is not None:
            self.kept[ids] = other.kept[theirs]
        self.has[ids] = True

    def arrivals(self, ids: Array) -> list[int | None]:
        return [at if has else None for at, has in zip(self._numbered()[ids].tolist(), self.has[ids], strict=True)]

    def set_arrivals(self, ids: Array, arrivals: Sequence[int]) -> None:
        import numpy as np

        self._numbered()[ids] = np.where(self.has[ids], arrivals, self._unnumbered)

    def finish(self, ids: Array) -> pa.Array:
        return arrow_of(self.kept[ids], self.has[ids] & ~self.none[ids], self.type)

    def set(self, ids: Array, arrays: Any) -> None:
        super().set(ids, arrays)
        self.none[ids] = arrays[3]
        self.knows_none = self.knows_none or bool(arrays[3].any())

    def columns(self, ids: Array) -> list[pa.Array]:
        has = self.has[ids]
        return [self.finish(ids), arrow_of(has, has, None)]

    def shape(self, first: int) -> StoredShape:
        return {"where": first + 1, "is": (first,), "else": None if self.skips else ()}

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        column, there = columns
        kept, type_, known = self._kept_of(column)
        has = there.is_valid().to_numpy(zero_copy_only=False)
        return kept, type_, has, has & ~known


class _Total(SumLane):
    """The sum of a function. No total is -0.0: no sum from 0 on is, and ``state or 0`` would make it 0."""

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        import numpy as np

        totals, *more = self._arrays_of_column(columns[0], None)
        if totals.dtype.kind == "f" and (np.signbit(totals) & (totals == 0)).any():
            raise NotColumnar("a sum of -0.0")
        return totals, *more


class _Extreme(_Best):
    """What a function keeps. Which of 0.0 and -0.0 it keeps, and whether it keeps NaN, depends on how it compares."""

    def values(self, column: pa.Array | None) -> Values | None:
        values = super().values(column)
        if values is not None and is_odd(values.data):
            raise NotColumnar("NaN or -0.0 among values that a function compares")
        return values

    def _kept_of(self, column: pa.Array) -> tuple[Array, pa.DataType | None, Array]:
        kept = super()._kept_of(column)
        if is_odd(kept[0]) or not kept[2].all():
            raise NotColumnar("NaN, -0.0 or None is kept")
        return kept


class _Newest(_Edge):
    """The last value, which is the state itself and not None."""

    def values(self, column: pa.Array | None) -> Values | None:
        values = super().values(column)
        if values is not None and values.valid is not None:
            raise NotColumnar("None among values of which the last is kept")
        return values

    def columns(self, ids: Array) -> list[pa.Array]:
        return [self.finish(ids)]

    def shape(self, first: int) -> StoredShape:
        return first

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        kept, type_, known = self._kept_of(columns[0])
        if not known.all():
            raise NotColumnar("None is kept")
        return kept, type_, known, ~known


LANES: Final[dict[str | None, Callable[[Aggregation[Any, Any]], Lane]]] = {
    "count": CountLane,
    "sum": SumLane,
    "mean": MeanLane,
    "min": lambda one: _Best(one, largest=False),
    "max": lambda one: _Best(one, largest=True),
    "first": lambda one: _Edge(one, latest=False),
    "last": lambda one: _Edge(one, latest=True),
    "top": TopLane,
    "fold-sum": _Total,
    "fold-largest": lambda one: _Extreme(one, largest=True),
    "fold-smallest": lambda one: _Extreme(one, largest=False),
    "fold-last": lambda one: _Newest(one, latest=True),
}


def lane_of(one: Aggregation[Any, Any]) -> Lane:
    """Return an empty lane for an aggregation. `NotColumnar` if it has none."""
    if one.arrays not in LANES:
        raise NotColumnar(f"agg.{one.name}")
    return LANES[one.arrays](one)
