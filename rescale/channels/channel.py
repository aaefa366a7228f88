"""One channel of an exchange, from a sender to a receiver: FIFO, bounded by credits. Pure: frames in, frames out.

Each end is a protocol with two implementations: `RemoteOutbound` and `RemoteInbound` are the ends of a channel to
another worker, `Loopback` is both ends of the channel of a worker to itself. F1: a channel is FIFO, and a frame of an
old incarnation is never processed. The stream of all messages between two workers numbers and checks them, frames
included, so a frame needs no number. F2: data needs credit in rows and bytes, both above zero. A batch
may take the credit below zero, so a batch larger than the credit passes, alone. An epoch costs one row of credit, or
epochs would fill the queue of a slow worker that gets no rows. Frames without credit wait in the backlog, and so do all
frames after them. Below the credit is the *window*, in rows: the number of rows that the receiver processes in a
fraction of a second. Each grant carries the window. It is measured in time, so that a barrier waits for few rows at any
speed. While the speed of a new receiver is unknown, at most twice the rows that it has processed may be in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import InternalError, PlanError
from malstrom_py.rescale.channels.outbound_buffer import OutboundBuffer
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
    payload: bytes | memoryview | None = None
    rows: int = 0
    size: int = 0
    epochs: tuple[PlacedEpoch, ...] = ()
    control: InLine | None = None
    incarnation: int = 0
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


class OutboundChannel(Protocol):
    """The sender's end of a channel."""

    def put(self, batch: Batch) -> None:
        """Send the rows of ``batch``, which is not empty."""
        ...

    def put_epoch(self, epoch: Epoch) -> None:
        """Send ``epoch``, in its place among the rows (T2: also whether its sender is idle)."""
        ...

    def put_control(self, message: InLine) -> None:
        """Send ``message`` after all that was sent before."""
        ...

    def flush(self) -> None:
        """Make a frame of all buffered rows and epochs."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether anything waits for credit, so that the sender takes no more input (F2)."""
        ...

    @property
    def backlog(self) -> int:
        """The number of rows that wait for credit."""
        ...

    @property
    def excess(self) -> float:
        """The number of waiting rows beyond the window, in shares of the window."""
        ...

    @property
    def waits_for_time(self) -> bool:
        """Whether rows have credit and wait for the window only."""
        ...


class InboundChannel(Protocol):
    """The receiver's end of a channel.

    ``blocked``: whether a barrier is being aligned, so that nothing is taken; ``version``: the version of the table by
    which the last item taken was routed.
    """

    blocked: bool
    version: int

    def take(self, rows_max: int = OPEN) -> Item | None:
        """Take the next item, of a batch at most ``rows_max`` rows; None if empty or blocked by a barrier."""
        ...

    def freed(self, window: int = OPEN) -> Grant | None:
        """Return the credit to grant after an item has been passed, with ``window``; None if none is due."""
        ...

    def withhold(self, rows: int) -> Share:
        """Keep the credit of ``rows`` rows of the last item taken. Call this before `freed`."""
        ...

    def give_back(self, share: Share, window: int = OPEN) -> Grant | None:
        """Return withheld credit, as `freed` does."""
        ...

    @property
    def urgent(self) -> bool:
        """Whether the next item is taken even when the region's outputs are full (F2)."""
        ...

    def __len__(self) -> int:
        """Return the number of items or frames that have not been taken."""
        ...


class Loopback:
    """Both ends of the channel of a worker to itself: one queue, in which nothing is framed or encoded."""

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

    def put(self, batch: Batch) -> None:
        self._rows += len(batch)
        self._items.append(batch)

    def put_epoch(self, epoch: Epoch) -> None:
        self._rows += 1
        self._items.append(epoch)

    def put_control(self, message: InLine) -> None:
        self._items.append(message)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def take(self, rows_max: int = OPEN) -> Item | None:
        if self.blocked or not self._items:
            return None
        item = self._items.popleft()
        cost = 0
        if isinstance(item, Batch):
            cost = len(item)
            if cost > rows_max:
                self._items.appendleft(item.cut(rows_max, cost))
                item, cost = item.cut(0, rows_max), rows_max
        elif type(item) is Epoch:
            cost = 1
        self._rows -= cost
        if self._trust < self._credit:
            self._trust += 2 * cost
            self._rows_max = min(self._credit, self._trust, self.window)
        if type(item) is Marker:
            self.version = item.move.version
        return item

    def freed(self, window: int = OPEN) -> None:
        """Set the window. No grant is needed: the sender reads `backlogged`."""
        if window != self.window:
            self.window, self.share = window, share_of(window)
            self._rows_max = min(self._credit, self._trust, window)

    def withhold(self, rows: int) -> Share:
        self._rows += rows
        return Share(rows, 0)

    def give_back(self, share: Share, window: int = OPEN) -> None:
        self._rows -= share.rows

    @property
    def urgent(self) -> bool:
        return bool(self._items) and not self.blocked and isinstance(self._items[0], MOVING)

    @property
    def backlogged(self) -> bool:
        """Whether as many rows and epochs are queued as the credit and the window allow, or more."""
        return self._rows >= self._rows_max

    @property
    def backlog(self) -> int:
        return max(0, self._rows - self._rows_max)

    @property
    def excess(self) -> float:
        return (self._rows - self.window) / self.share

    @property
    def waits_for_time(self) -> bool:
        return self._rows_max <= self._rows < self._credit

    def __len__(self) -> int:
        return len(self._items)


class RemoteOutbound(OutboundBuffer):
    """The sender's end of a channel to another worker: buffers rows, makes frames of them, and releases the frames that
    have credit.

    ``encode`` returns a batch as bytes, and raises typed errors. Rows make a frame of ``rows_max`` rows, columns one of
    ``columns_rows_max`` rows, both one of about ``bytes_max`` bytes, and smaller ones for a slow receiver with a small
    window. ``version``: of the table by which rows are routed, until a marker is sent. ``trust``: the number of rows
    that may be in flight to a receiver that has not processed any.

    >>> out = RemoteOutbound(ChannelId("by-key", 0, 1), lambda batch: repr(batch.values).encode())
    >>> out.put(Batch(["x", "z"], keys=[1, 3]))
    >>> out.put_epoch(Epoch(7))
    >>> out.flush()
    >>> [(frame.payload, frame.epochs) for frame in out.take()]
    [(b"['x', 'z']", (PlacedEpoch(row=2, time=7, idle=False),))]
    """

    def __init__(
        self,
        channel: ChannelId,
        encode: Callable[[Batch], bytes],
        incarnation: int = 0,
        credit: Credit | None = None,
        *,
        rows_max: int = 1024,
        columns_rows_max: int = 65_536,
        bytes_max: int = 1 << 20,
        version: int = 0,
        trust: int = OPEN,
    ) -> None:
        super().__init__()
        credit = credit or Credit()
        self.channel = channel
        self._encode = encode
        self._incarnation = incarnation
        self._rows, self._size = credit.rows, credit.size
        self._credit = credit.rows
        self._trust = trust
        self._rows_max = rows_max
        self._columns_rows_max = columns_rows_max
        self._bytes_max = bytes_max
        self._version = version
        self.window = OPEN
        """The window of the last grant, in rows."""
        self._share = OPEN
        self._rows_kept = max(0, credit.rows - trust)
        self._row_bytes = 1.0
        self._epochs: list[PlacedEpoch] = []
        self._backlog: deque[Frame] = deque()
        self.spilled_rows = 0
        self.sent_bytes = 0
        """The bytes of all frames so far."""

    def put(self, batch: Batch) -> None:
        if not self.fits(batch):
            self.flush()
        is_columns = isinstance(batch, ColumnBatch)
        share, rows = self._share, len(batch)
        most = min(self._columns_rows_max if is_columns else self._rows_max, share)
        for start in range(0, rows, share):
            self.add(batch if rows <= share else batch.cut(start, start + share))
            size = self.buffered_bytes if is_columns else self.buffered_rows * self._row_bytes
            if self.buffered_rows >= most or size >= self._bytes_max:
                self.flush()

    def put_epoch(self, epoch: Epoch) -> None:
        self._epochs.append(PlacedEpoch(self.buffered_rows, epoch.time, epoch.idle))

    def put_control(self, message: InLine) -> None:
        self.flush()
        self._backlog.append(Frame(self.channel, control=message, incarnation=self._incarnation, version=self._version))
        if type(message) is Marker:
            self._version = message.move.version

    def flush(self) -> None:
        rows = self.buffered_rows
        if not rows and not self._epochs:
            return
        payload, size = None, 0
        if rows:
            payload = self._encode(self.emptied())
            size = len(payload)
            self.sent_bytes += size
            self._row_bytes = size / rows
        epochs, self._epochs = tuple(self._epochs), []
        self._backlog.append(Frame(self.channel, payload, rows, size, epochs, None, self._incarnation, self._version))
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
            self.window, self._share = grant.window, share_of(grant.window)
            self._rows_kept = max(0, self._credit - min(self._trust, grant.window))

    def close(self) -> None:
        """Check that nothing is left: the receiver has left (R8)."""
        if self._backlog or self.buffered_rows or self._epochs:
            raise _dropped(self.channel, f"to worker {self.channel.receiver}")

    @property
    def backlogged(self) -> bool:
        return bool(self._backlog)

    @property
    def backlog(self) -> int:
        return sum(frame.rows for frame in self._backlog)

    @property
    def excess(self) -> float:
        """The number of rows in flight or in the backlog beyond the window, in shares of it; 0 without a backlog."""
        if not self._backlog:
            return 0.0
        rows = self._credit - self._rows + sum(frame.cost for frame in self._backlog)
        return (rows - self.window) / self._share

    @property
    def waits_for_time(self) -> bool:
        return bool(self._backlog) and not self._has_credit and self._rows > 0 and self._size > 0

    @property
    def _has_credit(self) -> bool:
        return self._rows > self._rows_kept and self._size > 0


GATHERED_ROWS: Final = 8
"""The credit of so many rows is returned immediately, that of fewer with the credit of later ones."""


class RemoteInbound:
    """The receiver's end of a channel from another worker. ``decode`` returns the batch of a frame's bytes.

    A frame is decoded when it is next; its credit is due when the region has passed its last item. It is returned with
    that of later frames, while it is little beside what the sender may have in flight: less than `GATHERED_ROWS`
    rows, a quarter of ``credit`` and of ``trust``, and a sixtieth of the window. Without ``credit`` none is kept.
    """

    def __init__(
        self,
        channel: ChannelId,
        decode: Callable[[bytes | memoryview], Batch],
        incarnation: int = 0,
        credit: Credit | None = None,
        *,
        trust: int = OPEN,
    ) -> None:
        self.channel = channel
        self.blocked = False
        self.version = 0
        self._decode = decode
        self._incarnation = incarnation
        self._frames: deque[Frame] = deque()
        self._items: deque[Item] = deque()
        self._owes = False
        self._owed_rows = self._owed_size = 0
        self._window = OPEN
        self.gathered = Share(0, 0)
        """The credit that is due and not returned yet."""
        rows, size = (0, 0) if credit is None else (min(GATHERED_ROWS, credit.rows // 4, trust // 4), credit.size // 4)
        self._most_gathered = Share(rows, size)
        self._row_bytes = 0.0
        self.stale_frames = 0

    def receive(self, frame: Frame) -> None:
        """Queue ``frame`` until the region takes it; drop it if it is of an old incarnation (F1)."""
        if frame.incarnation < self._incarnation:
            self.stale_frames += 1
        else:
            self._frames.append(frame)

    def take(self, rows_max: int = OPEN) -> Item | None:
        items = self._items
        if self.blocked:
            return None
        if not items:
            if not self._frames:
                return None
            frame = self._frames.popleft()
            self._owed_rows, self._owed_size = frame.cost, frame.size
            self._owes = frame.cost > 0
            self._row_bytes = frame.size / frame.rows if frame.rows else 0.0
            self.version = frame.version
            items.extend(self._open(frame))
        item = items.popleft()
        if isinstance(item, Batch) and len(item) > rows_max:
            items.appendleft(item.cut(rows_max, len(item)))
            return item.cut(0, rows_max)
        return item

    def freed(self, window: int = OPEN) -> Grant | None:
        if self._items or not self._owes:
            return None
        self._owes = False
        owed = Share(self._owed_rows, self._owed_size)
        due = Share(self.gathered.rows + owed.rows, self.gathered.size + owed.size)
        # Of the window that the sender knows, too: it must not wait for rows that wait for its rows.
        rows_most = min(self._most_gathered.rows, window // 60, self._window // 60)
        if due.rows < rows_most and due.size < self._most_gathered.size:
            self.gathered = due
            return None
        return self.give_back(owed, window)

    def withhold(self, rows: int) -> Share:
        if not self._owes:
            raise InternalError(f"rows without credit arrived on {self.channel}")
        share = Share(rows, int(rows * self._row_bytes))
        self._owed_rows -= share.rows
        self._owed_size -= share.size
        return share

    def give_back(self, share: Share, window: int = OPEN) -> Grant:
        # With all that is due: of a window that is smaller from now on it might be the whole.
        rows, size = share.rows + self.gathered.rows, share.size + self.gathered.size
        self.gathered, self._window = Share(0, 0), window
        return Grant(self.channel, self._incarnation, rows, size, window)

    def close(self) -> None:
        """Check that nothing is left: the sender has left (R8)."""
        if len(self):
            raise _dropped(self.channel, f"of worker {self.channel.sender}")

    @property
    def urgent(self) -> bool:
        return not (self.blocked or self._items) and bool(self._frames) and isinstance(self._frames[0].control, MOVING)

    def __len__(self) -> int:
        return len(self._items) + len(self._frames)

    def _open(self, frame: Frame) -> list[Item]:
        if frame.control is not None:
            return [frame.control]
        if frame.payload is None:
            return [Epoch(time, idle) for _, time, idle in frame.epochs]
        batch = self._decode(frame.payload)
        if not frame.epochs:
            return [batch]
        items, start = list[Item](), 0
        for row, time, idle in frame.epochs:
            if row > start:
                items.append(batch.cut(start, row))
                start = row
            items.append(Epoch(time, idle))
        if start < len(batch):
            items.append(batch.cut(start, len(batch)))
        return items


def _dropped(channel: ChannelId, whose: str) -> InternalError:
    return InternalError(f"exchange {channel.exchange!r}: the channel {whose} is dropped before its end")


def share_of(window: int) -> int:
    """Return the rows of one frame for ``window``: half, so that the next frame arrives during processing.

    >>> share_of(100), share_of(1)
    (50, 1)
    """
    return max(1, window // 2)
