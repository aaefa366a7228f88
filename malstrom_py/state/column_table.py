"""The table of ``join_table`` as columns: the value of each key, and the records that wait for their key's first value.

Rule: as a mapping it is what the dict of the row path would be, key -> [value, waiting records with their times]. What
columns do not hold makes it keep a dict from then on, which `ColumnTable.as_rows` returns at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.row_form import DICTS, python_values
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage, storable
from malstrom_py.state.group_index import GroupIndex, NotColumnar, ids_of
from malstrom_py.state.group_values import Array, longer
from malstrom_py.state.join_image import Kind, Rows, fitted, image_of, one_array, records_of, rows_in, with_gone
from malstrom_py.state.many_values import ManyValues

if TYPE_CHECKING:
    import pyarrow as pa

LAST: Final = MAX_EPOCH - 1
"""The timestamp of what comes at the end of the stream."""

Pairs = tuple[ColumnBatch, Any]
"""Left records, and the value of each, an Arrow array."""

_FAN: Final = 8
"""How many blocks of values become one."""

_COMPACT_FROM: Final = 4096


class _Waiting:
    """Rows that wait: their ids, and which of them still do."""

    __slots__ = ("alive", "batch", "ids")

    def __init__(self, batch: ColumnBatch, ids: Array) -> None:
        import numpy as np

        self.batch, self.ids = batch, ids
        self.alive = np.ones(len(ids), dtype=bool)

    def take(self, rows: Array) -> ColumnBatch:
        """Return some rows, which wait no longer."""
        taken = self.batch.take(_array(rows))
        self.alive[rows] = False
        left = self.alive.nonzero()[0]
        if len(left) * 2 < len(self.ids):
            self.batch, self.ids, self.alive = self.batch.take(_array(left)), self.ids[left], self.alive[left]
        return taken


class ColumnTable(ManyValues):
    """Key -> [value, waiting records with their times]. ``rows``: None as long as there are columns.

    >>> import pyarrow as pa
    >>> def batch(keys, numbers):
    ...     return ColumnBatch(pa.RecordBatch.from_pydict({"n": numbers}), key_column=pa.array(keys))
    >>> table = ColumnTable(timed=False)
    >>> table.look_up(batch(["ann", "bob"], [1, 2]), keeps=True, waits=True)
    >>> [(left.values, values.to_pylist()) for left, values in table.change(batch(["bob"], [3]))]
    [([{'n': 2}], [{'n': 3}])]
    >>> dict(table)
    {'ann': [None, [({'n': 1}, None)]], 'bob': [{'n': 3}, ()]}
    """

    __slots__ = (
        *("_blocks", "_changed", "_index", "_left", "_places", "_schema", "_sent", "_slots", "_starts", "_timed"),
        *("_waiting", "_waits", "rows"),
    )

    def __init__(self, *, timed: bool) -> None:
        self.rows: dict[Any, Any] | None = None
        self._timed = timed
        self._left: list[Any] = []
        self._schema: list[Any] = [None, None]
        self._sent = [False, False]  # whether a schema is that of a batch, not of an image
        self._begin()

    def _begin(self) -> None:
        import numpy as np

        self._index = GroupIndex()
        self._places = np.full(1, -1)  # id -> the row of its value, -1 if it has none; the last entry is of no id
        self._waits = np.zeros(1, np.int64)  # id -> how many rows wait
        self._changed = np.zeros(1, np.bool_)
        self._slots = np.full(1, -1)
        self._blocks: list[Any] = []  # the values, an Arrow array each
        self._starts: list[int] = []  # the row of the first value of each block
        self._waiting: list[_Waiting] = []

    # -- batches --

    def expected(self, side: int, batch: ColumnBatch) -> ColumnBatch | None:
        """Return ``batch`` with the types that are known of its side; None if it cannot be joined as columns."""
        keys = batch.key_column
        if self.rows is not None or keys is None or batch.form is not DICTS or not batch.columns.num_columns:
            return None
        if not GroupIndex.supports(keys.type):
            return None
        known, schema = self._schema[side], batch.columns.schema
        if known is not None and not self._sent[side]:
            known = self._refit(side, known, schema)
        if known is None or known.equals(schema):
            return batch
        cast = fitted(batch.columns, known)
        return None if cast is None else batch.with_columns(cast, form=DICTS)

    def has_values_for(self, batch: ColumnBatch) -> bool:
        """Return whether a key of ``batch`` has a value already, or comes twice."""
        import numpy as np

        ids = self._ids(batch.key_column)
        return bool((self._places[ids] >= 0).any()) or len(np.unique(ids)) < len(ids)

    def change(self, batch: ColumnBatch) -> Iterator[Pairs]:
        """Set the values of the keys of ``batch``; yield the rows that have waited for them, with these values."""
        ids = self._ids(batch.key_column)
        places = self._set(batch.columns, ids)
        self._sent[1] = True
        if self._waits[ids].any():
            yield from self._end_waits(batch, ids, places)
        self._drop_replaced()

    def _end_waits(self, batch: ColumnBatch, ids: Array, places: Array) -> Iterator[Pairs]:
        """Yield the rows that waited for ``ids``, with the first value of each in ``batch``."""
        import numpy as np

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
                yield left, self._values(found)
        self._waits[ids] = 0
        self._waiting = [one for one in self._waiting if one.alive.any()]

    def look_up(self, batch: ColumnBatch, *, keeps: bool, waits: bool) -> Pairs | None:
        """Return the rows of ``batch`` with what is there; let the others wait, if they do."""
        keys: Any = batch.key_column
        ids = self._ids(keys) if waits else self._index.find(keys)
        places = self._places[ids]  # the place of id -1 is the last one, which is -1
        there = places >= 0
        if not there.all() and not (keeps and not waits):
            if waits:
                alone = (~there).nonzero()[0]
                self._wait(batch.take(_array(alone)), ids[alone])
                self._sent[0] = True
            batch, places = batch.take(_array(there.nonzero()[0])), places[there]
        if self._blocks:
            return batch, self._values(places)
        return (batch, _nulls(len(batch))) if len(batch) else None

    def end_waiting(self) -> Iterator[Pairs]:
        """Yield the rows that still wait, with None."""
        import pyarrow as pa

        for waiting in self._waiting:
            self._changed[waiting.ids] = True
            left = waiting.take(waiting.alive.nonzero()[0])
            if left.is_timed:
                left = left.with_time_column(pa.repeat(pa.scalar(LAST, pa.int64()), len(left)))
            yield left, _nulls(len(left))
        self._waiting = []
        self._waits[:] = 0

    # -- columns --

    @property
    def in_arrays(self) -> bool:
        return self.rows is None and not self._left

    def changed_columns(self) -> list[pa.Array]:
        changed = self._changed.nonzero()[0]
        self._changed[:] = False
        return [self._keys(changed)] if len(changed) else []

    def changed_keys(self) -> list[Any]:
        left, self._left = self._left, []
        return [*left, *(key for column in self.changed_columns() for key in column.to_pylist())]

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        ids = None if keys is None else self._index.find(keys)
        kinds = [None if schema is None else Kind(schema, DICTS) for schema in self._schema]
        image = image_of([self._waiting_rows(ids), self._value_rows(ids)], kinds, slots_of)
        return image if keys is None else with_gone(image, keys, slots_of)

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        import numpy as np

        ids = self._live()
        unknown = ids[self._slots[ids] < 0]
        if len(unknown):
            self._slots[unknown] = np.array(slots_of(self._keys(unknown).to_pylist()), np.int64)
        ids = ids[np.isin(self._slots[ids], list(wanted))]
        return self._keys(ids), self._slots[ids]

    def take_image(self, keys: pa.Array) -> ColumnImage:
        image = storable(self.image(keys, None))
        if image is None:
            raise NotColumnar("states of types that no column stores")
        self._drop(self._index.find(keys))
        return image

    def put_image(self, image: ColumnImage) -> pa.Array:
        sides, kinds = rows_in(image)
        ids = self._ids(image.keys)
        held = image.keys.filter(_array((self._places[ids] >= 0) | (self._waits[ids] > 0)))
        if len(held):
            return held
        values = []
        for rows, kind, known in zip(sides, kinds, self._schema, strict=True):
            found = rows.values if known is None else fitted(rows.values, known)
            if kind is not None and (found is None or kind.form is not DICTS):
                raise NotColumnar("values of another kind")
            values.append(found)
        (lefts, rights), (waiting, table) = sides, values
        if kinds[1] is not None and table is not None:
            self._set(table, self._ids(rights.keys))
        if kinds[0] is not None and waiting is not None:
            times = lefts.moments if self._timed else None
            self._wait(ColumnBatch(waiting, key_column=lefts.keys, time_column=times), self._ids(lefts.keys))
        return held

    def _waiting_rows(self, ids: Array | None) -> Rows | None:
        import numpy as np
        import pyarrow as pa

        if self._schema[0] is None:
            return None
        batches, of_ids = [], [np.zeros(0, np.int64)]
        for waiting in self._waiting:
            rows = (waiting.alive if ids is None else waiting.alive & np.isin(waiting.ids, ids)).nonzero()[0]
            batches.append(waiting.batch.take(_array(rows)))
            of_ids.append(waiting.ids[rows])
        table = pa.Table.from_batches([batch.columns for batch in batches], self._schema[0])
        values = pa.RecordBatch.from_arrays([one_array(column) for column in table.columns], schema=table.schema)
        times = [_times_of(batch) if self._timed else np.zeros(len(batch), np.int64) for batch in batches]
        moments = pa.array(np.concatenate([np.zeros(0, np.int64), *times]))
        return Rows(self._keys(np.concatenate(of_ids)), moments, values)

    def _value_rows(self, ids: Array | None) -> Rows | None:
        import numpy as np
        import pyarrow as pa

        schema = self._schema[1]
        if schema is None:
            return None
        live = (self._places >= 0).nonzero()[0]
        if ids is not None:
            live = live[np.isin(live, ids)]
        values = self._values(self._places[live]) if self._blocks else pa.array([], pa.struct(schema))
        moments = pa.array(np.zeros(len(live), np.int64))
        return Rows(self._keys(live), moments, pa.RecordBatch.from_arrays(values.flatten(), schema=schema))

    def _refit(self, side: int, known: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """Give what came with images the types of the first batch, if they are stored alike; return the types."""
        import pyarrow as pa

        made = []
        for one in self._blocks if side else [waiting.batch.columns for waiting in self._waiting]:
            columns = pa.RecordBatch.from_struct_array(one) if side else one
            if (cast := fitted(columns, schema)) is None:
                return known
            made.append(cast)
        if side:
            self._blocks = [columns.to_struct_array() for columns in made]
        else:
            for waiting, columns in zip(self._waiting, made, strict=True):
                waiting.batch = waiting.batch.with_columns(columns, form=DICTS)
        self._schema[side] = schema
        return schema

    def _ids(self, keys: Any) -> Array:
        ids = self._index.ids(keys)
        if len(self._index) >= len(self._places):  # one more, which has no value
            size = 2 * len(self._index) + 1
            self._places, self._waits = longer(self._places, size, -1), longer(self._waits, size, 0)
            self._slots, self._changed = longer(self._slots, size, -1), longer(self._changed, size, False)
        return ids

    def _keys(self, ids: Array) -> pa.Array:
        return self._index.keys(ids)

    def _live(self) -> Array:
        return ((self._places >= 0) | (self._waits > 0)).nonzero()[0]

    def _set(self, columns: pa.RecordBatch, ids: Array) -> Array:
        """Set values; return their rows. Of those of one key the last one stays."""
        import numpy as np

        self._schema[1] = columns.schema
        places = np.arange(len(ids)) + self._rows_end
        self._places[ids] = places
        self._changed[ids] = True
        self._add(columns.to_struct_array())
        return places

    def _wait(self, batch: ColumnBatch, ids: Array) -> None:
        import numpy as np

        self._schema[0] = batch.columns.schema
        self._waiting.append(_Waiting(batch, ids))
        self._waits += np.bincount(ids, minlength=len(self._waits))
        self._changed[ids] = True

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

    def _drop_replaced(self) -> None:
        """Drop values that have been replaced, once they are most of all."""
        import numpy as np

        live = (self._places >= 0).nonzero()[0]
        if self._rows_end > _COMPACT_FROM and len(live) * 2 < self._rows_end:
            values = self._values(self._places[live])
            self._blocks, self._starts = [values], [0]
            self._places[live] = np.arange(len(live))

    def _values(self, places: Array) -> pa.Array:
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

    def _drop(self, ids: Array) -> None:
        """Forget the state of ``ids``, of which some may be -1."""
        import numpy as np

        ids = ids[ids >= 0]
        self._places[ids] = -1
        self._changed[ids] = False
        if self._waits[ids].any():
            for waiting in self._waiting:
                rows = (waiting.alive & np.isin(waiting.ids, ids)).nonzero()[0]
                if len(rows):
                    waiting.take(rows)
            self._waiting = [one for one in self._waiting if one.alive.any()]
            self._waits[ids] = 0
        self._drop_replaced()
        live = self._live()
        if len(self._index) > _COMPACT_FROM and 2 * len(live) < len(self._index):
            self._forget_all_but(live)

    def _forget_all_but(self, live: Array) -> None:
        """Forget the keys without state, so that ids remain dense."""
        import numpy as np

        places, waits, changed = self._places[live], self._waits[live], self._changed[live]
        keys, new = self._keys(live), np.full(len(self._places), -1)
        new[live] = np.arange(len(live))
        blocks, starts, waiting = self._blocks, self._starts, self._waiting
        self._begin()
        ids = self._ids(keys)
        self._places[ids], self._waits[ids], self._changed[ids] = places, waits, changed
        self._blocks, self._starts, self._waiting = blocks, starts, waiting
        for one in waiting:
            one.ids = new[one.ids]

    # -- the mapping --

    def as_rows(self) -> dict[Any, Any]:
        """Return the state by key, as rows from now on."""
        if self.rows is None:
            rows, self._left = dict(self.items()), self.changed_keys()
            self._begin()
            self.rows = rows
        return self.rows

    def many(self, keys: Sequence[Any]) -> list[Any]:
        if self.rows is not None:
            return list(map(self.rows.get, keys))
        ids = ids_of(self._index, keys)
        states = self._states(ids[ids >= 0])
        return [states.get(one) for one in ids.tolist()]

    def _states(self, ids: Array) -> dict[int, list[Any]]:
        """Return the states of those of ``ids`` that have one."""
        import numpy as np

        live = np.unique(ids[self._places[ids] >= 0])
        values = python_values(self._values(self._places[live]), "a value") if len(live) else []
        states: dict[int, list[Any]] = {one: [value, ()] for one, value in zip(live.tolist(), values, strict=True)}
        for waiting in self._waiting:
            rows = (waiting.alive & np.isin(waiting.ids, ids)).nonzero()[0]
            left = waiting.batch.take(_array(rows))
            times = left.timestamps or repeat(None)
            for one, row in zip(waiting.ids[rows].tolist(), zip(left.values, times, strict=False), strict=True):
                states.setdefault(one, [None, []])[1].append(row)
        return states

    def take(self, keys: Sequence[Any]) -> list[Any]:
        if self.rows is not None:
            return [self.rows.pop(key, None) for key in keys]
        taken = self.many(keys)
        self._drop(ids_of(self._index, keys))
        return taken

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self.as_rows().update(zip(keys, map(self._row_state, values), strict=True))

    def _row_state(self, state: Any) -> Any:
        """Return the state of a key as rows have it, also of the Python values of an image."""
        if not isinstance(state, Mapping):
            return state
        made: list[Any] = [None, []]
        for moment, side, value in records_of(state):
            if side:
                made[0] = value
            else:
                made[1].append((value, moment if self._timed else None))
        return made if made[1] else [made[0], ()]

    def __getitem__(self, key: Any) -> Any:
        (found,) = self.many([key])
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, state: Any) -> None:
        self.set_many([key], [state])

    def __delitem__(self, key: Any) -> None:
        if self.take([key]) == [None]:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self.many([key]) != [None]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys(self._live()).to_pylist() if self.rows is None else self.rows)

    def __reversed__(self) -> Iterator[Any]:
        return iter(list(self)[::-1])

    def items(self) -> Any:
        """Return (key, state) pairs."""
        if self.rows is not None:
            return self.rows.items()
        states = self._states(self._live())
        return [(key, states[one]) for key, one in zip(self, self._live().tolist(), strict=True)]

    def __len__(self) -> int:
        return len(self._live()) if self.rows is None else len(self.rows)


def _times_of(batch: ColumnBatch) -> Any:
    import numpy as np

    if not batch.is_timed:
        return None
    return np.asarray(batch.timestamps if batch.time_column is None else batch.time_column, dtype=np.int64)


def _nulls(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(count)


def _array(numbers: Any) -> Any:
    import pyarrow as pa

    return pa.array(numbers)
