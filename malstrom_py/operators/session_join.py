"""``join`` by session: pairs what is in the same session of a key, when it closes.

Rule: pairs are the same whether states are columns or rows, and in the same order for each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from operator import add
from typing import Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.figures import unchanged
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.row_form import form_of
from malstrom_py.operators.base import Outlet, StepContext, weakly
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.operators.column_figures import in_arrays
from malstrom_py.operators.join import How, Pair, count_alone, count_pairs
from malstrom_py.operators.unmatched import Unmatched
from malstrom_py.operators.window import Gathering, SessionWindows
from malstrom_py.operators.window_join import joined
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.join_image import records_of
from malstrom_py.state.time_join_rows import Ended, SessionRows, session_state

_WHOLE: Final[Aggregation[Any, Any]] = Aggregation("value", list, add, add, unchanged)

_ROWS_FEW: Final = 64
"""Fewer rows cost more as columns than as rows, with a thousand keys; with more keys a third of it."""


def gather_side(side: int, how: How, unmatched: Unmatched) -> Gathering:
    """Gather values of one side of a join, beside those of the other, and pair them in the order of arrival."""

    def loop(rows: Iterable[Any], states: dict[Any, Any]) -> None:
        get = states.get
        for key, value in rows:
            sides = get(key)
            if sides is None:
                sides = states[key] = ([], [])
            sides[side].append(value)

    def merge(before: Any, after: Any) -> Any:
        return tuple([*earlier, *later] for earlier, later in zip(before, after, strict=True))

    def pairs(sides: Any) -> list[Pair[Any, Any]]:
        lefts, rights = sides
        count_alone(unmatched, how, 0 if rights else len(lefts), 0 if lefts else len(rights))
        if lefts and rights:
            unmatched.right()
        if not rights and how != "inner":
            rights = [None]
        if not lefts and how == "outer":
            lefts = [None]
        return [Pair(left, right) for left in lefts for right in rights]

    return Gathering((_WHOLE,), loop, merge, pairs, spreads=True, in_order=True)


class SessionJoin(SessionWindows):
    """Pairs the records of a key that are in the same session, when it closes.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> job = mp.Job("docs")
    >>> def stream(name, times):
    ...     timed = job.source(name, sources.Memory(times)).assign_timestamps(f"{name}-time", int)
    ...     on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(5))
    ...     return on_time.key_by(f"{name}-key", lambda time: "all")
    >>> clicks, sales = stream("clicks", [1, 12, 30]), stream("sales", [5, 13])
    >>> mp.collect(clicks.join("bought", sales, window=windows.session(6)))
    [Pair(left=1, right=5), Pair(left=12, right=13)]
    """

    two_sided = True

    def __init__(self, context: StepContext, *, how: How, gap: int) -> None:
        self.watch = self._unmatched = Unmatched(context)
        super().__init__(context, gather=partial(gather_side, 0, how, self._unmatched), gap=gap)
        self.takes_columns = True
        self._how: How = how
        self._of_sides = (self._gathering, gather_side(1, how, self._unmatched))
        self._small = SmallBatches(_ROWS_FEW)
        self.state.arrays = partial(SessionRows, gap, weakly(self.tracks))
        self.state.entering = weakly(self._entering)
        self.state.due_at = weakly(self._due_at)

    def given(self, state: Any) -> Any:
        return session_state(records_of(state), self._gap) if isinstance(state, Mapping) else state

    def _entering(self, key: Any, state: Any) -> Any:
        """Return a state as rows have it, whose timer is set: columns have none. That of rows may be earlier."""
        sessions = self.given(state)
        due = self._due_at(key, sessions)
        if not any(time <= due for time in self.state.timers.times(key)):
            self.state.timers.set(key, due)
        return sessions

    def _due_at(self, key: Any, sessions: Any) -> int:
        """Return when the first of the sessions of a key ends."""
        return int(min(sessions[0][1] + self._gap - 1, MAX_EPOCH))

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._unmatched.arrived(side, batch)
        arrays = self.state.to_arrays
        if in_arrays(self.state, batch, lambda columns: arrays().add(side, columns), small=self._small) is None:
            self._gathering = self._of_sides[side]
            self.on_batch(batch, out)

    def close(self, reached: int, out: Outlet) -> None:
        self._close_in_memory(reached, out)
        for _ in self.state.bring_due(reached):  # their timers are set as they come
            super().close(reached, out)

    def _close_in_memory(self, reached: int, out: Outlet) -> None:
        rows = self.state.values
        if isinstance(rows, SessionRows):
            try:
                ended = rows.end(reached)
            except NotColumnar:
                self.state.to_rows()
            else:
                if ended is not None:
                    self._send_pairs(rows, ended, out)
                return
        super().close(reached, out)

    def _send_pairs(self, rows: SessionRows, ended: Ended, out: Outlet) -> None:
        import pyarrow as pa

        kinds = [kept.kind for kept in rows.sides]
        columns, keys, lasts, alone = joined(ended.blocks, kinds, self._how, codes=ended.sessions)
        count_pairs(self._unmatched, self._how, columns.num_rows, alone)
        if columns.num_rows:
            times = pa.array(lasts + (self._gap - 1))
            out.send(ColumnBatch(columns, key_column=keys, time_column=times, form=form_of(Pair)))
