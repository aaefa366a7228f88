"""One channel of the model: FIFO, numbered (F1), bounded by credits in rows and epochs (F2)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from malstrom_py.errors import PeerError
from tests.simulation.protocol_model.records import ChannelKey, EpochItem, Item, Rows


class Frame(NamedTuple):
    """An item in flight."""

    incarnation: int
    sequence: int
    item: Item

    @property
    def cost(self) -> int:
        """The credit that it takes: control is free."""
        if isinstance(self.item, Rows):
            return len(self.item.records)
        return int(isinstance(self.item, EpochItem))


class Channel:
    """``sent``: in flight or untaken; ``backlog``: waits at the sender for credit, or for earlier items.

    ``promised``: the last epoch that was put, or the one of a marker; ``is_over``: Bye was. The oracle looks at them.
    Credit comes back when an item is taken; rows that a region holds keep theirs (R5).
    """

    def __init__(self, key: ChannelKey, incarnation: int, credit: int) -> None:
        self.key = key
        self.incarnation = incarnation
        self.credit = credit
        self.sent: deque[Frame] = deque()
        self.backlog: deque[Frame] = deque()
        self.untaken = 0
        self.numbered = 0
        self.taken = 0
        self.promised: int | None = None
        self.is_over = False

    @property
    def backlogged(self) -> bool:
        """Whether what feeds it must stop. The channel of a worker to itself is one queue, and full when it is long."""
        return self.untaken >= self.credit if self.key.sender == self.key.receiver else bool(self.backlog)

    def may_go(self, frame: Frame) -> bool:
        """F2: control needs no credit; data needs some, and may take it below zero."""
        return not frame.cost or self.untaken < self.credit

    def put(self, item: Item) -> bool:
        """Number and queue ``item``; whether it has to wait."""
        self.numbered += 1
        frame = Frame(self.incarnation, self.numbered, item)
        waits = self.key.sender != self.key.receiver and (bool(self.backlog) or not self.may_go(frame))
        if waits:
            self.backlog.append(frame)
        else:
            self._send(frame)
        return waits

    @property
    def may_push(self) -> bool:
        """Whether something of the backlog may go now."""
        return bool(self.backlog) and self.may_go(self.backlog[0])

    def push(self) -> None:
        """Send what has credit by now: the grants have come."""
        while self.may_push:
            self._send(self.backlog.popleft())

    def _send(self, frame: Frame) -> None:
        self.sent.append(frame)
        self.untaken += frame.cost

    def take(self) -> Frame | None:
        """The next frame; None for one of an old incarnation, which is dropped. `PeerError` at a gap or repeat."""
        frame = self.sent.popleft()
        if not self.current(frame):
            return None
        if not self.in_order(frame):
            raise PeerError(f"{self.key}: expected number {self.taken + 1}, got {frame.sequence}")
        self.taken = frame.sequence
        return frame

    def current(self, frame: Frame) -> bool:
        """F1: of this incarnation."""
        return frame.incarnation == self.incarnation

    def current_frames(self) -> list[Frame]:
        """The items in flight, without those of zombies."""
        return [frame for frame in self.sent if frame.incarnation == self.incarnation]

    def in_order(self, frame: Frame) -> bool:
        """F1: neither a gap nor a repeat."""
        return frame.sequence == self.taken + 1

    def free(self, cost: int) -> None:
        """Give back credit."""
        self.untaken -= cost
