"""The seam: what workers and their coordinator ask of the streams between them, and the secret they share.

The seam: what workers and their coordinator ask of the streams between them.

Rule: everything that is sent to a peer arrives once and in order, or `receive` says that the peer is lost. There is no
connecting again behind anybody's back: what was under way would be missing.

What the workers of one job share, so that nobody else can speak to them. Made anew at each start of a job.

Rule: it travels over the control plane only, and never shows in a message, a log or a repr.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from malstrom_py.workers.transport.messages import COORDINATOR, Content

LOSS_S: Final = 5.0
"""A connected peer that is gone is reported within about so long, in seconds."""


class Transport(Protocol):
    """One end of the streams between the workers of a job and their coordinator.

    It belongs to the thread that uses it; `wake` alone may be called from any other. Peers are the numbers of workers,
    and ``COORDINATOR``.
    """

    @property
    def address(self) -> Any:
        """What others `connect` to. Can be pickled."""
        ...

    @property
    def stale(self) -> int:
        """How many messages of an older incarnation of the job came, and were dropped."""
        ...

    def connect(self, peer: int, address: Any) -> None:
        """From now on `send` reaches ``peer``, and its loss is reported. `InternalError` if it is connected."""
        ...

    def disconnect(self, peer: int) -> None:
        """Nothing more is sent to ``peer``. What was sent still goes out, and its end is no error any more."""
        ...

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        """Send ``contents``, in order, without waiting. What is for a peer that was disconnected or lost is dropped.

        Raises:
            InternalError: ``receiver`` was never connected.
            CodecError: one of ``contents`` cannot be pickled; none of what is in the same call may have gone out.
        """
        ...

    def receive(self, timeout_s: float) -> list[Content]:
        """What has come, in order per sender; a bounded part of it. Waits for the first for at most ``timeout_s``.

        Empty when nothing has come by then, or on `wake`.

        Raises:
            PeerError: a connected peer is lost (again at each call, until it is disconnected), what came from one has
                a gap, or is of a newer incarnation of the job; ``peer`` says which. What a lost peer had sent comes
                before.
        """
        ...

    def wake(self) -> None:
        """Have `receive` return: the one that waits, or else the next one that would wait. From any thread."""
        ...

    def close(self, *, linger_s: float) -> None:
        """Let what was sent go out, for at most ``linger_s``; then free ports, threads and descriptors."""
        ...


def peer_name(peer: int) -> str:
    """A peer as messages name it.

    >>> peer_name(3), peer_name(COORDINATOR)
    ('worker 3', 'the coordinator')
    """
    return "the coordinator" if peer == COORDINATOR else f"worker {peer}"


_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class JobSecret:
    """A secret of one start of a job; ``JobSecret.new()`` makes one. Can be pickled.

    >>> secret = JobSecret.new()
    >>> secret
    JobSecret()
    >>> len(secret.derive("stream")), secret.derive("stream") == secret.derive("call")
    (32, False)
    """

    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> JobSecret:
        """A secret that nobody else has."""
        return cls(secrets.token_bytes(_BYTES))

    @property
    def token(self) -> str:
        """What files of this start of the job are named by; nothing follows from it."""
        return self.derive("token").hex()[:16]

    def derive(self, purpose: str) -> bytes:
        """32 bytes for ``purpose`` (at most 16 letters). Nothing else that is derived follows from them."""
        return hashlib.blake2b(key=self.key, digest_size=_BYTES, person=purpose.encode()).digest()
