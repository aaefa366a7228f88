"""The interface of the streams between workers and their coordinator, and the secret that they share.

Rule: everything sent to a peer arrives once and in order, or `receive` reports that the peer is lost. A transport never
reconnects silently, because messages in flight would be missing. Rule: the secret of a job is new at each start,
travels over the control plane only, and never shows in a message, a log or a repr.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from malstrom_py.workers.transport.messages import COORDINATOR, Content

LOSS_S: Final = 5.0
"""The loss of a connected peer is reported within about this time, in seconds."""


class Transport(Protocol):
    """One end of the streams between the workers of a job and their coordinator.

    One thread uses it; only `wake` may be called from other threads. Peers are worker numbers and ``COORDINATOR``.
    """

    @property
    def address(self) -> Any:
        """The address that others `connect` to. Can be pickled."""
        ...

    @property
    def stale(self) -> int:
        """The number of messages of older incarnations of the job, which were dropped."""
        ...

    def connect(self, peer: int, address: Any) -> None:
        """Connect to ``peer``, and report its loss from now on. `InternalError` if it is connected."""
        ...

    def disconnect(self, peer: int) -> None:
        """Send nothing more to ``peer``. Earlier messages still go out; the end of ``peer`` is no longer an error."""
        ...

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        """Send ``contents``, in order, without waiting. Messages to a disconnected or lost peer are dropped.

        Raises:
            InternalError: ``receiver`` was never connected.
            CodecError: one of ``contents`` cannot be pickled; the others of the same call may not have been sent.
        """
        ...

    def receive(self, timeout_s: float) -> list[Content]:
        """Return received contents, in order per sender, a bounded number. Wait at most ``timeout_s`` for the first.

        The list is empty after the timeout, or on `wake`.

        Raises:
            PeerError: a connected peer is lost (raised by each call until it is disconnected), or its messages have a
                gap or are of a newer incarnation of the job; ``peer`` is its number. The last messages of a lost peer
                are returned before the error.
        """
        ...

    def wake(self) -> None:
        """Make `receive` return: the call that waits, or else the next call that would wait. Any thread may call it."""
        ...

    def close(self, *, linger_s: float) -> None:
        """Send what is queued, for at most ``linger_s``; then free ports, threads and descriptors."""
        ...


def peer_name(peer: int) -> str:
    """Return the name of a peer for messages.

    >>> peer_name(3), peer_name(COORDINATOR)
    ('worker 3', 'the coordinator')
    """
    return "the coordinator" if peer == COORDINATOR else f"worker {peer}"


_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret of one start of a job; ``JobSecret.new()`` makes one. Can be pickled.

    >>> secret = JobSecret.new()
    >>> secret
    JobSecret()
    >>> len(secret.derive("stream")), secret.derive("stream") == secret.derive("token")
    (32, False)
    """

    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> JobSecret:
        """Return a new random secret."""
        return cls(secrets.token_bytes(_BYTES))

    @property
    def token(self) -> str:
        """A public name for files of this start of the job. The secret cannot be derived from it."""
        return self.derive("token").hex()[:16]

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes for ``purpose`` (at most 16 letters), independent of the bytes for other purposes."""
        return hashlib.blake2b(key=self.key, digest_size=_BYTES, person=purpose.encode()).digest()
