"""``join``: pairs the records of two streams that have the same key and are in the same window, when it closes.

Rule: pairs are the same whether panes have rows or columns, and in the same order for each key. Columns are paired
without a Python object per row, several windows in one go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from math import gcd
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.data.row_form import form_of
from malstrom_py.operators.base import Outlet, StepContext, weakly
from malstrom_py.operators.join import How, Pair, count_pairs, pairs_of
from malstrom_py.operators.keyed import StatefulOperator, check_hashable, keys_of
from malstrom_py.operators.unmatched import Unmatched
from malstrom_py.state.group_index import GroupIndex
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_image import Kind, one_key_column, plain_key
from malstrom_py.state.join_panes import JoinPanes, Side
from malstrom_py.state.kept_rows import Block, values_at

if TYPE_CHECKING:
    import pyarrow as pa

_NONE: Final[list[Any]] = [None]

Alone = tuple[int, int]
"""How many left and right rows have no partner."""

_ROWS_MAX: Final = 1 << 16
"""Windows of columns are closed together up to so many rows."""

_SPARSE: Final = 4
"""Codes of rows are made dense if there may be more of them than so many per row."""


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
    keeps_on_disk = True

    def __init__(self, context: StepContext, *, how: How, size: int, step: int, origin: int = 0) -> None:
        super().__init__(context)
        self._how: How = how
        self.size, self._step, self._origin = size, step, origin
        self.watch = self._unmatched = Unmatched(context)
        self._panes = JoinPanes(gcd(size, step), origin, weakly(self.tracks))
        self.state.values = self._panes
        self.state.due_at = weakly(self._due_at)
        self._reached = MIN_EPOCH

    def continue_at(self, epoch: int) -> None:
        self._reached = epoch

    def given(self, state: Any) -> Any:
        return self._panes.given(state)

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._unmatched.arrived(side, batch)
        panes = self._panes
        # With states on disk a batch's keys are looked for in memory, where rows are found by key.
        if not (self.state.cold is None and panes.takes(batch) and panes.add_columns(side, batch)):
            self._add_rows(side, batch)
        if self.state.untried:
            self.state.try_first()

    def _add_rows(self, side: int, batch: Batch) -> None:
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        try:
            self._panes.add(side, keys, batch.values, batch.timestamps or [])
        except TypeError:
            for key in keys:
                check_hashable(key, self.context.step)
            raise

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        before, reached = self._reached, epoch.time
        self._reached = max(before, reached)
        self._close(self._panes, before, reached, out)
        make = partial(JoinPanes, gcd(self.size, self._step), self._origin)
        for piece in self.state.bring_due_apart(reached, make):
            self._close(piece, before, reached, out)
        out.forward(epoch)

    def _due_at(self, key: Any, state: Any) -> int:
        """Return the last moment of the first window of a key that is not closed."""
        start = min(state)
        first = start if self.size == self._step else self._first_open(start, self._reached)
        return min(first + self.size - 1, MAX_EPOCH)

    def _close(self, panes: JoinPanes, before: int, reached: int, out: Outlet) -> None:
        """Send the pairs of all windows that end after ``before``, until ``reached``, and drop their state."""
        size, step, starts, at = self.size, self._step, panes.starts(), 0
        sizes = list(map(panes.columns.get, starts, repeat(0)))
        last = MAX_EPOCH if reached == MAX_EPOCH else reached - size + 1
        together, rows = list[int](), 0  # windows of columns: many small batches cost more
        while at < len(starts):
            start = starts[at] if size == step else self._first_open(starts[at], before)
            if start > last:
                break
            end = at + 1 if size == step else bisect_left(starts, start + size, at)
            of_rows = bool(panes.rows) and any(pane in panes.rows for pane in starts[at:end])
            more = sum(sizes[at:end])
            if together and (of_rows or rows + more > _ROWS_MAX):
                self._close_columns(panes, together, out)
                together, rows = [], 0
            rows += more
            if of_rows:
                self._close_rows(panes, start, starts[at:end], out)
            else:
                together.append(start)
            before = start + size - 1
            at = end if size == step else bisect_left(starts, start + step, at)
        if together:
            self._close_columns(panes, together, out)

    def _first_open(self, pane: int, before: int) -> int:
        """Return the start of the first window with ``pane`` that ends after ``before``."""
        last = pane - (pane - self._origin) % self._step
        starts = range(last, pane - self.size, -self._step)
        return next(start for start in reversed(starts) if start + self.size - 1 > before)

    def _close_rows(self, panes: JoinPanes, start: int, inside: Sequence[int], out: Outlet) -> None:
        """Close a window that has panes of rows; all of its panes become rows."""
        there = [panes.rows_at(pane) for pane in inside]
        lefts, rights = (_merged([pane[side] for pane in there]) for side in (0, 1))
        keys, pairs, alone = _rows_joined(lefts, rights, self._how)
        count_pairs(self._unmatched, self._how, len(pairs), alone)
        time = min(start + self.size, MAX_EPOCH) - 1
        out.send(Batch(pairs, keys=keys, timestamps=[time] * len(pairs)))
        for pane in inside:
            if pane < start + self._step:
                for rows in panes.rows.pop(pane):
                    self.state.note(rows)

    def _close_columns(self, panes: JoinPanes, windows: Sequence[int], out: Outlet) -> None:
        """Close windows of columns, which follow each other."""
        import numpy as np
        import pyarrow as pa

        last = windows[-1]
        left, right = panes.close(windows[0], last + self.size, last + self._step)
        if left is None and right is None:
            return
        if self.size > self._step:  # a window has several panes, and a row is in several windows
            left, right = (block and _by_window(block, np.array(windows), self.size) for block in (left, right))
        columns, keys, starts, alone = joined((left, right), [kept.kind for kept in panes.sides], self._how)
        count_pairs(self._unmatched, self._how, columns.num_rows, alone)
        if columns.num_rows:
            times = pa.array(np.minimum(starts, MAX_EPOCH - self.size) + (self.size - 1))
            out.send(ColumnBatch(columns, key_column=keys, time_column=times, form=form_of(Pair)))


def _merged(sides: Sequence[Side]) -> Side:
    """Return the rows of the same stream in several panes, in their order."""
    if len(sides) == 1:
        return sides[0]
    merged: Side = {}
    for side in sides:
        for key, values in side.items():
            merged[key] = [*merged[key], *values] if key in merged else values
    return merged


def _rows_joined(lefts: Side, rights: Side, how: How) -> tuple[list[Any], list[Pair[Any, Any]], Alone]:
    """Return the keys and the pairs, and how many rows of each side have no partner."""
    if how == "inner":
        sides = [(key, own, rights[key]) for key, own in lefts.items() if key in rights]
    else:
        sides = [(key, own, rights.get(key, _NONE)) for key, own in lefts.items()]
    left_alone = sum(len(own) for key, own in lefts.items() if key not in rights)
    alone = [(key, _NONE, partners) for key, partners in rights.items() if key not in lefts]
    if how == "outer":
        sides += alone
    keys = [key for key, own, partners in sides for _ in range(len(own) * len(partners))]
    ones = [one for _, own, partners in sides for one in own for _ in partners]
    others = [other for _, own, partners in sides for _ in own for other in partners]
    return keys, pairs_of(ones, others), (left_alone, sum(len(partners) for _, _, partners in alone))


# -- columns --


class Joined(NamedTuple):
    """The pairs of two blocks: columns ``left`` and ``right``, their keys and moments, and who has no partner."""

    columns: pa.RecordBatch
    keys: pa.Array
    moments: Array
    alone: Alone


def _by_window(block: Block, windows: Array, size: int) -> Block:
    """Return the rows of each window in turn, whose moment is then its start."""
    import numpy as np
    import pyarrow as pa

    firsts = block.moments.searchsorted(windows)
    counts = block.moments.searchsorted(windows + size) - firsts
    rows = np.arange(counts.sum()) + (firsts - (counts.cumsum() - counts)).repeat(counts)
    return Block(block.batch.take(pa.array(rows)), None, windows.repeat(counts), len(rows))


Blocks = Sequence[Block | None]
"""The left and the right rows, None if there are none."""


Codes = tuple[Array, Array, int]
"""A number per left and per right row, equal where they are a pair, and a number above all of them."""


def joined(blocks: Blocks, kinds: Sequence[Kind | None], how: How, *, codes: Codes | None = None) -> Joined:
    """Return the pairs of rows with the same key and moment. Moments ascend in the blocks, and in the pairs of a key.

    At a moment they are in the order of the key's left rows, and of its right ones for each; right rows that come out
    alone follow. ``kinds``: of values, also of a side without rows; None: it has never sent anything. ``codes``: if not
    the key and the moment say which rows are pairs; each code then has one moment.
    """
    import numpy as np
    import pyarrow as pa

    left_rows, right_rows, alone_left, rest = _matches(*(codes or _codes(blocks)), keeps=how != "inner")
    alone = alone_left, len(rest)
    if how != "outer":
        rest = rest[:0]
    parts = [
        (plain_key(block.batch.key_column).take(pa.array(rows)), block.moments[rows])
        for block, rows in zip(blocks, (left_rows, rest), strict=True)
        if block is not None and len(rows)
    ]
    keys = one_key_column([part for part, _ in parts])
    moments = np.concatenate([np.zeros(0, np.int64), *(part for _, part in parts)])
    sides = [np.concatenate([left_rows, np.full(len(rest), -1)]), np.concatenate([right_rows, rest])]
    if (moments[1:] < moments[:-1]).any():  # the pairs of a window follow each other
        order = np.argsort(moments, kind="stable")
        keys, moments, sides = keys.take(pa.array(order)), moments[order], [rows[order] for rows in sides]
    columns = [values_at(block, kind, rows) for block, kind, rows in zip(blocks, kinds, sides, strict=True)]
    return Joined(pa.RecordBatch.from_arrays(columns, ["left", "right"]), keys, moments, alone)


def _codes(blocks: Blocks) -> Codes:
    """Return codes that are equal where key and moment are."""
    import numpy as np
    import pyarrow as pa

    left, right, size = _codes_of_keys(*(block and block.batch.key_column for block in blocks))
    there = [block for block in blocks if block is not None]
    windows = np.unique(np.concatenate([_runs(block.moments) for block in there]))
    codes = np.concatenate([left, right])
    if len(windows) > 1:
        codes = np.searchsorted(windows, np.concatenate([block.moments for block in there])) * size + codes
        size *= len(windows)
    if size > _SPARSE * len(codes) + _ROWS_MAX:
        codes = pa.array(codes).dictionary_encode().indices.to_numpy()
        size = int(codes.max()) + 1
    return codes[: len(left)], codes[len(left) :], size


def _codes_of_keys(left: Any, right: Any) -> tuple[Array, Array, int]:
    """Return a number per key of two columns, equal where left and right keys are, and a number above all of them.

    Right keys that are not in ``left`` may have one number.
    """
    import numpy as np
    import pyarrow as pa

    if left is None or right is None:
        lefts, rights = (np.zeros(0 if keys is None else len(keys), np.int64) for keys in (left, right))
        return lefts, rights, 1
    if pa.types.is_int64(left.type) and pa.types.is_int64(right.type) and not left.null_count + right.null_count:
        numbers = left.to_numpy(), right.to_numpy()
        least, most = (int(of(list(map(of, numbers)))) for of in (np.min, np.max))
        if most - least < len(left) + len(right):  # keys that come together are often near
            return numbers[0] - least, numbers[1] - least, most - least + 1
    index = GroupIndex()
    codes = index.ids(left)
    found, size = index.find(right), len(index)
    return codes, np.where(found < 0, size, found), size + 1


def _runs(moments: Array) -> Array:
    """Return the first of each run of equal moments."""
    import numpy as np

    return np.concatenate([moments[:1], moments[1:][moments[1:] != moments[:-1]]])


def _matches(left: Array, right: Array, size: int, *, keeps: bool) -> tuple[Array, Array, int, Array]:
    """Return the rows of ``left`` and of ``right`` codes that are pairs; how many left ones are alone; and which right.

    ``keeps``: left rows without a partner are paired with -1.
    """
    import numpy as np

    numbers = np.arange(len(left))
    counts = np.bincount(right, minlength=size)
    partners = counts[left]
    alone = len(left) - int(np.count_nonzero(partners))
    in_left = np.full(size, -1)
    in_left[left] = numbers
    of_right = in_left[right]
    rest = (of_right < 0).nonzero()[0]
    if not keeps and (in_left[left] == numbers).all():  # a code is in one left row, so that pairs may follow the right
        right_rows = (of_right >= 0).nonzero()[0]
        return of_right[right_rows], right_rows, alone, rest
    shown = np.maximum(partners, 1) if keeps else partners
    left_rows = np.repeat(numbers, shown)
    right_rows = np.full(len(left_rows), -1)
    paired = np.repeat(partners > 0, shown)
    within = np.arange(len(left_rows)) - np.repeat(np.cumsum(shown) - shown, shown)
    places = np.repeat((np.cumsum(counts) - counts)[left], shown) + within
    right_rows[paired] = np.argsort(right, kind="stable")[places[paired]]
    return left_rows, right_rows, alone, rest
