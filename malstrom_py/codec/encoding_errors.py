"""The limits of a stored value, and the errors of a value that cannot be encoded or of bytes that cannot be decoded.

Limits are checked on writing and on reading. Errors name step, key and type, never the value.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from malstrom_py.errors import CodecError, shown

DEPTH_MAX: Final = 500
"""The depth of nesting that can always be stored. msgpack rejects values nested deeper than its limit (511 or 1024, by
version) on writing, so every value that was written can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one encoded value.

    ``bytes_max``: the size of the encoded form. ``items_max``: on writing, the number of values inside a value; on
    reading, the number of items in any one container (each takes at least one byte, so ``bytes_max`` bounds their sum).
    Reading allocates at most 200 bytes per byte read plus about 256 KiB, for any input.

    >>> Limits(bytes_max=1 << 20).items_max
    67108864
    """

    bytes_max: int = (1 << 31) - 1
    items_max: int = 1 << 26

    def __post_init__(self) -> None:
        if not 0 < self.bytes_max < 1 << 32 or not 0 < self.items_max < 1 << 31:
            raise ValueError("bytes_max must be between 1 and 2**32 - 1, items_max between 1 and 2**31 - 1")


_BUILTINS = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)

_LEGAL = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, date, time, datetime, timedelta, "
    "Decimal, UUID, numpy scalars and arrays of numbers, and registered dataclasses, msgspec.Structs, NamedTuples and "
    "Enums"
)


class NotEncodable(Exception):
    """Internal to the codec: a value of type ``kind`` cannot be encoded. ``why``: the reason and the remedy."""

    def __init__(self, kind: type, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why


class NotDecodable(Exception):
    """Internal to the codec: the bytes were not written by the codec, or name a class that is not registered."""


def type_name(kind: type) -> str:
    """Return the name by which a user would import a type.

    >>> type_name(int), type_name(enum.Enum)
    ('int', 'enum.Enum')
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_named_tuple(kind: type) -> bool:
    """Return whether ``kind`` was made by `collections.namedtuple` or `typing.NamedTuple`."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def not_encodable(kind: type) -> NotEncodable:
    """Return the error of a type that has no encoding: the reason and the remedy."""
    if issubclass(kind, enum.Enum | msgspec.Struct) or dataclasses.is_dataclass(kind) or is_named_tuple(kind):
        return NotEncodable(kind, f"it is not registered. Call job.register_type({kind.__name__}) before the job runs")
    if kind is bytearray or kind is memoryview:
        return NotEncodable(kind, "it would come back as bytes. Store bytes(...) of it")
    for base in _BUILTINS:
        if issubclass(kind, base):
            return NotEncodable(kind, f"it would come back as {base.__name__}. Store {base.__name__}(...) of it")
    return NotEncodable(kind, f"storable types are {_LEGAL}. Make it a dataclass and call job.register_type")


def encode_error(refused: NotEncodable, *, step: str, key: Any, action: str) -> CodecError:
    """Return the `CodecError` of a value that cannot be encoded; ``action``: what was tried, as a participle."""
    name = type_name(refused.kind)
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(
        f"step {step!r}{at_key}: a value of type {name} cannot be {action}: {refused.why}.",
        step=step,
        key=key,
        type_name=name,
    )


def decode_error(why: str, *, step: str, key: Any = None) -> CodecError:
    """Return the `CodecError` of bytes that cannot be decoded."""
    at_step = f"step {step!r}: " if step else ""
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(f"{at_step}the encoded data{at_key} cannot be read: {why}.", step=step, key=key)
