"""Who one end is connected to, whom it is leaving, and whom it has lost: what every transport keeps alike.

Rule: a peer is connected to once. What is sent to one that was disconnected or lost is dropped; `Losses` tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.outgoing import Content
from malstrom_py.workers.transport.base import peer_name
from malstrom_py.workers.transport.losses import Losses


class Connection(Protocol):
    """What goes to one peer."""

    def send(self, contents: Sequence[Content]) -> None:
        """Send, in order, without waiting."""
        ...


C = TypeVar("C", bound=Connection)


class Peers(Generic[C]):
    """The connections of the end ``me``, by peer."""

    def __init__(self, me: int) -> None:
        self._me = me
        self._known = set[int]()
        self.connected: dict[int, C] = {}
        self.leaving: list[C] = []
        """Those to whom what was sent still goes out."""
        self.losses = Losses()

    def connect(self, peer: int, make: Callable[[], C]) -> C:
        """The new connection to ``peer``. `InternalError` if there is one."""
        if peer in self.connected or peer in self.losses:
            raise InternalError(f"{peer_name(self._me)} is connected to {peer_name(peer)} already")
        self._known.add(peer)
        self.connected[peer] = connection = make()
        return connection

    def disconnect(self, peer: int) -> None:
        """See `Transport.disconnect`."""
        self.losses.forget(peer)
        if connection := self.connected.pop(peer, None):
            self.leaving.append(connection)

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        """See `Transport.send`."""
        connection = self.connected.get(receiver)
        if connection is not None:
            connection.send(contents)
        elif receiver not in self._known:
            raise InternalError(f"{peer_name(self._me)} sends to {peer_name(receiver)}, which was never connected")

    def lose(self, peer: int, now: float, how: str) -> None:
        """The connection to ``peer`` has ended, and ``how``."""
        del self.connected[peer]
        why = f"{peer_name(peer)} is gone, or cannot be reached from {peer_name(self._me)} any more: {how}. "
        remedy = "Its log says why it ended. If it goes on, look at the network."
        self.losses.add(peer, now, PeerError(why + remedy, peer=peer))

    def clear(self) -> None:
        """Forget the connections."""
        self.connected.clear()
        self.leaving.clear()
