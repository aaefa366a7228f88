"""The lane of ``top_n``: per key its ``n`` largest values so far, or the records with the largest values of a column.

The largest of each key are in registers, 0 has the largest. All rows of a batch go through the registers together: a
register keeps the larger of what it has and what comes, and passes the other on to the next. Rule: of equal values the
earlier is the larger, as in the row path; so all values have one order, and are numbers in that order here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.agg import Aggregation
from malstrom_py.data.equality import IN_ORDER, ordered
from malstrom_py.data.row_form import python_values
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import GroupedRows, NotColumnar
from malstrom_py.state.group_lanes import CAPACITY, Lane
from malstrom_py.state.group_values import Array, Values, arrow_of, comparable, dtype_of

if TYPE_CHECKING:
    import pyarrow as pa

CELLS_MAX: Final = 512
"""The most values that a key may have here; more are kept in rows."""

State = tuple[Sequence[Any], Sequence[Any]]
"""As the row path has it: the ranks, ascending, of equal ones the later first, and the values in the same order."""


def insert(state: State, rank: Any, value: Any, n: int) -> State:
    """Return ``state`` with one more value.

    >>> insert(([1, 3], ["a", "c"]), 3, "d", 2)
    ([3, 3], ['d', 'c'])
    """
    ranks, best = state
    # The first value is compared with itself: a value without order must fail, not spoil the others.
    known = ranks or (rank,)
    if type(rank) in IN_ORDER and type(known[-1]) in IN_ORDER and rank == rank and known[-1] == known[-1]:
        place = bisect_left(known, rank)
    else:  # NaN, which is last, or what may hold it, or a time with a zone
        place = bisect_left(known, ordered(rank), key=ordered)
    return [*ranks[:place], rank, *ranks[place:]][-n:], [*best[:place], value, *best[place:]][-n:]


@dataclass(frozen=True)
class Top(Aggregation[State, list[Any]]):
    """The ``n`` largest values; with ``field`` the records with the largest values of that column."""

    n: int = 1


def top(n: int, field: str | None) -> Top:
    """Return the aggregation of ``top_n`` by a column, None: by the values themselves."""

    def add(state: State, value: Any) -> State:
        return insert(state, value if field is None else value[field], value, n)

    def merge(left: State, right: State) -> State:
        for rank, value in zip(right[0][::-1], right[1][::-1], strict=True):
            left = insert(left, rank, value, n)
        return left

    return Top("top_n", lambda: ((), ()), add, merge, lambda state: [*state[1]][::-1], field, arrays="top", n=n)


class _Rows(NamedTuple):
    """The values of a batch, per column; ``rank``: which of them is compared."""

    columns: list[Values]
    names: list[str]
    rank: int

    @property
    def any(self) -> bool:
        """Whether there is a value."""
        return len(self.columns[self.rank].data) > 0


class TopLane(Lane):
    """``data`` and ``valid``: per column the values by id and register. ``count``: how many registers are full."""

    def __init__(self, aggregation: Aggregation[Any, Any]) -> None:
        import numpy as np

        if not isinstance(aggregation, Top) or aggregation.n > CELLS_MAX:
            raise NotColumnar("so many values of one key")
        super().__init__(aggregation)
        self.n = aggregation.n
        self._by = aggregation.field if isinstance(aggregation.field, str) else None
        self.names: list[str] = []
        self.types: list[Any] = []
        self.rank = 0
        self.data: list[Array] = []
        self.valid: list[Array] = []
        self.count = np.zeros(CAPACITY, np.int64)
        if self._by is None:
            self._learn([""], [None])

    def fields(self) -> dict[str, Any]:
        return {"has": False, "count": 0}

    def grow(self, capacity: int) -> None:
        super().grow(capacity)
        self.data = [_taller(column, capacity) for column in self.data]
        self.valid = [_taller(column, capacity) for column in self.valid]

    def pick(self, ids: Array) -> None:
        super().pick(ids)
        self.data = [column[ids] for column in self.data]
        self.valid = [column[ids] for column in self.valid]

    def values(self, column: pa.Array | None) -> Any:
        import numpy as np
        import pyarrow as pa

        if self._by is None:
            names, columns = [""], [comparable(column)]
        elif column is None or not pa.types.is_struct(column.type):
            raise NotColumnar("values that are not records")
        else:
            names = [column.type.field(place).name for place in range(column.type.num_fields)]
            if len(set(names)) < len(names) or len(names) * self.n > CELLS_MAX:
                raise NotColumnar("records of so many columns, or with two of one name")
            columns = [comparable(part) for part in column.flatten()]
        rank = 0 if self._by is None else names.index(self._by)
        ranks = columns[rank]
        if ranks.valid is not None or ranks.type is None:
            raise NotColumnar("None among values that are compared")
        if ranks.data.dtype.kind == "f" and np.isnan(ranks.data).any():
            raise NotColumnar("NaN among values that are compared")
        return _Rows(columns, names, rank)

    def check(self, rows: GroupedRows, values: _Rows) -> None:
        if (len(rows.which) * self.n + len(rows) + 1) * (self.n + len(rows)) * len(rows.which) >= 1 << 62:
            raise NotColumnar("so many rows and keys in one batch")
        self._check_columns(values)

    def _check_columns(self, values: _Rows) -> None:
        """Refuse values of other columns than the arrays hold: numpy would cast them without a word."""
        if not self.names:
            return
        if values.names != self.names:
            raise NotColumnar("records with other columns")
        for known, column in zip(self.types, values.columns, strict=True):
            if column.type is not None and known is not None and column.type != known:
                raise NotColumnar(f"values of {column.type} after values of {known}")

    def _learn(self, names: list[str], types: list[Any]) -> None:
        import numpy as np

        if not self.names:
            self.names, self.types = list(names), list(types)
            self.rank = 0 if self._by is None else names.index(self._by)
            shape = (len(self.count), self.n)
            self.data = [np.zeros(shape, "int64" if kind is None else dtype_of(kind)) for kind in types]
            self.valid = [np.zeros(shape, np.bool_) for _ in types]
            return
        for place, kind in enumerate(types):
            if self.types[place] is None and kind is not None:
                self.types[place] = kind
                self.data[place] = np.zeros(self.data[place].shape, dtype_of(kind))

    def add(self, rows: GroupedRows, values: _Rows, *, each: bool) -> Any:
        import numpy as np

        self._learn(values.names, [column.type for column in values.columns])
        which, codes, n = rows.which, rows.codes, self.n
        of_state, of_rows = self.data[self.rank], values.columns[self.rank].data
        # A value that is not larger than the smallest of n cannot enter.
        enters = (self.count[rows.ids] < n) | (of_rows > of_state[rows.ids, n - 1])
        at = np.flatnonzero(enters)
        at = at[np.argsort(codes[at], kind="stable")]
        segment = codes[at]
        registers = _registers(of_state[which], self.count[which], of_rows[at], segment)
        # The pool has the registers of all keys, then the rows that may enter.
        pool = [
            (np.concatenate([self.data[place][which].ravel(), column.data[at].astype(self.data[place].dtype)]), valid)
            for place, column in enumerate(values.columns)
            for valid in [np.concatenate([self.valid[place][which].ravel(), _valid(column)[at]])]
        ]
        before = np.where(np.arange(n) < self.count[which][:, None], np.arange(len(which) * n).reshape(-1, n), -1)
        after = before.copy()
        if len(at):
            ends = np.flatnonzero(np.append(segment[1:] != segment[:-1], True))
            after[segment[ends]] = registers[ends]
        result = self._lists(self._after_each(codes, at, segment, registers, before), pool) if each else None
        self._set(which, after, pool)
        return result

    @staticmethod
    def _after_each(codes: Array, at: Array, segment: Array, registers: Array, before: Array) -> Array:
        """Return per row, in the order of the batch, the places in the pool of the largest after it."""
        import numpy as np

        rows = len(codes)
        order = np.argsort(codes, kind="stable")
        place = np.full(rows, -1)
        place[at] = np.arange(len(at))
        in_order = place[order]
        # The last row of the same key that may have entered: both orders are by key, then by arrival.
        last = np.maximum.accumulate(in_order)
        same = (last >= 0) & (segment[last] == codes[order] if len(at) else False)
        found = before[codes[order]]
        if len(at):
            found[same] = registers[last[same]]
        result = np.empty_like(found)
        result[order] = found
        return result

    def _set(self, which: Array, after: Array, pool: list[tuple[Array, Array]]) -> None:
        there = after >= 0
        for place, (data, valid) in enumerate(pool):
            self.data[place][which] = data[after]
            self.valid[place][which] = valid[after] & there
        self.count[which] = there.sum(axis=1)
        self.has[which] = self.count[which] > 0

    def _lists(self, places: Array, pool: list[tuple[Array, Array]]) -> pa.Array:
        """Return a list per row of ``places``, of what these are in the pool; -1 for none."""
        import numpy as np
        import pyarrow as pa

        there = places >= 0
        flat = places[there]
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(there.sum(axis=1), dtype=np.int32)])
        columns = [
            arrow_of(data[flat], valid[flat], kind) for (data, valid), kind in zip(pool, self.types, strict=True)
        ]
        items = columns[0] if self._by is None else pa.StructArray.from_arrays(columns, self.names)
        return pa.ListArray.from_arrays(pa.array(ends), items)

    def merge(self, other: Any, ids: Array, theirs: Array) -> None:
        raise NotColumnar("the largest of two parts are merged in rows")

    def finish(self, ids: Array) -> pa.Array:
        import numpy as np

        if not self.names:
            return self._lists(np.full((len(ids), self.n), -1), [])
        places = np.arange(len(ids) * self.n).reshape(-1, self.n)
        pool = [(data[ids].ravel(), valid[ids].ravel()) for data, valid in zip(self.data, self.valid, strict=True)]
        return self._lists(np.where(np.arange(self.n) < self.count[ids][:, None], places, -1), pool)

    def states(self, ids: Array) -> list[Any]:
        best = [values[::-1] for values in python_values(self.finish(ids), "a state")]
        if self._by is None:
            return [(values, list(values)) for values in best]
        return [([value[self._by] for value in values], values) for values in best]

    def arrays_of(self, states: list[Any]) -> Any:
        import pyarrow as pa

        if any(not isinstance(state, tuple) or len(state) != 2 or len(state[1]) > self.n for state in states):
            raise NotColumnar("a state that is not of the largest values")
        flat = [value for _, best in states for value in best[::-1]]
        if self._by is not None and any(type(value) is not dict or list(value) != list(flat[0]) for value in flat):
            raise NotColumnar("records with other columns")
        kinds = [{type(value[name]) for value in flat} for name in flat[0]] if self._by is not None and flat else []
        if self._by is None:
            kinds = [{type(value) for value in flat}]
        if any(kind - {type(None)} not in ({int}, {float}, {bool}, set()) for kind in kinds):
            raise NotColumnar("values of several types, or of one that no array holds")
        try:
            values = self.values(pa.array(flat)) if flat else None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise NotColumnar("values that no column holds") from None
        if values is not None:
            self._check_columns(values)
        return values, [len(best) for _, best in states]

    def set(self, ids: Array, arrays: Any) -> None:
        import numpy as np

        values, counts = arrays
        self.count[ids] = counts
        self.has[ids] = self.count[ids] > 0
        if values is None:
            return
        self._learn(values.names, [column.type for column in values.columns])
        of_key = np.repeat(ids, counts)
        register = np.concatenate([np.arange(count) for count in counts])
        for place, column in enumerate(values.columns):
            self.data[place][of_key, register] = column.data
            self.valid[place][of_key, register] = _valid(column)

    def columns(self, ids: Array) -> list[pa.Array]:
        return [
            arrow_of(data[ids, register], valid[ids, register], kind)
            for data, valid, kind in zip(self.data, self.valid, self.types, strict=True)
            for register in range(self.n)
        ]

    def shape(self, first: int) -> StoredShape:
        def cell(column: int, register: int) -> int:
            return first + column * self.n + register

        ranks, best = [], []
        for register in reversed(range(self.n)):
            rank = cell(self.rank, register)
            fields = {name: cell(place, register) for place, name in enumerate(self.names)}
            ranks.append({"where": rank, "is": rank, "else": None})
            best.append({"where": rank, "is": rank if self._by is None else {"record": fields}, "else": None})
        return ({"listed": ranks}, {"listed": best})

    def arrays_of_columns(self, columns: Sequence[pa.Array]) -> Any:
        import numpy as np
        import pyarrow as pa

        if self._by is not None:
            raise NotColumnar("records, whose columns are not known before the first batch")
        kinds = {column.type for column in columns if column.null_count < len(column)}
        if len(kinds) > 1:
            raise NotColumnar("values of several types")
        (kind,) = kinds or {pa.int64()}
        there = np.stack([column.is_valid().to_numpy(zero_copy_only=False) for column in columns], axis=1)
        flat = pa.concat_arrays([column.cast(kind) for column in columns])
        by_key = np.arange(there.size).reshape(self.n, -1).T[there]  # the values of each key, from register 0 on
        values = self.values(flat.take(pa.array(by_key))) if len(by_key) else None
        if values is not None:
            self._check_columns(values)
        return values, there.sum(axis=1)


def _valid(values: Values) -> Array:
    import numpy as np

    return np.ones(len(values.data), np.bool_) if values.valid is None else values.valid


def _taller(column: Array, capacity: int) -> Array:
    import numpy as np

    taller = np.zeros((capacity, column.shape[1]), column.dtype)
    taller[: len(column)] = column
    return taller


def _registers(state: Array, count: Array, ranks: Array, segment: Array) -> Array:
    """Return the places in the pool of the largest of its key after each row, which are in the order of ``segment``.

    ``state``: the registers of each segment, ``count`` of them full. -1: an empty register.
    """
    import numpy as np

    segments, n = state.shape
    rows = len(ranks)
    full = np.arange(n) < count[:, None]
    _, order = np.unique(np.concatenate([state.ravel(), ranks]), return_inverse=True)
    order = order.astype(np.int64)
    # One number per value: by rank, then the earlier first; those in registers are earlier than all rows.
    turns = n + rows
    of_state = np.where(full, order[: segments * n].reshape(-1, n) * turns + (turns - np.arange(n)), 0)
    of_rows = order[segments * n :] * turns + (turns - n - np.arange(rows))
    size = (int(order.max(initial=0)) + 1) * turns + 1
    base = np.arange(segments) * size
    incoming = of_rows + base[segment]
    registers = np.empty((rows, n), np.int64)
    starts = np.append(True, segment[1:] != segment[:-1]) if rows else np.zeros(0, np.bool_)
    for register in range(n):
        initial = (of_state[:, register] + base)[segment]
        largest = np.maximum(np.maximum.accumulate(incoming), initial)
        before = np.where(starts, initial, np.roll(largest, 1))
        registers[:, register] = largest - base[segment]
        incoming = np.minimum(before, incoming)
    turn = turns - 1 - (registers - 1) % turns  # of the value: its register, or n + its row
    places = np.where(turn < n, segment[:, None] * n + turn, segments * n + turn - n)
    return np.where(registers == 0, -1, places)
