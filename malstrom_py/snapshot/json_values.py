"""Values of users in a manifest: as plain JSON where they come back exactly, else as the codec stores them (S8).

Rule: what is not one of JSON's own types, exactly, is packed under ``"$"``; so is a dict that has that key itself.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Final

from malstrom_py.codec import Codec

PACKED: Final = "$"
DEPTH_MAX: Final = 32
"""Values nested deeper are packed: a manifest has no deep JSON."""

_WHOLE_MAX: Final = 1 << 63


def as_json(value: Any, *, step: str) -> Any:
    """``value`` in JSON's types.

    >>> as_json({"file": "a.csv", "row": 12}, step="orders")
    {'file': 'a.csv', 'row': 12}
    >>> as_json(("a.csv", 12), step="orders")
    {'$': 'EZPHAAGlYS5jc3YM'}

    Raises:
        CodecError: it cannot be stored; names ``step``.
    """
    if _is_plain(value, DEPTH_MAX):
        return value
    return {PACKED: base64.b64encode(Codec().encode_at_rest(value, step=step)).decode("ascii")}


def from_json(stored: Any, *, step: str) -> Any:
    """The value that `as_json` stored. `CodecError` or ValueError if that is damaged.

    >>> from_json({"$": "EZPHAAGlYS5jc3YM"}, step="orders")
    ('a.csv', 12)
    """
    if isinstance(stored, Mapping) and PACKED in stored:
        packed = stored[PACKED]
        if len(stored) != 1 or not isinstance(packed, str):
            raise ValueError(f"a packed value is one text under {PACKED!r}")
        return Codec().decode_at_rest(base64.b64decode(packed.encode("ascii"), validate=True), step=step)
    if not _is_plain(stored, DEPTH_MAX):
        raise ValueError("a value is nested too deep, or is a number that is never stored like this")
    return stored


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return bool(-_WHOLE_MAX <= value < _WHOLE_MAX)
    if kind is float:
        return bool(math.isfinite(value))
    if depth == 0:
        return False
    if kind is list:
        return all(_is_plain(item, depth - 1) for item in value)
    if kind is dict:
        return PACKED not in value and all(type(key) is str and _is_plain(value[key], depth - 1) for key in value)
    return False
