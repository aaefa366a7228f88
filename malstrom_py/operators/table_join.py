"""``join_table``: pairs each record of the left stream with the latest value of its key in the right one, a table.

Rule: as long as both streams have columns that are keyed by a column, the table and the records that wait for it are
columns, also in snapshots and moves. Otherwise they become rows; pairs are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.data.row_form import form_of
from malstrom_py.errors import OperatorError, shown
from malstrom_py.operators.base import Outlet, StepContext, weakly
from malstrom_py.operators.column_figures import in_arrays
from malstrom_py.operators.join import Pair, pairs_of
from malstrom_py.operators.keyed import StatefulOperator, distinct, keys_of
from malstrom_py.operators.unmatched import Unmatched
from malstrom_py.state.column_table import LAST, ColumnTable, table_state
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.join_image import records_of


def _paired(left: ColumnBatch, right: Any) -> ColumnBatch:
    import pyarrow as pa

    columns = pa.RecordBatch.from_arrays([left.columns.to_struct_array(), right], ["left", "right"])
    return left.with_columns(columns, form=form_of(Pair))


class TableJoin(StatefulOperator):
    """Pairs each left record with the latest value that the right stream, a table, has for its key.

    A None in the table removes the key's value. A left record without a value is dropped or, if it ``keeps``, paired
    with None: immediately or, if it ``waits``, after ``wait`` of event time, None: at the end of the stream. If the
    table is ``fixed``, a value that changes is an `OperatorError`.

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
    keeps_on_disk = True

    def __init__(
        self, context: StepContext, *, keeps: bool, waits: bool, wait: int | None = None, fixed: bool = False
    ) -> None:
        super().__init__(context)
        self._keeps, self._waits, self._wait, self._fixed = keeps, waits, wait, fixed
        self.watch = self._unmatched = Unmatched(context)
        self.state.entering = weakly(self._entering)
        if waits:
            self.state.due_at = weakly(self._due_at)
        self.takes_columns = wait is None and context.timed is not None
        if self.takes_columns:  # a wait that ends needs the timers of rows
            self.state.arrays = partial(ColumnTable, timed=bool(context.timed), tracked=weakly(self.tracks))

    def given(self, state: Any) -> Any:
        is_image = isinstance(state, Mapping)
        return table_state(records_of(state), timed=bool(self.context.timed)) if is_image else state

    def _entering(self, key: Any, state: Any) -> Any:
        return self.given(state)

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._unmatched.arrived(side, batch)
        if in_arrays(self.state, batch, partial(self._on_columns, side, out)):
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

    def _on_columns(self, side: int, out: Outlet, batch: ColumnBatch) -> bool:
        """Join ``batch`` as columns. `NotColumnar` if it cannot be."""
        table: ColumnTable = self.state.to_arrays()
        expected = table.expected(side, batch)
        if not side:
            self._look_up_columns(table, expected, out)
            return True
        if self._fixed and table.has_values_for(expected):
            raise NotColumnar("values that are compared one by one")
        found = table.change(expected)
        if found is not None:
            self._unmatched.right()
            out.send(_paired(*found))
        return True

    def _look_up_columns(self, table: ColumnTable, batch: ColumnBatch, out: Outlet) -> None:
        found = table.look_up(batch, keeps=self._keeps, waits=self._waits)
        paired = 0 if found is None else len(found[1]) - found[1].null_count
        if not self._waits:
            self._lack_partners(len(batch) - paired)
        if paired:
            self._unmatched.right()
        if found is not None:
            out.send(_paired(*found))

    def _lack_partners(self, count: int) -> None:
        (self._unmatched.mistaken if self._keeps else self._unmatched.dropped)(count)

    def _look_up(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        found = [state and state[0] for state in map(self.state.values.get, keys)]
        missing = sum(map(is_, found, repeat(None)))
        if missing < len(found):
            self._unmatched.right()
        if not self._waits:
            self._lack_partners(missing)
        if not missing or (self._keeps and not self._waits):
            out.send(batch.with_values(pairs_of(batch.values, found)))
            return
        there = [value is not None for value in found]
        if self._waits:
            self._keep_waiting(batch.compress([not one for one in there]))
        paired = batch.compress(there)
        values = [value for value in found if value is not None]
        out.send(paired.with_values(pairs_of(paired.values, values)))

    def _keep_waiting(self, batch: Batch) -> None:
        states, keys = self.state.values, batch.keys or []
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
        return LAST if self._wait is None else int(min(time + self._wait, LAST))

    def _change(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        states = self.state.values
        self.changes(keys)
        ended: list[tuple[Any, Any, Any]] = []
        for key, value, time in zip(keys, batch.values, batch.timestamps or repeat(None), strict=False):
            state = states.get(key)
            if self._fixed and state is not None and state[0] is not None:
                self._check_same(key, state[0], value)
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
        if ended:
            self._unmatched.right()
        self._send(ended, out)

    def _check_same(self, key: Any, held: Any, value: Any) -> None:
        """Refuse a change: by how batches are cut, records of the same source would find the former value or this."""
        with suppress(ValueError):  # numpy compares item by item
            if held == value:
                return
        if repr(held) != repr(value):  # NaN differs from itself
            raise OperatorError(
                f"step {self.context.step!r}: the value of key {shown(key)} in the table changes from "
                f"{shown(held)} to {shown(value)}. With both streams from one source and wait=True, values must not "
                f"change. For the value as of the record's time write .join_asof({self.context.step!r}, …)",
                step=self.context.step,
                key=key,
            )

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        states, reached = self.state.values, epoch.time
        if isinstance(states, ColumnTable):
            if reached == MAX_EPOCH:
                self._end_columns(states, out)
        elif self._waits:
            all_keys = (key for key, state in states.items() if state[0] is None)
            self._end_waiting(all_keys if reached == MAX_EPOCH else (), reached, out)
        for keys in self.state.bring_due(reached):
            self._end_waiting(keys, reached, out)
        out.forward(epoch)

    def _due_at(self, key: Any, state: Any) -> int | None:
        """Return when the first of the records that wait waits no longer; without ``wait`` at the end."""
        if self._wait is None:
            return MAX_EPOCH if state[1] else None
        return min((self._end_of(time) for _, time in state[1]), default=None)

    def _end_columns(self, table: ColumnTable, out: Outlet) -> None:
        pairs = table.end_waiting()
        if pairs is not None:
            self._lack_partners(len(pairs[0]))
            if self._keeps:
                out.send(_paired(*pairs))

    def _end_waiting(self, keys: Iterable[Any], reached: int, out: Outlet) -> None:
        """End the waits of ``keys``, and of those with timers, that have come to an end."""
        states = self.state.values
        due = dict.fromkeys(keys)
        due.update(dict.fromkeys(key for key, _ in self.state.timers.due(reached) if key in states))
        self.state.note(due)
        if reached == MAX_EPOCH and not self._keeps:
            self._lack_partners(sum(len(states.pop(key)[1]) for key in due))
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
        self._lack_partners(len(ended))
        if self._keeps:
            self._send(sorted(ended, key=itemgetter(0)), out)

    def _send(self, rows: list[tuple[Any, Any, Any]], out: Outlet) -> None:
        """Send rows of (time, key, pair)."""
        if rows:
            times, keys, pairs = map(list, zip(*rows, strict=True))
            out.send(Batch(pairs, keys=keys, timestamps=times if self.context.timed else None))
