"""The peers of one end: who is connected, who is leaving, who is lost; and how a wait for them is ended.

Which peers are lost, and when that is said: after what they had sent, so that a last word is heard.

Rule: a loss is told within `LAST_WORDS_S` however much else comes, and again until the peer is disconnected.

How one thread has another's wait return: a pipe, whose reading end is waited for among others.

Rule: a wake is never lost. One that comes while nobody waits ends the next wait.

Who one end is connected to, whom it is leaving, and whom it has lost: what every transport keeps alike.

Rule: a peer is connected to once. What is sent to one that was disconnected or lost is dropped; `Losses` tells of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.transport.base import peer_name
from malstrom_py.workers.transport.messages import Content

QUIET_S: Final = 0.05
"""A loss is told when nothing more has come for so long."""
LAST_WORDS_S: Final = 0.5


class Losses:
    """The lost peers of one end. Times are in seconds, of any one clock."""

    def __init__(self) -> None:
        self._losses: dict[int, tuple[float, PeerError]] = {}
        self._busy_at = 0.0

    def add(self, peer: int, now: float, error: PeerError) -> None:
        """``peer`` was found lost, which ``error`` says."""
        self._losses.setdefault(peer, (now, error))
        self._busy_at = now

    def forget(self, peer: int) -> None:
        """``peer`` was disconnected: its end is no error."""
        self._losses.pop(peer, None)

    def check(self, now: float, *, quiet: bool) -> None:
        """Raise the first loss, if it is time. ``quiet``: nothing is there that came before."""
        if not quiet:
            self._busy_at = now
        for since, error in self._losses.values():
            if (quiet and now - self._busy_at >= QUIET_S) or now - since >= LAST_WORDS_S:
                raise error.with_traceback(None)

    def due(self, now: float) -> float:
        """When to `check` again."""
        return now + QUIET_S if self._losses else float("inf")

    def __contains__(self, peer: int) -> bool:
        return peer in self._losses

    def __bool__(self) -> bool:
        return bool(self._losses)


class Waker:
    """One waits for `fileno` and then asks `taken`; any other, a handler of a signal too, calls `wake`."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._closed = False
        # Reentrant: a handler of a signal may interrupt the very thread that holds it.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """What becomes readable by `wake`."""
        return self._reading

    def wake(self) -> None:
        """Have the wait end. Nothing after `close`: by then the descriptor may be another's."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._writing, b"w")

    def taken(self) -> bool:
        """Whether there were wakes since this was last asked."""
        try:
            return bool(os.read(self._reading, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Free the descriptors."""
        with self._lock:
            self._closed = True
            os.close(self._reading)
            os.close(self._writing)


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
