"""``join_table``: pairs each record of the left stream with the latest value of its key in the right one, a table.

Rule: as long as both streams have columns that are keyed by a column, the table and the records that wait for it stay
columns, found by the id of a key. From the first time that state is read, for a snapshot or a move, it is rows.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import repeat
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.data.row_form import DICTS, form_of, python_values
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.join import Pair, pairs_of
from malstrom_py.operators.keyed import StatefulOperator, distinct, keys_of
from malstrom_py.state.group_index import GroupIndex, NotColumnar

if TYPE_CHECKING:
    import pyarrow as pa

_LAST: Final = MAX_EPOCH - 1

_FAN: Final = 8
"""How many blocks of values become one."""


class _Waiting:
    """Rows that wait: their ids, and which of them still do."""

    __slots__ = ("alive", "batch", "ids")

    def __init__(self, batch: ColumnBatch, ids: Any) -> None:
        import numpy as np

        self.batch, self.ids = batch, ids
        self.alive = np.ones(len(ids), dtype=bool)

    def take(self, rows: Any) -> ColumnBatch:
        """Return some rows, which wait no longer."""
        taken = self.batch.take(_array(rows))
        self.alive[rows] = False
        left = self.alive.nonzero()[0]
        if len(left) * 2 < len(self.ids):
            self.batch, self.ids, self.alive = self.batch.take(_array(left)), self.ids[left], self.alive[left]
        return taken


class ColumnTable(MutableMapping[Any, Any]):
    """A table as columns. As a mapping, key -> [value, waiting records with their times], it has ``rows`` from then on.

    ``rows``: None as long as there are columns.
    """

    __slots__ = ("_blocks", "_index", "_places", "_schema", "_starts", "_waiting", "_waits", "rows")

    def __init__(self) -> None:
        self.rows: dict[Any, Any] | None = None
        self._index = GroupIndex()
        self._schema: list[Any] = [None, None]
        self._places: Any = None  # id -> the row of its value, -1 if it has none
        self._waits: Any = None  # id -> how many rows wait
        self._blocks: list[Any] = []  # the values, an Arrow array each
        self._starts: list[int] = []  # the row of the first value of each block
        self._waiting: list[_Waiting] = []

    # -- columns --

    def takes(self, side: int, batch: ColumnBatch) -> bool:
        """Whether ``batch`` can be joined as columns."""
        keys = batch.key_column
        if self.rows is not None or keys is None or batch.form is not DICTS or not batch.columns.num_columns:
            return False
        known = self._schema[side]
        return GroupIndex.supports(keys.type) and (known is None or known.equals(batch.columns.schema))

    def change(self, batch: ColumnBatch) -> Iterator[ColumnBatch]:
        """Set the values of the keys of ``batch``; yield the pairs of the rows that have waited for them."""
        import numpy as np

        ids = self._ids(batch)
        self._schema[1] = batch.columns.schema
        places = np.arange(len(ids)) + self._rows_end
        self._places[ids] = places  # the last one of a key stays
        self._add(batch.columns.to_struct_array())
        if not self._waits[ids].any():
            return
        first = np.full(len(self._places), -1)
        first[ids[::-1]] = places[::-1]
        times = _times_of(batch)
        for waiting in self._waiting:
            rows = (waiting.alive & (first[waiting.ids] >= 0)).nonzero()[0]
            if len(rows):
                found = first[waiting.ids[rows]]
                left = waiting.take(rows)
                if times is not None:
                    later = np.maximum(_times_of(left), times[found - places[0]])
                    left = left.with_time_column(_array(later))
                yield _paired(left, self._values(found))
        self._waits[ids] = 0
        self._waiting = [one for one in self._waiting if one.alive.any()]
        self._compact()

    def look_up(self, batch: ColumnBatch, *, keeps: bool, waits: bool) -> ColumnBatch | None:
        """Return the pairs of ``batch`` with what is there; let the others wait, if they do."""
        ids = self._ids(batch) if waits else self._index.find(batch.key_column)
        if self._places is None:
            self._grow()
        rows: Any = self._places
        places = rows[ids]  # the place of id -1 is the last one, which is -1
        there = places >= 0
        if not there.all() and not (keeps and not waits):
            if waits:
                alone = (~there).nonzero()[0]
                self._wait(batch.take(_array(alone)), ids[alone])
            batch, places = batch.take(_array(there.nonzero()[0])), places[there]
        if not self._blocks:
            import pyarrow as pa

            return _paired(batch, pa.nulls(len(batch))) if len(batch) else None
        return _paired(batch, self._values(places))

    def end_waiting(self) -> Iterator[ColumnBatch]:
        """Yield the rows that still wait, paired with None."""
        import pyarrow as pa

        for waiting in self._waiting:
            left = waiting.take(waiting.alive.nonzero()[0])
            if left.is_timed:
                left = left.with_time_column(pa.repeat(pa.scalar(_LAST, pa.int64()), len(left)))
            yield _paired(left, pa.nulls(len(left)))
        self._waiting = []
        if self._waits is not None:
            self._waits[:] = 0

    def _ids(self, batch: ColumnBatch) -> Any:
        ids = self._index.ids(batch.key_column)
        self._grow()
        return ids

    def _grow(self) -> None:
        """Make room for all ids, and one more, which has no value."""
        import numpy as np

        size = 0 if self._places is None else len(self._places)
        if len(self._index) >= size:
            places, waits = np.full(2 * len(self._index) + 1, -1), np.zeros(2 * len(self._index) + 1, dtype=np.int64)
            if size:
                places[:size], waits[:size] = self._places, self._waits
            self._places, self._waits = places, waits

    @property
    def _rows_end(self) -> int:
        return self._starts[-1] + len(self._blocks[-1]) if self._blocks else 0

    def _add(self, values: Any) -> None:
        """Add a block. The last ones become one once they are many and alike in size, so that there are few."""
        import pyarrow as pa

        blocks, starts = self._blocks, self._starts
        starts.append(self._rows_end)
        blocks.append(values)
        while len(blocks) >= _FAN and len(blocks[-_FAN]) <= _FAN * len(blocks[-1]):
            blocks[-_FAN:] = [pa.concat_arrays(blocks[-_FAN:])]
            starts[-_FAN:] = starts[-_FAN : 1 - _FAN]
        self._compact()

    def _compact(self) -> None:
        """Drop values that have been replaced, once they are most of all."""
        import numpy as np

        live = (self._places >= 0).nonzero()[0]
        if self._rows_end > 4096 and len(live) * 2 < self._rows_end and not self._waits.any():
            values = self._values(self._places[live])
            self._blocks, self._starts = [values], [0]
            self._places[live] = np.arange(len(live))

    def _values(self, places: Any) -> pa.Array:
        """Return the values of rows of the table, null where a place is -1."""
        import numpy as np
        import pyarrow as pa

        if len(self._blocks) == 1:
            return self._blocks[0].take(pa.array(places, mask=places < 0))
        which = np.searchsorted(np.array(self._starts), places, side="right") - 1
        parts, rows = [pa.nulls(1, self._blocks[0].type)], np.zeros(len(places), dtype=np.int64)
        taken = 1
        for number, (block, start) in enumerate(zip(self._blocks, self._starts, strict=True)):
            mine = (which == number).nonzero()[0]
            parts.append(block.take(pa.array(places[mine] - start)))
            rows[mine] = np.arange(taken, taken + len(mine))
            taken += len(mine)
        return pa.concat_arrays(parts).take(pa.array(rows, mask=places < 0))

    def _wait(self, batch: ColumnBatch, ids: Any) -> None:
        import numpy as np

        self._schema[0] = batch.columns.schema
        self._waiting.append(_Waiting(batch, ids))
        self._waits += np.bincount(ids, minlength=len(self._waits))

    # -- rows --

    def as_rows(self) -> dict[Any, Any]:
        """Return the state by key, as rows from now on."""
        if self.rows is None:
            rows: dict[Any, Any] = {}
            self.rows = rows
            keys = self._index.keys().to_pylist()
            if self._places is not None:
                live = (self._places >= 0).nonzero()[0]
                values = python_values(self._values(self._places[live]), "a value") if len(live) else []
                rows.update((keys[id], [value, ()]) for id, value in zip(live.tolist(), values, strict=True))
            for waiting in self._waiting:
                alive = waiting.alive.nonzero()[0]
                left = waiting.batch.take(_array(alive))
                times = left.timestamps or repeat(None)
                for id, row in zip(waiting.ids[alive].tolist(), zip(left.values, times, strict=False), strict=True):
                    rows.setdefault(keys[id], [None, []])[1].append(row)
            self._index, self._blocks, self._waiting = GroupIndex(), [], []
            self._places = self._waits = None
        return self.rows

    def __getitem__(self, key: Any) -> Any:
        return self.as_rows()[key]

    def __setitem__(self, key: Any, state: Any) -> None:
        self.as_rows()[key] = state

    def __delitem__(self, key: Any) -> None:
        del self.as_rows()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.as_rows())

    def __reversed__(self) -> Iterator[Any]:
        return iter(reversed(self.as_rows()))

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return 0 if self._places is None else int(((self._places >= 0) | (self._waits > 0)).sum())


def _paired(left: ColumnBatch, right: Any) -> ColumnBatch:
    import pyarrow as pa

    columns = pa.RecordBatch.from_arrays([left.columns.to_struct_array(), right], ["left", "right"])
    return left.with_columns(columns, form=form_of(Pair))


def _times_of(batch: ColumnBatch) -> Any:
    import numpy as np

    if not batch.is_timed:
        return None
    return np.asarray(batch.timestamps if batch.time_column is None else batch.time_column, dtype=np.int64)


def _array(numbers: Any) -> Any:
    import pyarrow as pa

    return pa.array(numbers)


class TableJoin(StatefulOperator):
    """Pairs each left record with the latest value that the right stream, a table, has for its key.

    A None in the table removes the key's value. A left record without a value is dropped or, if it ``keeps``, paired
    with None: immediately or, if it ``waits``, after ``wait`` of event time, None: at the end of the stream.

    The state of a key is its value, None if it has none, and the left records that wait with their times.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> names = job.source("names", sources.Memory([("d", "desk"), ("l", "lamp")])).key_by("id", lambda row: row[0])
    >>> sales = job.source("sales", sources.Memory([("l", 3), ("x", 1)])).key_by("article", lambda row: row[0])
    >>> named = sales.join_table("named", names, how="left", wait=True)
    >>> sorted(mp.collect(named.map("text", lambda pair: f"{pair.left}: {pair.right}")))
    ["('l', 3): ('l', 'lamp')", "('x', 1): None"]
    """

    two_sided = True

    def __init__(self, context: StepContext, *, keeps: bool, waits: bool, wait: int | None = None) -> None:
        super().__init__(context)
        self._keeps, self._waits, self._wait = keeps, waits, wait
        self._table = ColumnTable()
        self.state.values = self._table  # type: ignore[assignment]  # a mapping, and that is all that is needed of it
        self.takes_columns = wait is None

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch) and self._on_columns(side, batch, out):
            return
        keys = keys_of(batch, self.context.step)
        try:
            if side:
                self._change(keys, batch, out)
            else:
                self._look_up(keys, batch, out)
        except TypeError:
            distinct(keys, self.context.step)
            raise
        if self.state.untried:
            self.state.try_first()

    def _on_columns(self, side: int, batch: ColumnBatch, out: Outlet) -> bool:
        """Join ``batch`` as columns; return False if it cannot be."""
        table = self._table
        if not table.takes(side, batch):
            return False
        if self.state.tracked:
            self.state.note(keys_of(batch, self.context.step))
        try:
            if side:
                for pairs in table.change(batch):
                    out.send(pairs)
            elif (found := table.look_up(batch, keeps=self._keeps, waits=self._waits)) is not None:
                out.send(found)
        except NotColumnar:
            return False
        if self.state.untried:
            self.state.try_first()
        return True

    def _look_up(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        found = [state and state[0] for state in map(self._table.as_rows().get, keys)]
        if not any(map(is_, found, repeat(None))) or (self._keeps and not self._waits):
            out.send(batch.with_values(pairs_of(batch.values, found)))
            return
        there = [value is not None for value in found]
        if self._waits:
            self._keep_waiting(batch.compress([not one for one in there]))
        paired = batch.compress(there)
        values = [value for value in found if value is not None]
        out.send(paired.with_values(pairs_of(paired.values, values)))

    def _keep_waiting(self, batch: Batch) -> None:
        states, keys = self._table.as_rows(), batch.keys or []
        self.state.note(keys)
        times = batch.timestamps or repeat(None, len(keys))
        for key, row in zip(keys, zip(batch.values, times, strict=True), strict=True):
            state = states.get(key)
            if state is None:
                states[key] = [None, [row]]
            else:
                state[1].append(row)
        if self._wait is not None:
            for key, time in zip(keys, batch.timestamps or (), strict=True):
                self.state.timers.set(key, self._end_of(time))

    def _end_of(self, time: Any) -> int:
        """Return when a record of ``time`` waits no longer."""
        return _LAST if self._wait is None else int(min(time + self._wait, _LAST))

    def _change(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        states = self._table.as_rows()
        self.changes(keys)
        ended: list[tuple[Any, Any, Any]] = []
        for key, value, time in zip(keys, batch.values, batch.timestamps or repeat(None), strict=False):
            state = states.get(key)
            if value is None:
                if state is not None and state[0] is not None:
                    del states[key]
            elif state is None:
                states[key] = [value, ()]
            else:
                for left, at in state[1]:
                    ended.append((time if at is None or at < time else at, key, Pair(left, value)))
                if state[1]:
                    self.state.timers.take(key)
                state[:] = value, ()
        self._send(ended, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self._waits and self._table.rows is not None:
            self._end_waiting(epoch.time, self._table.rows, out)
        elif epoch.time == MAX_EPOCH:
            for pairs in self._table.end_waiting():
                if self._keeps:
                    out.send(pairs)
        out.forward(epoch)

    def _end_waiting(self, reached: int, states: dict[Any, Any], out: Outlet) -> None:
        due = dict.fromkeys(key for key, _ in self.state.timers.due(reached))
        if reached == MAX_EPOCH:
            due = dict.fromkeys(key for key, state in states.items() if state[0] is None)
        self.state.note(due)
        if reached == MAX_EPOCH and not self._keeps:
            for key in due:
                del states[key]
            return
        ended: list[tuple[Any, Any, Any]] = []
        for key in due:
            left = []
            for value, time in states[key][1]:
                end = self._end_of(time)
                if end > reached:
                    left.append((value, time))
                else:
                    ended.append((end, key, Pair(value, None)))
            if left:
                states[key][1] = left
            else:
                del states[key]
        if self._keeps:
            self._send(sorted(ended, key=itemgetter(0)), out)

    def _send(self, rows: list[tuple[Any, Any, Any]], out: Outlet) -> None:
        """Send rows of (time, key, pair)."""
        if rows:
            times, keys, pairs = map(list, zip(*rows, strict=True))
            out.send(Batch(pairs, keys=keys, timestamps=times if self.context.timed else None))
