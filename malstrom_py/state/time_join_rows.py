"""The state of ``join_interval`` and ``join_asof`` in columns: the rows of both streams that may still get a partner.

Rule: as a mapping it is what the dict of the row path would be. What columns do not hold raises `NotColumnar` before
anything has changed; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_rows import JoinRows, Record
from malstrom_py.state.kept_rows import Block, KeptRows, one_block
from malstrom_py.state.timed_rows import ALONE, CODES_MAX, FAR, GONE, Found, TimedRows, near_times, passed, span_of

if TYPE_CHECKING:
    import pyarrow as pa

LAST: Final = MAX_EPOCH - 1
"""The largest time of a record."""

_PAST_FROM: Final = 4096
"""So many right rows of an as-of join may not be looked at."""


class TimeJoinRows(JoinRows):
    """The base of both. The moment that an image has is 2 * time, and 1 more if the row is alone."""

    __slots__ = ()

    small: ClassVar[tuple[int, int]] = (1 << 18, 1 << 18)
    kept: ClassVar[type[KeptRows]] = TimedRows
    forms: ClassVar[frozenset[RowForm]] = frozenset((DICTS, SCALAR))
    sides: tuple[TimedRows, TimedRows]

    def taken(self, side: int, batch: ColumnBatch) -> tuple[ColumnBatch, Array, Array]:
        """Return a batch in the types of its stream, with times and ids. `NotColumnar` if it cannot be kept."""
        kept = self.sides[side].expected(batch) if self.takes(batch) else None
        if kept is None:
            raise NotColumnar("rows that no column holds")
        return kept, near_times(kept), self.ids(kept.key_column)

    def add(self, side: int, batch: ColumnBatch) -> Array:
        """Keep the rows of a batch; return the ids of their keys."""
        kept, times, ids = self.taken(side, batch)
        self.mark(ids)
        self.sides[side].add(kept, ids, 4 * times)
        return ids

    # `JoinRows`

    def is_live(self, side: int, block: Block) -> Array:
        live: Array = block.moments & GONE == 0
        return live

    def stored_moments(self, side: int, block: Block) -> Array:
        return block.moments >> 1  # 2 * time + alone

    def put(self, side: int, batch: ColumnBatch, moments: Array) -> None:
        self.sides[side].add(batch, self.ids(batch.key_column), moments << 1, sent=False)

    def drop(self, chosen: Array) -> None:
        for kept in self.sides:
            kept.take(lambda block: chosen[block.ids])


class Joined(NamedTuple):
    """Rows that have come, in the types of their stream, their times, and what they have found on the other side."""

    batch: ColumnBatch
    times: Array
    found: list[Found]


class IntervalRows(TimeJoinRows):
    """Key -> [left times, values, whether they are alone, the same of the right, the first moment at which to act].

    ``spans``: of the partner's time, from the own of a left and of a right row; ``stay``: how long they are kept.
    """

    __slots__ = ("_spans", "_stay")

    def __init__(
        self, spans: Sequence[tuple[int, int]], stay: Sequence[int], tracked: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(tracked)
        self._spans, self._stay = spans, stay

    def join(self, side: int, batch: ColumnBatch) -> Joined:
        """Keep the rows of a batch; return what they have found on the other side."""
        import numpy as np

        low, high = self._spans[side]
        if max(-low, high) > FAR:
            raise NotColumnar("a span too far for 64 bits")
        kept, times, ids = self.taken(side, batch)
        found = self.sides[1 - side].find(ids, times + low, times + (high + 1), len(self.index))
        alone = np.full(len(ids), ALONE)
        for one in found:
            alone[one.queries] = 0
            one.block.moments[one.places] &= ~ALONE
        self.mark(ids)
        self.sides[side].add(kept, ids, 4 * times + alone)
        return Joined(kept, times, found)

    def end(self, reached: int) -> list[list[Block]]:
        """Drop the rows of each stream that get no partner once ``reached``; return those without one, in blocks."""
        ended = list[list[Block]]()
        for kept, stay in zip(self.sides, self._stay, strict=True):
            alone = list[Block]()
            for block, rows in kept.end(FAR if reached >= LAST else reached - stay):
                self.mark(block.ids[rows])
                unpaired = rows[block.moments[rows] & ALONE != 0]
                if len(unpaired):
                    alone.append(block.rows(unpaired))
            ended.append(alone)
        self.forget()
        return ended

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return interval_state(records, self._stay)


class Decided(NamedTuple):
    """Left rows of an as-of join that are decided, since when, and the partners, null if there is none."""

    left: Block
    times: Array
    partners: pa.Array


class AsofRows(TimeJoinRows):
    """Key -> [left times, values, right times, values, the first moment at which to act].

    ``back``, ``ahead``: whether a partner may be at or before a left row, or at or after it; ``tolerance``: how far.
    Right rows that cannot be partners any more stay for a while.
    """

    __slots__ = ("_ahead", "_back", "_past_from", "_tolerance")

    absent: ClassVar[dict[str, tuple[str, Any]]] = {**JoinRows.absent, "stirred": ("bool", False)}
    """``stirred``: whether a right row has come since the last epoch."""

    def __init__(self, back: bool, ahead: bool, tolerance: int, tracked: Callable[[], bool] = lambda: False) -> None:
        super().__init__(tracked)
        self._back, self._ahead, self._tolerance = back, ahead, tolerance
        self._past_from = _PAST_FROM

    def add(self, side: int, batch: ColumnBatch) -> Array:
        ids = super().add(side, batch)
        if side:
            self.by_id["stirred"][ids] = True
        return ids

    def decide(self, reached: int, *, keeps: bool) -> tuple[Decided | None, int, int]:
        """Remove the left rows that are decided once ``reached``. Return them, without a partner only if it ``keeps``
        these, and how many have one, and have none. `NotColumnar` if times and ids are too many for 64 bits.
        """
        import numpy as np

        lefts, found, paired, alone = self.sides[0], list[tuple[Block, Array, Array, Array]](), 0, 0
        for block in lefts.blocks:
            rows = self._to_decide(block, reached)
            if not len(rows):
                continue
            ends, which, places = self._partners(block.ids[rows], block.moments[rows] >> 2)
            block.known["decided"][rows] = ends
            done = ends <= reached
            ended = rows[done]
            block.moments[ended] |= GONE
            self.mark(block.ids[ended])
            sent = done if keeps else done & (which >= 0)
            with_partner = int(np.count_nonzero(which[done] >= 0))
            paired, alone = paired + with_partner, alone + len(ended) - with_partner
            if sent.any():
                found.append((block.rows(rows[sent]), ends[sent], which[sent], places[sent]))
        self.by_id["stirred"][:] = False
        lefts.shrink()
        decided = self._decided(found) if found else None
        self._drop_past(reached)
        self.forget()
        return decided, paired, alone

    def _to_decide(self, block: Block, reached: int) -> Array:
        """Return the left rows of a reached time that may be decided: new ones, and those for which one has come."""
        live, known = block.moments & GONE == 0, block.known
        times = block.moments >> 2
        if "decided" not in known:
            known["decided"] = times  # at the earliest
        due = known["decided"] <= reached
        if self._ahead:
            due |= self.by_id["stirred"][block.ids] & (times <= reached)
        rows: Array = (due & live).nonzero()[0]
        return rows

    def _partners(self, ids: Array, times: Array) -> tuple[Array, Array, Array]:
        """Return when the partner of left rows is decided, in which block it is, -1 if there is none, and its index."""
        import numpy as np

        rights, size, far = self.sides[1], len(self.index), self._tolerance
        ends = np.where(times > LAST - far, LAST, times + min(far, LAST)) if self._ahead else times
        which, places = np.full(len(ids), -1), np.zeros(len(ids), np.int64)
        if self._back:
            before, which, places = rights.nearest(ids, times, size, back=True)
            which = np.where(times - before <= far, which, -1)
            ends = np.where(which >= 0, np.minimum(ends, 2 * times - before), ends)
        if self._ahead:
            after, of_after, there = rights.nearest(ids, times, size, back=False)
            near = (of_after >= 0) & (after - times <= far)
            better = near & ((which < 0) | (after < ends))
            which, places = np.where(better, of_after, which), np.where(better, there, places)
            ends = np.where(near, np.minimum(ends, after), ends)
        return np.minimum(ends, LAST), which, places

    def _decided(self, found: Sequence[tuple[Block, Array, Array, Array]]) -> Decided:
        """Return what was found, by the time at which it was decided, and then by its own."""
        import numpy as np
        import pyarrow as pa

        left = one_block([block for block, *_ in found])
        ends, which, places = (np.concatenate(parts) for parts in list(zip(*found, strict=True))[1:])
        order = np.lexsort((left.moments, ends))
        kept = Block(left.batch.take(pa.array(order)), left.ids[order], left.moments[order], len(order))
        return Decided(kept, ends[order], self.sides[1].picked(which[order], places[order]))

    def _drop_past(self, reached: int) -> None:
        """Drop the right rows that no left row can have as its partner; unless at the end, once there may be many."""
        import numpy as np

        lefts, rights = self.sides
        if reached == MAX_EPOCH:
            self._drop_rights([np.ones(len(block.ids), np.bool_) for block in rights.blocks])
        if len(rights) <= self._past_from:
            return
        # The earliest left row that may still need a partner. No row is before -FAR, from which tolerances fit 64 bits.
        first = np.full(len(self.index) + 1, max(reached + 1, -FAR))
        for block in lefts.blocks:
            live = block.moments & GONE == 0
            np.minimum.at(first, block.ids[live], block.moments[live] >> 2)
        ids = np.concatenate([block.ids for block in rights.blocks])
        times = np.concatenate([block.moments >> 2 for block in rights.blocks])
        order = np.lexsort((times, ids))
        sorted_ids, sorted_times = ids[order], times[order]
        limits = first[sorted_ids]
        past = sorted_times < limits - self._tolerance if self._tolerance <= FAR else np.zeros(len(ids), np.bool_)
        if self._back:  # but the last one at or before the limit
            past[:-1] |= (sorted_ids[1:] == sorted_ids[:-1]) & (sorted_times[1:] <= limits[1:])
        else:
            past |= sorted_times < limits
        gone = np.zeros(len(ids), np.bool_)
        gone[order] = past
        self._drop_rights(np.split(gone, np.cumsum([len(block.ids) for block in rights.blocks])[:-1]))
        self._past_from = max(_PAST_FROM, 2 * len(rights))

    def _drop_rights(self, gone: Sequence[Array]) -> None:
        pieces = iter(gone)
        dropped = self.sides[1].take(lambda block: next(pieces))
        if dropped is not None:
            self.mark(dropped.ids)

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return asof_state(records)


class Ended(NamedTuple):
    """The left and the right rows of sessions, whose moments are the last times of these, and the session of each."""

    blocks: list[Block | None]
    sessions: tuple[Array, Array, int]


class SessionRows(TimeJoinRows):
    """Key -> its open sessions, as `SessionWindows` has them: of records less than ``gap`` apart."""

    __slots__ = ("_gap", "_passed")

    def __init__(self, gap: int, tracked: Callable[[], bool] = lambda: False) -> None:
        super().__init__(tracked)
        self._gap = gap
        self._passed = -FAR - 1  # up to this time each row has one of its key less than a gap after it

    def taken(self, side: int, batch: ColumnBatch) -> tuple[ColumnBatch, Array, Array]:
        if self._gap > FAR:
            raise NotColumnar("a span too far for 64 bits")
        kept, times, ids = super().taken(side, batch)
        if int(times.min()) <= self._passed:
            raise NotColumnar("late rows")
        return kept, times, ids

    def put(self, side: int, batch: ColumnBatch, moments: Array) -> None:
        self._passed = min(self._passed, (int(moments.min()) >> 1) - 1)
        super().put(side, batch, moments)

    def end(self, reached: int) -> Ended | None:
        """Remove the sessions that have ended once ``reached``; None if none has.

        `NotColumnar` if times and ids are too many for 64 bits.
        """
        import numpy as np

        limit = max(min(reached - self._gap + 1, FAR), self._passed)
        ids, lasts = self._last(limit)
        self._passed = limit
        if not len(ids):
            return None
        after = np.full(len(ids), -FAR)  # of each session: where the one before it ends, if it is of the same key
        after[1:] = np.where(ids[1:] == ids[:-1], lasts[:-1] + 1, -FAR)
        found = [kept.find(ids, after, lasts + 1, len(self.index)) for kept in self.sides]
        self.mark(ids)
        (left, lefts), (right, rights) = (kept.take_found(of) for kept, of in zip(self.sides, found, strict=True))
        self.forget()
        blocks = [left and replace(left, moments=lasts[lefts]), right and replace(right, moments=lasts[rights])]
        return Ended(blocks, (lefts, rights, len(ids)))

    def _last(self, limit: int) -> tuple[Array, Array]:
        """Return the ids, and then times, of the rows up to ``limit`` that are the last of a session, in order.

        Only of those for which this has not been asked: no row of the key is less than a gap after the last one.
        """
        import numpy as np

        new, times = list[tuple[Array, Array]](), np.zeros(0, np.int64)
        for block in (block for kept in self.sides for block in kept.blocks if span_of(block)[0] <= limit):
            rows = passed(block, limit)
            moments = block.moments[rows]
            asked = (moments & GONE == 0) & (moments > 4 * self._passed + 3)
            new.append((block.ids[rows[asked]], moments[asked] >> 2))
        ids, times = map(np.concatenate, zip(*new, strict=True)) if new else (times, times)
        if not len(ids):
            return ids, times
        first = int(times.min())
        width = int(times.max()) - first + self._gap  # so that other ids are as far as other sessions
        if len(self.index) * width > CODES_MAX:
            raise NotColumnar("times and ids too many for 64 bits")
        codes = np.sort(ids * np.int64(width) + (times - first))
        ids, times = np.divmod(codes[np.append(codes[1:] - codes[:-1] >= self._gap, True)], width)
        times += first
        for kept in self.sides:  # no row is gone after one that is not
            if len(ids):
                after, which, _ = kept.nearest(ids, times + 1, len(self.index), back=False)
                alone = (which < 0) | (after - times >= self._gap)
                ids, times = ids[alone], times[alone]
        return ids, times

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return session_state(records, self._gap)


def interval_state(records: Iterable[Record], stay: Sequence[int]) -> list[Any]:
    """Return the state of a key that has these rows, whose moments are as stored."""
    state: list[Any] = [(), (), (), (), (), (), None]
    sides: tuple[list[Any], list[Any]] = ([], [])
    for moment, side, value in records:
        sides[side].append((moment, value))
    for at, rows, kept in zip((0, 3), sides, stay, strict=True):
        if rows:
            rows.sort(key=_time_of)
            times = list(map(_time_of, rows))
            state[at : at + 3] = times, [value for _, value in rows], [bool(moment & 1) for moment, _ in rows]
            act = min(times[0] + kept, LAST)
            state[6] = act if state[6] is None else min(act, state[6])
    return state


def asof_state(records: Iterable[Record]) -> list[Any]:
    """Do as `interval_state` for an as-of join."""
    state: list[Any] = [(), (), (), (), None]
    sides: tuple[list[Any], list[Any]] = ([], [])
    for moment, side, value in records:
        sides[side].append((moment, value))
    for at, rows in zip((0, 2), sides, strict=True):
        if rows:
            rows.sort(key=_time_of)
            state[at : at + 2] = list(map(_time_of, rows)), [value for _, value in rows]
    state[4] = min([*state[0][:1], *state[2][:1]], default=None)
    return state


def session_state(records: Iterable[Record], gap: int) -> list[Any]:
    """Do as `interval_state` for a join by session. Runs keep the order of each side, though not that of both."""
    rows = [(moment >> 1, side, value) for moment, side, value in records]
    sessions = list[list[Any]]()
    for time in sorted(time for time, _, _ in rows):
        if sessions and time - sessions[-1][1] < gap:
            sessions[-1][1] = time
        else:
            sessions.append([time, time])
    firsts, latest, number = [session[0] for session in sessions], None, -1
    for time, side, value in rows:
        session = sessions[bisect_right(firsts, time) - 1]
        if session is not latest:
            latest, number = session, number + 1
            session += (([], []), number)
        session[-2][side].append(value)
    return sessions


def _time_of(row: tuple[int, Any]) -> int:
    return row[0] >> 1
