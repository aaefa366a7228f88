"""The panes of a join by window: the records of both streams by span of time, as columns or as rows.

Rules. A pane is columns while all that it gets are columns of the kinds that are kept. Else it has rows, by key, until
it closes, and panes that begin later are columns again. A barrier does not change columns that no image stores. No keys
have ids: those that a barrier, a move or a caller asks for are looked up in the rows, by an index of what is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.data.schema import ColumnKind
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.group_index import GroupIndex, NotColumnar, ids_of, plain_keys
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_image import kept_keys, one_key_column, plain_key
from malstrom_py.state.join_rows import JoinSides, Record
from malstrom_py.state.kept_rows import Block, Chosen

if TYPE_CHECKING:
    import pyarrow as pa

Side = dict[Any, list[Any]]
"""Key -> the values of one stream, in order of arrival."""

Pane = tuple[Side, Side]

_FAR: Final = 1 << 61
"""Times, and spans, beyond it are rows: sums of them might not fit 64 bits."""

_RUNS_MAX: Final = 1024
"""Up to so many runs of rows of one pane are counted one by one."""

_PIECE: Final = 1024
"""As many keys become Python objects together."""

_COUNTED: Final = 1 << 14
"""So many rows are looked at to know about how many keys there are."""

_SAMPLE: Final = 4

_CHANGED: Final = 1 << 16
"""So many changed keys may be noted more than once."""


class JoinPanes(JoinSides):
    """The records of keys by pane. As a mapping: key -> {start: (left values, right values)}.

    ``rows``: start -> the pane of rows; ``columns``: start -> how many rows a pane of columns has. In `JoinSides` the
    moment of a row is the start of its pane.
    """

    __slots__ = ("_changed", "_kind", "_left", "_origin", "_span", "_spare", "_written", "columns", "rows")

    forms: ClassVar[frozenset[RowForm]] = frozenset((DICTS, SCALAR))

    def __init__(self, span: int = 1, origin: int = 0, tracked: Callable[[], bool] = lambda: False) -> None:
        self._left: list[Any] = []  # changed keys of columns that have become rows
        super().__init__(tracked)
        self._span, self._origin = span, origin
        self.rows: dict[int, Pane] = {}
        self.columns: dict[int, int] = {}

    def clear(self) -> None:
        super().clear()
        self._kind: ColumnKind | None = None  # of the keys
        self._changed: list[tuple[pa.Array, int]] = []  # keys, and the start of the last pane of theirs
        self._spare = _CHANGED  # so many changed keys may be noted until they are made distinct
        self._written = frozenset[int]()  # the panes that the last barrier wrote

    def starts(self) -> list[int]:
        """Return the starts of all panes, in order."""
        return sorted(chain(self.rows, self.columns))

    # Records

    def add_columns(self, side: int, batch: ColumnBatch) -> bool:
        """Keep the records of a batch that `takes` accepts; False if they have to be rows."""
        starts = self._starts_of(batch)
        if starts is None:
            return False
        kept = self.sides[side].expected(batch)
        try:
            if kept is None:
                raise NotColumnar("values of another kind")
            keys = self._plain(kept.key_column)
        except NotColumnar:  # what is there becomes rows
            self.as_rows()
            kept = batch
            try:
                keys = self._plain(kept.key_column)
            except NotColumnar:
                return False
        self.note_keys(keys, starts)
        self._add(side, kept, keys, starts)
        return True

    def _plain(self, column: Any) -> pa.Array:
        """Return keys as an index takes them. `NotColumnar` if they are of another kind than earlier ones."""
        import pyarrow as pa

        keys, kind = plain_keys(column, self._kind)
        if kind is ColumnKind.STR:
            try:
                keys.validate(full=True)
            except pa.ArrowInvalid:
                raise NotColumnar("a key that is not UTF-8") from None
        if keys.null_count < len(keys):
            self._kind = kind
        return keys

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

    def _add(self, side: int, batch: ColumnBatch, keys: pa.Array, starts: Array, *, sent: bool = True) -> None:
        import numpy as np
        import pyarrow as pa

        if self.rows:
            of_rows = np.isin(starts, list(self.rows))
            if of_rows.any():
                rows, rest = of_rows.nonzero()[0], (~of_rows).nonzero()[0]
                part = batch.take(pa.array(rows))
                self._add_by_pane(side, part.keys or [], part.values, starts[rows].tolist())
                batch, keys, starts = batch.take(pa.array(rest)), keys.take(pa.array(rest)), starts[rest]
        if len(starts):
            self._count(starts)
            self.sides[side].add(batch, None, starts, keys=keys, sent=sent)

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
        ordered = sorted(starts)
        if ordered != starts:
            order = sorted(range(len(starts)), key=starts.__getitem__)
            keys, values = [keys[row] for row in order], [values[row] for row in order]
        first = 0
        while first < len(ordered):
            start = ordered[first]
            last = bisect_right(ordered, start, first)
            _group(self.rows_at(start)[side], keys[first:last], values[first:last])
            first = last

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
        self._left = self.changed_keys()
        sides = self.sides
        self.columns = {}
        self.clear()
        for side, kept in enumerate(sides):
            for block in kept.blocks:
                self._add_by_pane(side, block.batch.keys or [], block.batch.values, block.moments.tolist())

    # Windows

    def close(self, first: int, end: int, until: int) -> list[Block | None]:
        """Return the rows of the panes of columns from ``first`` to ``end``, by pane; drop those before ``until``."""
        closed = [start for start in self.columns if start < until]
        found = list[Block | None]()
        for kept in self.sides:
            if until < end:
                found.append(kept.pick(lambda block: block.before(end) & ~block.before(first)))
            gone = kept.take(lambda block: block.before(until))
            if gone is not None and not self._written.isdisjoint(closed):
                self.note_keys(gone.batch.key_column)
            if until >= end:
                found.append(gone)
        for start in closed:
            del self.columns[start]
        # What has come and gone since the last barrier is in no snapshot.
        self._changed = [noted for noted in self._changed if noted[1] >= until]
        return [block and block.in_order() for block in found]

    # `JoinSides`

    @property
    def in_arrays(self) -> bool:
        return not self.rows and not self._left

    def changed_keys(self) -> list[Any]:
        left, self._left = self._left, []
        return [*left, *(key for column in self.changed_columns() for key in column.to_pylist())]

    def note_keys(self, keys: pa.Array, starts: Array | None = None) -> None:
        """Note that the state of keys changes; in panes that start at ``starts``, until these close."""
        if self.tracked():
            self._changed.append((keys, _FAR if starts is None else int(starts.max())))
            self._spare -= len(keys)
            if self._spare < 0:
                distinct = _distinct(key for key, _ in self._changed)
                self._changed = [(distinct, max(last for _, last in self._changed))]
                self._spare = len(distinct) + _CHANGED

    def changed_columns(self) -> list[pa.Array]:
        changed, self._changed, self._written = self._changed, [], frozenset(self.columns)
        self._spare = _CHANGED
        return [_distinct(keys for keys, _ in changed)] if changed else []

    def among(self, keys: pa.Array) -> Chosen:
        index = GroupIndex(self._kind)
        index.ids(keys)
        return _in_index(index)

    def are_live(self, keys: pa.Array) -> Array:
        import numpy as np

        index = GroupIndex(self._kind)
        ids = index.ids(keys)
        live = np.zeros(len(index) + 1, np.bool_)
        for block in self._blocks():
            live[index.find(block.batch.key_column)] = True
        return live[ids]  # the last one is of -1

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        import numpy as np
        import pyarrow as pa

        keys = self.key_column()
        slots = np.array(slots_of(keys.to_pylist()), np.int64)
        leaves = np.isin(slots, list(wanted))
        return keys.filter(pa.array(leaves)), slots[leaves]

    def _blocks(self) -> list[Block]:
        return [block for kept in self.sides for block in kept.blocks]

    def key_column(self) -> pa.Array:
        return _distinct([block.batch.key_column for block in self._blocks()])

    def state_of(self, records: Sequence[Record]) -> dict[int, tuple[list[Any], list[Any]]]:
        panes: dict[int, tuple[list[Any], list[Any]]] = {}
        for start, side, value in records:
            panes.setdefault(start, ([], []))[side].append(value)
        return panes

    def put(self, side: int, batch: ColumnBatch, moments: Array) -> None:
        self._add(side, batch, self._plain(batch.key_column), moments, sent=False)

    def drop_keys(self, keys: pa.Array) -> None:
        self._drop(self.among(keys))

    def _drop(self, chosen: Chosen) -> None:
        for kept in self.sides:
            kept.take(chosen)
        if not any(map(len, self.sides)):
            self.columns.clear()

    @property
    def leaves_whole(self) -> bool:
        return bool(self.columns)

    @property
    def keys_about(self) -> int:
        sides = [side for side in chain.from_iterable(self.rows.values()) if side]
        of_rows = round(sum(len(side) * _once(side, sides) for side in sides))
        return of_rows + (self._count_keys() if self.columns else 0)

    def objects(self, keys: Sequence[Any]) -> list[Any] | None:
        return None if self.columns else list(chain.from_iterable(map(Mapping.values, self.many(keys))))

    # The mapping

    def lack(self, keys: Sequence[Any]) -> list[bool]:
        if self.columns:
            return super().lack(keys)
        sides = list(chain.from_iterable(self.rows.values()))
        return [not any(key in side for side in sides) for key in keys]

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found = self._column_states(keys) if self.columns else [None] * len(keys)
        if not self.rows:
            return [state and dict(sorted(state.items())) for state in found]
        states = [state or {} for state in found]
        for start, (left, right) in self.rows.items():
            for state, key in zip(states, keys, strict=True):
                ones, others = left.get(key), right.get(key)
                if ones is not None or others is not None:
                    state[start] = (ones or [], others or [])
        return [dict(sorted(state.items(), key=itemgetter(0))) or None for state in states]

    def _column_states(self, keys: Sequence[Any]) -> list[Any]:
        index, ids = self._index_of(keys)
        states = self.states_of(_in_index(index), lambda block: index.find(block.batch.key_column))
        return [states.get(one) for one in ids]

    def _index_of(self, keys: Sequence[Any]) -> tuple[GroupIndex, list[int]]:
        """Return an index of those of Python ``keys`` that columns may hold, and the id of each, -1 of the others."""
        index = GroupIndex(self._kind)
        return index, ids_of(index.ids, keys).tolist()

    def take(self, keys: Sequence[Any]) -> list[Any]:
        taken = self.many(keys)
        if self.columns:
            self._drop(_in_index(self._index_of(keys)[0]))
        for rows in chain.from_iterable(self.rows.values()):
            for key in keys:
                rows.pop(key, None)
        self.rows = {start: pane for start, pane in self.rows.items() if any(pane)}
        return taken

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, state in zip(keys, values, strict=True):
            for start, sides in self.given(state).items():
                for rows, records in zip(self.rows_at(start), sides, strict=True):
                    if records:
                        rows[key] = [*records]

    def __iter__(self) -> Iterator[Any]:
        if not self.rows:
            return self._column_keys()
        return _each_once([list(self._column_keys()), *chain.from_iterable(self.rows.values())])

    def __reversed__(self) -> Iterator[Any]:
        """Return the keys, those of the latest rows first."""
        if not self.rows:
            return self._column_keys(backwards=True)
        sides = [*chain.from_iterable(self.rows.values())][::-1]
        return _each_once([*map(list, map(reversed, sides)), list(self._column_keys(backwards=True))])

    def _column_keys(self, *, backwards: bool = False) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        seen = GroupIndex(self._kind)
        for block in self._blocks()[:: -1 if backwards else 1]:
            rows = np.arange(len(block))[:: -1 if backwards else 1]
            for start in range(0, len(rows), _PIECE):
                keys: Any = block.batch.key_column
                piece, known = keys.take(pa.array(rows[start : start + _PIECE])), len(seen)
                yield from piece.take(pa.array(seen.group(piece).first_rows(known))).to_pylist()

    def __len__(self) -> int:
        """Return about how many keys columns have, or the largest side of a pane, which are at most all."""
        sides = map(len, chain.from_iterable(self.rows.values()))
        return max(self._count_keys() if self.columns else 0, *sides, 0)

    def _count_keys(self) -> int:
        """Return the number of keys of columns; of many rows an estimate (Chao 1984) from some of them."""
        import numpy as np
        import pyarrow as pa

        rows = sum(map(len, self.sides))
        step = max(-(-rows // _COUNTED), 1)
        draw, some = np.random.default_rng(0), list[pa.Array]()
        for block in self._blocks():
            # At random, since keys may come in turn.
            firsts = np.arange(0, len(block), step)
            places = np.minimum(firsts + draw.integers(0, step, len(firsts)), len(block) - 1)
            keys: Any = block.batch.key_column
            some.append(plain_key(keys.take(pa.array(places))))
        counts = one_key_column(some).value_counts().field("counts").to_numpy()
        once, twice = (int(np.count_nonzero(counts == times)) for times in (1, 2))
        unseen = once * (once - 1) // (2 * (twice + 1)) if step > 1 else 0
        return min(len(counts) + unseen, rows)


def _each_once(parts: Iterable[Collection[Any]]) -> Iterator[Any]:
    """Yield the keys of all parts, each once, and look at no more of them than the caller takes."""
    seen = set[Any]()
    for part in parts:
        yield from filterfalse(seen.__contains__, part)
        seen.update(part)


def _once(side: Side, sides: Sequence[Side]) -> float:
    """Return by what to multiply the keys of a side so that one in several ``sides`` counts once, by some of them."""
    shares = [1 / sum(key in other for other in sides) for key in islice(side, _SAMPLE)]
    return sum(shares) / len(shares)


def _in_index(index: GroupIndex) -> Chosen:
    """Return what chooses the rows whose keys are in ``index``."""
    return lambda block: index.find(block.batch.key_column) >= 0


def _distinct(keys: Iterable[pa.Array]) -> pa.Array:
    """Return the keys of plain columns of one kind, each once."""
    return plain_key(kept_keys(list(keys)).unique())


def _group(rows: Side, keys: Iterable[Any], values: Iterable[Any]) -> None:
    get = rows.get
    for key, value in zip(keys, values, strict=True):
        there = get(key)
        if there is None:
            rows[key] = [value]
        else:
            there.append(value)
