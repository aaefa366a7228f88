"""``join`` and ``join_table``: pair the records of two streams, by window or with the latest value of a key.

Rules: the left stream is side 0, the right one side 1. A pair is sent once, under its key, above every epoch
(watermark) that the step has forwarded. R4: what is kept of both sides is one state per key, so both move together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import repeat
from operator import add, is_, itemgetter
from typing import Any, Final, Literal

from malstrom_py.agg import Aggregation, unchanged
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator, distinct, keys_of
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import Gathering, SessionWindows, WindowOperator

How = Literal["inner", "left", "outer"]
"""Which records of a join come out without a partner: none, those of the left stream, those of both."""

_WHOLE: Final[Aggregation[Any, Any]] = Aggregation("value", list, add, add, unchanged)


def gather_side(side: int, how: How) -> Gathering:
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

    def pairs(sides: Any) -> list[tuple[Any, Any]]:
        lefts, rights = sides
        if not rights and how != "inner":
            rights = [None]
        if not lefts and how == "outer":
            lefts = [None]
        return [(left, right) for left in lefts for right in rights]

    return Gathering((_WHOLE,), loop, merge, pairs, spreads=True)


class SidedWindows(WindowOperator):
    """Makes a window step one that gathers two sides."""

    two_sided = True

    def __init__(self, context: StepContext, *, how: How, **of_windows: Any) -> None:
        super().__init__(context, gather=partial(gather_side, 0, how), **of_windows)
        self._of_sides = (self._gathering, gather_side(1, how))

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self._gathering = self._of_sides[side]
        self.on_batch(batch, out)


class WindowJoin(SidedWindows, TimeWindows):
    """Pairs the records of a key that are in the same tumbling or sliding window, when it closes."""


class SessionJoin(SidedWindows, SessionWindows):
    """Pairs the records of a key that are in the same session, when it closes."""


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
    >>> sorted(mp.collect(named.map("text", str)))
    ["(('l', 3), ('l', 'lamp'))", "(('x', 1), None)"]
    """

    two_sided = True

    def __init__(self, context: StepContext, *, keeps: bool, waits: bool, wait: int | None = None) -> None:
        super().__init__(context)
        self._keeps, self._waits, self._wait = keeps, waits, wait

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
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

    def _look_up(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        found = [state and state[0] for state in map(self.state.values.get, keys)]
        if not any(map(is_, found, repeat(None))) or (self._keeps and not self._waits):
            out.send(batch.with_values(list(zip(batch.values, found, strict=True))))
            return
        there = [value is not None for value in found]
        if self._waits:
            self._keep_waiting(batch.compress([not one for one in there]))
        paired = batch.compress(there)
        values = [value for value in found if value is not None]
        out.send(paired.with_values(list(zip(paired.values, values, strict=True))))

    def _keep_waiting(self, batch: Batch) -> None:
        states, keys = self.state.values, batch.keys or []
        self.state.note(keys)
        for row in zip(keys, batch.values, batch.timestamps or repeat(None), strict=False):
            key, value, time = row
            state = states.get(key)
            if state is None:
                states[key] = [None, [(value, time)]]
            else:
                state[1].append((value, time))
            if self._wait is not None:
                self.state.timers.set(key, self._end_of(time))

    def _end_of(self, time: Any) -> int:
        """Return when a record of ``time`` waits no longer."""
        return MAX_EPOCH - 1 if self._wait is None else int(min(time + self._wait, MAX_EPOCH - 1))

    def _change(self, keys: list[Any], batch: Batch, out: Outlet) -> None:
        states = self.state.values
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
                    ended.append((time if at is None or at < time else at, key, (left, value)))
                if state[1]:
                    self.state.timers.take(key)
                state[:] = value, ()
        self._send(ended, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self._waits:
            self._end_waiting(epoch.time, out)
        out.forward(epoch)

    def _end_waiting(self, reached: int, out: Outlet) -> None:
        states = self.state.values
        due = dict.fromkeys(key for key, _ in self.state.timers.due(reached))
        if reached == MAX_EPOCH:
            due = dict.fromkeys(key for key, state in states.items() if state[0] is None)
        self.state.note(due)
        ended: list[tuple[Any, Any, Any]] = []
        for key in due:
            left = []
            for value, time in states[key][1]:
                end = self._end_of(time)
                if end > reached:
                    left.append((value, time))
                else:
                    ended.append((end, key, (value, None)))
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
