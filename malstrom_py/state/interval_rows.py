"""The state of ``join_interval`` in columns: the rows of both streams that may still get a partner.

Rule: as a mapping it is what the dict of the row path would be. What columns do not hold raises `NotColumnar` before
anything has changed; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_rows import JoinRows, Record
from malstrom_py.state.kept_rows import Block, KeptRows
from malstrom_py.state.timed_rows import ALONE, FAR, GONE, Found, TimedRows, near_times

LAST: Final = MAX_EPOCH - 1
"""The largest time of a record."""


class Joined(NamedTuple):
    """Rows that have come, in the types of their stream, their times, and what they have found on the other side."""

    batch: ColumnBatch
    times: Array
    found: list[Found]


class IntervalRows(JoinRows):
    """Key -> [left times, values, whether they are alone, the same of the right, the first moment at which to act].

    ``spans``: of the partner's time, from the own of a left and of a right row; ``stay``: how long they are kept.
    """

    __slots__ = ("_spans", "_stay")

    small: ClassVar[tuple[int, int]] = (1 << 18, 1 << 18)
    kept: ClassVar[type[KeptRows]] = TimedRows
    forms: ClassVar[frozenset[RowForm]] = frozenset((DICTS, SCALAR))
    sides: tuple[TimedRows, TimedRows]

    def __init__(
        self, spans: Sequence[tuple[int, int]], stay: Sequence[int], tracked: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(tracked)
        self._spans, self._stay = spans, stay

    # Batches

    def join(self, side: int, batch: ColumnBatch) -> Joined:
        """Keep the rows of a batch; return what they have found on the other side."""
        import numpy as np

        kept = self.sides[side].expected(batch) if self.takes(batch) else None
        low, high = self._spans[side]
        if kept is None or max(-low, high) > FAR:
            raise NotColumnar("rows that no column holds")
        times, ids = near_times(kept), self.ids(kept.key_column)
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

    # `JoinRows`

    def is_live(self, side: int, block: Block) -> Array:
        live: Array = block.moments & GONE == 0
        return live

    def stored_moments(self, side: int, block: Block) -> Array:
        return block.moments >> 1  # 2 * time + alone

    def state_of(self, records: Iterable[Record]) -> list[Any]:
        return interval_state(records, self._stay)

    def put(self, side: int, batch: ColumnBatch, ids: Array, moments: Array) -> None:
        self.sides[side].add(batch, ids, moments << 1, sent=False)

    def drop(self, chosen: Array) -> None:
        for kept in self.sides:
            kept.take(lambda block: chosen[block.ids])

    @property
    def in_arrays(self) -> bool:
        return True

    # The mapping

    def items(self) -> Any:
        """Return (key, state) pairs."""
        return self.column_items()

    def many(self, keys: Sequence[Any]) -> list[Any]:
        return self.column_states(keys)

    def take(self, keys: Sequence[Any]) -> list[Any]:
        return self.take_columns(keys)

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        raise NotColumnar("states of rows")

    def __iter__(self) -> Iterator[Any]:
        return self.column_keys()

    def __reversed__(self) -> Iterator[Any]:
        return self.column_keys(backwards=True)

    def __len__(self) -> int:
        return len(self.live_ids())


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


def _time_of(row: tuple[int, Any]) -> int:
    return row[0] >> 1
