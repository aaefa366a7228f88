"""``join``: pairs the records of two streams that have the same key and are in the same window, when it closes.

Rule: pairs are the same whether panes have rows or columns, and in the same order for each key. Columns are paired
without a Python object per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.data.row_form import DICTS, SCALAR, form_of
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.join import How, Pair, count_alone, pairs_of
from malstrom_py.operators.keyed import StatefulOperator, check_hashable, keys_of
from malstrom_py.operators.stateless import spread
from malstrom_py.operators.unmatched import Unmatched
from malstrom_py.state.join_panes import WHOLE, JoinPanes, Pane, Side, plain_key

if TYPE_CHECKING:
    import pyarrow as pa

_NONE: Final[list[Any]] = [None]

Alone = tuple[int, int]
"""How many left and right rows have no partner."""

_RUNS_MAX: Final = 16
"""Up to so many runs of rows of one pane, a batch is cut rather than sorted."""


class WindowJoin(StatefulOperator):
    """Pairs the records of a key that are in the same tumbling or sliding window, when it closes.

    State is kept by pane: the longest span of which all windows consist.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> job = mp.Job("docs")
    >>> def stream(name, times):
    ...     timed = job.source(name, sources.Memory(times)).assign_timestamps(f"{name}-time", int)
    ...     on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(5))
    ...     return on_time.key_by(f"{name}-key", lambda time: "all")
    >>> clicks, sales = stream("clicks", [1, 12, 30]), stream("sales", [5, 13])
    >>> mp.collect(clicks.join("bought", sales, window=windows.tumbling(10)))
    [Pair(left=1, right=5), Pair(left=12, right=13)]
    """

    two_sided = True
    takes_columns = True

    def __init__(self, context: StepContext, *, how: How, size: int, step: int, origin: int = 0) -> None:
        super().__init__(context)
        self._how: How = how
        self._size, self._step, self._origin = size, step, origin
        self._span = gcd(size, step)
        self.watch = self._unmatched = Unmatched(context)
        self._panes = JoinPanes()
        self.state.values = self._panes
        self._reached = MIN_EPOCH

    def continue_at(self, epoch: int) -> None:
        self._reached = epoch

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._unmatched.arrived(side, batch)
        if isinstance(batch, ColumnBatch) and _is_joined_as_columns(batch):
            if self.state.tracked:
                self.state.note_column(plain_key(batch.key_column).unique())
            batch = self._panes.expected(side, batch)
            for start, part in self._parts_of_columns(batch):
                self._panes.at(start)[side].add_columns(part)
        else:
            keys = keys_of(batch, self.context.step)
            self.changes(keys)
            try:
                self._add(side, keys, batch.values, batch.timestamps or [])
            except TypeError:
                for key in keys:
                    check_hashable(key, self.context.step)
                raise
        if self.state.untried:
            self.state.try_first()

    def _add(self, side: int, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        span, origin = self._span, self._origin
        first, last = ((time - origin) // span for time in (min(times), max(times)))
        if first == last:
            self._panes.at(first * span + origin)[side].add(keys, values)
            return
        rows: dict[int, tuple[list[Any], list[Any]]] = {}
        for key, value, time in zip(keys, values, times, strict=True):
            place = (time - origin) // span
            part = rows.get(place)
            if part is None:
                part = rows[place] = ([], [])
            part[0].append(key)
            part[1].append(value)
        for place in sorted(rows):
            self._panes.at(place * span + origin)[side].add(*rows[place])

    def _parts_of_columns(self, batch: ColumnBatch) -> Iterator[tuple[int, ColumnBatch]]:
        """Yield the rows of ``batch`` by pane."""
        import numpy as np

        times = batch.time_column
        places = (np.asarray(batch.timestamps if times is None else times, dtype=np.int64) - self._origin) // self._span
        starts = np.flatnonzero(places[1:] != places[:-1]) + 1
        if len(starts) < _RUNS_MAX:  # nearly in order: runs of rows, without a copy
            ends = [*starts.tolist(), len(places)]
            for first, last in zip([0, *ends], ends, strict=False):
                yield (
                    int(places[first]) * self._span + self._origin,
                    batch if last - first == len(batch) else batch.cut(first, last),
                )
            return
        for place in np.unique(places):
            yield int(place) * self._span + self._origin, batch.take(_indices(np.flatnonzero(places == place)))

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._close(epoch.time, out)
        out.forward(epoch)

    def _close(self, reached: int, out: Outlet) -> None:
        """Send the pairs of all windows whose last moment is at most ``reached``, and drop their state."""
        panes, size, step = self._panes.open, self._size, self._step
        while panes:
            start = self._first_open(min(panes))
            if min(start + size - 1, MAX_EPOCH) > reached:
                break
            inside = [panes[pane] for pane in sorted(panes) if start <= pane < start + size]
            self._send(inside, min(start + size, MAX_EPOCH) - 1, out)
            for pane in [pane for pane in panes if pane < start + step]:
                gone = panes.pop(pane)
                if self.state.tracked:
                    self._note(gone)
            self._reached = start + size - 1
        self._reached = max(self._reached, reached)

    def _note(self, gone: Pane) -> None:
        for side in gone:
            if side.blocks:
                for block in side.blocks:
                    self.state.note_column(plain_key(block.key_column).unique())
            else:
                self.state.note(side.rows)

    def _first_open(self, pane: int) -> int:
        """Return the start of the first window with ``pane`` that is not closed."""
        last = pane - (pane - self._origin) % self._step
        starts = range(last, pane - self._size, -self._step)
        return next(start for start in reversed(starts) if start + self._size - 1 > self._reached)

    def _send(self, panes: Sequence[Pane], time: int, out: Outlet) -> None:
        lefts, rights = [pane[0] for pane in panes], [pane[1] for pane in panes]
        if any(side.blocks for side in (*lefts, *rights)):
            made = _columns_joined(lefts, rights, self._how)
            if made is not None:
                columns, keys, alone = made
                self._count(columns.num_rows, alone)
                times = _repeated(time, columns.num_rows)
                out.send(ColumnBatch(columns, key_column=keys, time_column=times, form=form_of(Pair)))
                return
        keys_sent, pairs, alone = _rows_joined(_merged(lefts), _merged(rights), self._how)
        self._count(len(pairs), alone)
        out.send(Batch(pairs, keys=keys_sent, timestamps=[time] * len(pairs)))

    def _count(self, sent: int, alone: Alone) -> None:
        count_alone(self._unmatched, self._how, *alone)
        if sent > (alone[0] if self._how != "inner" else 0) + (alone[1] if self._how == "outer" else 0):
            self._unmatched.right()


def _merged(sides: Sequence[Side]) -> Mapping[Any, list[Any]]:
    """Return the rows of the same stream in several panes, in their order."""
    if len(sides) == 1:
        return sides[0].rows
    merged: dict[Any, list[Any]] = {}
    for side in sides:
        for key, values in side.rows.items():
            merged[key] = [*merged[key], *values] if key in merged else values
    return merged


def _rows_joined(
    lefts: Mapping[Any, list[Any]], rights: Mapping[Any, list[Any]], how: How
) -> tuple[list[Any], list[Pair[Any, Any]], Alone]:
    """Return the keys and the pairs, and how many rows of each side have no partner."""
    keys, counts = list[Any](), list[int]()
    ones, others = list[Any](), list[Any]()
    keeps, get, left_alone = how != "inner", rights.get, 0
    for key, own in lefts.items():
        partners = get(key)
        if partners is None:
            left_alone += len(own)
            if not keeps:
                continue
            partners = _NONE
        keys.append(key)
        counts.append(len(own) * len(partners))
        if len(own) == 1:
            ones += repeat(own[0], len(partners))
            others += partners
        else:
            ones += spread(own, [len(partners)] * len(own))
            others += partners * len(own)
    alone = [(key, partners) for key, partners in rights.items() if key not in lefts]
    right_alone = sum(len(partners) for _, partners in alone)
    if how == "outer":
        for key, partners in alone:
            keys.append(key)
            counts.append(len(partners))
            ones += repeat(None, len(partners))
            others += partners
    return spread(keys, counts), pairs_of(ones, others), (left_alone, right_alone)


# -- columns --


def _is_joined_as_columns(batch: ColumnBatch) -> bool:
    """Whether the rows are dicts or single values of columns, keyed by a column of strings or whole numbers."""
    keys = batch.key_column
    if keys is None or batch.form not in (DICTS, SCALAR) or not batch.columns.num_columns:
        return False
    kind = str(keys.type)
    return kind in _KEYS


_KEYS: Final = WHOLE | {"string", "large_string"}


def _columns_joined(
    lefts: Sequence[Side], rights: Sequence[Side], how: How
) -> tuple[pa.RecordBatch, Any, Alone] | None:
    """Return the columns ``left`` and ``right`` of the pairs, their keys, and how many rows of each side have no
    partner; None if a side has rows, or other keys.
    """
    import pyarrow as pa

    ours, theirs = _whole(lefts), _whole(rights)
    if ours is None or theirs is None:
        return None
    (left_keys, left), (right_keys, right) = ours, theirs
    if left_keys.type != right_keys.type and len(left_keys) and len(right_keys):
        return None
    keys = pa.concat_arrays([part for part in (left_keys, right_keys) if len(part)])
    left_rows, right_rows, key_rows, alone = _matches(keys, len(left_keys), how)
    columns = [left.take(left_rows), right.take(right_rows)]
    return pa.RecordBatch.from_arrays(columns, ["left", "right"]), keys.take(_indices(key_rows)), alone


def _matches(keys: pa.Array, middle: int, how: How) -> tuple[pa.Array, pa.Array, Any, Alone]:
    """Return the rows of the pairs: in the left part of ``keys``, up to ``middle``, in the right one, and in ``keys``;
    and how many rows of each part have no partner.

    A row without a partner is null in the other part. The order is that of the left rows, then that of the right ones.
    """
    import numpy as np

    codes = keys.dictionary_encode("encode").indices.to_numpy()
    left, right = codes[:middle], codes[middle:]
    size = int(codes.max()) + 1
    counts = np.bincount(right, minlength=size)
    order = np.argsort(right, kind="stable")
    firsts = np.cumsum(counts) - counts
    partners = counts[left]
    shown = partners if how == "inner" else np.maximum(partners, 1)
    left_rows = np.repeat(np.arange(middle), shown)
    within = np.arange(len(left_rows)) - np.repeat(np.cumsum(shown) - shown, shown)
    alone = np.repeat(partners == 0, shown)
    places = np.where(alone, 0, np.repeat(firsts[left], shown) + within)
    right_rows = order[places] if len(order) else np.zeros(len(places), dtype=np.int64)
    key_rows, missing = left_rows, np.zeros(len(left_rows), dtype=bool)
    rest = np.flatnonzero(np.bincount(left, minlength=size)[right] == 0)
    if how == "outer":
        key_rows = np.concatenate([left_rows, rest + middle])
        missing = np.concatenate([missing, np.ones(len(rest), dtype=bool)])
        alone = np.concatenate([alone, np.zeros(len(rest), dtype=bool)])
        left_rows = np.concatenate([left_rows, np.zeros(len(rest), dtype=np.int64)])
        right_rows = np.concatenate([right_rows, rest])
    lone = int((partners == 0).sum()), len(rest)
    return _indices(left_rows, missing), _indices(right_rows, alone), key_rows, lone


def _whole(sides: Sequence[Side]) -> tuple[pa.Array, pa.Array] | None:
    """Return the keys and the values of the same stream in several panes, each as one column; None if some are rows."""
    import pyarrow as pa

    blocks = [block for side in sides for block in side.blocks]
    if any(side.rows for side in sides if not side.blocks):
        return None
    if not blocks:
        return pa.array([], pa.int64()), pa.nulls(0)
    first = blocks[0]
    if any(not block.columns.schema.equals(first.columns.schema) or block.form is not first.form for block in blocks):
        return None
    keys = [plain_key(block.key_column) for block in blocks]
    if any(one.type != keys[0].type for one in keys):
        return None
    table = pa.Table.from_batches([block.columns for block in blocks]).combine_chunks()
    (columns,) = table.to_batches()
    return pa.concat_arrays(keys), columns.column(0) if first.form is SCALAR else columns.to_struct_array()


def _indices(numbers: Any, missing: Any = None) -> pa.Array:
    import pyarrow as pa

    return pa.array(numbers, mask=missing)


def _repeated(time: int, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(min(time, MAX_EPOCH - 1), pa.int64()), count)
