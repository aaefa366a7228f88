"""What cannot be encoded or decoded, and how that is said: step, key and type, never the value."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from malstrom_py.errors import CodecError, shown

_BUILTINS = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)

_LEGAL = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, date, time, datetime, timedelta, "
    "Decimal, UUID, numpy scalars and arrays of numbers, and registered dataclasses, NamedTuples and Enums"
)


class Refused(Exception):
    """Inside the codec: a value of type ``kind`` cannot be stored, because ``why`` (which says what to do)."""

    def __init__(self, kind: type, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why


class Malformed(Exception):
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


def refusal_of(kind: type) -> Refused:
    """Why a type that has no encoding is refused, and what to do about it."""
    if issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind) or is_named_tuple(kind):
        return Refused(kind, f"it is not registered. Call job.register_type({kind.__name__}) before the job runs")
    if kind is bytearray or kind is memoryview:
        return Refused(kind, "it would come back as bytes. Store bytes(...) of it")
    for base in _BUILTINS:
        if issubclass(kind, base):
            return Refused(kind, f"it would come back as {base.__name__}. Store {base.__name__}(...) of it")
    return Refused(kind, f"what can be stored is {_LEGAL}. Make it a dataclass and call job.register_type")


def cannot_encode(refused: Refused, *, step: str, key: Any, action: str) -> CodecError:
    """The `CodecError` of a value that is refused; ``action`` is what was tried, as a participle."""
    name = type_name(refused.kind)
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(
        f"step {step!r}{at_key}: a value of type {name} cannot be {action}: {refused.why}.",
        step=step,
        key=key,
        type_name=name,
    )


def cannot_decode(why: str, *, step: str, key: Any = None) -> CodecError:
    """The `CodecError` of bytes that cannot be read."""
    at_step = f"step {step!r}: " if step else ""
    at_key = "" if key is None else f" for key {shown(key)}"
    return CodecError(f"{at_step}what was encoded{at_key} cannot be read: {why}.", step=step, key=key)
