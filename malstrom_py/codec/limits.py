"""How large and how deep a stored value may be. One over a limit is refused when written, and when read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEPTH_MAX: Final = 500
"""Values nested this deep are stored. Deeper ones are refused by msgpack's own limits (511 or 1024, by version), when
written; what is refused there is never stored, so whatever was written can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one encoded value.

    ``bytes_max`` is the size of the encoded form; ``items_max`` the number of values inside a value, when writing,
    and of items in any one container, when reading (each costs at least one byte, so ``bytes_max`` bounds their sum).
    Reading allocates at most 200 bytes per byte that is read and some 256 KiB, whatever those bytes claim.

    >>> Limits(bytes_max=1 << 20).items_max
    67108864
    """

    bytes_max: int = (1 << 31) - 1
    items_max: int = 1 << 26

    def __post_init__(self) -> None:
        if not 0 < self.bytes_max < 1 << 32 or not 0 < self.items_max < 1 << 31:
            raise ValueError("bytes_max is between 1 and 2**32 - 1, items_max between 1 and 2**31 - 1")
