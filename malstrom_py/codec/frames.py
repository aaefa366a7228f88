"""A frame around what travels between the workers of one job: version, byte order, and a checksum.

Rule: what is inside a frame may be pickle, so it is opened only behind a checksum. That finds damage, not malice:
the workers of one job trust each other, and the transport makes sure that nobody else speaks.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Final

import xxhash

from malstrom_py.codec.refusal import Malformed

_VERSION: Final = 0x21 if sys.byteorder == "little" else 0x22
_HEADER: Final = struct.Struct("<BBQ")  # version and byte order, kind of contents, checksum of all that follows

HEADER_BYTES: Final = _HEADER.size


def close_frame(kind: int, parts: Sequence[bytes]) -> bytes:
    """One frame with ``parts`` in it, joined.

    >>> open_frame(7, close_frame(7, [b"ab", b"c"])).tobytes()
    b'abc'
    """
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return b"".join((_HEADER.pack(_VERSION, kind, checksum.intdigest()), *parts))


def open_frame(kind: int, frame: bytes | memoryview) -> memoryview:
    """What is in a frame, without a copy. `Malformed` if it is not what a worker like this one has closed."""
    data = memoryview(frame)
    if len(data) < HEADER_BYTES:
        raise Malformed("it ends too soon")
    version, found, checksum = _HEADER.unpack_from(data)
    if version != _VERSION or found != kind:
        raise Malformed("it was made by another version, for another purpose, or on a machine of another byte order")
    body = data[HEADER_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise Malformed("its checksum is wrong")
    return body
