"""One channel of an exchange: FIFO, numbered, bounded by credits. Pure: frames in, frames out.

F1: a channel is FIFO per (sender, receiver, exchange) and carries (incarnation, sequence number); a gap, a repeat
or an old incarnation is detected, never processed. F2: data needs credit in rows and bytes, both above zero; a
batch may take them below, so one larger than the credit passes, alone. An epoch is credited like a row, or a worker
that gets no rows and is slow would be buried under epochs. What has no credit waits in the backlog, and so does
everything behind it. Below the credit stands the *window*, in rows: what the receiver works off in a fraction of a
second. Each grant carries it. It is measured by time, so that a barrier waits for few rows at any speed. At first the
speed of the receiver is unknown: no more than twice the rows that it has processed so far are let out at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import InternalError, PeerError, PlanError
from malstrom_py.rescale.moves.protocol import Bye, Marker, Shipped


class ChannelId(NamedTuple):
    """Which channel: of which exchange (its key_by's name), from which worker to which."""

    exchange: str
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """An `AbsBarrier` on its way between workers: the receiver persists to its own backend.

    ``parent``: the snapshot that deltas go by (S2); None: everything is persisted.
    """

    snapshot: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """A `SuspendMarker` on its way between workers."""


InLine = Barrier | Suspend | Marker | Shipped | Bye
"""What stands alone in a channel, behind everything that was put there before it."""

MOVING: Final = (Marker, Shipped, Bye)
"""What of it belongs to a move, and is taken in however full the outputs of a region are (F2)."""


class PlacedEpoch(NamedTuple):
    """An epoch among the rows of a frame: before the row of that number, or behind all if it is their count."""

    row: int
    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """What goes over a channel: rows with the epochs among them, or a control message.

    ``payload`` is an encoded batch, or None without rows; ``version`` that of the table it was routed by.
    """

    channel: ChannelId
    payload: bytes | None = None
    rows: int = 0
    size: int = 0
    epochs: tuple[PlacedEpoch, ...] = ()
    control: InLine | None = None
    incarnation: int = 0
    sequence: int = 0
    version: int = 0

    @property
    def cost(self) -> int:
        """The credit in rows that it takes: an epoch counts as one."""
        return self.rows + len(self.epochs)


OPEN: Final = 1 << 30
"""A window that limits nothing, in rows."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit given back to the sender of a channel, and how many rows may be on their way from now on. Travels
    outside it.
    """

    channel: ChannelId
    incarnation: int
    rows: int
    size: int
    window: int = OPEN


@dataclass(frozen=True, slots=True)
class Credit:
    """How much data may be on its way or untaken, per channel."""

    rows: int = 16_384
    size: int = 16 << 20

    def __post_init__(self) -> None:
        for name, amount in (("rows", self.rows), ("size", self.size)):
            if not isinstance(amount, int) or isinstance(amount, bool) or amount < 1:
                raise PlanError(f"Credit: {name} is a whole number of at least 1, got {amount!r}")


Item = Batch | Epoch | InLine
"""What comes out of a channel, one by one."""


class Share(NamedTuple):
    """Credit that rows keep which have been taken and cannot be let in yet (R5)."""

    rows: int
    size: int


class Loopback:
    """The channel of a worker to itself: both ends are one queue, nothing is framed, numbered or encoded."""

    __slots__ = ("_credit", "_items", "_rows", "_rows_max", "_trust", "blocked", "share", "version", "window")

    def __init__(self, credit: Credit, version: int = 0, trust: int = OPEN) -> None:
        self._items: deque[Item] = deque()
        self._rows = 0
        self._credit = credit.rows
        self._trust = trust
        self._rows_max = min(credit.rows, trust)
        self.window = self.share = OPEN
        self.blocked = False
        self.version = version

    def put(self, item: Item) -> None:
        """Queue ``item``."""
        self._rows += _cost(item)
        self._items.append(item)

    def take(self, rows_max: int = OPEN) -> Item | None:
        """The next item, if there is one and the channel does not wait at a barrier; of a batch the first ``rows_max``
        rows.
        """
        if self.blocked or not self._items:
            return None
        item = self._items.popleft()
        cost = _cost(item)
        if cost > rows_max and isinstance(item, Batch):
            self._items.appendleft(item.cut(rows_max, cost))
            item, cost = item.cut(0, rows_max), rows_max
        self._rows -= cost
        if self._trust < self._credit:
            self._trust += 2 * cost
            self._rows_max = min(self._credit, self._trust, self.window)
        if type(item) is Marker:
            self.version = item.move.version
        return item

    def freed(self, window: int = OPEN) -> None:
        """Nobody is told that there is room again: `full` says so. ``window``: how many rows may be queued now."""
        if window != self.window:
            self.window, self.share = window, share_of(window)
            self._rows_max = min(self._credit, self._trust, window)

    def withhold(self, rows: int) -> Share:
        """Keep the credit of ``rows`` rows of the item that was taken last."""
        self._rows += rows
        return Share(rows, 0)

    def give_back(self, share: Share, window: int = OPEN) -> None:
        """What was withheld has been let in."""
        self._rows -= share.rows

    @property
    def urgent(self) -> bool:
        """Whether what comes next is taken in however full the region's outputs are (F2)."""
        return bool(self._items) and not self.blocked and isinstance(self._items[0], MOVING)

    @property
    def full(self) -> bool:
        """Whether as many rows and epochs are queued as the credit and the window allow, or more."""
        return self._rows >= self._rows_max

    @property
    def excess(self) -> float:
        """How many rows are queued beyond the window, in shares of it."""
        return (self._rows - self.window) / self.share

    @property
    def waits_for_time(self) -> bool:
        """Whether it is full by its window, and not by the credit."""
        return self._rows_max <= self._rows < self._credit

    def __len__(self) -> int:
        return len(self._items)


class ChannelOut:
    """The sender's end of a channel to another worker. ``trust``: how many rows may be on their way to a receiver that
    has not worked yet.
    """

    def __init__(self, channel: ChannelId, incarnation: int, credit: Credit, trust: int = OPEN) -> None:
        self.channel = channel
        self._incarnation = incarnation
        self._rows, self._size = credit.rows, credit.size
        self._credit = credit.rows
        self._trust = trust
        self.window = OPEN
        """For how many rows the receiver has time, as it says."""
        self.share = OPEN
        """How many rows are to come at once, and to be in a frame, at most."""
        self._rows_kept = max(0, credit.rows - trust)
        self._sequence = 0
        self._backlog: deque[Frame] = deque()
        self.spilled_rows = 0

    def put(
        self,
        payload: bytes | None = None,
        *,
        rows: int = 0,
        size: int = 0,
        epochs: tuple[PlacedEpoch, ...] = (),
        control: InLine | None = None,
        version: int = 0,
    ) -> None:
        """Number and queue a frame. `take` gives it out, in order, once there is credit."""
        self._sequence += 1
        self._backlog.append(
            Frame(self.channel, payload, rows, size, epochs, control, self._incarnation, self._sequence, version)
        )
        if rows and not self._has_credit:
            self.spilled_rows += rows

    def take(self) -> list[Frame]:
        """The frames that may go now."""
        frames: list[Frame] = []
        while self._backlog and (self._backlog[0].control is not None or self._has_credit):
            frame = self._backlog.popleft()
            self._rows -= frame.cost
            self._size -= frame.size
            frames.append(frame)
        return frames

    def grant(self, grant: Grant) -> None:
        """Take back credit. A grant of an old incarnation is ignored."""
        if grant.incarnation == self._incarnation:
            self._rows += grant.rows
            self._size += grant.size
            if self._trust < self._credit:
                self._trust += 2 * grant.rows
            self.window, self.share = grant.window, share_of(grant.window)
            self._rows_kept = max(0, self._credit - min(self._trust, grant.window))

    @property
    def backlog(self) -> int:
        """How many frames wait for credit, or behind one that does."""
        return len(self._backlog)

    @property
    def excess(self) -> float:
        """How many rows are on their way or wait for credit beyond the window, in shares of it; 0 if none waits."""
        if not self._backlog:
            return 0.0
        rows = self._credit - self._rows + sum(frame.cost for frame in self._backlog)
        return (rows - self.window) / self.share

    @property
    def waits_for_time(self) -> bool:
        """Whether what waits has credit, and only the window keeps it back."""
        return bool(self._backlog) and not self._has_credit and self._rows > 0 and self._size > 0

    @property
    def _has_credit(self) -> bool:
        return self._rows > self._rows_kept and self._size > 0


class ChannelIn:
    """The receiver's end: checks numbers, keeps what the worker has not taken yet."""

    def __init__(self, channel: ChannelId, incarnation: int) -> None:
        self.channel = channel
        self._incarnation = incarnation
        self._sequence = 0
        self._queue: deque[Frame] = deque()
        self.stale_frames = 0

    def receive(self, frame: Frame) -> None:
        """Keep ``frame`` for the worker. `PeerError` if it is not the next one; an old incarnation is dropped."""
        if frame.channel != self.channel:
            raise InternalError(f"a frame of channel {frame.channel} came on {self.channel}")
        if frame.incarnation < self._incarnation:
            self.stale_frames += 1
            return
        if frame.incarnation > self._incarnation or frame.sequence != self._sequence + 1:
            what = "a gap" if frame.sequence > self._sequence + 1 else "a repeat"
            raise PeerError(
                f"exchange {self.channel.exchange!r}: {what} on the channel from worker {self.channel.sender} to "
                f"worker {self.channel.receiver}: expected number {self._sequence + 1} of incarnation "
                f"{self._incarnation}, got {frame.sequence} of {frame.incarnation}. Restart the job."
            )
        self._sequence = frame.sequence
        self._queue.append(frame)

    def take(self) -> Frame:
        """Take the next frame, for which credit is to go back."""
        return self._queue.popleft()

    def grant(self, rows: int, size: int, window: int = OPEN) -> Grant:
        """Credit for the sender, and the window that it has from now on."""
        return Grant(self.channel, self._incarnation, rows, size, window)

    def peek(self) -> Frame | None:
        """The next frame, if there is one."""
        return self._queue[0] if self._queue else None

    def __len__(self) -> int:
        return len(self._queue)


def _cost(item: Item) -> int:
    if isinstance(item, Batch):
        return len(item)
    return 1 if type(item) is Epoch else 0


def share_of(window: int) -> int:
    """How many rows of a ``window`` are to come at once: the next ones come while these are worked off.

    >>> share_of(100), share_of(1)
    (50, 1)
    """
    return max(1, window // 2)
