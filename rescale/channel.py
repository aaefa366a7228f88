"""One channel of an exchange: FIFO, numbered, bounded by credits. Pure: frames in, frames out.

F1: a channel is FIFO per (sender, receiver, exchange) and carries (incarnation, sequence number); a gap, a repeat
or an old incarnation is detected, never processed. F2: data needs credit in rows and bytes, both above zero; a
batch may take them below, so one larger than the credit passes, alone. An epoch is credited like a row, or a worker
that gets no rows and is slow would be buried under epochs. What has no credit waits in the backlog, and so does
everything behind it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from malstrom_py.batches import Batch
from malstrom_py.errors import InternalError, PeerError, PlanError
from malstrom_py.messages import Epoch
from malstrom_py.rescale.protocol import Bye, Marker, Shipped


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


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit given back to the sender of a channel. Travels outside it."""

    channel: ChannelId
    incarnation: int
    rows: int
    size: int


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

    __slots__ = ("_items", "_rows", "_rows_max", "blocked", "version")

    def __init__(self, credit: Credit, version: int = 0) -> None:
        self._items: deque[Item] = deque()
        self._rows = 0
        self._rows_max = credit.rows
        self.blocked = False
        self.version = version

    def put(self, item: Item) -> None:
        """Queue ``item``."""
        self._rows += _cost(item)
        self._items.append(item)

    def take(self) -> Item | None:
        """The next item, if there is one and the channel does not wait at a barrier."""
        if self.blocked or not self._items:
            return None
        item = self._items.popleft()
        self._rows -= _cost(item)
        if type(item) is Marker:
            self.version = item.move.version
        return item

    def freed(self) -> None:
        """Nobody is told that there is room again: `full` says so."""

    def withhold(self, rows: int) -> Share:
        """Keep the credit of ``rows`` rows of the item that was taken last."""
        self._rows += rows
        return Share(rows, 0)

    def give_back(self, share: Share) -> None:
        """What was withheld has been let in."""
        self._rows -= share.rows

    @property
    def urgent(self) -> bool:
        """Whether what comes next is taken in however full the region's outputs are (F2)."""
        return bool(self._items) and not self.blocked and isinstance(self._items[0], MOVING)

    @property
    def full(self) -> bool:
        """Whether as many rows and epochs are queued as the credit allows, or more."""
        return self._rows >= self._rows_max

    def __len__(self) -> int:
        return len(self._items)


class ChannelOut:
    """The sender's end of a channel to another worker."""

    def __init__(self, channel: ChannelId, incarnation: int, credit: Credit) -> None:
        self.channel = channel
        self._incarnation = incarnation
        self._rows, self._size = credit.rows, credit.size
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

    @property
    def backlog(self) -> int:
        """How many frames wait for credit, or behind one that does."""
        return len(self._backlog)

    @property
    def _has_credit(self) -> bool:
        return self._rows > 0 and self._size > 0


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

    def take(self) -> tuple[Frame, Grant | None]:
        """Take the next frame, and the credit that goes back for it."""
        frame = self._queue.popleft()
        return frame, self.grant(frame.cost, frame.size) if frame.cost else None

    def grant(self, rows: int, size: int) -> Grant:
        """Credit for the sender."""
        return Grant(self.channel, self._incarnation, rows, size)

    def peek(self) -> Frame | None:
        """The next frame, if there is one."""
        return self._queue[0] if self._queue else None

    def __len__(self) -> int:
        return len(self._queue)


def _cost(item: Item) -> int:
    if isinstance(item, Batch):
        return len(item)
    return 1 if type(item) is Epoch else 0
