"""Which types are legal in keys, and what a type counts as (F4).

Rule: a type is legal if all its values that are equal have one canonical form. So a subclass counts as its base as
long as it keeps the base's ``==``, and an unlisted type is refused, also where it happens to equal a listed one.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final, Literal
from uuid import UUID

Kind = Literal[
    "none",
    "int",
    "float",
    "decimal",
    "numpy int",
    "numpy float",
    "str",
    "bytes",
    "date",
    "datetime",
    "time",
    "timedelta",
    "uuid",
    "enum",
    "flag",
    "tuple",
    "dataclass",
]

_BASES: Final[tuple[tuple[type, Kind], ...]] = (
    (str, "str"),
    (int, "int"),
    (float, "float"),
    (tuple, "tuple"),
    (bytes, "bytes"),
    (datetime, "datetime"),  # before date, whose subclass it is
    (date, "date"),
    (time, "time"),
    (timedelta, "timedelta"),
    (Decimal, "decimal"),
    (UUID, "uuid"),
)

_TYPES_MAX: Final = 4096
_KINDS: Final[dict[type, Kind | None]] = {}
"""What has been found of a type; it is looked up once per key."""

_INSTEAD: Final[dict[str, str]] = {
    "list": "make it a tuple",
    "dict": "take tuple(sorted(d.items()))",
    "set": "take tuple(sorted(s))",
    "frozenset": "take tuple(sorted(s))",
    "bytearray": "take bytes(b)",
    "memoryview": "take bytes(m)",
    "Fraction": "take (f.numerator, f.denominator)",
    "complex": "take (c.real, c.imag)",
    "range": "take (r.start, r.stop, r.step)",
    "ndarray": "take tuple(a.tolist())",
    "datetime64": "take .item(), a datetime",
    "timedelta64": "take .item(), a timedelta",
    "Timestamp": "take .to_pydatetime()",
    "Timedelta": "take .to_pytimedelta()",
}
"""Type name -> what to return from ``key_by`` instead."""


def kind_of(key_type: type) -> Kind | None:
    """What a key of exactly this type counts as; None if it is refused.

    >>> kind_of(bool), kind_of(tuple), kind_of(list)
    ('int', 'tuple', None)
    """
    try:
        return _KINDS[key_type]
    except KeyError:
        if len(_KINDS) >= _TYPES_MAX:  # classes made at run time must not pile up
            _KINDS.clear()
        kind = _KINDS[key_type] = _find_kind(key_type)
        return kind


def compared_fields(key_type: type) -> tuple[str, ...]:
    """The names of the fields by which two instances of a dataclass are compared, in order."""
    return tuple(field.name for field in fields(key_type) if field.compare)


def why_refused(key_type: type) -> str:
    """Why values of a refused type are no keys, and what to do, as the end of a sentence about the type."""
    instead = _INSTEAD.get(key_type.__name__)
    if instead is not None:
        return f"which is no key: {instead}"
    if is_dataclass(key_type):
        if not _params(key_type).frozen:
            return "a dataclass that can change: declare it with @dataclass(frozen=True)"
        return "a dataclass that is not compared by its fields: let @dataclass make its ==, or take a tuple of them"
    if key_type.__hash__ is None:
        return "which cannot be hashed: take something immutable, for instance a tuple"
    base = next((base for base in (*(base for base, _ in _BASES), Enum) if issubclass(key_type, base)), None)
    if base is not None:
        return f"which has an == other than that of {base.__name__}: turn it into a plain {base.__name__} or a tuple"
    return "which is no key: take a str, a number or a tuple that identifies it"


def _find_kind(key_type: type) -> Kind | None:
    if key_type is type(None):
        return "none"
    if key_type.__hash__ is None:
        return None
    numpy_kind = _numpy_kind(key_type)
    if numpy_kind is not None:
        return numpy_kind if numpy_kind != "refused" else None
    for base, kind in _BASES:
        if issubclass(key_type, base):
            return kind if _equality(key_type) is _equality(base) else None
    if issubclass(key_type, Enum):
        if _equality(key_type) is not _equality(object):
            return None
        return "flag" if issubclass(key_type, Flag) else "enum"
    return "dataclass" if _is_value_dataclass(key_type) else None


def _equality(key_type: type) -> object:
    return key_type.__eq__


def _numpy_kind(key_type: type) -> Kind | Literal["refused"] | None:
    """The kind of a scalar type of numpy, None for all other types. Where numpy was never loaded there are none."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not issubclass(key_type, numpy.generic):
        return None
    if issubclass(key_type, numpy.timedelta64):  # to numpy it is a signed integer
        return "refused"
    if issubclass(key_type, (numpy.integer, numpy.bool_)):
        return "numpy int"
    if issubclass(key_type, numpy.floating):
        return "numpy float"
    if issubclass(key_type, numpy.str_):
        return "str"
    return "bytes" if issubclass(key_type, numpy.bytes_) else "refused"


def _is_value_dataclass(key_type: type) -> bool:
    """Whether a type is a frozen dataclass whose ``==`` is the generated one, which compares class and fields.

    A frozen dataclass without ``==`` of its own compares by identity, which means nothing in another process.
    """
    if not is_dataclass(key_type) or not _params(key_type).frozen:
        return False
    code = getattr(key_type.__eq__, "__code__", None)
    return code is not None and code.co_filename == "<string>"  # generated code stands in no file


def _params(key_type: type) -> Any:
    return key_type.__dataclass_params__  # type: ignore[attr-defined]
