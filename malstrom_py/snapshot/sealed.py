"""One JSON object on a line, and below it the digest of that line: how manifests and claims are written.

Rule: whatever is not byte for byte what was written is refused, before anything in it is looked at (P6).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

BYTES_MAX: Final = 256 << 20
"""No sealed line is longer: a manifest holds positions and the payloads of sinks, no state."""


def seal(fields: Mapping[str, Any]) -> bytes:
    r"""``fields``, in JSON's types, as a line and its digest.

    >>> seal({"format": 1})[:14], open_seal(seal({"format": 1}))
    (b'{"format": 1}\n', {'format': 1})

    Raises:
        ValueError: they are no JSON, or longer than `BYTES_MAX`.
    """
    line = json.dumps(fields, allow_nan=False).encode("ascii")
    if len(line) > BYTES_MAX:
        raise ValueError(f"it has {len(line)} bytes, where {BYTES_MAX} are the most")
    return b"%s\n%s" % (line, _digest_of(line))


def open_seal(data: bytes) -> dict[str, Any]:
    """The fields that `seal` wrote. ValueError: these are not the bytes that were written."""
    if len(data) > BYTES_MAX + 1024:
        raise ValueError(f"it has {len(data)} bytes, where {BYTES_MAX} are the most")
    line, _, below = data.partition(b"\n")
    if below != _digest_of(line):
        raise ValueError("it is not what was written: its digest does not fit")
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    return fields


def _digest_of(line: bytes) -> bytes:
    return b'{"sha256": "%s"}\n' % hashlib.sha256(line).hexdigest().encode("ascii")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
