"""Sizes of batches: adapted to how long earlier rows took, and too small for columns; and the measured throughput.

Rule: durations come from the runtime's clock. A clock that does not advance limits nothing.
"""

from __future__ import annotations

import math
from typing import Final

UNLIMITED: Final = 1 << 30
"""More rows than any batch has."""

_SURE: Final = 20.0
"""A batch that takes this many times too long is slow; one below may have waited for the processor once."""

_TRY: Final = 4
"""Where one row takes too long, every so many batches two rows are tried."""

_PROBE: Final = 16
"""Of batches that take about as long as they may, every so many one of twice the rows is tried."""

SMALL_IN_A_ROW: Final = 64
"""The last batches of an input may be small, and so are some of several workers: only more in a row say something."""

_PAST_S: Final = 0.5
"""The span of working time over which the speed is measured."""


class BatchSize:
    """The number of rows to take in one batch, so that a batch takes about as long as it may.

    It starts small, doubles while batches are fast, and shrinks immediately when a batch took too long. Where a batch
    has a large fixed cost (a call over the network, say), fewer rows are no faster: then rows may take twice that cost.

    >>> size = BatchSize(4)
    >>> for rows in (4, 8, 16):
    ...     size.took(rows, rows * 0.001, limit_s=0.05)
    >>> size.rows
    32
    >>> size.took(32, 3.2, limit_s=0.05)  # rows are slow now: 0.1 s each
    >>> size.rows
    1
    """

    __slots__ = ("_fixed_s", "_other", "_tries", "_was_long", "growth", "rows")

    def __init__(self, first: int) -> None:
        self.rows = first
        self.growth = 2
        """How many times larger the batch after one is that took next to no time."""
        self._fixed_s = 0.0
        self._other = (0, 0.0)
        self._was_long = False
        self._tries = 0

    @property
    def fixed_s(self) -> float:
        """The estimated fixed cost of a batch, independent of its size."""
        return self._fixed_s

    def took(self, rows: int, took_s: float, *, limit_s: float, load: float = 0.0) -> None:
        """Adapt the size: ``rows`` took ``took_s`` and may take ``limit_s``. ``load``: the ratio of the rows to what
        later steps can take.
        """
        if took_s < limit_s / 8 and 2 * rows <= self.rows and load <= 1 and not self._fixed_s:
            self._was_long = False
            return  # a quick, small batch says nothing about larger ones
        self._look_for_fixed(rows, took_s, limit_s)
        fixed_s = min(self._fixed_s, took_s)
        by_rows_s, may_s = took_s - fixed_s, max(limit_s, 3 * fixed_s) - fixed_s
        was_long, self._was_long = self._was_long, by_rows_s > may_s
        if self._was_long or load > 1:
            times = by_rows_s / may_s
            self._fewer(rows, times if was_long or times > _SURE else min(times, 2.0), load)
        elif 2 * rows >= self.rows:
            if 2 * by_rows_s <= may_s and load <= 0.5:
                times = self.growth if 2 * self.growth * by_rows_s <= may_s and not load else 2
                self.rows = max(self.rows, min(times * rows, UNLIMITED))
            elif 1.25 * by_rows_s <= may_s and load <= 0.8:
                self.rows = max(self.rows, rows + max(1, rows // 4))
            elif load <= 0.5 and not self._fixed_s:
                # Batches of one size do not show their fixed cost: occasionally try a larger one.
                self._tries += 1
                if not self._tries % _PROBE:
                    self.rows = max(self.rows, 2 * rows)

    def _fewer(self, rows: int, times: float, load: float) -> None:
        """Shrink: ``rows`` took ``times`` too long, or were ``load`` times too many."""
        self.rows = max(1, int(rows / max(times, load)))
        if rows == 1 and load <= 1:
            # One row does not show whether two would take longer: occasionally try two.
            self._tries += 1
            self.rows = 1 if self._tries % _TRY else 2

    def _look_for_fixed(self, rows: int, took_s: float, limit_s: float) -> None:
        """Estimate the fixed cost from two batches of different sizes. Quick batches are ignored, and the estimate is
        at most what a batch took.
        """
        if took_s > limit_s / 4:
            others, other_s = self._other
            few, many = sorted((rows, others))
            if others and 2 * many >= 3 * few:
                self._fixed_s = min(took_s, max(0.0, (took_s * others - other_s * rows) / (others - rows)))
            if not others or 2 * many >= 3 * few or 5 * many <= 6 * few:
                self._other = (rows, took_s)
        if took_s < self._fixed_s:
            self._fixed_s = max(took_s, 0.8 * self._fixed_s)


class SmallBatches:
    """Says whether so many batches in a row had fewer than ``rows_few`` rows that columns cost more than rows.

    >>> small = SmallBatches(100)
    >>> [small.came(1) for _ in range(66)][-3:], small.came(100), small.came(1)
    ([False, True, True], False, False)
    """

    __slots__ = ("_in_a_row", "_rows_few", "are_small")

    def __init__(self, rows_few: int) -> None:
        self._rows_few = rows_few
        self._in_a_row = 0
        self.are_small = False
        """Whether the next batch is taken to be small, too."""

    def came(self, rows: int) -> bool:
        """Note a batch; return whether batches are small."""
        self._in_a_row = self._in_a_row + 1 if rows < self._rows_few else 0
        self.are_small = self._in_a_row > SMALL_IN_A_ROW
        return self.are_small


class Speed:
    """The recent throughput: rows processed per second over about the last half second of work.

    >>> speed = Speed()
    >>> speed.within_s(1.0) == UNLIMITED
    True
    >>> for _ in range(50):
    ...     speed.took(10, 0.05)
    >>> speed.within_s(1.0)
    200
    >>> speed.took(1000, 5.0)
    >>> speed.within_s(1.0)
    200
    >>> speed.took(1, 1.0)  # one batch as long as the whole span replaces the earlier ones
    >>> speed.within_s(1.0)
    1
    """

    __slots__ = ("_rows", "_took_s")

    def __init__(self) -> None:
        self._rows = 0.0
        self._took_s = 0.0

    def took(self, rows: int, took_s: float) -> None:
        """Note that ``rows`` were processed in ``took_s``."""
        kept = max(0.0, 1.0 - took_s / _PAST_S)
        self._rows = self._rows * kept + rows
        self._took_s = self._took_s * kept + took_s
        if self._took_s > _PAST_S:
            self._rows *= _PAST_S / self._took_s
            self._took_s = _PAST_S

    def within_s(self, seconds: float) -> int:
        """Return how many rows are processed within ``seconds``, at most `UNLIMITED`."""
        if self._rows * seconds >= UNLIMITED * self._took_s:
            return UNLIMITED
        return math.ceil(self._rows * seconds / self._took_s)
