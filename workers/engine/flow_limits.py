"""How batches are cut and how much may be in flight: by rows, bytes, and the time that a worker's step takes.

How batches are cut and how much may be on its way: the trade between throughput, latency and memory.

How long a worker's step may take, and what that means for what it takes in: how many rows at once, and how many
may stand before them.

Rule: what is to be looked at between two steps (a barrier that is due, an order, a message) waits for one round of all
workers that share a thread, so a round is shared out among what they do. A barrier or a marker waits in a channel for
the rows that the receiver processes in `WINDOW_S`, at the speed measured last (F2).
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
    """A batch is cut by rows, by bytes, and by time, whichever comes first.

    All fields are upper bounds: where rows take long, fewer are read at once and fewer are in flight, so that
    snapshots, rescales and commands get through in about a second (F2).

    ``rows_max``: rows per poll of a source part and per batch to another worker (1,024: larger ones make Python's
    garbage collector work; see the design note on the hot loop). ``bytes_max``: encoded size of a batch to another
    worker, about. ``linger_s``: how long rows for another worker wait for more, and how long a part that has nothing
    is left alone. ``credit``: rows and bytes that may be under way on one channel between two workers (F2).
    ``columns_rows_max``: rows per poll, and per batch to another worker, where all steps from a source to its exchange
    or sink take columns: these are the faster the more come at once.

    >>> Batching(rows_max=256).linger_s
    0.005
    """

    rows_max: int = 1024
    bytes_max: int = 1 << 20
    linger_s: float = 0.005
    columns_rows_max: int = 131_072
    credit: Credit = field(default_factory=Credit)

    def __post_init__(self) -> None:
        if not isinstance(self.rows_max, int) or isinstance(self.rows_max, bool) or self.rows_max < 1:
            raise PlanError(f"Batching: rows_max is a whole number of at least 1, got {self.rows_max!r}")
        rows = self.columns_rows_max
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise PlanError(f"Batching: columns_rows_max is a whole number of at least 1, got {rows!r}")
        if not isinstance(self.bytes_max, int) or isinstance(self.bytes_max, bool) or self.bytes_max < 1:
            raise PlanError(f"Batching: bytes_max is a whole number of at least 1, got {self.bytes_max!r}")
        if not isinstance(self.linger_s, int | float) or not 0 <= self.linger_s <= 60:
            raise PlanError(f"Batching: linger_s is a time from 0 to 60 seconds, got {self.linger_s!r}")
        if not isinstance(self.credit, Credit):
            raise PlanError(f"Batching: credit is a Credit(rows=, size=), got {self.credit!r}")


ROUND_S: Final = 0.06
"""How long one round may take, of all workers that share a thread."""

BATCH_S: Final = 0.025
"""How long what is taken in at once may take at most."""

BATCH_MIN_S: Final = 0.003
"""How long it may take in any case: to cut smaller costs more than it gives."""

WINDOW_S: Final = 0.3
"""For how long a receiver is to have work that is on its way to it."""

WINDOW_LEAST: Final = 4
"""How many rows may be on their way however slow the receiver is."""

ROWS_TRUSTED: Final = 32
"""How many rows may be on their way to a receiver that has not worked yet, and so has not said for how many it has
time; and a region may be fast only until what comes behind it is full.
"""

_WIDE: Final = 1 << 17
"""A window of so many rows limits nothing."""

_QUICK_S: Final = BATCH_MIN_S / 8
"""What has taken less is looked at together with what follows."""

_ROWS_FIRST: Final = 16
_SENDERS_KEPT: Final = 0.95


class TimeShare:
    """What part of a round each of the ``doers`` of a worker has: its regions and sources. ``share``: how many workers
    take turns in its thread.
    """

    __slots__ = ("_doers", "_share", "part_s")

    def __init__(self, doers: int = 1) -> None:
        self._doers = max(1, doers)
        self._share = 0
        self.part_s = BATCH_S
        self.share(1)

    def share(self, workers: int) -> None:
        """So many workers share the thread from now on."""
        if workers != self._share:
            self._share = workers
            self.part_s = max(BATCH_MIN_S, min(BATCH_S, ROUND_S / (workers * self._doers)))


class IntakePace:
    """How a region takes in what has come for it: ``rows`` at once from each channel, as long as its part of the round
    lasts; and the ``window`` of those who send to it.
    """

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
        """Something is about to be taken. What has been waiting since the last time has waited for this."""
        now_s = self._clock.monotonic_s()
        self._since_s = self._done_s if self._left else now_s
        self._began_s = self._done_s = now_s

    def took(self, rows: int, load: float) -> bool:
        """Note that an item with ``rows`` rows has been let in; an epoch has none. ``load``: as for `BatchSize.took`.

        Returns whether the part of the round is used up.
        """
        now_s = self._clock.monotonic_s()
        took_s, self._done_s = now_s - self._done_s, now_s
        self._rows += rows or 1
        if rows and (took_s > _QUICK_S or 2 * rows > self.batch_size.rows or load > 1):
            self.batch_size.took(rows, took_s, limit_s=self._limit_s, load=load)
        return now_s - self._began_s >= self._turn.part_s

    def end(self, senders: int, *, left: bool) -> None:
        """All that may be taken has been. ``senders``: how many have sent rows of late; ``left``: whether something
        could be taken still.
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
            # Where a batch takes long whatever its size, batches of few rows would keep it from ever being faster.
            is_fixed = 3 * self.batch_size.fixed_s > self._limit_s
            self.window = max(3 * self.batch_size.rows + 5 if is_fixed else WINDOW_LEAST, rows)
        else:
            self.window = OPEN
        # Who sends nothing for a while counts less and less.
        self._senders = max(1.0, self._senders * _SENDERS_KEPT)

    @property
    def _limit_s(self) -> float:
        return max(BATCH_MIN_S, self._turn.part_s / self._senders)
