"""An exchange as it stands in a worker's graph: the end that sends, and the inbox of the end that receives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from malstrom_py.batches import Batch
from malstrom_py.errors import InternalError
from malstrom_py.messages import AbsBarrier, Epoch, PartMessage, StateMessage, SuspendMarker
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.rescale.channel import Barrier, ChannelIn, Frame, Grant, Item, Loopback, Suspend
from malstrom_py.rescale.router import Router


class SendToExchange(Operator):
    """The end of a region at an exchange: hands what comes to the router."""

    takes_columns = True

    def __init__(self, context: StepContext, *, router: Router) -> None:
        super().__init__(context)
        self._router = router

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._router.route(batch)

    def check(self, batch: Batch) -> None:
        """Raise what another number of workers would: the errors of the partitioner (test mode)."""
        self._router.slots(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._router.epoch(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Parts belong to the source region, which ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Barriers and suspension cross to the next region; what acts on this region's state ends here."""
        if isinstance(message, AbsBarrier):
            self._router.control(Barrier(message.snapshot))
        elif isinstance(message, SuspendMarker):
            self._router.control(Suspend())


class Lane:
    """What has come from one other worker and has not been taken yet, item by item.

    A frame is opened when its turn comes; its credit goes back when its last item has been taken.
    """

    def __init__(self, channel: ChannelIn, decode: Callable[[bytes], Batch]) -> None:
        self.channel = channel
        self.blocked = False
        self._decode = decode
        self._items: deque[Item] = deque()
        self._owed: Grant | None = None

    def take(self) -> tuple[Item | None, Grant | None]:
        """The next item, and the credit that goes back for it."""
        items = self._items
        if self.blocked:
            return None, None
        if not items:
            if not len(self.channel):
                return None, None
            frame, self._owed = self.channel.take()
            items.extend(self._open(frame))
        item = items.popleft()
        if items:
            return item, None
        grant, self._owed = self._owed, None
        return item, grant

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


class Inbox:
    """The receiving end of one exchange: a lane per sender, this worker's own loopback among them."""

    def __init__(self, lanes: Mapping[int, Lane | Loopback]) -> None:
        self._lanes = lanes
        self.lanes = list(lanes.values())

    def receive(self, frame: Frame) -> None:
        """Keep ``frame`` until the region takes it."""
        lane = self._lanes[frame.channel.sender]
        if isinstance(lane, Loopback):
            raise InternalError(f"a frame came on the loopback channel {frame.channel}")
        lane.channel.receive(frame)

    def __len__(self) -> int:
        return sum(map(len, self.lanes))
