"""What the workers of one job share, so that nobody else can speak to them. Made anew at each start of a job.

Rule: it travels over the control plane only, and never shows in a message, a log or a repr.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Final

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
