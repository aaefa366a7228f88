"""``join_interval`` and ``join_asof``: pair the records of two streams by the distance of their times.

Rules: what can still get a partner is kept per key and side, by time and then by arrival. A record is dropped, and sent
alone if it is to be, once the step's frontier proves that no partner can come; the time of what is sent then depends on
the records only, not on which epochs (watermarks) came. A key has a timer for the first moment at which it has to act.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.data.row_form import form_of
from malstrom_py.operators.base import Outlet, StepContext, weakly
from malstrom_py.operators.batch_sizing import SmallBatches
from malstrom_py.operators.column_figures import in_arrays
from malstrom_py.operators.join import Direction, How, Pair, pair_of
from malstrom_py.operators.keyed import StatefulOperator, keys_of
from malstrom_py.operators.unmatched import Unmatched
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.join_image import Kind, one_key_column, plain_key, records_of
from malstrom_py.state.join_rows import Record
from malstrom_py.state.kept_rows import Block, one_block, values_at, values_of
from malstrom_py.state.time_join_rows import (
    LAST,
    AsofRows,
    Decided,
    IntervalRows,
    Joined,
    asof_state,
    interval_state,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

Timed = tuple[int, Any, Any]
"""A record to send: its time, key and value."""


_ROWS_FEW: Final = 256
"""Fewer rows cost more as columns than as rows: each batch looks into each block of columns."""


class TimeJoin(StatefulOperator):
    """The base of both. The state of a key is a list whose last item is the time of its first timer."""

    two_sided = True
    takes_columns = True
    keeps_on_disk = True

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.watch = self.unmatched = Unmatched(context)
        self.state.entering = weakly(self._entering)
        self.state.due_at = _due_at
        self._small = SmallBatches(_ROWS_FEW)
        self.dropped = 0
        """How many records without a partner `act` has dropped since the last epoch."""

    def act(self, key: Any, state: list[Any], reached: int, ended: list[Timed]) -> int | None:
        """Send what is decided at ``reached`` to ``ended`` and drop what is past; return when to act next, or None.

        A state is dropped if it is `empty` afterwards.
        """
        raise NotImplementedError

    def empty(self, state: list[Any]) -> bool:
        """Return whether a state holds no record."""
        raise NotImplementedError

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        """Return the state of a key that has these rows, from an image of columns."""
        raise NotImplementedError

    def given(self, state: Any) -> Any:
        return self.state_of(records_of(state)) if isinstance(state, Mapping) else state

    def _entering(self, key: Any, state: Any) -> Any:
        """Return a state as rows have it, whose timer is set: columns have none."""
        of_rows = self.given(state)
        if of_rows[-1] is not None:
            self.state.timers.set(key, of_rows[-1])
        return of_rows

    def in_columns(self, batch: Batch, add: Callable[[ColumnBatch], T]) -> T | None:
        """Return what ``add`` returns for ``batch``, which it adds to columns; None if rows must do it."""
        return in_arrays(self.state, batch, add, small=self._small)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if not self.end_columns(epoch.time, out):
            self._end_rows(epoch.time, out)
        for _ in self.state.bring_due(epoch.time):  # their timers are set as they come
            self._end_rows(epoch.time, out)
        out.forward(epoch)

    def end_columns(self, reached: int, out: Outlet) -> bool:
        """Do as `_end_rows` if states are columns; return whether they are."""
        return False

    def _end_rows(self, reached: int, out: Outlet) -> None:
        """Send what is decided at ``reached``, and drop what is past."""
        states, timers = self.state.values, self.state.timers
        due = dict.fromkeys(key for key, _ in timers.due(reached) if key in states)
        self.state.note(due)
        ended: list[Timed] = []
        for key in due:
            state = states[key]
            wake = self.act(key, state, reached, ended)
            if self.empty(state):
                del states[key]
                timers.take(key)
            else:
                state[-1] = wake
                if wake is not None:
                    timers.set(key, wake)
        if self.dropped:
            self.unmatched.dropped(self.dropped)
            self.dropped = 0
        self.send(sorted(ended, key=itemgetter(0)), out)

    def act_at(self, key: Any, state: list[Any], time: int) -> None:
        """Set a timer of ``key``, which has none that is as early."""
        state[-1] = time
        self.state.timers.set(key, time)

    def send(self, rows: list[Timed], out: Outlet) -> None:
        """Send records."""
        if rows:
            times, keys, values = map(list, zip(*rows, strict=True))
            out.send(Batch(values, keys=keys, timestamps=times))


def _due_at(key: Any, state: list[Any]) -> int | None:
    due: int | None = state[-1]
    return due


def _put(state: list[Any], at: int, time: int, value: Any) -> int:
    """Insert a record after those that are not later, into the times at ``at`` of a state; return its place.

    An empty list is the empty tuple, which costs nothing: most keys have records of one side only.
    """
    times = state[at]
    if not times:
        state[at], state[at + 1] = [time], [value]
        return 0
    if times[-1] <= time:
        times.append(time)
        state[at + 1].append(value)
        return len(times) - 1
    place = bisect_right(times, time)
    times.insert(place, time)
    state[at + 1].insert(place, value)
    return place


def _drop(state: list[Any], at: int, count: int) -> None:
    """Drop the first ``count`` records."""
    if count == len(state[at]):
        state[at] = state[at + 1] = ()
    elif count:
        del state[at][:count], state[at + 1][:count]


def _flag(state: list[Any], at: int, place: int, alone: bool) -> None:
    """Insert whether the record at ``place`` is alone into the flags of the records at ``at``."""
    flags, before = state[at + 2], len(state[at]) - 1
    if not before:
        state[at + 2] = [alone]
        return
    if len(flags) < before:
        flags = state[at + 2] = [False] * before
    flags.insert(place, alone)


class IntervalJoin(TimeJoin):
    """Pairs a left and a right record of a key if ``lower <= right time - left time <= upper``, as soon as both came.

    The pair has the later of the two times. ``how``: records without a partner come once none can come any more, at
    their time + ``upper`` (left) or - ``lower`` (right), and not before their own time.

    The state of a key is its left and then its right records, as times, values, and whether they are alone (of an
    inner join, a state from an earlier version does not have these: the records are taken to be paired).

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> def stream(name, times):
    ...     timed = job.source(name, sources.Memory(times)).assign_timestamps(f"{name}-time", int)
    ...     on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(5))
    ...     return on_time.key_by(f"{name}-key", lambda time: "all")
    >>> clicks, sales = stream("clicks", [1, 12, 30]), stream("sales", [5, 13, 14])
    >>> sorted(mp.collect(clicks.join_interval("bought", sales, lower=0, upper=10)))
    [Pair(left=1, right=5), Pair(left=12, right=13), Pair(left=12, right=14)]
    """

    def __init__(self, context: StepContext, *, lower: int, upper: int, how: How) -> None:
        super().__init__(context)
        self._spans = ((lower, upper), (-upper, -lower))  # of the partner's time, from a record's own
        self._stay = (max(upper, 0), max(-lower, 0))
        self._alone = (how != "inner", how == "outer")
        self.state.arrays = partial(IntervalRows, self._spans, self._stay, weakly(self.tracks))

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self.unmatched.arrived(side, batch)
        joined: Joined | None = self.in_columns(batch, lambda columns: self.state.to_arrays().join(side, columns))
        if joined is None:
            self._join_rows(side, batch, out)
        elif joined.found:
            self.unmatched.right()
            out.send(_pairs_found(side, joined))

    def end_columns(self, reached: int, out: Outlet) -> bool:
        rows = self.state.values
        if not isinstance(rows, IntervalRows):
            return False
        ended = rows.end(reached)
        sent = list[Block | None]()
        for blocks, comes in zip(ended, self._alone, strict=True):
            alone = sum(len(block.ids) for block in blocks)
            if alone and comes:
                self.unmatched.mistaken(alone)
            elif alone:
                self.unmatched.dropped(alone)
            sent.append(one_block(blocks) if blocks and comes else None)
        if any(sent):
            out.send(_pairs_alone(sent, [kept.kind for kept in rows.sides], self._stay))
        return True

    def _join_rows(self, side: int, batch: Batch, out: Outlet) -> None:
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        states, (low, high), stay = self.state.values, self._spans[side], self._stay[side]
        own, other = (3, 0) if side else (0, 3)
        found: list[Timed] = []
        for key, value, time in zip(keys, batch.values, batch.timestamps or (), strict=True):
            state = states.get(key)
            if state is None:
                state = states[key] = [(), (), (), (), (), (), None]
            paired = False
            if state[other]:
                paired = self._pair(state, other, low + time, high + time, (time, key, value), found)
            place, flags = _put(state, own, time, value), state[own + 2]
            if place and place == len(flags):
                flags.append(not paired)
            else:
                _flag(state, own, place, not paired)
            moment, wake = time + stay, state[6]
            if wake is None or moment < wake:
                self.act_at(key, state, min(moment, LAST))
        if self.state.untried:
            self.state.try_first()
        if found:
            self.unmatched.right()
        self.send(found, out)

    def _pair(self, state: list[Any], at: int, low: int, high: int, row: Timed, found: list[Timed]) -> bool:
        """Pair a row with the records of the other side, which is at ``at``, from ``low`` to ``high``."""
        there = state[at]
        first = bisect_left(there, low)
        last = bisect_right(there, high, first)
        if first == last:
            return False
        time, key, value = row
        for moment, partner in zip(there[first:last], state[at + 1][first:last], strict=True):
            found.append((max(moment, time), key, pair_of((value, partner) if at else (partner, value))))
        flags = state[at + 2]
        if flags and last - first == 1:
            flags[first] = False
        elif flags:
            flags[first:last] = [False] * (last - first)
        return True

    def act(self, key: Any, state: list[Any], reached: int, ended: list[Timed]) -> int | None:
        wakes = []
        for side, at in ((0, 0), (1, 3)):
            times, stay = state[at], self._stay[side]
            past = len(times) if reached >= LAST else bisect_right(times, reached - stay)
            if past:
                gone, state[at + 2] = state[at + 2][:past], state[at + 2][past:]
                if alone := sum(gone):
                    self._part_with(key, side, alone, zip(times, state[at + 1], gone, strict=False), ended)
            _drop(state, at, past)
            if state[at]:
                wakes.append(min(state[at][0] + stay, LAST))
        return min(wakes, default=None)

    def _part_with(
        self, key: Any, side: int, alone: int, past: Iterable[tuple[int, Any, bool]], ended: list[Timed]
    ) -> None:
        """Send or count the ``alone`` records without a partner of a side: of those as time, value, whether alone."""
        if not self._alone[side]:
            self.dropped += alone
            return
        self.unmatched.mistaken(alone)
        stay = self._stay[side]
        for time, value, is_alone in past:
            if is_alone:
                ended.append((min(time + stay, LAST), key, pair_of((None, value) if side else (value, None))))

    def empty(self, state: list[Any]) -> bool:
        return not state[0] and not state[3]

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return interval_state(records, self._stay)


def _pairs_found(side: int, joined: Joined) -> ColumnBatch:
    """Return the pairs of a batch of ``side``: by row, and of each in the order of the partners' times, of arrival."""
    import numpy as np
    import pyarrow as pa

    batch, own, found = joined
    rows = np.concatenate([one.queries for one in found])
    partners = pa.concat_arrays([one.block.values().take(pa.array(one.places)) for one in found])
    times = np.concatenate([one.block.moments[one.places] >> 2 for one in found])
    if len(found) > 1:
        order = np.lexsort((times, rows))
        rows, times, partners = rows[order], times[order], partners.take(pa.array(order))
    picked, keys = pa.array(rows), cast("pa.Array", batch.key_column)
    sides = [values_of(batch).take(picked), partners]
    columns = pa.RecordBatch.from_arrays(sides[::-1] if side else sides, ["left", "right"])
    moments = pa.array(np.maximum(own[rows], times))
    return ColumnBatch(columns, key_column=keys.take(picked), time_column=moments, form=form_of(Pair))


def _pairs_alone(sides: Sequence[Block | None], kinds: Sequence[Kind | None], stay: Sequence[int]) -> ColumnBatch:
    """Return the pairs of rows without a partner, by time; left ones come first."""
    import numpy as np
    import pyarrow as pa

    counts = [0 if block is None else len(block.ids) for block in sides]
    there = [(block, kept) for block, kept in zip(sides, stay, strict=True) if block is not None]
    times = np.concatenate([np.minimum((block.moments >> 2) + kept, LAST) for block, kept in there])
    order = np.argsort(times, kind="stable")
    keys = one_key_column([plain_key(block.batch.key_column) for block, _ in there]).take(pa.array(order))
    rows = [np.full(sum(counts), -1), np.full(sum(counts), -1)]
    rows[0][: counts[0]], rows[1][counts[0] :] = np.arange(counts[0]), np.arange(counts[1])
    columns = [values_at(block, kind, of_side[order]) for block, kind, of_side in zip(sides, kinds, rows, strict=True)]
    pairs = pa.RecordBatch.from_arrays(columns, ["left", "right"])
    return ColumnBatch(pairs, key_column=keys, time_column=pa.array(times[order]), form=form_of(Pair))


class AsofJoin(TimeJoin):
    """Pairs each left record with one right record of its key: the latest that is not later, or by ``direction``.

    It is sent once the frontier proves which one that is, so the answer does not depend on the order of arrival: at its
    own time, or if it looks ahead, at the first moment at which it is decided. ``tolerance``: the largest distance;
    None: any. ``keeps``: left records without a partner come, too. Of right records with the same time the one that
    came last counts, looking ahead the first.

    The state of a key is its undecided left records and the right ones that may be partners, as times and values.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> def stream(name, times):
    ...     timed = job.source(name, sources.Memory(times)).assign_timestamps(f"{name}-time", int)
    ...     on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(5))
    ...     return on_time.key_by(f"{name}-key", lambda time: "all")
    >>> trades, quotes = stream("trades", [3, 12, 30]), stream("quotes", [10, 5, 28])
    >>> mp.collect(trades.join_asof("quoted", quotes))
    [Pair(left=3, right=None), Pair(left=12, right=10), Pair(left=30, right=28)]
    """

    def __init__(self, context: StepContext, *, direction: Direction, tolerance: int | None, keeps: bool) -> None:
        super().__init__(context)
        self._back, self._ahead = direction != "forward", direction != "backward"
        self._tolerance = MAX_EPOCH if tolerance is None else tolerance
        self._keeps = keeps
        where = self._back, self._ahead, self._tolerance
        self.state.arrays = partial(AsofRows, *where, weakly(self.tracks))

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        self.unmatched.arrived(side, batch)
        if self.in_columns(batch, lambda columns: self.state.to_arrays().add(side, columns)) is None:
            self._add_rows(side, batch)

    def end_columns(self, reached: int, out: Outlet) -> bool:
        rows = self.state.values
        if not isinstance(rows, AsofRows):
            return False
        try:
            decided, paired, alone = rows.decide(reached, keeps=self._keeps)
        except NotColumnar:
            self.state.to_rows()
            return False
        if paired:
            self.unmatched.right()
        if alone:
            (self.unmatched.mistaken if self._keeps else self.unmatched.dropped)(alone)
        if decided is not None:
            out.send(_pairs_decided(decided))
        return True

    def _add_rows(self, side: int, batch: Batch) -> None:
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        states = self.state.values
        for key, value, time in zip(keys, batch.values, batch.timestamps or (), strict=True):
            state = states.get(key)
            if state is None:
                state = states[key] = [(), (), (), (), None]
            _put(state, 2 * side, time, value)
            wake = state[4]
            if wake is None or time < wake:
                self.act_at(key, state, time)
        if self.state.untried:
            self.state.try_first()

    def act(self, key: Any, state: list[Any], reached: int, ended: list[Timed]) -> int | None:
        times, values, there, partners, _ = state
        past, alone, wakes = 0, 0, []
        for time, value in zip(times, values, strict=True):
            decided, place = self._partner(time, there)
            if decided > reached:
                wakes.append(decided)
                break
            past += 1
            if place is not None:
                ended.append((decided, key, pair_of((value, partners[place]))))
                continue
            alone += 1
            if self._keeps:
                ended.append((decided, key, pair_of((value, None))))
        self._count(past - alone, alone)
        _drop(state, 0, past)
        first = min([reached + 1, *state[0][:1]])  # the earliest left record that may still need a partner
        _drop(state, 2, len(there) if reached == MAX_EPOCH else self._gone(there, first))
        wakes += self._next_gone(state[2], reached)
        return min(wakes, default=None)

    def _count(self, paired: int, alone: int) -> None:
        if paired:
            self.unmatched.right()
        if self._keeps:
            self.unmatched.mistaken(alone)
        else:
            self.dropped += alone

    def _partner(self, time: int, there: Sequence[int]) -> tuple[int, int | None]:
        """Return when it is decided what the partner of a left record of ``time`` is, and its place, if it has one."""
        decided, place = (time + self._tolerance if self._ahead else time), None
        if self._back:
            before = bisect_right(there, time) - 1
            if before >= 0 and time - there[before] <= self._tolerance:
                place = before
                decided = min(decided, time + time - there[before])
        if self._ahead:
            after = bisect_left(there, time)
            if after < len(there) and there[after] - time <= self._tolerance:
                if place is None or there[after] < decided:
                    place = after
                decided = min(decided, there[after])
        return min(decided, LAST), place

    def _gone(self, there: Sequence[int], first: int) -> int:
        """Return how many of the right records no left record at or after ``first`` can have as its partner."""
        gone = max(0, bisect_right(there, first) - 1) if self._back else bisect_left(there, first)
        return max(gone, bisect_left(there, first - self._tolerance))

    def _next_gone(self, there: Sequence[int], reached: int) -> list[int]:
        """Return when the first of the right records may be dropped; nothing if it stays until another comes."""
        if not self._back:
            moments = [*there[:1]]
        else:
            moments = [*there[1:2]]
            if self._tolerance < MAX_EPOCH:
                moments += [time + self._tolerance for time in there[:1]]
        return [max(min(moments), reached + 1)] if moments else []

    def empty(self, state: list[Any]) -> bool:
        return not state[0] and not state[2]

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return asof_state(records)


def _pairs_decided(decided: Decided) -> ColumnBatch:
    import pyarrow as pa

    left, times, partners = decided
    columns = pa.RecordBatch.from_arrays([left.values(), partners], ["left", "right"])
    return ColumnBatch(columns, key_column=left.batch.key_column, time_column=pa.array(times), form=form_of(Pair))
