"""The panes of a join by window: the records of both streams by span of time, as columns or as rows.

Rule: a pane is columns while all that it gets are columns of the kinds that are kept. Else it has rows, by key, until
it closes, and panes that begin later are columns again. A barrier does not change columns that no image stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.state.group_index import GroupIndex, NotColumnar
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_rows import JoinRows, Record
from malstrom_py.state.kept_rows import SMALL, Block, KeptRows, one_block

if TYPE_CHECKING:
    import pyarrow as pa

Side = dict[Any, list[Any]]
"""Key -> the values of one stream, in order of arrival."""

Pane = tuple[Side, Side]

_FAR: Final = 1 << 61
"""Times, and spans, beyond it are rows: sums of them might not fit 64 bits."""

_FEW: Final = 1024
"""Batches of at most so many rows are small."""

_CERTAIN: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "string", "large_string"}
"""The types of keys of which all have ids, if they are valid."""

_RUNS_MAX: Final = 1024
"""Up to so many runs of rows of one pane are counted one by one."""


class JoinPanes(JoinRows):
    """The records of keys by pane. As a mapping: key -> {start: (left values, right values)}.

    ``rows``: start -> the pane of rows; ``columns``: start -> how many rows a pane of columns has. In `JoinRows` the
    moment of a row is the start of its pane.
    """

    __slots__ = ("_few", "_few_rows", "_index", "_origin", "_settled", "_span", "_types", "columns", "rows")

    forms: ClassVar[frozenset[RowForm]] = frozenset((DICTS, SCALAR))

    def __init__(self, span: int = 1, origin: int = 0, tracked: Callable[[], bool] = lambda: False) -> None:
        super().__init__(tracked)
        self._span, self._origin = span, origin
        self.rows: dict[int, Pane] = {}
        self.columns: dict[int, int] = {}

    def clear(self) -> None:
        self._few: list[tuple[int, Block]] = []  # small batches, of a side, whose keys have no ids yet
        self._few_rows = 0
        super().clear()

    def _number(self) -> None:
        self._types: set[pa.DataType] = set()  # of keys that certainly get ids
        super()._number()

    @property
    def sides(self) -> tuple[KeptRows, ...]:
        self.settle()
        return self._settled

    @sides.setter
    def sides(self, sides: tuple[KeptRows, ...]) -> None:
        self._settled = sides

    @property
    def index(self) -> GroupIndex:
        self.settle()
        return self._index

    @index.setter
    def index(self, index: GroupIndex) -> None:
        self._index = index

    def settle(self) -> None:
        """Give ids to the keys of small batches, together: each call costs as much as hundreds of rows."""
        if not self._few:
            return
        few, self._few, self._few_rows = self._few, [], 0
        for side, kept in enumerate(self._settled):
            blocks = [block for of, block in few if of == side]
            if blocks:
                block = one_block(blocks)
                ids = self.ids(block.batch.key_column)
                self.mark(ids)
                kept.add(block.batch, ids, block.moments)

    def _is_put_off(self, side: int, batch: ColumnBatch, starts: Array) -> bool:
        """Keep a small batch without ids, if its keys are certain to get some."""
        import pyarrow as pa

        keys: Any = batch.key_column
        if len(starts) > _FEW or self.rows or keys.type not in self._types or not self._settled[side].has_sent(batch):
            return False
        if not pa.types.is_integer(keys.type):
            try:
                keys.validate(full=True)
            except pa.ArrowInvalid:
                return False
        kept = ColumnBatch(batch.columns, key_column=keys, named=batch.named, form=batch.form)
        self._few.append((side, Block(kept, starts, starts, len(starts))))
        self._few_rows += len(starts)
        self._count(starts)
        if self._few_rows > SMALL:
            self.settle()
        return True

    def starts(self) -> list[int]:
        """Return the starts of all panes, in order."""
        return sorted(chain(self.rows, self.columns))

    # Records

    def add_columns(self, side: int, batch: ColumnBatch) -> bool:
        """Keep the records of a batch that `takes` accepts; False if they have to be rows."""
        starts = self._starts_of(batch)
        if starts is None:
            return False
        if self._is_put_off(side, batch, starts):
            return True
        kept = self.sides[side].expected(batch)
        try:
            if kept is None:
                raise NotColumnar("values of another kind")
            ids = self.ids(kept.key_column)
        except NotColumnar:  # what is there becomes rows
            self.as_rows()
            kept = batch
            try:
                ids = self.ids(kept.key_column)
            except NotColumnar:
                return False
        self.mark(ids)
        keys: Any = kept.key_column
        if str(keys.type) in _CERTAIN and keys.null_count < len(keys):  # None alone does not fix the kind of the keys
            self._types.add(keys.type)
        self._add(side, kept, ids, starts)
        return True

    def _starts_of(self, batch: ColumnBatch) -> Array | None:
        """Return the start of the pane of each row; None if 64 bits might not hold one."""
        import numpy as np

        times = np.asarray(batch.timestamps if batch.time_column is None else batch.time_column, dtype=np.int64)
        span, origin, least, most = self._span, self._origin, int(times.min()), int(times.max())
        if least < -_FAR or most > _FAR or span > _FAR:
            return None
        first, last = (least - origin) // span, (most - origin) // span
        if first == last:
            return np.full(len(times), first * span + origin)
        starts: Array = (times - origin) // span * span + origin
        return starts

    def _add(self, side: int, batch: ColumnBatch, ids: Array, starts: Array, *, sent: bool = True) -> None:
        import numpy as np
        import pyarrow as pa

        if self.rows:
            of_rows = np.isin(starts, list(self.rows))
            if of_rows.any():
                rows, rest = of_rows.nonzero()[0], (~of_rows).nonzero()[0]
                part = batch.take(pa.array(rows))
                self._add_by_pane(side, part.keys or [], part.values, starts[rows].tolist())
                batch, ids, starts = batch.take(pa.array(rest)), ids[rest], starts[rest]
        if len(ids):
            self._count(starts)
            self.sides[side].add(batch, ids, starts, sent=sent)

    def _count(self, starts: Array) -> None:
        """Count the rows of panes of columns."""
        import numpy as np

        ends = (starts[1:] != starts[:-1]).nonzero()[0] + 1
        if len(ends) < _RUNS_MAX:  # nearly in order
            firsts = [0, *ends.tolist()]
            counts = [last - first for first, last in zip(firsts, [*firsts[1:], len(starts)], strict=True)]
            of_counts = zip(starts[firsts].tolist(), counts, strict=True)
        else:
            found, sizes = np.unique(starts, return_counts=True)
            of_counts = zip(found.tolist(), sizes.tolist(), strict=True)
        columns = self.columns
        for start, count in of_counts:
            columns[start] = columns.get(start, 0) + count

    def add(self, side: int, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        """Keep records as rows."""
        span, origin = self._span, self._origin
        first, last = ((time - origin) // span for time in (min(times), max(times)))
        if first == last:
            _group(self.rows_at(first * span + origin)[side], keys, values)
        else:
            self._add_by_pane(side, keys, values, [(time - origin) // span * span + origin for time in times])

    def _add_by_pane(self, side: int, keys: Sequence[Any], values: Sequence[Any], starts: Sequence[int]) -> None:
        parts: dict[int, tuple[list[Any], list[Any]]] = {}
        for key, value, start in zip(keys, values, starts, strict=True):
            part = parts.get(start)
            if part is None:
                part = parts[start] = ([], [])
            part[0].append(key)
            part[1].append(value)
        for start in sorted(parts):
            _group(self.rows_at(start)[side], *parts[start])

    def rows_at(self, start: int) -> Pane:
        """Return a pane as rows, to be changed; new if there is none."""
        pane = self.rows.get(start)
        if pane is None:
            pane = self.rows[start] = ({}, {})
            if self.columns.pop(start, 0):
                for rows, kept in zip(pane, self.sides, strict=True):
                    block = kept.take(lambda block: block.moments == start)
                    if block is not None:
                        _group(rows, block.batch.keys or [], block.batch.values)
        return pane

    def as_rows(self) -> None:
        """Make rows of all panes of columns; what comes may then be columns of another kind."""
        self._left += super().changed_keys()
        sides = self.sides
        self.columns = {}
        self.clear()
        for side, kept in enumerate(sides):
            for block in kept.blocks:
                self._add_by_pane(side, block.batch.keys or [], block.batch.values, block.moments.tolist())

    # Windows

    def close(self, first: int, end: int, until: int) -> list[Block | None]:
        """Return the rows of the panes of columns from ``first`` to ``end``, by pane; drop those before ``until``."""
        self.forget()
        found = list[Block | None]()
        for kept in self.sides:
            if until < end:
                found.append(kept.pick(lambda block: (block.moments >= first) & (block.moments < end)))
            gone = kept.take(lambda block: block.moments < until)
            if gone is not None:
                self.mark(gone.ids)
            if until >= end:
                found.append(gone)
        for start in [start for start in self.columns if start < until]:
            del self.columns[start]
        return [block and block.in_order() for block in found]

    # `JoinRows`

    @property
    def in_arrays(self) -> bool:
        return not self.rows and super().in_arrays

    def changed_columns(self) -> list[pa.Array]:
        self.settle()
        return super().changed_columns()

    def state_of(self, records: Sequence[Record]) -> dict[int, tuple[list[Any], list[Any]]]:
        panes: dict[int, tuple[list[Any], list[Any]]] = {}
        for start, side, value in records:
            panes.setdefault(start, ([], []))[side].append(value)
        return panes

    def put(self, side: int, batch: ColumnBatch, ids: Array, moments: Array) -> None:
        self._add(side, batch, ids, moments, sent=False)

    def drop(self, chosen: Array) -> None:
        for kept in self.sides:
            kept.take(lambda block: chosen[block.ids])

    # The mapping

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found = self.column_states(keys) if self.columns else [None] * len(keys)
        if not self.rows:
            return [state and dict(sorted(state.items())) for state in found]
        states = [state or {} for state in found]
        for start, (left, right) in self.rows.items():
            for state, key in zip(states, keys, strict=True):
                ones, others = left.get(key), right.get(key)
                if ones is not None or others is not None:
                    state[start] = (ones or [], others or [])
        return [dict(sorted(state.items(), key=itemgetter(0))) or None for state in states]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        taken = self.many(keys)
        if self.columns:
            self.take_columns(keys)
        for rows in chain.from_iterable(self.rows.values()):
            for key in keys:
                rows.pop(key, None)
        return taken

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, state in zip(keys, values, strict=True):
            for start, sides in self.given(state).items():
                for rows, records in zip(self.rows_at(start), sides, strict=True):
                    if records:
                        rows[key] = [*records]

    def __iter__(self) -> Iterator[Any]:
        if not self.rows:
            return self.column_keys()
        of_rows = chain.from_iterable(chain.from_iterable(self.rows.values()))
        return iter(dict.fromkeys(chain(self.column_keys(), of_rows)))

    def __reversed__(self) -> Iterator[Any]:
        return iter(tuple(self)[::-1]) if self.rows else self.column_keys(backwards=True)

    def __len__(self) -> int:
        """Return the number of keys of the columns, or of the largest side of a pane, which are at most all."""
        sides = map(len, chain.from_iterable(self.rows.values()))
        return max(len(self.live_ids()) if self.columns else 0, *sides, 0)


def _group(rows: Side, keys: Iterable[Any], values: Iterable[Any]) -> None:
    get = rows.get
    for key, value in zip(keys, values, strict=True):
        there = get(key)
        if there is None:
            rows[key] = [value]
        else:
            there.append(value)
