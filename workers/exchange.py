"""An exchange as it stands in a worker's graph: the end that sends, and the inbox of the end that receives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from malstrom_py.batches import Batch
from malstrom_py.errors import InternalError
from malstrom_py.messages import AbsBarrier, Epoch, PartMessage, StateMessage, SuspendMarker
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.rescale.channel import Barrier, ChannelId, ChannelIn, Frame, Grant, Suspend
from malstrom_py.rescale.router import Router

Item = Batch | Epoch | Barrier | Suspend


class SendToExchange(Operator):
    """The end of a region at an exchange: hands what comes to the router."""

    def __init__(self, context: StepContext, *, router: Router) -> None:
        super().__init__(context)
        self._router = router

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self._router.route(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._router.epoch(epoch.time)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Parts belong to the source region, which ends here."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Barriers and suspension cross to the next region; what acts on this region's state ends here."""
        if isinstance(message, AbsBarrier):
            self._router.control(Barrier(message.snapshot))
        elif isinstance(message, SuspendMarker):
            self._router.control(Suspend())


class Inbox:
    """What has come over the channels of one exchange and has not been taken yet, item by item.

    A frame is opened when its turn comes; its credit goes back when its last item has been taken.
    """

    def __init__(
        self, exchange: str, worker: int, members: Sequence[int], decode: Callable[[bytes], Batch], incarnation: int
    ) -> None:
        self._decode = decode
        self.members = list(members)
        self._channels = {member: ChannelIn(ChannelId(exchange, member, worker), incarnation) for member in members}
        self._items: dict[int, deque[Item]] = {member: deque() for member in members}
        self._owed: dict[int, Grant | None] = dict.fromkeys(members)

    def receive(self, frame: Frame) -> None:
        """Keep ``frame`` until the region takes it."""
        self._channels[frame.channel.sender].receive(frame)

    def take(self, member: int) -> tuple[Item | None, Grant | None]:
        """The next item from ``member``, and the credit that goes back for it."""
        items, channel = self._items[member], self._channels[member]
        if channel.blocked:
            return None, None
        if not items:
            if not len(channel):
                return None, None
            frame, self._owed[member] = channel.take()
            items.extend(self._open(frame))
        item = items.popleft()
        if items:
            return item, None
        grant, self._owed[member] = self._owed[member], None
        return item, grant

    def block(self, member: int) -> None:
        """Take nothing from ``member`` until `unblock`: it is ahead of the others at a barrier (S1)."""
        self._channels[member].blocked = True

    def unblock(self) -> None:
        """Take from all again."""
        for channel in self._channels.values():
            channel.blocked = False

    @property
    def blocked(self) -> int:
        """How many channels stand at the barrier."""
        return sum(channel.blocked for channel in self._channels.values())

    def __len__(self) -> int:
        return sum(len(self._items[member]) + len(self._channels[member]) for member in self.members)

    def _open(self, frame: Frame) -> list[Item]:
        if frame.control is not None:
            return [frame.control]
        if not frame.epochs:
            return [self._batch(frame)]
        if not frame.rows:
            return [Epoch(time) for _, time in frame.epochs]
        batch, items, start = self._batch(frame), list[Item](), 0
        for row, time in frame.epochs:
            if row > start:
                items.append(_cut(batch, start, row))
                start = row
            items.append(Epoch(time))
        if start < len(batch):
            items.append(_cut(batch, start, len(batch)))
        return items

    def _batch(self, frame: Frame) -> Batch:
        if isinstance(frame.payload, Batch):
            return frame.payload
        if frame.payload is None:
            raise InternalError(f"a frame of {frame.rows} rows on {frame.channel} has no payload")
        return self._decode(frame.payload)


def _cut(batch: Batch, start: int, end: int) -> Batch:
    keys, timestamps = batch.keys, batch.timestamps
    return Batch(
        batch.values[start:end],
        keys=None if keys is None else keys[start:end],
        timestamps=None if timestamps is None else timestamps[start:end],
    )
