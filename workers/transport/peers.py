"""The peers of one end of a transport: connected, leaving and lost ones; and a pipe that ends a wait.

Rule: each peer is connected once. Messages to a disconnected or lost peer are dropped. A loss is reported after the
last messages of the peer, within `LAST_WORDS_S` even if other messages arrive, and again until the peer is
disconnected. A wake-up is never lost: without a waiting thread it ends the next wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.transport.base import peer_name

QUIET_S: Final = 0.05
"""A loss is reported when no message has arrived for this time."""
LAST_WORDS_S: Final = 0.5


class Losses:
    """The lost peers of one end. All times are in seconds of one clock."""

    def __init__(self) -> None:
        self._losses: dict[int, tuple[float, PeerError]] = {}
        self._busy_at = 0.0

    def add(self, peer: int, now: float, error: PeerError) -> None:
        """Record the loss of ``peer`` with its ``error``."""
        self._losses.setdefault(peer, (now, error))
        self._busy_at = now

    def forget(self, peer: int) -> None:
        """Forget ``peer``, which was disconnected: its end is not an error."""
        self._losses.pop(peer, None)

    def check(self, now: float, *, quiet: bool) -> None:
        """Raise the first loss that is due. ``quiet``: no earlier message is left."""
        if not quiet:
            self._busy_at = now
        for since, error in self._losses.values():
            if (quiet and now - self._busy_at >= QUIET_S) or now - since >= LAST_WORDS_S:
                raise error.with_traceback(None)

    def due(self, now: float) -> float:
        """Return when to call `check` again."""
        return now + QUIET_S if self._losses else float("inf")

    def __contains__(self, peer: int) -> bool:
        return peer in self._losses

    def __bool__(self) -> bool:
        return bool(self._losses)


class Waker:
    """A pipe that ends a wait: one thread waits for `fileno`, then calls `taken`; others or signal handlers wake it."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._closed = False
        # Reentrant: a signal handler may interrupt the thread that holds the lock.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return the descriptor that `wake` makes readable."""
        return self._reading

    def wake(self) -> None:
        """End the wait. Does nothing after `close`, because the descriptor may have been reused."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._writing, b"w")

    def taken(self) -> bool:
        """Return whether `wake` was called since the last call of `taken`."""
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


C = TypeVar("C")


class Peers(Generic[C]):
    """The connections of the end ``me``, by peer number."""

    def __init__(self, me: int) -> None:
        self._me = me
        self._known = set[int]()
        self.connected: dict[int, C] = {}
        self.leaving: list[C] = []
        """Disconnected peers whose earlier messages still go out."""
        self.losses = Losses()

    def connect(self, peer: int, make: Callable[[], C]) -> C:
        """Make and return the connection to ``peer``. `InternalError` if there is one."""
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

    def of(self, receiver: int) -> C | None:
        """Return the connection to ``receiver``; None if it is disconnected or lost, so that messages are dropped."""
        connection = self.connected.get(receiver)
        if connection is None and receiver not in self._known:
            raise InternalError(f"{peer_name(self._me)} sends to {peer_name(receiver)}, which was never connected")
        return connection

    def lose(self, peer: int, now: float, how: str) -> None:
        """Record that the connection to ``peer`` has ended, and ``how``."""
        del self.connected[peer]
        why = f"{peer_name(peer)} is gone, or cannot be reached from {peer_name(self._me)} any longer: {how}. "
        remedy = "Read its log for the reason. If it still runs, check the network."
        self.losses.add(peer, now, PeerError(why + remedy, peer=peer))

    def clear(self) -> None:
        """Forget the connections."""
        self.connected.clear()
        self.leaving.clear()
