"""An exchange in a worker's graph: the sending step, and the input gate with one channel per sender."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import AbsBarrier, Epoch, PartMessage, StateMessage, SuspendMarker
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.rescale.channels.channel import (
    MOVING,
    OPEN,
    Barrier,
    ChannelId,
    ChannelIn,
    Frame,
    Grant,
    Item,
    Loopback,
    Share,
    Suspend,
)
from malstrom_py.rescale.channels.router import Router


class SendToExchange(Operator):
    """The last step of a region, at an exchange: passes batches and epochs to the router."""

    takes_columns = True

    def __init__(self, context: StepContext, *, router: Router) -> None:
        super().__init__(context)
        self._router = router

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._router.route(batch)

    def check(self, batch: Batch) -> None:
        """Raise the partitioner's errors that would occur with several workers (test mode)."""
        self._router.slots(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._router.epoch(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Parts belong to the source region, which ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Barriers and suspension cross to the next region; what acts on this region's state ends here."""
        if isinstance(message, AbsBarrier):
            self._router.control(Barrier(message.snapshot, message.parent))
        elif isinstance(message, SuspendMarker):
            self._router.control(Suspend())


class InputChannel:
    """The received items of one other worker that the region has not taken.

    A frame is decoded when it is next; its credit is returned when the region has passed its last item. ``version``:
    the version of the table by which the last item taken was routed.
    """

    def __init__(self, channel: ChannelIn, decode: Callable[[bytes], Batch], version: int = 0) -> None:
        self.channel = channel
        self.blocked = False
        self.version = version
        self._decode = decode
        self._items: deque[Item] = deque()
        self._owes = False
        self._owed_rows = self._owed_size = 0
        self._row_bytes = 0.0

    def take(self, rows_max: int = OPEN) -> Item | None:
        """Take the next item, of a batch at most ``rows_max`` rows; None if empty or blocked by a barrier."""
        items = self._items
        if self.blocked:
            return None
        if not items:
            if not len(self.channel):
                return None
            frame = self.channel.take()
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
        """Return the credit to grant after an item has been passed, with ``window``; None if none is due."""
        if self._items or not self._owes:
            return None
        self._owes = False
        return self.channel.grant(self._owed_rows, self._owed_size, window)

    def withhold(self, rows: int) -> Share:
        """Keep the credit of ``rows`` rows of the last item taken. Call this before `freed`."""
        if not self._owes:
            raise InternalError(f"rows without credit arrived on {self.channel.channel}")
        share = Share(rows, int(rows * self._row_bytes))
        self._owed_rows -= share.rows
        self._owed_size -= share.size
        return share

    def give_back(self, share: Share, window: int = OPEN) -> Grant:
        """Return the grant of withheld credit."""
        return self.channel.grant(share.rows, share.size, window)

    @property
    def urgent(self) -> bool:
        """Whether the next item is taken even when the region's outputs are full (F2)."""
        if self.blocked or self._items:
            return False
        frame = self.channel.peek()
        return frame is not None and isinstance(frame.control, MOVING)

    def __len__(self) -> int:
        return len(self._items) + len(self.channel)

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


class InputGate:
    """The receiving end of one exchange: a channel per sender, including this worker's ``loopback``."""

    def __init__(
        self, exchange: str, worker: int, loopback: Loopback, decode: Callable[[bytes], Batch], incarnation: int
    ) -> None:
        self.exchange = exchange
        self._worker = worker
        self._decode = decode
        self._incarnation = incarnation
        self.lanes: dict[int, InputChannel | Loopback] = {worker: loopback}

    def connect(self, sender: int, *, version: int = 0) -> None:
        """R1: open the channel from ``sender``, before the first move starts."""
        channel = ChannelIn(ChannelId(self.exchange, sender, self._worker), self._incarnation)
        self.lanes[sender] = InputChannel(channel, self._decode, version)

    def disconnect(self, sender: int) -> None:
        """R8: close the channel from ``sender``, which has left."""
        if len(self.lanes.pop(sender)):
            raise InternalError(f"exchange {self.exchange!r}: the channel of worker {sender} is dropped before its end")

    def receive(self, frame: Frame) -> None:
        """Queue ``frame`` until the region takes it."""
        lane = self.lanes.get(frame.channel.sender)
        if not isinstance(lane, InputChannel):
            if frame.incarnation < self._incarnation:
                return  # the sender is of a run that has ended (F1)
            raise InternalError(f"a frame arrived on channel {frame.channel}, which is not open here")
        lane.channel.receive(frame)

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))
