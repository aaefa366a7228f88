"""The limits of batches and of data in flight: by rows, bytes, and the time of a worker's step.

Rule: a barrier, an order or a message waits between two steps for one round of all workers that share a thread, so a
round is divided among their regions and sources. A barrier or a marker in a channel waits for the rows before it: at
most the rows that the receiver processes in `WINDOW_S`, at its last measured speed (F2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from malstrom_py.clock import Clock
from malstrom_py.errors import PlanError
from malstrom_py.operators.batch_sizing import BatchSize, Speed
from malstrom_py.rescale.channels.channel import OPEN, Credit


@dataclass(frozen=True, slots=True)
class Batching:
    """The limits of a batch: by rows, by bytes, and by time. The first limit that is reached cuts the batch.

    All fields are upper bounds: if rows take long, batches are smaller and fewer rows are in flight, so that snapshots,
    rescales and commands take about a second (F2).

    ``rows_max``: rows per poll of a source partition and per batch to another worker (2,048: larger ones gain little
    and make Python's garbage collector work; see the design note on the hot loop). ``bytes_max``: approximate encoded
    size of a batch to another worker. ``linger_s``: how long rows for another worker wait for more, and how long an
    empty partition is not polled; a worker process with little to do waits twice as long, at most 10 ms. ``credit``:
    rows and bytes that may be in flight on one channel between two workers (F2). ``columns_rows_max``: rows per poll,
    and per batch to another worker, if all steps from a source to its exchange or sink take columns: larger batches of
    columns are faster.

    >>> Batching(rows_max=256).linger_s
    0.005
    """

    rows_max: int = 2048
    bytes_max: int = 1 << 20
    linger_s: float = 0.005
    columns_rows_max: int = 131_072
    credit: Credit = field(default_factory=Credit)

    def __post_init__(self) -> None:
        if not isinstance(self.rows_max, int) or isinstance(self.rows_max, bool) or self.rows_max < 1:
            raise PlanError(f"Batching: rows_max must be a whole number of at least 1, got {self.rows_max!r}")
        rows = self.columns_rows_max
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise PlanError(f"Batching: columns_rows_max must be a whole number of at least 1, got {rows!r}")
        if not isinstance(self.bytes_max, int) or isinstance(self.bytes_max, bool) or self.bytes_max < 1:
            raise PlanError(f"Batching: bytes_max must be a whole number of at least 1, got {self.bytes_max!r}")
        if not isinstance(self.linger_s, int | float) or not 0 <= self.linger_s <= 60:
            raise PlanError(f"Batching: linger_s must be a time from 0 to 60 seconds, got {self.linger_s!r}")
        if not isinstance(self.credit, Credit):
            raise PlanError(f"Batching: credit must be a Credit(rows=, size=), got {self.credit!r}")


ROUND_S: Final = 0.06
"""The longest time of one round of all workers that share a thread."""

BATCH_S: Final = 0.025
"""The longest time of one batch."""

BATCH_MIN_S: Final = 0.003
"""The time that a batch may always take: smaller batches would cost more than they save."""

WINDOW_S: Final = 0.3
"""The processing time of the rows in flight to a receiver."""

WINDOW_LEAST: Final = 4
"""The number of rows that may be in flight to the slowest receiver."""

ROWS_TRUSTED: Final = 32
"""The number of rows that may be in flight to a receiver that has not processed any: its speed is unknown, and it may
slow down when the channels downstream are full.
"""

MOVE_FIRST_S: Final = 0.05
"""For so long the work of a move comes before that of the sources."""

_WIDE: Final = 1 << 17
"""A window of at least this many rows is treated as unlimited."""

_QUICK_S: Final = BATCH_MIN_S / 8
"""Shorter measurements are added to the next one."""

_ROWS_FIRST: Final = 16
_SENDERS_KEPT: Final = 0.95


class TimeShare:
    """The share of a round for each of the ``doers`` of a worker: its regions and sources."""

    __slots__ = ("_doers", "_share", "part_s")

    def __init__(self, doers: int = 1) -> None:
        self._doers = max(1, doers)
        self._share = 0
        self.part_s = BATCH_S
        self.share(1)

    def share(self, workers: int) -> None:
        """Set the number of workers that share the thread."""
        if workers != self._share:
            self._share = workers
            self.part_s = max(BATCH_MIN_S, min(BATCH_S, ROUND_S / (workers * self._doers)))


class MoveTurns:
    """The turns of a move and of the sources of a worker, by ``clock``: first the move's, then the sources'.

    While a move is under way, a step that has other work reads no source, for `MOVE_FIRST_S`: so rows wait in front of
    the sources, and those of slots that move are held for a shorter time. After it the sources may catch up, for as
    long as they have waited, before the move counts as over.

    >>> from malstrom_py.testing import VirtualClock
    >>> clock = VirtualClock()
    >>> turns = MoveTurns(clock)
    >>> turns.begin()
    >>> began_s = clock.monotonic_s()
    >>> clock.advance(0.01)
    >>> turns.comes_first(began_s, done=1), turns.comes_first(began_s, done=0)
    (True, False)
    >>> turns.end(may_read=True)
    >>> turns.owes_sources
    True
    >>> turns.sources_caught_up()
    >>> turns.owes_sources
    False
    """

    __slots__ = ("_began_s", "_clock", "_read_until_s", "_waited_s", "first_s", "under_way")

    def __init__(self, clock: Clock) -> None:
        self.under_way = False
        """Whether a move is under way, or sources catch up after it."""
        self.first_s = MOVE_FIRST_S
        self._clock = clock
        self._began_s = 0.0
        self._waited_s = 0.0
        self._read_until_s: float | None = None

    @property
    def owes_sources(self) -> bool:
        """Whether the sources have waited and not caught up."""
        return self.under_way and self._waited_s > 0

    def begin(self) -> None:
        """Note that the worker has switched to another table."""
        self.under_way = True
        self._began_s = self._clock.monotonic_s()
        self._waited_s, self._read_until_s = 0.0, None

    def comes_first(self, began_s: float, done: int) -> bool:
        """Return whether the step that began at ``began_s`` reads no source, because it has ``done`` other work."""
        now_s = self._clock.monotonic_s()
        if not done or self._read_until_s is not None or now_s >= self._began_s + self.first_s:
            return False
        self._waited_s += now_s - max(began_s, self._began_s)
        return True

    def end(self, *, may_read: bool) -> None:
        """Note that all regions have ended the move. ``may_read``: whether sources may catch up now."""
        now_s = self._clock.monotonic_s()
        if self._read_until_s is None:
            self._read_until_s = now_s + self._waited_s
        self.under_way = may_read and now_s < self._read_until_s

    def sources_caught_up(self) -> None:
        """Note that no source has rows that it could give now."""
        if self._read_until_s is not None:
            self.under_way = False


class IntakePace:
    """The pace of a region's input: the size of the next batch (``portion``), and the ``window`` of its senders."""

    __slots__ = (
        *("_began_s", "_clock", "_done_s", "_left", "_rows", "_senders", "_since_s", "_speed", "_took_s", "_turn"),
        *("batch_size", "window"),
    )

    def __init__(self, clock: Clock, turn: TimeShare) -> None:
        self._clock = clock
        self._turn = turn
        self._speed = Speed()
        self._senders = 1.0
        self._left = False
        self._rows = 0
        self._took_s = 0.0
        self._began_s = self._since_s = self._done_s = 0.0
        self.batch_size = BatchSize(_ROWS_FIRST)
        self.window = OPEN

    def begin(self) -> None:
        """Start a measurement. If items were left over last time, the time since then counts too."""
        now_s = self._clock.monotonic_s()
        self._since_s = self._done_s if self._left else now_s
        self._began_s = self._done_s = now_s

    def took(self, rows: int, load: float) -> bool:
        """Record an item of ``rows`` rows (0 for an epoch) and its ``load``, as for `BatchSize.took`.

        Return whether the share of the round is used up.
        """
        now_s = self._clock.monotonic_s()
        took_s, self._done_s = now_s - self._done_s, now_s
        self._rows += rows or 1
        if rows and (took_s > _QUICK_S or 2 * rows > self.batch_size.rows or load > 1):
            self.batch_size.took(rows, took_s, limit_s=self._limit_s, load=load)
        return now_s - self._began_s >= self._turn.part_s

    def end(self, senders: int, *, left: bool) -> None:
        """End the measurement. ``senders``: the number of workers that have sent rows; ``left``: whether more items
        wait.
        """
        self._left = left
        self._took_s += self._done_s - self._since_s
        if senders > self._senders:
            self._senders = float(senders)
        if 0 < self._took_s < _QUICK_S:
            return
        self._speed.took(self._rows, self._took_s)
        self._rows, self._took_s = 0, 0.0
        rows = int(self._speed.within_s(WINDOW_S) / self._senders)
        if rows < _WIDE:
            # If a batch of any size takes long, a small window would keep the region slow.
            is_fixed = 3 * self.batch_size.fixed_s > self._limit_s
            self.window = max(3 * self.batch_size.rows + 5 if is_fixed else WINDOW_LEAST, rows)
        else:
            self.window = OPEN
        # An idle sender counts less and less.
        self._senders = max(1.0, self._senders * _SENDERS_KEPT)

    @property
    def _limit_s(self) -> float:
        return max(BATCH_MIN_S, self._turn.part_s / self._senders)
