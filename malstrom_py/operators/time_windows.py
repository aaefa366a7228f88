"""Windows of time, tumbling and sliding: `TimeWindows` adds records to panes, and sends a window when it closes.

Rule: columns are split by pane with vectors and added to the arrays of each; no Python object is made per row. What
arrays cannot take is added as rows, with the same results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import compress
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.data.row_form import PARTIALS
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Outlet, StepContext, weakly
from malstrom_py.operators.column_figures import FieldColumns, columns_of, functions_of, keys_columns_of
from malstrom_py.operators.keyed import keys_of
from malstrom_py.operators.panes import Pane, Panes, Piece, Split, split_by_span
from malstrom_py.operators.pre_aggregation import PreAggregation
from malstrom_py.operators.run_panes import RunPanes, stretches
from malstrom_py.operators.window import CLOSE, Emit, Gathering, WindowOperator
from malstrom_py.state.group_index import NotColumnar, joined_keys, type_of_keys
from malstrom_py.state.groups import Groups
from malstrom_py.state.key_symbols import Symbols
from malstrom_py.windows import WINDOW_RESULT

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.state.group_index import Keys

_SPANS_FEW: Final = 32
_ROWS_FEW: Final = 16
"""With fewer rows than this for each of many spans, columns are added as rows, and rows of all spans together."""

_RESULTS_MANY: Final = 1 << 16
"""With as many results, those of the next window are another batch."""


class TimeWindows(WindowOperator):
    """Windows of ``size`` every ``step`` from ``origin``, in the unit of the stream.

    State is kept by pane. If parts of a window can be merged, a pane is the longest span of which all windows consist,
    and each record is added once. Otherwise a pane is a window, and each record is added to all its windows. In both
    cases records are gathered, and parts merged, in the order of arrival where that makes a difference.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> times = mp.Job("docs").source("times", sources.Memory([1, 12, 9, 23])).assign_timestamps("time", int)
    >>> on_time, _ = times.generate_epochs("epochs", mp.limit_out_of_orderness(5))
    >>> counts = on_time.key_by("all", lambda time: "all").window("tens", windows.tumbling(10)).count()
    >>> [(start, end, n) for start, end, n, update in mp.collect(counts)]
    [(0, 10, 2), (10, 20, 1), (20, 30, 1)]
    """

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        return functions_of(options["gather"]().aggregations)

    def __init__(
        self,
        context: StepContext,
        *,
        gather: Callable[[], Gathering],
        size: int,
        step: int,
        origin: int = 0,
        emit: Emit = CLOSE,
        by_clock: bool = False,
        compiles: bool = True,
    ) -> None:
        super().__init__(context, gather=gather, emit=emit, by_clock=by_clock)
        self._size, self._step, self._origin = size, step, origin
        self._span = gcd(size, step)
        # By the clock no epoch says which windows another worker has closed: a pane in several would be sent twice.
        self._whole = size == step or self._gathering.merge is None or by_clock
        gathering = self._gathering
        # Early results need the number of records by key, which arrays do not have.
        by_panes = emit == CLOSE and not (by_clock and size != step)
        by_runs = gathering.in_order and not self._whole
        supports = RunPanes.in_columns if by_runs else Groups.supports
        in_arrays = by_panes and supports(gathering.aggregations)
        self._columns = FieldColumns(context, functions_of(gathering.aggregations), compiles=compiles)
        self._has_names = self.takes_columns
        self.takes_columns = self._has_names or (in_arrays and self._columns.are_compiled)
        self._by_columns = self.takes_columns and in_arrays
        make = partial(RunPanes, own=gathering.own) if by_runs else Panes
        self._make = partial(
            make,
            gathering.aggregations if self._by_columns else (),
            single=gathering.names is None,
            note=weakly(self.state.note_column),
        )
        self._panes = self._make()
        self._runs = self._panes if isinstance(self._panes, RunPanes) else None
        self.state.values = self._panes
        self.state.due_at = weakly(self._due_at)
        self.combine = PreAggregation(gathering.aggregations, self._span, self._origin, self._size + self._span)
        """Gathers what this step can merge, before the exchange (F5)."""
        self._reached = MIN_EPOCH
        self._changed: dict[int, dict[Any, int]] = {}

    @property
    def combines(self) -> bool:
        """Whether `combine` may be called for batches of this step."""
        # What functions return may be whole in one batch and not in the next, whose sum would depend on the order.
        return self._by_columns and self._has_names and not self._by_clock and self._runs is None

    def continue_at(self, epoch: int) -> None:
        self._reached = epoch

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        added = self._by_columns and isinstance(batch, ColumnBatch) and self._add_columns(batch, out)
        self.takes_columns = self._has_names or added
        if not added:
            super().on_batch(batch, out)

    def _add_columns(self, batch: ColumnBatch, out: Outlet) -> bool:
        """Add the rows of ``batch`` by columns; False if it has no columns of keys, times or values."""
        partials = batch.form is PARTIALS
        split, only_key = self._split(batch), batch.only_key
        if split is None:
            return False
        columns: list[Any] = list(batch.columns.columns) if partials else []  # of a frame all of them are costly
        try:
            if not partials:
                columns = columns_of(batch, self._gathering.aggregations, self._columns.of)
            keys = keys_columns_of(batch) if only_key is None else only_key
            symbols = self._panes.symbols.of(keys, rows=len(batch))
        except NotColumnar:
            if not partials:
                return False
            symbols = None
        if self._runs is not None and self._panes.symbols.has_tuples:
            return False
        spans = len(split.pieces)
        if not partials and self._runs is None and spans > _SPANS_FEW and len(batch) < _ROWS_FEW * spans:
            return False
        symbols, columns = split.sorted(symbols, columns)
        if self._runs is None:
            self._fold_panes(batch, symbols, columns, split, out)
        elif not self._fold_runs(self._runs, len(batch), symbols, columns, split):
            return False
        if self.state.untried:
            self.state.try_first()
        return True

    def _fold_panes(
        self, batch: ColumnBatch, symbols: Symbols | None, columns: list[Any], split: Split, out: Outlet
    ) -> None:
        """Add the rows of a batch span by span: in columns or, where it must be, as rows."""
        partials = batch.form is PARTIALS
        for piece in split.pieces:
            some = list(map(piece.of, columns))
            if symbols is not None and self._panes.fold(piece.at, piece.of_array(symbols), some, partials=partials):
                continue
            cut = batch.take(split.places(piece).tolist())
            if partials:
                self._merge_rows(piece.at, cut.key_column, some)
            else:
                self._add_rows(piece.at, cut, out)

    def _fold_runs(self, runs: RunPanes, rows: int, symbols: Symbols, columns: list[Any], split: Split) -> bool:
        """Add the rows of a batch to ``runs``, all of them or none, because rows of several spans have one order."""
        spans = [(one.at, one.of_array(symbols), split.places(one), list(map(one.of, columns))) for one in split.pieces]
        return runs.fold_all(rows, spans)

    def _merge_rows(self, at: int, keys: pa.Array, columns: list[Any]) -> None:
        merge = self._gathering.merge
        if merge is None:
            raise InternalError(f"step {self.context.step!r} was sent partial states, but cannot merge states")
        there = keys.to_pylist()
        self.changes(there)
        with self.failures.of_hook(merge):
            self._panes.merge_rows(at, there, columns, merge)

    def _split(self, batch: ColumnBatch) -> Split | None:
        if self._by_clock:
            now = self._now()
            return Split(None, [Piece(now - (now - self._origin) % self._span, 0, len(batch))])
        if batch.time_column is None:
            return None
        return split_by_span(batch.time_column, self._span, self._origin, reach=self._size + self._span)

    def _add_rows(self, at: int, batch: Batch, out: Outlet) -> None:
        batch, values = self._fields.of(batch, self.failures, out)
        if len(batch):
            keys = keys_of(batch, self.context.step)
            self.changes(keys)
            self._add_at(at, lambda: batch, keys, values, out)

    def add(self, batch: Batch, keys: list[Any], values: list[list[Any]], times: list[int], out: Outlet) -> None:
        span, origin = self._span, self._origin
        least, most = (times[0], times[0]) if self._by_clock else batch.span
        first, last = (least - origin) // span, (most - origin) // span
        if first == last and self._runs is None:
            self._add_at(first * span + origin, lambda: batch, keys, values, out)
        elif first + 1 == last and self._runs is None and not self._in_many_windows:
            edge = last * span + origin
            early = [time < edge for time in times]
            for place, mask in ((first, early), (last, [not one for one in early])):
                some = [list(compress(column, mask)) for column in values]
                rows = partial(batch.compress, mask)
                self._add_at(place * span + origin, rows, list(compress(keys, mask)), some, out)
        else:
            starts = [(time - origin) // span * span + origin for time in times]
            if self._runs is not None:
                self._add_to_runs(self._runs, batch, keys, values, starts, out)
            elif self._in_many_windows:
                self._add_to_windows(batch, keys, values, starts, out)
            else:
                self._add_to_many(batch, keys, values, starts, out)

    @property
    def _in_many_windows(self) -> bool:
        """Whether panes are windows that overlap, and each record is added to several."""
        return self._whole and self._size != self._step

    def _add_to_many(
        self, batch: Batch, keys: list[Any], values: list[list[Any]], starts: list[int], out: Outlet
    ) -> None:
        """Add rows of three spans or more: ``starts`` has the beginning of each row's. Many spans cost no more."""
        spans = set(starts)
        if self._emit != CLOSE or len(starts) >= _ROWS_FEW * len(spans):
            of_span = defaultdict[int, list[int]](list)
            for index, start in enumerate(starts):
                of_span[start].append(index)
            for start in sorted(of_span):
                own = of_span[start]
                some = [[column[index] for index in own] for column in values]
                self._add_at(start, partial(batch.take, own), [keys[index] for index in own], some, out)
            return
        panes = {start: self._panes.rows_at(start) for start in sorted(spans)}
        both = list(zip(starts, keys, strict=True))
        known = {pair: panes[pair[0]][pair[1]] for pair in both if pair[1] in panes[pair[0]]}
        self._gather(lambda: batch, both, values, known, out)
        for (start, key), state in known.items():
            panes[start][key] = state

    def _add_at(
        self, at: int, batch: Callable[[], Batch], keys: list[Any], values: list[list[Any]], out: Outlet
    ) -> None:
        """Add rows whose times are in the span that begins ``at``."""
        for pane in self._windows_at(at) if self._whole else (at,):
            self._gather(batch, keys, values, self._panes.rows_at(pane), out)
        if self._emit != CLOSE:
            for start in self._windows_at(at):
                self._count_changes(start, keys)

    def _add_to_windows(
        self, batch: Batch, keys: list[Any], values: list[list[Any]], starts: list[int], out: Outlet
    ) -> None:
        """Add rows to all their windows, to each in the order of arrival."""
        for begin, end, of_one_span in stretches(starts):
            if of_one_span:
                some = [column[begin:end] for column in values]
                self._add_at(starts[begin], partial(batch.cut, begin, end), keys[begin:end], some, out)
                continue
            of_window = defaultdict[int, list[int]](list)
            for index in range(begin, end):
                for window in self._windows_at(starts[index]):
                    of_window[window].append(index)
            for window, own in sorted(of_window.items()):
                some = [[column[index] for index in own] for column in values]
                its_keys = [keys[index] for index in own]
                self._gather(partial(batch.take, own), its_keys, some, self._panes.rows_at(window), out)
                if self._emit != CLOSE:
                    self._count_changes(window, its_keys)

    def _add_to_runs(
        self, runs: RunPanes, batch: Batch, keys: list[Any], values: list[list[Any]], starts: list[int], out: Outlet
    ) -> None:
        if self._by_columns and not isinstance(batch, ColumnBatch):
            runs.to_rows(fixed=starts)
        for begin, end, of_one_pane in stretches(starts):
            own = keys[begin:end]
            rows = runs.runs_in(starts[begin], own) if of_one_pane else runs.runs_of(own, starts[begin:end])
            some = [column[begin:end] for column in values]
            self._gather(partial(batch.cut, begin, end), rows.runs, some, rows.states, out)
            runs.put(rows)
        if self._emit != CLOSE:
            for key, at in zip(keys, starts, strict=True):
                for window in self._windows_at(at):
                    self._count_changes(window, (key,))

    def _count_changes(self, window: int, keys: Collection[Any]) -> None:
        """Count the records of ``keys`` since the last early result of a window."""
        changed = self._changed.setdefault(window, {})
        for key in keys:
            changed[key] = changed.get(key, 0) + 1

    def _windows_at(self, at: int) -> range:
        """Return the starts of the windows that have the moment ``at``."""
        last = at - (at - self._origin) % self._step
        return range(last, at - self._size, -self._step)

    def close(self, reached: int, out: Outlet) -> None:
        before, self._reached = self._reached, max(self._reached, reached)
        self._close(self._panes, before, reached, out)
        for piece in self.state.bring_due_apart(reached, self._make):
            self._close(piece, before, reached, out)

    def _close(self, panes: Panes, before: int, reached: int, out: Outlet) -> None:
        """Send the windows of ``panes`` that end after ``before``, until ``reached``."""
        size, step = self._size, self._step
        results = _Results(self._gathering.names, size, timed=bool(self.context.timed) and not self._by_clock)
        while panes.open:
            start = self._first_open(min(panes.open), before)
            if min(start + size - 1, MAX_EPOCH) > reached:
                break
            states = self._states_of(panes, start)
            for pane in [pane for pane in panes.open if pane == start or (not self._whole and pane < start + step)]:
                gone = panes.pop_pane(pane)
                if isinstance(gone, dict):
                    self.state.note(gone)
                elif self.state.is_tracked:
                    self.state.note_column(gone.keys())
            self._changed.pop(start, None)
            before = start + size - 1
            if isinstance(states, dict) or start + size > MAX_EPOCH:  # or beyond what columns hold
                results.send(out)
                self._send_window(start, start + size, panes.as_results(states), out)
            elif not results.add(start, states):
                results.send(out)
                results.add(start, states)
            panes.forget_keys()
        results.send(out)

    def _due_at(self, key: Any, state: dict[Any, Any]) -> int:
        """Return the last moment of the first window with ``state`` that is not closed."""
        first = min(state)  # a pane, or pane and number
        start = self._first_open(first[0] if isinstance(first, tuple) else first, self._reached)
        return min(start + self._size - 1, MAX_EPOCH)

    def _first_open(self, pane: int, before: int) -> int:
        """Return the start of the first window with ``pane`` that ends after ``before``."""
        if self._whole:
            return pane
        return next(start for start in reversed(self._windows_at(pane)) if start + self._size - 1 > before)

    def _states_of(self, panes: Panes, start: int, keys: Collection[Any] | None = None) -> Pane:
        """Return the states of a window by key, merged over its panes; of ``keys``, None: of all."""
        merge = self._gathering.merge
        if self._whole or merge is None:
            there = panes.open.get(start, {})
            if keys is None:
                return there
            states = panes.as_dict(there)
            return {key: states[key] for key in keys if key in states}
        with self.failures.of_hook(merge):
            of_window = sorted(pane for pane in panes.open if start <= pane < start + self._size)
            return panes.merged(of_window, merge, keys)

    def update(self, out: Outlet, *, rows_min: int = 1) -> None:
        for start in sorted(self._changed):
            changed = self._changed[start]
            due = [key for key, rows in changed.items() if rows >= rows_min]
            for key in due:
                del changed[key]
            for keys in self.state.brought(due):
                states = self._panes.as_dict(self._states_of(self._panes, start, keys))
                self._send_window(start, start + self._size, states, out, update=True)


class _Results:
    """The results of windows that end with one epoch, as columns: sent together, because each batch has its price."""

    def __init__(self, names: Sequence[str] | None, size: int, *, timed: bool) -> None:
        """``names``: of the aggregations, None: the value is that of the only one."""
        self._names, self._size, self._timed = names, size, timed
        self._windows: list[tuple[int, Keys, list[pa.Array]]] = []
        self._rows = 0

    def add(self, start: int, groups: Groups) -> bool:
        """Add the results of a window; False if they do not fit the others, or these are many."""
        keys, results = groups.finish()
        if self._windows:
            _, first, columns = self._windows[0]
            same = [column.type for column in columns] == [column.type for column in results]
            if self._rows > _RESULTS_MANY or not same or type_of_keys(first) != type_of_keys(keys):
                return False
        self._windows.append((start, keys, results))
        self._rows += len(keys)
        return True

    def send(self, out: Outlet) -> None:
        """Send what was added, and forget it."""
        import numpy as np
        import pyarrow as pa

        windows, self._windows, self._rows = self._windows, [], 0
        if not windows:
            return
        keys = joined_keys([keys for _, keys, _ in windows])
        results = list(map(pa.concat_arrays, zip(*(columns for _, _, columns in windows), strict=True)))
        starts = np.repeat([start for start, _, _ in windows], [len(keys) for _, keys, _ in windows])
        columns = {
            "start": pa.array(starts),
            "end": pa.array(starts + self._size),
            "value": results[0] if self._names is None else pa.StructArray.from_arrays(results, list(self._names)),
            "update": pa.array(np.zeros(len(starts), np.bool_)),
        }
        times = pa.array(starts + (self._size - 1)) if self._timed else None
        made = pa.RecordBatch.from_pydict(columns)
        out.send(ColumnBatch(made, key_column=keys, time_column=times, form=WINDOW_RESULT))
