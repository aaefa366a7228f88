"""The table of ``join_table`` as columns: the value of each key, and the records that wait for their key's first value.

Rule: as a mapping it is what the dict of the row path would be, key -> [value, waiting records with their times]. What
columns do not hold raises `NotColumnar` before anything has changed; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_rows import JoinRows, Record
from malstrom_py.state.kept_rows import SMALL, Block

if TYPE_CHECKING:
    import pyarrow as pa

LAST: Final = MAX_EPOCH - 1
"""The timestamp of what comes at the end of the stream."""

Pairs = tuple[ColumnBatch, Any]
"""Left records, and the value of each, an Arrow array."""

_COMPACT_FROM: Final = 4096
"""So many values may have been replaced."""


class ColumnTable(JoinRows):
    """Key -> [value, waiting records with their times].

    Of the rows in `JoinRows`, those of the left stream wait, and their moments are their times. Those of the right one
    are numbered; ``place``: the number of a key's value. A value that has been replaced stays for a while.

    >>> import pyarrow as pa
    >>> def batch(keys, numbers):
    ...     return ColumnBatch(pa.RecordBatch.from_pydict({"n": numbers}), key_column=pa.array(keys))
    >>> table = ColumnTable(timed=False)
    >>> table.look_up(batch(["ann", "bob"], [1, 2]), keeps=True, waits=True)
    >>> left, values = table.change(batch(["bob"], [3]))
    >>> left.values, values.to_pylist()
    ([{'n': 2}], [{'n': 3}])
    >>> dict(table)
    {'ann': [None, [({'n': 1}, None)]], 'bob': [{'n': 3}, ()]}
    """

    __slots__ = ("_compact_from", "_end", "_timed")

    absent: ClassVar[dict[str, tuple[str, Any]]] = {**JoinRows.absent, "place": ("int64", -1), "waits": ("bool", False)}
    small: ClassVar[tuple[int, int]] = (SMALL, 1 << 62)  # values are gathered from all blocks, so there are few

    def __init__(self, *, timed: bool, tracked: Callable[[], bool] = lambda: False) -> None:
        self._timed = timed
        super().__init__(tracked)

    def clear(self) -> None:
        super().clear()
        self._end = 0  # the number of the next value
        self._compact_from = _COMPACT_FROM

    # Batches

    def expected(self, side: int, batch: ColumnBatch) -> ColumnBatch:
        """Return ``batch`` with the types that are known of its side. `NotColumnar` if it cannot be joined."""
        found = self.sides[side].expected(batch) if self.takes(batch) else None
        if found is None:
            raise NotColumnar("rows that no column holds")
        return found

    def has_values_for(self, batch: ColumnBatch) -> bool:
        """Return whether a key of ``batch`` has a value already, or comes twice."""
        import numpy as np

        ids, numbers = self.ids(batch.key_column), np.arange(len(batch))
        lasts = np.empty(len(self.index), np.int64)
        lasts[ids] = numbers
        return bool((self.by_id["place"][ids] >= 0).any() or (lasts[ids] != numbers).any())

    def change(self, batch: ColumnBatch) -> Pairs | None:
        """Set the values of the keys of ``batch``; return the rows that have waited for them, with the first of these.

        Of the values of one key the last one stays.
        """
        ids = self.ids(batch.key_column)
        found = self._end_waits(batch, ids) if self.by_id["waits"][ids].any() else None
        self._set(batch, ids, sent=True)
        return found

    def _end_waits(self, batch: ColumnBatch, ids: Array) -> Pairs | None:
        import numpy as np
        import pyarrow as pa

        first = self.by_id["place"]  # of a key that waits it is -1 as yet
        first[ids[::-1]] = np.arange(len(ids))[::-1]
        waited = self.sides[0].take(lambda block: first[block.ids] >= 0)
        self.by_id["waits"][ids] = False
        if waited is None:
            return None
        found = first[waited.ids]
        later = np.maximum(waited.moments, _times_of(batch)[found]) if self._timed else waited.moments
        return self._left_of(waited, later), batch.columns.to_struct_array().take(pa.array(found))

    def _left_of(self, waited: Block, times: Array) -> ColumnBatch:
        import pyarrow as pa

        return waited.batch.with_time_column(pa.array(times)) if self._timed else waited.batch

    def look_up(self, batch: ColumnBatch, *, keeps: bool, waits: bool) -> Pairs | None:
        """Return the rows of ``batch`` with what is there; let the others wait, if they do."""
        import pyarrow as pa

        ids = self.ids(batch.key_column) if waits else self.index.find(batch.key_column)
        places = self.by_id["place"][ids]  # of no id, -1, it is that of the last entry, which no key has
        there = places >= 0
        if not there.all() and (waits or not keeps):
            if waits:
                alone = (~there).nonzero()[0]
                self._wait(batch.take(pa.array(alone)), ids[alone], sent=True)
            batch, places = batch.take(pa.array(there.nonzero()[0])), places[there]
        return (batch, self._values(places)) if len(batch) else None

    def _values(self, places: Array) -> pa.Array:
        """Return values by their numbers, null for -1."""
        return self.sides[1].gather(places)

    def end_waiting(self) -> Pairs | None:
        """Return the rows that still wait, with None."""
        import numpy as np

        waited = self.sides[0].take(lambda block: np.ones(len(block.ids), np.bool_))
        if waited is None:
            return None
        self.mark(waited.ids)
        self.by_id["waits"][:] = False
        return self._left_of(waited, np.full(len(waited.ids), LAST)), self._values(np.full(len(waited.ids), -1))

    def _set(self, batch: ColumnBatch, ids: Array, *, sent: bool) -> None:
        import numpy as np

        places = np.arange(len(ids)) + self._end
        self.by_id["place"][ids] = places
        self.mark(ids)
        self.sides[1].add(batch, ids, places, sent=sent)
        self._end += len(ids)
        self._drop_replaced()

    def _wait(self, batch: ColumnBatch, ids: Array, *, sent: bool) -> None:
        import numpy as np

        self.by_id["waits"][ids] = True
        self.mark(ids)
        self.sides[0].add(batch, ids, _times_of(batch) if self._timed else np.zeros(len(ids), np.int64), sent=sent)

    def _drop_replaced(self) -> None:
        """Drop values that have been replaced, once they are most of all."""
        import numpy as np

        kept, place = self.sides[1], self.by_id["place"]
        if len(kept) <= self._compact_from:
            return
        count = int(np.count_nonzero(place >= 0))
        if 2 * count < len(kept):
            live = kept.pick(lambda block: place[block.ids] == block.moments)
            if live is not None:
                live = replace(live, moments=np.arange(count))
                place[live.ids] = live.moments
            kept.blocks, self._end = [live] if live is not None else [], count
        self._compact_from = max(_COMPACT_FROM, 2 * count)

    # `JoinRows`

    def live_ids(self) -> Array:
        live: Array = ((self.by_id["place"] >= 0) | self.by_id["waits"]).nonzero()[0]
        return live

    def is_live(self, side: int, block: Block) -> Array | None:
        live: Array | None = self.by_id["place"][block.ids] == block.moments if side else None
        return live

    def stored_moments(self, side: int, block: Block) -> Array:
        return block.moments * 0 if side else block.moments

    def state_of(self, records: Sequence[Record]) -> list[Any]:
        return table_state(records, timed=self._timed)

    def put(self, side: int, batch: ColumnBatch, moments: Array) -> None:
        import pyarrow as pa

        ids = self.ids(batch.key_column)
        if side:
            self._set(batch, ids, sent=False)
        else:
            self._wait(batch.with_time_column(pa.array(moments)), ids, sent=False)

    def drop(self, chosen: Array) -> None:
        place, waits = (self.by_id[name][: len(chosen)] for name in ("place", "waits"))
        place[chosen] = -1
        if waits[chosen].any():
            waits[chosen] = False
            self.sides[0].take(lambda block: chosen[block.ids])
        self._drop_replaced()


def table_state(records: Iterable[Record], *, timed: bool) -> list[Any]:
    """Return the state of a key that has these rows."""
    value, waiting = None, list[Any]()
    for moment, side, kept in records:
        if side:
            value = kept
        else:
            waiting.append((kept, moment if timed else None))
    return [value, waiting or ()]


def _times_of(batch: ColumnBatch) -> Array:
    import numpy as np

    return np.asarray(batch.timestamps if batch.time_column is None else batch.time_column, dtype=np.int64)
