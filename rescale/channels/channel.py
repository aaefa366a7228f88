"""One channel of an exchange: FIFO, numbered, bounded by credits. Pure: frames in, frames out.

F1: a channel is FIFO per (sender, receiver, exchange). Frames carry (incarnation, sequence number); a gap, a repeat or
an old incarnation is detected and never processed. F2: data needs credit in rows and bytes, both above zero. A batch
may take the credit below zero, so a batch larger than the credit passes, alone. An epoch costs one row of credit, or
epochs would fill the queue of a slow worker that gets no rows. Frames without credit wait in the backlog, and so do all
frames after them. Below the credit is the *window*, in rows: the number of rows that the receiver processes in a
fraction of a second. Each grant carries the window. It is measured in time, so that a barrier waits for few rows at any
speed. While the speed of a new receiver is unknown, at most twice the rows that it has processed may be in flight.
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
    """The identity of a channel: the exchange (the name of its key_by), the sender and the receiver."""

    exchange: str
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """An `AbsBarrier` between workers: the receiver persists to its own backend.

    ``parent``: the snapshot that deltas are relative to (S2); None: everything is persisted.
    """

    snapshot: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """A `SuspendMarker` between workers."""


InLine = Barrier | Suspend | Marker | Shipped | Bye
"""The messages that are alone in a frame and keep their place among rows."""

MOVING: Final = (Marker, Shipped, Bye)
"""The messages of a move: a region takes them even when its outputs are full (F2)."""


class PlacedEpoch(NamedTuple):
    """An epoch among the rows of a frame: before row number ``row``, or after all rows."""

    row: int
    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The unit of transfer on a channel: rows with the epochs among them, or a control message.

    ``payload``: an encoded batch, or None without rows; ``version``: the routing table's version.
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
        """The credit in rows that the frame takes: an epoch counts as one."""
        return self.rows + len(self.epochs)


OPEN: Final = 1 << 30
"""A window that limits nothing, in rows."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit returned to the sender of a channel, and the new window. Sent outside the channel."""

    channel: ChannelId
    incarnation: int
    rows: int
    size: int
    window: int = OPEN


@dataclass(frozen=True, slots=True)
class Credit:
    """The amount of data that may be in flight or queued, per channel."""

    rows: int = 16_384
    size: int = 16 << 20

    def __post_init__(self) -> None:
        for name, amount in (("rows", self.rows), ("size", self.size)):
            if not isinstance(amount, int) or isinstance(amount, bool) or amount < 1:
                raise PlanError(f"Credit: {name} must be a whole number of at least 1, got {amount!r}")


Item = Batch | Epoch | InLine
"""The items that a receiver takes from a channel."""


class Share(NamedTuple):
    """The credit of held rows: taken from the channel, but not passed to the region yet (R5)."""

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
        """Take the next item, of a batch at most ``rows_max`` rows; None if empty or blocked by a barrier."""
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
        """Set the window. No grant is needed: the sender reads `full`."""
        if window != self.window:
            self.window, self.share = window, share_of(window)
            self._rows_max = min(self._credit, self._trust, window)

    def withhold(self, rows: int) -> Share:
        """Keep the credit of ``rows`` rows of the last item taken."""
        self._rows += rows
        return Share(rows, 0)

    def give_back(self, share: Share, window: int = OPEN) -> None:
        """Return withheld credit."""
        self._rows -= share.rows

    @property
    def urgent(self) -> bool:
        """Whether the next item is taken even when the region's outputs are full (F2)."""
        return bool(self._items) and not self.blocked and isinstance(self._items[0], MOVING)

    @property
    def full(self) -> bool:
        """Whether as many rows and epochs are queued as the credit and the window allow, or more."""
        return self._rows >= self._rows_max

    @property
    def excess(self) -> float:
        """The number of queued rows beyond the window, in shares of the window."""
        return (self._rows - self.window) / self.share

    @property
    def waits_for_time(self) -> bool:
        """Whether the window is full but the credit is not."""
        return self._rows_max <= self._rows < self._credit

    def __len__(self) -> int:
        return len(self._items)


class ChannelOut:
    """The sender's end of a channel to another worker.

    ``trust``: the number of rows that may be in flight to a receiver that has not processed any.
    """

    def __init__(self, channel: ChannelId, incarnation: int, credit: Credit, trust: int = OPEN) -> None:
        self.channel = channel
        self._incarnation = incarnation
        self._rows, self._size = credit.rows, credit.size
        self._credit = credit.rows
        self._trust = trust
        self.window = OPEN
        """The window of the last grant, in rows."""
        self.share = OPEN
        """The largest number of rows in one frame."""
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
        """Number and queue a frame. `take` returns it, in order, when there is credit."""
        self._sequence += 1
        self._backlog.append(
            Frame(self.channel, payload, rows, size, epochs, control, self._incarnation, self._sequence, version)
        )
        if rows and not self._has_credit:
            self.spilled_rows += rows

    def take(self) -> list[Frame]:
        """Take the frames that have credit."""
        frames: list[Frame] = []
        while self._backlog and (self._backlog[0].control is not None or self._has_credit):
            frame = self._backlog.popleft()
            self._rows -= frame.cost
            self._size -= frame.size
            frames.append(frame)
        return frames

    def grant(self, grant: Grant) -> None:
        """Add granted credit. A grant of an old incarnation is ignored."""
        if grant.incarnation == self._incarnation:
            self._rows += grant.rows
            self._size += grant.size
            if self._trust < self._credit:
                self._trust += 2 * grant.rows
            self.window, self.share = grant.window, share_of(grant.window)
            self._rows_kept = max(0, self._credit - min(self._trust, grant.window))

    @property
    def backlog(self) -> int:
        """The number of frames that wait for credit or for an earlier frame."""
        return len(self._backlog)

    @property
    def excess(self) -> float:
        """The number of rows in flight or in the backlog beyond the window, in shares of it; 0 without a backlog."""
        if not self._backlog:
            return 0.0
        rows = self._credit - self._rows + sum(frame.cost for frame in self._backlog)
        return (rows - self.window) / self.share

    @property
    def waits_for_time(self) -> bool:
        """Whether the backlog has credit and waits for the window only."""
        return bool(self._backlog) and not self._has_credit and self._rows > 0 and self._size > 0

    @property
    def _has_credit(self) -> bool:
        return self._rows > self._rows_kept and self._size > 0


class ChannelIn:
    """The receiver's end of a channel: checks sequence numbers and queues frames."""

    def __init__(self, channel: ChannelId, incarnation: int) -> None:
        self.channel = channel
        self._incarnation = incarnation
        self._sequence = 0
        self._queue: deque[Frame] = deque()
        self.stale_frames = 0

    def receive(self, frame: Frame) -> None:
        """Queue ``frame``; drop it if it is of an old incarnation. `PeerError` if it is not the next one."""
        if frame.channel != self.channel:
            raise InternalError(f"a frame of channel {frame.channel} arrived on {self.channel}")
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
        """Take the next frame. The caller owes its credit to the sender."""
        return self._queue.popleft()

    def grant(self, rows: int, size: int, window: int = OPEN) -> Grant:
        """Return a grant of credit to the sender, with its new window."""
        return Grant(self.channel, self._incarnation, rows, size, window)

    def peek(self) -> Frame | None:
        """Return the next frame without taking it; None if empty."""
        return self._queue[0] if self._queue else None

    def __len__(self) -> int:
        return len(self._queue)


def _cost(item: Item) -> int:
    if isinstance(item, Batch):
        return len(item)
    return 1 if type(item) is Epoch else 0


def share_of(window: int) -> int:
    """Return the rows of one frame for ``window``: half, so that the next frame arrives during processing.

    >>> share_of(100), share_of(1)
    (50, 1)
    """
    return max(1, window // 2)
