"""The limits of a stored value, and the errors of a value that cannot be encoded or of bytes that cannot be decoded.

What cannot be encoded or decoded: the limits of a stored value, and the errors, with step, key and type.

How large and how deep a stored value may be. One over a limit is refused when written, and when read.

What cannot be encoded or decoded, and how that is said: step, key and type, never the value.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.errors import CodecError, shown

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


_BUILTINS = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)

_LEGAL = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, date, time, datetime, timedelta, "
    "Decimal, UUID, numpy scalars and arrays of numbers, and registered dataclasses, NamedTuples and Enums"
)


class NotEncodable(Exception):
    """Inside the codec: a value of type ``kind`` cannot be stored, because ``why`` (which says what to do)."""

    def __init__(self, kind: type, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why


class NotDecodable(Exception):
    """Inside the codec: these bytes are not what the codec has written."""


def type_name(kind: type) -> str:
    """A type as a user would import it.

    >>> type_name(int), type_name(enum.Enum)
    ('int', 'enum.Enum')
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_named_tuple(kind: type) -> bool:
    """Whether ``kind`` was made by `collections.namedtuple` or `typing.NamedTuple`."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def not_encodable(kind: type) -> NotEncodable:
    """Why a type that has no encoding is refused, and what to do about it."""
    if issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind) or is_named_tuple(kind):
        return NotEncodable(kind, f"it is not registered. Call job.register_type({kind.__name__}) before the job runs")
    if kind is bytearray or kind is memoryview:
        return NotEncodable(kind, "it would come back as bytes. Store bytes(...) of it")
    for base in _BUILTINS:
        if issubclass(kind, base):
            return NotEncodable(kind, f"it would come back as {base.__name__}. Store {base.__name__}(...) of it")
    return NotEncodable(kind, f"what can be stored is {_LEGAL}. Make it a dataclass and call job.register_type")


def encode_error(refused: NotEncodable, *, step: str, key: Any, action: str) -> CodecError:
    """The `CodecError` of a value that is refused; ``action`` is what was tried, as a participle."""
    name = type_name(refused.kind)
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(
        f"step {step!r}{at_key}: a value of type {name} cannot be {action}: {refused.why}.",
        step=step,
        key=key,
        type_name=name,
    )


def decode_error(why: str, *, step: str, key: Any = None) -> CodecError:
    """The `CodecError` of bytes that cannot be read."""
    at_step = f"step {step!r}: " if step else ""
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(f"{at_step}what was encoded{at_key} cannot be read: {why}.", step=step, key=key)
